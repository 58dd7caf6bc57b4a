//! Activation functions and their gradients. Half floats are computed as f32.

use distribute_core::burn_internals::ir::{
    BinaryOpIr, DimOpIr, HardSigmoidOpIr, ScalarOpIr, UnaryOpIr,
};

use crate::stablehlo::{Binary, Comparison, Unary, Value};

use super::context::Context;
use super::error::Result;
use super::reduction::over;
use super::special::normal_cdf;
use super::types::float;

/// Functions of one tensor.
macro_rules! unary {
    ($($name:ident => $of:ident;)*) => {
        $(pub(super) fn $name(cx: &mut Context, op: &UnaryOpIr) -> Result<()> {
            let x = cx.get(&op.input)?;
            let x = cx.wide(&x);
            let y = $of(cx, &x)?;
            cx.set_as(&op.out, &y)
        })*
    };
}

/// Functions of two tensors: the forward's input or output, and the gradient (or the slope).
macro_rules! binary {
    ($($name:ident => $of:ident;)*) => {
        $(pub(super) fn $name(cx: &mut Context, op: &BinaryOpIr) -> Result<()> {
            let [x, y] = cx.pair(&op.lhs, &op.rhs, &op.out)?;
            let x = cx.wide(&x);
            let y = cx.wide(&y);
            let y = $of(cx, &x, &y)?;
            cx.set_as(&op.out, &y)
        })*
    };
}

/// Functions along one dimension.
macro_rules! along {
    ($($name:ident => $of:ident;)*) => {
        $(pub(super) fn $name(cx: &mut Context, op: &DimOpIr) -> Result<()> {
            let x = cx.get(&op.input)?;
            let x = cx.wide(&x);
            let y = $of(cx, &x, op.axis)?;
            cx.set_as(&op.out, &y)
        })*
    };
}

unary! {
    relu => relu_of;
    gelu => gelu_of;
    sigmoid => sigmoid_of;
    log_sigmoid => log_sigmoid_of;
}

binary! {
    relu_backward => relu_gradient;
    gelu_backward => gelu_gradient;
    sigmoid_backward => sigmoid_gradient;
    log_sigmoid_backward => log_sigmoid_gradient;
    prelu => prelu_of;
}

along! {
    softmax => softmax_of;
    log_softmax => log_softmax_of;
    softmin => softmin_of;
}

fn relu_of(cx: &mut Context, x: &Value) -> Result<Value> {
    cx.with_number(Binary::Maximum, x, 0.0)
}

/// The gradient where the output is positive or NaN.
fn relu_gradient(cx: &mut Context, output: &Value, gradient: &Value) -> Result<Value> {
    let zero = cx.number_like(0.0, output);
    let off = cx.builder.compare(Comparison::Le, output, &zero)?;
    Ok(cx.builder.select(&off, &zero, gradient)?)
}

fn gelu_of(cx: &mut Context, x: &Value) -> Result<Value> {
    let cdf = normal_cdf(cx, x)?;
    cx.binary(Binary::Multiply, x, &cdf)
}

fn gelu_gradient(cx: &mut Context, x: &Value, gradient: &Value) -> Result<Value> {
    let cdf = normal_cdf(cx, x)?;
    let square = cx.binary(Binary::Multiply, x, x)?;
    let exponent = cx.with_number(Binary::Multiply, &square, -0.5)?;
    let exponential = cx.unary(Unary::Exponential, &exponent)?;
    let scale = 1.0 / (2.0 * std::f64::consts::PI).sqrt();
    let pdf = cx.with_number(Binary::Multiply, &exponential, scale)?;
    let slope = cx.binary(Binary::Multiply, x, &pdf)?;
    let slope = cx.binary(Binary::Add, &cdf, &slope)?;
    cx.binary(Binary::Multiply, gradient, &slope)
}

fn sigmoid_of(cx: &mut Context, x: &Value) -> Result<Value> {
    cx.unary(Unary::Logistic, x)
}

fn sigmoid_gradient(cx: &mut Context, output: &Value, gradient: &Value) -> Result<Value> {
    let one = cx.number_like(1.0, output);
    let rest = cx.binary(Binary::Subtract, &one, output)?;
    let scaled = cx.binary(Binary::Multiply, gradient, output)?;
    cx.binary(Binary::Multiply, &scaled, &rest)
}

/// `-(log(1 + exp(-|x|)) - min(x, 0))`, which overflows nowhere and ends in `-0`.
fn log_sigmoid_of(cx: &mut Context, x: &Value) -> Result<Value> {
    let negative = cx.with_number(Binary::Minimum, x, 0.0)?;
    let magnitude = cx.unary(Unary::Abs, x)?;
    let exponent = cx.unary(Unary::Negate, &magnitude)?;
    let exponential = cx.unary(Unary::Exponential, &exponent)?;
    let log = cx.unary(Unary::LogPlusOne, &exponential)?;
    let loss = cx.binary(Binary::Subtract, &log, &negative)?;
    cx.unary(Unary::Negate, &loss)
}

fn log_sigmoid_gradient(cx: &mut Context, x: &Value, gradient: &Value) -> Result<Value> {
    let negative = cx.unary(Unary::Negate, x)?;
    let slope = cx.unary(Unary::Logistic, &negative)?;
    cx.binary(Binary::Multiply, gradient, &slope)
}

fn prelu_of(cx: &mut Context, x: &Value, slope: &Value) -> Result<Value> {
    let zero = cx.number_like(0.0, x);
    let on = cx.builder.compare(Comparison::Ge, x, &zero)?;
    let scaled = cx.binary(Binary::Multiply, slope, x)?;
    Ok(cx.builder.select(&on, x, &scaled)?)
}

pub(super) fn leaky_relu(cx: &mut Context, op: &ScalarOpIr) -> Result<()> {
    let x = cx.get(&op.lhs)?;
    let x = cx.wide(&x);
    let slope = cx.number_like(float(op.rhs), &x);
    let y = prelu_of(cx, &x, &slope)?;
    cx.set_as(&op.out, &y)
}

pub(super) fn hard_sigmoid(cx: &mut Context, op: &HardSigmoidOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let x = cx.wide(&x);
    let scaled = cx.with_number(Binary::Multiply, &x, float(op.alpha))?;
    let moved = cx.with_number(Binary::Add, &scaled, float(op.beta))?;
    let zero = cx.number_like(0.0, &x);
    let one = cx.number_like(1.0, &x);
    let y = cx.builder.clamp(&zero, &moved, &one)?;
    cx.set_as(&op.out, &y)
}

/// `x - max`, `exp` of it and the sum of that, the latter two with the dimensions of `x`.
fn shifted(cx: &mut Context, x: &Value, axis: usize) -> Result<[Value; 3]> {
    let kept: Vec<usize> = (0..x.rank()).filter(|d| *d != axis).collect();
    let max = over(cx, Binary::Maximum, x, &[axis])?;
    let max = cx.spread(&max, x, &kept)?;
    let shifted = cx.binary(Binary::Subtract, x, &max)?;
    let exponential = cx.unary(Unary::Exponential, &shifted)?;
    let sum = over(cx, Binary::Add, &exponential, &[axis])?;
    let sum = cx.spread(&sum, x, &kept)?;
    Ok([shifted, exponential, sum])
}

fn softmax_of(cx: &mut Context, x: &Value, axis: usize) -> Result<Value> {
    let [_, exponential, sum] = shifted(cx, x, axis)?;
    cx.binary(Binary::Divide, &exponential, &sum)
}

fn log_softmax_of(cx: &mut Context, x: &Value, axis: usize) -> Result<Value> {
    let [shifted, _, sum] = shifted(cx, x, axis)?;
    let log = cx.unary(Unary::Log, &sum)?;
    cx.binary(Binary::Subtract, &shifted, &log)
}

fn softmin_of(cx: &mut Context, x: &Value, axis: usize) -> Result<Value> {
    let negative = cx.unary(Unary::Negate, x)?;
    softmax_of(cx, &negative, axis)
}
