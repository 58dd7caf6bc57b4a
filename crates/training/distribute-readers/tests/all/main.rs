//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod bad_input;
mod columns;
mod common;
mod digits;
mod examples;
mod files;
mod hostile;
mod inputs;
mod sizes;
mod streams;
mod taken_for;
