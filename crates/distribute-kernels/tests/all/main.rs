//! The kernels beside burn's own.

mod conv;
mod max_pool;
mod support;
