//! The kernels beside burn's own.

mod conv;
mod conv_accuracy;
mod max_pool;
mod recurrence;
mod rows;
mod support;
