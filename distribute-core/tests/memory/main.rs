//! How much memory steps take, by an allocator that counts.

mod activations;
mod checkpoints;
mod counting;
mod evaluation;
mod zero_copy;
