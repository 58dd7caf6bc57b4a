//! `fit`, `evaluate` and `predict` with their callbacks, on a small classification problem that is
//! the same in every run.

mod anywhere;
mod bits;
mod burns_losses;
mod callbacks;
mod files;
mod resume;
mod side_outputs;
mod training;
