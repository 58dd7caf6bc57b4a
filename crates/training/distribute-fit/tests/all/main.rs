//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod common;
mod data_sets;
mod fit;
mod kept;
mod multi_worker;
mod remote;
mod several_states;
