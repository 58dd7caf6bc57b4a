//! Layer and batch normalization.

use distribute_core::burn_internals::ir::{BatchNormOpIr, LayerNormOpIr};

use crate::stablehlo::{Binary, Unary};

use super::context::Context;
use super::error::Result;
use super::reduction::mean_over;
use super::types::float;

/// Over the last dimension, with the biased variance.
pub(super) fn layer_norm(cx: &mut Context, op: &LayerNormOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = cx.wide(&x);
    let last = x.rank() - 1;
    let rows: Vec<usize> = (0..last).collect();
    let mean = mean_over(cx, &x, &[last])?;
    let mean = cx.spread(&mean, &x, &rows)?;
    let centered = cx.binary(Binary::Subtract, &x, &mean)?;
    let square = cx.binary(Binary::Multiply, &centered, &centered)?;
    let variance = mean_over(cx, &square, &[last])?;
    let variance = cx.with_number(Binary::Add, &variance, float(op.epsilon))?;
    let deviation = cx.unary(Unary::Sqrt, &variance)?;
    let deviation = cx.spread(&deviation, &x, &rows)?;
    let normalized = cx.binary(Binary::Divide, &centered, &deviation)?;
    let gamma = cx.get(&op.gamma)?;
    let gamma = cx.wide(&gamma);
    let gamma = cx.spread(&gamma, &x, &[last])?;
    let mut y = cx.binary(Binary::Multiply, &normalized, &gamma)?;
    if let Some(beta) = &op.beta {
        let beta = cx.get(beta)?;
        let beta = cx.wide(&beta);
        let beta = cx.spread(&beta, &x, &[last])?;
        y = cx.binary(Binary::Add, &y, &beta)?;
    }
    cx.set_as(&op.out, &y)
}

/// With given statistics per channel, dimension 1.
pub(super) fn batch_norm(cx: &mut Context, op: &BatchNormOpIr) -> Result<()> {
    let x = cx.get(&op.x)?;
    let x = cx.wide(&x);
    let mut channels = Vec::with_capacity(4);
    for tensor in [&op.mean, &op.variance, &op.gamma, &op.beta] {
        let value = cx.get(tensor)?;
        channels.push(cx.wide(&value));
    }
    let variance = cx.with_number(Binary::Add, &channels[1], float(op.epsilon))?;
    channels[1] = cx.unary(Unary::Sqrt, &variance)?;
    let mut y = x.clone();
    let steps = [
        Binary::Subtract,
        Binary::Divide,
        Binary::Multiply,
        Binary::Add,
    ];
    for (how, channel) in steps.into_iter().zip(&channels) {
        let channel = cx.spread(channel, &x, &[1])?;
        y = cx.binary(how, &y, &channel)?;
    }
    cx.set_as(&op.out, &y)
}
