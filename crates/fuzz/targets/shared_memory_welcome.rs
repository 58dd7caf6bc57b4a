//! Any bytes as the packet that passes a shared segment on: refused, or a layout that lies in the
//! segment.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| distribute_collectives::fuzzing::shared_memory_welcome(bytes));
