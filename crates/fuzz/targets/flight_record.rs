//! Any bytes as the flight record of a rank: an error or a record.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| distribute_blame::fuzzing::flight_record(bytes));
