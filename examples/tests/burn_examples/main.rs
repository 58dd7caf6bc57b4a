//! burn's own examples, written anew: the loop as a program of burn has it, and the same under
//! strategies, with the losses of burn's loop over 30 steps.

mod changed_lines;
mod custom_training_loop;
mod digits;
mod dqn;
mod harness;
mod mnist;
mod modern_lstm;
mod norm;
mod quick_start;
mod regression;
mod text_classification;
mod wgan;
