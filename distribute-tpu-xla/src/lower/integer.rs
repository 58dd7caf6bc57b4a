//! Operations of integers and truth values alone, and conversions between element types.

use distribute_core::burn_internals::ir::{BinaryOpIr, CastOpIr, ScalarIr, ScalarOpIr, UnaryOpIr};

use crate::stablehlo::{Binary, Comparison, ElementType, Unary, Value};

use super::context::Context;
use super::error::Result;
use super::types::{element_type, integer};

fn binary(cx: &mut Context, op: &BinaryOpIr, how: Binary) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = cx.binary(how, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

fn scalar(cx: &mut Context, op: &ScalarOpIr, how: Binary) -> Result<()> {
    let lhs = cx.get(&op.lhs)?;
    let rhs = cx.scalar_like(op.rhs, &lhs);
    let x = cx.binary(how, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

pub(super) fn and(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    binary(cx, op, Binary::And)
}

pub(super) fn or(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    binary(cx, op, Binary::Or)
}

pub(super) fn xor(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    binary(cx, op, Binary::Xor)
}

pub(super) fn and_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    scalar(cx, op, Binary::And)
}

pub(super) fn or_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    scalar(cx, op, Binary::Or)
}

pub(super) fn xor_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    scalar(cx, op, Binary::Xor)
}

pub(super) fn not(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = cx.unary(Unary::Not, &x)?;
    cx.set(&op.out, x)
}

pub(super) fn shift_left(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = shift(cx, &lhs, &rhs, true)?;
    cx.set(&op.out, x)
}

pub(super) fn shift_right(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = shift(cx, &lhs, &rhs, false)?;
    cx.set(&op.out, x)
}

pub(super) fn shift_left_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    shift_scalar(cx, op, true)
}

pub(super) fn shift_right_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    shift_scalar(cx, op, false)
}

fn shift_scalar(cx: &mut Context, op: &ScalarOpIr, left: bool) -> Result<()> {
    let lhs = cx.get(&op.lhs)?;
    let bits = lhs.element().size_in_bytes() as i64 * 8;
    let by = ScalarIr::Int(integer(op.rhs).rem_euclid(bits));
    let by = cx.scalar_like(by, &lhs);
    let x = shift(cx, &lhs, &by, left)?;
    cx.set(&op.out, x)
}

/// A shift by more than the width starts again at zero; signed integers keep their sign.
fn shift(cx: &mut Context, lhs: &Value, by: &Value, left: bool) -> Result<Value> {
    let bits = lhs.element().size_in_bytes() as f64 * 8.0;
    let by = cx.with_number(Binary::And, by, bits - 1.0)?;
    let how = match (left, lhs.element().is_signed()) {
        (true, _) => Binary::ShiftLeft,
        (false, true) => Binary::ShiftRightArithmetic,
        (false, false) => Binary::ShiftRightLogical,
    };
    cx.binary(how, lhs, &by)
}

/// A conversion that cannot leave the range of the target: to a float, or between integers, where
/// the low bits stay.
pub(super) fn cast(cx: &mut Context, op: &CastOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let element = element_type(op.out.dtype)?;
    if x.element().is_float() && element.is_integer() {
        return into_int(cx, op);
    }
    cx.set_as(&op.out, &x)
}

/// Float to integer as Rust's `as`: truncated, saturating, NaN as 0.
pub(super) fn into_int(cx: &mut Context, op: &CastOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let element = element_type(op.out.dtype)?;
    let x = saturating(cx, &x, element)?;
    cx.set(&op.out, x)
}

fn saturating(cx: &mut Context, x: &Value, element: ElementType) -> Result<Value> {
    // Narrow floats do not hold the limits of wide integers.
    let x = cx.wide(x);
    let bits = element.size_in_bytes() as i32 * 8;
    let (low, high) = if element.is_signed() {
        (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1))
    } else {
        (0.0, 2f64.powi(bits))
    };
    let max = if element.is_signed() {
        u64::MAX >> (65 - bits)
    } else {
        u64::MAX >> (64 - bits)
    };
    let min = if element.is_signed() {
        -1i64 << (bits - 1)
    } else {
        0
    };
    let low_limit = cx.number_like(low, &x);
    let high_limit = cx.number_like(high, &x);
    let too_low = cx.builder.compare(Comparison::Le, &x, &low_limit)?;
    let too_high = cx.builder.compare(Comparison::Ge, &x, &high_limit)?;
    let nan = cx.is_nan(&x)?;
    let outside = cx.binary(Binary::Or, &too_low, &too_high)?;
    let outside = cx.binary(Binary::Or, &outside, &nan)?;
    let zero = cx.number_like(0.0, &x);
    // The conversion of what does not fit is unspecified, so it gets a zero instead.
    let inside = cx.builder.select(&outside, &zero, &x)?;
    let converted = cx.builder.convert(&inside, element);
    let min = cx.builder.splat(x.dims(), element, min);
    let max = cx
        .builder
        .splat(x.dims(), element, crate::stablehlo::Scalar::UInt(max));
    let converted = cx.builder.select(&too_low, &min, &converted)?;
    Ok(cx.builder.select(&too_high, &max, &converted)?)
}
