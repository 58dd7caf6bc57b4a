//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod counted;
mod deviations;
mod documents;
mod errors;
mod everything;
mod misuse;
mod other_inputs;
mod tpu;
