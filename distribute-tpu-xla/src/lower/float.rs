//! Functions of floats.

use distribute_core::burn_internals::ir::{BinaryOpIr, CrossOpIr, UnaryOpIr};

use crate::stablehlo::{Binary, Comparison, Unary, Value};

use super::context::Context;
use super::error::Result;
use super::special;

/// A function of one float that StableHLO has under another name.
macro_rules! functions {
    ($($name:ident => $how:expr;)*) => {
        $(pub(super) fn $name(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
            let x = cx.in_any_dims(&op.input)?;
            let x = cx.unary($how, &x)?;
            cx.set_view(&op.out, x)
        })*
    };
}

functions! {
    exp => Unary::Exponential;
    log => Unary::Log;
    log1p => Unary::LogPlusOne;
    sqrt => Unary::Sqrt;
    tanh => Unary::Tanh;
    sin => Unary::Sine;
    cos => Unary::Cosine;
    floor => Unary::Floor;
    ceil => Unary::Ceil;
    round => Unary::RoundNearestEven;
}

/// Functions made of several operations: half floats are computed as f32.
macro_rules! composed {
    ($($name:ident => $of:expr;)*) => {
        $(pub(super) fn $name(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
            let x = cx.get(&op.input)?;
            let x = cx.wide(&x);
            let x = $of(cx, &x)?;
            cx.set_as(&op.out, &x)
        })*
    };
}

composed! {
    erf => special::erf;
    tan => tangent;
    sinh => hyperbolic_sine;
    cosh => hyperbolic_cosine;
    acos => arc_cosine;
    asin => arc_sine;
    atan => arc_tangent;
    acosh => area_cosine;
    asinh => area_sine;
    atanh => area_tangent;
    trunc => truncate;
    recip => reciprocal;
}

fn tangent(cx: &mut Context, x: &Value) -> Result<Value> {
    let sine = cx.unary(Unary::Sine, x)?;
    let cosine = cx.unary(Unary::Cosine, x)?;
    cx.binary(Binary::Divide, &sine, &cosine)
}

/// `(e - e / (e + 1)...)`: by way of `e^x - 1`, which is exact where `e^x - e^-x` cancels.
fn hyperbolic_sine(cx: &mut Context, x: &Value) -> Result<Value> {
    let magnitude = cx.unary(Unary::Abs, x)?;
    let grown = cx.unary(Unary::ExponentialMinusOne, &magnitude)?;
    let more = cx.with_number(Binary::Add, &grown, 1.0)?;
    let ratio = cx.binary(Binary::Divide, &grown, &more)?;
    let sum = cx.binary(Binary::Add, &grown, &ratio)?;
    let small = cx.with_number(Binary::Multiply, &sum, 0.5)?;
    // Where e^x overflows, half of it does not yet: e^(x - ln 2).
    let shifted = cx.with_number(Binary::Subtract, &magnitude, std::f64::consts::LN_2)?;
    let large = cx.unary(Unary::Exponential, &shifted)?;
    let limit = cx.number_like(20.0, x);
    let is_large = cx.builder.compare(Comparison::Gt, &magnitude, &limit)?;
    let result = cx.builder.select(&is_large, &large, &small)?;
    with_sign_of(cx, x, &result)
}

/// Extends a result for `|x|` to an odd function of `x`; a zero keeps its sign.
fn with_sign_of(cx: &mut Context, x: &Value, result: &Value) -> Result<Value> {
    let negative = cx.unary(Unary::Negate, result)?;
    let zero = cx.number_like(0.0, x);
    let below = cx.builder.compare(Comparison::Lt, x, &zero)?;
    let signed = cx.builder.select(&below, &negative, result)?;
    let is_zero = cx.builder.compare(Comparison::Eq, x, &zero)?;
    Ok(cx.builder.select(&is_zero, x, &signed)?)
}

fn hyperbolic_cosine(cx: &mut Context, x: &Value) -> Result<Value> {
    let shift = std::f64::consts::LN_2;
    let up = cx.with_number(Binary::Subtract, x, shift)?;
    let up = cx.unary(Unary::Exponential, &up)?;
    let down = cx.unary(Unary::Negate, x)?;
    let down = cx.with_number(Binary::Subtract, &down, shift)?;
    let down = cx.unary(Unary::Exponential, &down)?;
    cx.binary(Binary::Add, &up, &down)
}

/// `sqrt((1 - x) (1 + x))`, exact near 1.
fn complement(cx: &mut Context, x: &Value) -> Result<Value> {
    let one = cx.number_like(1.0, x);
    let less = cx.binary(Binary::Subtract, &one, x)?;
    let more = cx.binary(Binary::Add, &one, x)?;
    let product = cx.binary(Binary::Multiply, &less, &more)?;
    cx.unary(Unary::Sqrt, &product)
}

fn arc_cosine(cx: &mut Context, x: &Value) -> Result<Value> {
    let side = complement(cx, x)?;
    cx.binary(Binary::Atan2, &side, x)
}

fn arc_sine(cx: &mut Context, x: &Value) -> Result<Value> {
    let side = complement(cx, x)?;
    cx.binary(Binary::Atan2, x, &side)
}

fn arc_tangent(cx: &mut Context, x: &Value) -> Result<Value> {
    cx.with_number(Binary::Atan2, x, 1.0)
}

/// `ln(x + sqrt(x^2 - 1))` by way of `x - 1`, which keeps the digits near 1.
fn area_cosine(cx: &mut Context, x: &Value) -> Result<Value> {
    let less = cx.with_number(Binary::Subtract, x, 1.0)?;
    let more = cx.with_number(Binary::Add, x, 1.0)?;
    let less_root = cx.unary(Unary::Sqrt, &less)?;
    let more_root = cx.unary(Unary::Sqrt, &more)?;
    let root = cx.binary(Binary::Multiply, &less_root, &more_root)?;
    let sum = cx.binary(Binary::Add, &less, &root)?;
    cx.unary(Unary::LogPlusOne, &sum)
}

/// `sign(x) ln(|x| + sqrt(x^2 + 1))` by way of `ln(1 + ..)`; where the square could overflow,
/// `ln|x| + ln 2`, which is the same number there.
fn area_sine(cx: &mut Context, x: &Value) -> Result<Value> {
    let magnitude = cx.unary(Unary::Abs, x)?;
    let square = cx.binary(Binary::Multiply, x, x)?;
    let next = cx.with_number(Binary::Add, &square, 1.0)?;
    let root = cx.unary(Unary::Sqrt, &next)?;
    let below = cx.with_number(Binary::Add, &root, 1.0)?;
    let ratio = cx.binary(Binary::Divide, &square, &below)?;
    let sum = cx.binary(Binary::Add, &magnitude, &ratio)?;
    let small = cx.unary(Unary::LogPlusOne, &sum)?;
    let large = cx.unary(Unary::Log, &magnitude)?;
    let large = cx.with_number(Binary::Add, &large, std::f64::consts::LN_2)?;
    let limit = cx.number_like(1e9, x);
    let is_large = cx.builder.compare(Comparison::Gt, &magnitude, &limit)?;
    let result = cx.builder.select(&is_large, &large, &small)?;
    with_sign_of(cx, x, &result)
}

fn area_tangent(cx: &mut Context, x: &Value) -> Result<Value> {
    let negative = cx.unary(Unary::Negate, x)?;
    let more = cx.unary(Unary::LogPlusOne, x)?;
    let less = cx.unary(Unary::LogPlusOne, &negative)?;
    let difference = cx.binary(Binary::Subtract, &more, &less)?;
    cx.with_number(Binary::Multiply, &difference, 0.5)
}

/// Towards zero.
fn truncate(cx: &mut Context, x: &Value) -> Result<Value> {
    let floor = cx.unary(Unary::Floor, x)?;
    let ceil = cx.unary(Unary::Ceil, x)?;
    let zero = cx.number_like(0.0, x);
    let below = cx.builder.compare(Comparison::Lt, x, &zero)?;
    Ok(cx.builder.select(&below, &ceil, &floor)?)
}

pub(super) fn reciprocal(cx: &mut Context, x: &Value) -> Result<Value> {
    let one = cx.number_like(1.0, x);
    cx.binary(Binary::Divide, &one, x)
}

pub(super) fn atan2(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let x = cx.binary(Binary::Atan2, &lhs, &rhs)?;
    cx.set(&op.out, x)
}

/// `sqrt(x^2 + y^2)` without the overflow of the squares.
pub(super) fn hypot(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let lhs = cx.wide(&lhs);
    let rhs = cx.wide(&rhs);
    let lhs = cx.unary(Unary::Abs, &lhs)?;
    let rhs = cx.unary(Unary::Abs, &rhs)?;
    let large = cx.binary(Binary::Maximum, &lhs, &rhs)?;
    let small = cx.binary(Binary::Minimum, &lhs, &rhs)?;
    let ratio = cx.binary(Binary::Divide, &small, &large)?;
    let square = cx.binary(Binary::Multiply, &ratio, &ratio)?;
    let sum = cx.with_number(Binary::Add, &square, 1.0)?;
    let root = cx.unary(Unary::Sqrt, &sum)?;
    let length = cx.binary(Binary::Multiply, &large, &root)?;
    // 0/0 and infinity/infinity are no ratios; the length is then the larger one.
    let zero = cx.number_like(0.0, &large);
    let infinity = cx.number_like(f64::INFINITY, &large);
    let is_zero = cx.builder.compare(Comparison::Eq, &large, &zero)?;
    let is_infinite = cx.builder.compare(Comparison::Eq, &large, &infinity)?;
    let degenerate = cx.binary(Binary::Or, &is_zero, &is_infinite)?;
    let length = cx.builder.select(&degenerate, &large, &length)?;
    cx.set_as(&op.out, &length)
}

pub(super) fn is_nan(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = cx.is_nan(&x)?;
    cx.set(&op.out, x)
}

pub(super) fn is_inf(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let magnitude = cx.unary(Unary::Abs, &x)?;
    let infinity = cx.number_like(f64::INFINITY, &x);
    let x = cx.builder.compare(Comparison::Eq, &magnitude, &infinity)?;
    cx.set(&op.out, x)
}

/// The product of vectors of three elements along `dim`.
pub(super) fn cross(cx: &mut Context, op: &CrossOpIr) -> Result<()> {
    let [lhs, rhs] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
    let left = rotated(cx, &lhs, op.dim, 1)?;
    let right = rotated(cx, &rhs, op.dim, 2)?;
    let first = cx.binary(Binary::Multiply, &left, &right)?;
    let left = rotated(cx, &lhs, op.dim, 2)?;
    let right = rotated(cx, &rhs, op.dim, 1)?;
    let second = cx.binary(Binary::Multiply, &left, &right)?;
    let x = cx.binary(Binary::Subtract, &first, &second)?;
    cx.set(&op.out, x)
}

/// Element `i` is element `i + by` of the dimension, cyclically.
fn rotated(cx: &mut Context, x: &Value, dim: usize, by: usize) -> Result<Value> {
    let ones = vec![1; x.rank()];
    let mut start = vec![0; x.rank()];
    let mut limit = x.dims().to_vec();
    start[dim] = by;
    let front = cx.builder.slice(x, &start, &limit, &ones)?;
    (start[dim], limit[dim]) = (0, by);
    let back = cx.builder.slice(x, &start, &limit, &ones)?;
    Ok(cx.builder.concatenate(&[front, back], dim)?)
}
