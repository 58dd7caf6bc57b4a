//! All tests of this crate's interface in one program, because linking takes longer than compiling.
//! What must be alone in its process starts the program again.

mod leaks;
mod lower;
mod page;
mod pjrt;
mod plugins;
mod strategy;
