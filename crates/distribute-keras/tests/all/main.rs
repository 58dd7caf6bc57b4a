//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod models;
mod options;
