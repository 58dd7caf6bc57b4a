//! All tests of this crate in one program, because linking takes longer than compiling.

mod common;
mod datasets;
mod design_program;
mod distribution;
mod losses;
mod padding;
mod reported_loss;
mod same_bits;
mod supervised;
mod uneven_workers;
