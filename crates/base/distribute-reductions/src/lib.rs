//! The arithmetic of reductions: plain loops over slices that the compiler vectorises.
//!
//! Rules for every loop here:
//!
//! - `f32 f64 i32 i64 u8` are combined in their own type. Integer sums and products wrap around.
//! - `f16` and `bf16` are combined in `f32`, and rounded to nearest even.
//! - [`ReduceOp::Mean`] is the sum divided by the number of ranks, as in TensorFlow
//!   (`cross_device_ops.py`). For floats that is one division at the end, not a multiplication
//!   by a reciprocal. For integers it is the wrapped sum divided with truncation toward zero:
//!   TensorFlow returns floats there, so convert before the call when the fraction matters.
//! - [`ReduceOp::Min`] and [`ReduceOp::Max`] return NaN when any value is NaN (IEEE 754-2019
//!   `minimum`/`maximum`). Which NaN, and which zero when both occur, follows from the order of the
//!   values.
//! - A sum, mean or product of several values that is NaN is the NaN whose bits are all set:
//!   which of two NaNs an addition returns is up to the compiler, and all ranks must have the same
//!   one.
//!
//! `distribute-collectives` says in which order the values of many ranks are combined.

#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod halves;
mod loops;
mod number;
mod op;

pub use op::{ReduceOp, Side};

/// How an element type is turned into the type it is accumulated in, and back.
pub trait Arithmetic: bytemuck::Pod + Send + Sync {
    /// `f32` for the two half types, the type itself for all others.
    type Acc: Accumulator;
    /// Whether the type is its own accumulator.
    const NATIVE: bool;
    /// Converts (exactly). Both slices have one length.
    fn widen(src: &[Self], dst: &mut [Self::Acc]);
    /// Converts, rounding to nearest even. Both slices have one length.
    fn narrow(src: &[Self::Acc], dst: &mut [Self]);
}

/// A type that reductions are computed in: `f32 f64 i32 i64 u8`.
pub trait Accumulator: Arithmetic<Acc = Self> + number::Number {
    /// `dst[i] = dst[i] op src[i]` for the elements whose bytes are `src`, or with the sides
    /// exchanged where `src` is the left one. [`ReduceOp::Mean`] adds.
    ///
    /// The bytes need not be aligned: a frame lies where its transport has received it. The shorter
    /// of the two decides, and a part of an element at the end is left out.
    fn combine(op: ReduceOp, dst: &mut [Self], src: &[u8], side: Side);

    /// Divides every value by `count`; integers truncate toward zero.
    fn divide(values: &mut [Self], count: usize);

    /// Reduces few inputs in one pass, in their order: `(0 op 1) op 2`, or `(0 op 1) op (2 op 3)`.
    ///
    /// # Panics
    /// When an input is shorter than the output.
    fn reduce_into(op: ReduceOp, inputs: Few<&[Self]>, output: &mut [Self]);

    /// [`reduce_into`](Self::reduce_into) where each input gets the result.
    ///
    /// # Panics
    /// When a slice is shorter than the first one.
    fn reduce_all(op: ReduceOp, slices: Few<&mut [Self]>);
}

/// As many inputs as one pass over memory combines in registers.
pub enum Few<S> {
    /// Two of them.
    Two([S; 2]),
    /// Three of them.
    Three([S; 3]),
    /// Four of them.
    Four([S; 4]),
}

// Written out for each type instead of provided by the trait: a provided function would be compiled
// in each crate that calls it.
macro_rules! accumulator {
    ($($type:ty),*) => {$(
        impl Arithmetic for $type {
            type Acc = $type;
            const NATIVE: bool = true;

            fn widen(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }

            fn narrow(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }
        }

        impl Accumulator for $type {
            fn combine(op: ReduceOp, dst: &mut [Self], src: &[u8], side: Side) {
                loops::combine(op, dst, src, side);
            }

            fn divide(values: &mut [Self], count: usize) {
                loops::divide(values, count);
            }

            fn reduce_into(op: ReduceOp, inputs: Few<&[Self]>, output: &mut [Self]) {
                match inputs {
                    Few::Two(inputs) => loops::reduce_into(op, inputs, output),
                    Few::Three(inputs) => loops::reduce_into(op, inputs, output),
                    Few::Four(inputs) => loops::reduce_into(op, inputs, output),
                }
            }

            fn reduce_all(op: ReduceOp, slices: Few<&mut [Self]>) {
                match slices {
                    Few::Two(slices) => loops::reduce_all(op, slices),
                    Few::Three(slices) => loops::reduce_all(op, slices),
                    Few::Four(slices) => loops::reduce_all(op, slices),
                }
            }
        }
    )*};
}
accumulator!(f32, f64, i32, i64, u8);
