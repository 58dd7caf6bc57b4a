//! Scaled dot-product attention, `softmax(q k^T scale) v` over `[batch, heads, sequence, width]`.

use distribute_core::burn_internals::ir::AttentionOpIr;

use crate::stablehlo::{Binary, Comparison, ElementType, TensorType, Unary, Value};

use super::context::Context;
use super::error::Result;
use super::matmul::product;
use super::reduction::over;
use super::types::float;

pub(super) fn attention(cx: &mut Context, op: &AttentionOpIr) -> Result<()> {
    let query = cx.get(&op.query)?;
    let key = cx.get(&op.key)?;
    let value = cx.get(&op.value)?;
    let width = *query.dims().last().unwrap_or(&1) as f64;
    let scale = op.options.scale.map_or(1.0 / width.sqrt(), float);
    let [query, key, value] = [cx.wide(&query), cx.wide(&key), cx.wide(&value)];
    let key = cx.builder.transpose(&key, &[0, 1, 3, 2])?;
    let mut dims = query.dims().to_vec();
    dims[3] = key.dims()[3];
    let scores = product(cx, &query, &key, &dims)?;
    let scores = cx.with_number(Binary::Multiply, &scores, scale)?;
    let scores = masked(cx, op, scores)?;
    let weights = safe_softmax(cx, &scores)?;
    let y = product(cx, &weights, &value, &op.out.shape)?;
    cx.set_as(&op.out, &y)
}

/// Soft cap, mask, causality and bias, in this order.
fn masked(cx: &mut Context, op: &AttentionOpIr, mut scores: Value) -> Result<Value> {
    if let Some(cap) = op.options.softcap.map(float) {
        let scaled = cx.with_number(Binary::Divide, &scores, cap)?;
        let tanh = cx.unary(Unary::Tanh, &scaled)?;
        scores = cx.with_number(Binary::Multiply, &tanh, cap)?;
    }
    let lowest = cx.number_like(f64::NEG_INFINITY, &scores);
    if let Some(mask) = &op.mask {
        let mask = cx.get(mask)?;
        let mask = cx.builder.broadcast_to(&mask, scores.dims())?;
        scores = cx.builder.select(&mask, &lowest, &scores)?;
    }
    if op.options.is_causal {
        let future = future(cx, &scores)?;
        scores = cx.builder.select(&future, &lowest, &scores)?;
    }
    if let Some(bias) = &op.attn_bias {
        let bias = cx.get(bias)?;
        let bias = cx.wide(&bias);
        let bias = cx.builder.broadcast_to(&bias, scores.dims())?;
        scores = cx.binary(Binary::Add, &scores, &bias)?;
    }
    Ok(scores)
}

/// Which keys lie after their query, when the last query belongs to the last key.
fn future(cx: &mut Context, scores: &Value) -> Result<Value> {
    let [queries, keys] = [scores.dims()[2], scores.dims()[3]];
    let ty = TensorType::new([queries, keys], ElementType::I32);
    let row = cx.builder.iota(ty.clone(), 0)?;
    let column = cx.builder.iota(ty, 1)?;
    let row = cx.with_number(Binary::Add, &row, keys as f64 - queries as f64)?;
    let future = cx.builder.compare(Comparison::Lt, &row, &column)?;
    cx.spread(&future, scores, &[2, 3])
}

/// A softmax over the last dimension that gives zeros for a row of nothing but -inf.
fn safe_softmax(cx: &mut Context, scores: &Value) -> Result<Value> {
    let rows = [0, 1, 2];
    let double = scores.element() == ElementType::F64;
    let (lowest, smallest) = if double {
        (f64::MIN, f64::MIN_POSITIVE)
    } else {
        (f64::from(f32::MIN), f64::from(f32::MIN_POSITIVE))
    };
    let max = over(cx, Binary::Maximum, scores, &[3])?;
    let max = cx.with_number(Binary::Maximum, &max, lowest)?;
    let max = cx.spread(&max, scores, &rows)?;
    let shifted = cx.binary(Binary::Subtract, scores, &max)?;
    let exponential = cx.unary(Unary::Exponential, &shifted)?;
    let sum = over(cx, Binary::Add, &exponential, &[3])?;
    let sum = cx.with_number(Binary::Maximum, &sum, smallest)?;
    let sum = cx.spread(&sum, scores, &rows)?;
    cx.binary(Binary::Divide, &exponential, &sum)
}
