//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod bad_input;
mod comparison;
mod curves;
mod data;
