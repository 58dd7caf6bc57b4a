//! Max-pooling, convolution and recurrent layers for burn's CPU backend, with gradients, faster
//! than burn's own.
//!
//! [`max_pool2d`] and [`conv2d`] have the signatures of burn's functions, [`conv2d_relu`] is
//! the latter with an activation, and [`nn`] has the layers that use them. [`Recurrence`]
//! reads whole sequences:
//!
//! ```
//! use burn::nn::conv::Conv2dConfig;
//! use burn::nn::pool::MaxPool2dConfig;
//! use burn::tensor::{Device, Tensor};
//! use distribute_kernels::nn::{Conv2d, MaxPool2d};
//!
//! let device = Device::flex().autodiff();
//! let conv = Conv2d::from(Conv2dConfig::new([3, 8], [3, 3]).init(&device));
//! let pool = MaxPool2d::from(MaxPool2dConfig::new([2, 2]).init());
//! let images = Tensor::<4>::ones([1, 3, 10, 10], &device);
//! assert_eq!(pool.forward(conv.forward_relu(images)).dims(), [1, 8, 4, 4]);
//! ```
//!
//! burn-flex 0.22.1 pools one output at a time, with an index of eight bytes for each, and copies
//! every patch of an image before it convolves; the training of a small CNN spends nine tenths of
//! its time there. The results of the max-pooling are burn's bit for bit, the results of the
//! convolution to rounding: the documentation of [`conv2d`] says in which order it adds.
//!
//! What is not f32 on burn's CPU backend goes to burn: other types, GPUs, captured steps, and
//! gradients that are computed with gradient checkpointing. So a program may use these functions
//! everywhere, and can go back to burn's by changing a `use`.
//!
//! A kernel runs on the thread that calls it, and its result depends on its inputs only: neither on
//! the number of threads nor on that of replicas, nor on how wide the CPU's vectors are ([`pulp`]
//! finds out; without AVX2 or NEON convolutions are burn's).

#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod axis;
mod conv;
mod max_pool;
pub mod nn;
mod operand;
mod recurrence;
mod tile;
mod vectors;

pub use conv::{conv2d, conv2d_relu};
pub use max_pool::max_pool2d;
pub use recurrence::{Cell, Recurrence};
