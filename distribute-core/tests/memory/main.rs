//! How much memory steps take, by an allocator that counts.

mod activations;
mod checkpoints;
mod counting;
mod zero_copy;
