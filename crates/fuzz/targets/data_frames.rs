//! Any bytes, in any pieces, as the body of a data stream: an error or whole messages, and never
//! more memory than the largest allowed message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| distribute_collectives::fuzzing::data_frames(bytes));
