//! Arithmetic, comparisons and choices on each element, of floats and integers alike.

use distribute_core::burn_internals::ir::{
    BinaryOpIr, ClampOpIr, MaskFillOpIr, MaskWhereOpIr, ScalarIr, ScalarOpIr, TensorIr, UnaryOpIr,
};

use crate::stablehlo::{Binary, Comparison, ElementType, Scalar, Unary, Value};

use super::context::Context;
use super::error::Result;
use super::types::{float, integer};

/// `lhs op rhs`, both broadcast.
fn binary(cx: &mut Context, op: &BinaryOpIr, how: Binary) -> Result<()> {
    if let Some([lhs, rhs]) = in_dims_of_argument(cx, op)? {
        let x = cx.binary(how, &lhs, &rhs)?;
        return cx.set_view(&op.out, x);
    }
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = cx.binary(how, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

/// The operands of an operation without broadcasts, except of single numbers, in the dimensions of
/// a donated argument, if one of them shows one in other dimensions ([`Context::argument_behind`]).
fn in_dims_of_argument(cx: &mut Context, op: &BinaryOpIr) -> Result<Option<[Value; 2]>> {
    let sides = [&op.lhs, &op.rhs];
    let single = |side: &TensorIr| side.shape.iter().all(|n| *n == 1);
    if sides
        .iter()
        .any(|side| side.shape != op.out.shape && !single(side))
    {
        return Ok(None);
    }
    let arguments = sides.map(|side| cx.argument_behind(side));
    // A broadcast operand does not have the elements of the result.
    let shows = |(side, value): &(&TensorIr, &Option<Value>)| {
        let other = value
            .as_ref()
            .is_some_and(|value| value.dims() != &op.out.shape[..]);
        other && side.shape == op.out.shape
    };
    let found = sides.into_iter().zip(&arguments).find(shows);
    let Some(dims) = found.and_then(|(_, value)| Some(value.as_ref()?.dims().to_vec())) else {
        return Ok(None);
    };
    let mut operands = Vec::with_capacity(2);
    for (side, argument) in sides.into_iter().zip(arguments) {
        operands.push(match argument {
            Some(value) if value.dims() == dims => value,
            _ if side.shape == op.out.shape => {
                let value = cx.get(side)?;
                cx.builder.reshape(&value, &dims)?
            }
            _ => {
                let value = cx.get(side)?;
                let value = cx.builder.reshape(&value, &[])?;
                cx.builder.broadcast_in_dim(&value, &dims, &[])?
            }
        });
    }
    Ok(operands.try_into().ok())
}

/// `lhs op scalar`.
fn scalar(cx: &mut Context, op: &ScalarOpIr, how: Binary) -> Result<()> {
    let argument = cx.argument_behind(&op.lhs);
    let lhs = argument.map_or_else(|| cx.get(&op.lhs), Ok)?;
    let rhs = cx.scalar_like(op.rhs, &lhs);
    let x = cx.binary(how, &lhs, &rhs)?;
    cx.set_view(&op.out, x)
}

/// Functions that take an operation of the graph to one of StableHLO with the same meaning.
macro_rules! same_meaning {
    ($($name:ident: $of:ident($op:ty) => $how:expr;)*) => {
        $(pub(super) fn $name(cx: &mut Context, op: &$op) -> Result<()> {
            $of(cx, op, $how)
        })*
    };
}

same_meaning! {
    add: binary(BinaryOpIr) => Binary::Add;
    add_scalar: scalar(ScalarOpIr) => Binary::Add;
    sub: binary(BinaryOpIr) => Binary::Subtract;
    sub_scalar: scalar(ScalarOpIr) => Binary::Subtract;
    mul: binary(BinaryOpIr) => Binary::Multiply;
    mul_scalar: scalar(ScalarOpIr) => Binary::Multiply;
    div: binary(BinaryOpIr) => Binary::Divide;
    div_scalar: scalar(ScalarOpIr) => Binary::Divide;
    clamp_min: limit(ScalarOpIr) => Binary::Maximum;
    clamp_max: limit(ScalarOpIr) => Binary::Minimum;
    abs: unary(UnaryOpIr) => Unary::Abs;
    neg: unary(UnaryOpIr) => Unary::Negate;
    equal: compare(BinaryOpIr) => Comparison::Eq;
    not_equal: compare(BinaryOpIr) => Comparison::Ne;
    greater: compare(BinaryOpIr) => Comparison::Gt;
    greater_equal: compare(BinaryOpIr) => Comparison::Ge;
    lower: compare(BinaryOpIr) => Comparison::Lt;
    lower_equal: compare(BinaryOpIr) => Comparison::Le;
    equal_elem: compare_scalar(ScalarOpIr) => Comparison::Eq;
    not_equal_elem: compare_scalar(ScalarOpIr) => Comparison::Ne;
    greater_elem: compare_scalar(ScalarOpIr) => Comparison::Gt;
    greater_equal_elem: compare_scalar(ScalarOpIr) => Comparison::Ge;
    lower_elem: compare_scalar(ScalarOpIr) => Comparison::Lt;
    lower_equal_elem: compare_scalar(ScalarOpIr) => Comparison::Le;
}

/// `op(x)`. Unsigned integers are their own absolute values.
fn unary(cx: &mut Context, op: &UnaryOpIr, how: Unary) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = match (how, x.element().is_unsigned()) {
        (Unary::Abs, true) => x,
        _ => cx.unary(how, &x)?,
    };
    cx.set(&op.out, x)
}

fn compare(cx: &mut Context, op: &BinaryOpIr, how: Comparison) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = cx.builder.compare(how, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

fn compare_scalar(cx: &mut Context, op: &ScalarOpIr, how: Comparison) -> Result<()> {
    let lhs = cx.get(&op.lhs)?;
    let rhs = cx.scalar_like(op.rhs, &lhs);
    let x = cx.builder.compare(how, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

pub(super) fn rem(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = remainder(cx, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

pub(super) fn rem_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    let lhs = cx.get(&op.lhs)?;
    let rhs = cx.scalar_like(op.rhs, &lhs);
    let x = remainder(cx, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

/// The remainder with the sign of the divisor; StableHLO's has the sign of the dividend.
fn remainder(cx: &mut Context, lhs: &Value, rhs: &Value) -> Result<Value> {
    let remainder = cx.binary(Binary::Remainder, lhs, rhs)?;
    if lhs.element().is_unsigned() {
        return Ok(remainder);
    }
    let zero = cx.number_like(0.0, lhs);
    let not_zero = cx.builder.compare(Comparison::Ne, &remainder, &zero)?;
    let negative = cx.builder.compare(Comparison::Lt, &remainder, &zero)?;
    let divisor_negative = cx.builder.compare(Comparison::Lt, rhs, &zero)?;
    let differ = cx.binary(Binary::Xor, &negative, &divisor_negative)?;
    let wrong = cx.binary(Binary::And, &not_zero, &differ)?;
    let moved = cx.binary(Binary::Add, &remainder, rhs)?;
    Ok(cx.builder.select(&wrong, &moved, &remainder)?)
}

pub(super) fn clamp(cx: &mut Context, op: &ClampOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let x = limited(cx, &x, Binary::Maximum, op.min)?;
    let x = limited(cx, &x, Binary::Minimum, op.max)?;
    cx.set(&op.out, x)
}

fn limit(cx: &mut Context, op: &ScalarOpIr, how: Binary) -> Result<()> {
    let x = cx.get(&op.lhs)?;
    let x = limited(cx, &x, how, op.rhs)?;
    cx.set(&op.out, x)
}

/// The larger (or smaller) one of each element and a scalar. An integer scalar that the element
/// type does not hold, such as -1 for unsigned elements, is outside of all elements: it either
/// changes nothing, or the nearest number of the type is everywhere.
fn limited(cx: &mut Context, x: &Value, how: Binary, scalar: ScalarIr) -> Result<Value> {
    let element = x.element();
    if element.is_integer() {
        let bits = element.size_in_bytes() as u32 * 8;
        let (low, high) = if element.is_signed() {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        };
        let limit = match scalar {
            ScalarIr::UInt(v) => i128::from(v),
            other => i128::from(integer(other)),
        };
        let limit = limit.clamp(low, high);
        let limit = match u64::try_from(limit) {
            Ok(limit) => Scalar::UInt(limit),
            Err(_) => Scalar::Int(limit as i64),
        };
        let limit = cx.builder.splat(x.dims(), element, limit);
        return cx.binary(how, x, &limit);
    }
    let limit = cx.scalar_like(scalar, x);
    cx.binary(how, x, &limit)
}

/// -1, 0 or 1; 0 for NaN.
pub(super) fn sign(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let zero = cx.number_like(0.0, &x);
    let x = if x.element().is_unsigned() {
        let one = cx.number_like(1.0, &x);
        let is_zero = cx.builder.compare(Comparison::Eq, &x, &zero)?;
        cx.builder.select(&is_zero, &zero, &one)?
    } else {
        // Of NaN and of both zeros it is the positive zero.
        let sign = cx.unary(Unary::Sign, &x)?;
        let magnitude = cx.unary(Unary::Abs, &sign)?;
        let some = cx.builder.compare(Comparison::Gt, &magnitude, &zero)?;
        cx.builder.select(&some, &sign, &zero)?
    };
    cx.set(&op.out, x)
}

/// A float or integer to the power of an integer tensor.
pub(super) fn powi(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let rhs = cx.builder.convert(&rhs, lhs.element());
    let x = if lhs.element().is_float() {
        cx.binary(Binary::Power, &lhs, &rhs)?
    } else {
        integer_power(cx, &lhs, &rhs)?
    };
    cx.set(&op.out, x)
}

/// By squaring, modulo the type's range; the exponent's lower 32 bits count as unsigned.
fn integer_power(cx: &mut Context, lhs: &Value, rhs: &Value) -> Result<Value> {
    let mut exponent = cx.builder.convert(rhs, ElementType::U32);
    let one = cx.number_like(1.0, &exponent);
    let zero = cx.number_like(0.0, &exponent);
    let mut result = cx.number_like(1.0, lhs);
    let mut square = lhs.clone();
    for bit in 0..32 {
        let low = cx.binary(Binary::And, &exponent, &one)?;
        let set = cx.builder.compare(Comparison::Ne, &low, &zero)?;
        let multiplied = cx.binary(Binary::Multiply, &result, &square)?;
        result = cx.builder.select(&set, &multiplied, &result)?;
        if bit < 31 {
            exponent = cx.binary(Binary::ShiftRightLogical, &exponent, &one)?;
            square = cx.binary(Binary::Multiply, &square, &square)?;
        }
    }
    Ok(result)
}

pub(super) fn powi_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    let x = cx.get(&op.lhs)?;
    let x = if x.element().is_float() {
        let exponent = cx.number_like(integer(op.rhs) as f64, &x);
        cx.binary(Binary::Power, &x, &exponent)?
    } else {
        constant_power(cx, &x, integer(op.rhs) as u32)?
    };
    cx.set(&op.out, x)
}

/// An integer to a known power.
fn constant_power(cx: &mut Context, x: &Value, mut exponent: u32) -> Result<Value> {
    let mut result = cx.number_like(1.0, x);
    let mut square = x.clone();
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = cx.binary(Binary::Multiply, &result, &square)?;
        }
        exponent >>= 1;
        if exponent > 0 {
            square = cx.binary(Binary::Multiply, &square, &square)?;
        }
    }
    Ok(result)
}

pub(super) fn powf(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    binary(cx, op, Binary::Power)
}

/// A power with a known exponent; whole ones are recorded as [`powi_scalar`] by burn, except those
/// that come from gradients.
pub(super) fn powf_scalar(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    let x = cx.get(&op.lhs)?;
    let exponent = float(op.rhs);
    let x = match exponent {
        2.0 => cx.binary(Binary::Multiply, &x, &x)?,
        1.0 => x,
        _ => cx.with_number(Binary::Power, &x, exponent)?,
    };
    cx.set(&op.out, x)
}

pub(super) fn mask_where(cx: &mut Context, op: &MaskWhereOpIr) -> Result<()> {
    let mask = cx.get(&op.mask)?;
    let mask = cx.builder.broadcast_to(&mask, &op.out.shape)?;
    let [x, value] = cx.pair(&op.tensor, &op.value, &op.out)?;
    let x = cx.builder.select(&mask, &value, &x)?;
    cx.set(&op.out, x)
}

pub(super) fn mask_fill(cx: &mut Context, op: &MaskFillOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let x = cx.builder.broadcast_to(&x, &op.out.shape)?;
    let mask = cx.get(&op.mask)?;
    let mask = cx.builder.broadcast_to(&mask, &op.out.shape)?;
    let value = cx.scalar_like(op.value, &x);
    let x = cx.builder.select(&mask, &value, &x)?;
    cx.set(&op.out, x)
}
