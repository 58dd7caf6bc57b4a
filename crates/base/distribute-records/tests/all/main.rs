//! One program for all tests of this crate's interface.

mod files;
mod hostile;
mod tensorflow;
