//! Any bytes as the header of an operation: an error or a header that encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| distribute_collectives::fuzzing::operation_header(bytes));
