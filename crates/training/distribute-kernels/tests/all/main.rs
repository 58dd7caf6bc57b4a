//! The kernels beside burn's own.

mod conv;
mod conv_accuracy;
mod max_pool;
mod rows;
mod support;
