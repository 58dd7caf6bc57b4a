//! Any bytes as a message of the control plane: an error or a message whose meaning survives being
//! sent once more.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| distribute_collectives::fuzzing::control_message(bytes));
