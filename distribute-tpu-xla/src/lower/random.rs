//! Random tensors as a function of an explicit key: the same key, position in the step and replica
//! give the same numbers on every platform.
//!
//! The numbers come from Threefry-2x32. They differ from the numbers of burn's eager backends,
//! whose generator is one sequence for the whole process.

use burn::tensor::Distribution;
use distribute_core::burn_internals::ir::RandomOpIr;

use crate::stablehlo::{Binary, Comparison, ElementType, Scalar, TensorType, Unary, Value};

use super::context::Context;
use super::error::{Result, unsupported};
use super::types::element_type;

pub(super) fn random(cx: &mut Context, op: &RandomOpIr) -> Result<()> {
    let element = element_type(op.out.dtype)?;
    let dims = op.out.shape.to_vec();
    let x = match op.distribution {
        Distribution::Bernoulli(probability) => bernoulli(cx, &dims, probability)?,
        Distribution::Normal(mean, deviation) => normal(cx, &dims, element, mean, deviation)?,
        Distribution::Default if element.is_integer() => any_integer(cx, &dims, element)?,
        Distribution::Default => uniform(cx, &dims, element, 0.0, 1.0)?,
        Distribution::Uniform(low, high) if element.is_integer() => {
            integer(cx, &dims, element, low as i64, high as i64)?
        }
        Distribution::Uniform(low, high) => uniform(cx, &dims, element, low, high)?,
    };
    let x = match x.element() {
        ElementType::I1 => cx.builder.convert(&x, element),
        _ => x,
    };
    cx.set(&op.out, x)
}

/// The key of this operation on this replica.
fn own_key(cx: &mut Context) -> Result<[Value; 2]> {
    let keys = all_keys(cx)?;
    let own = cx.random_positions.binary_search(&cx.position).unwrap_or(0);
    let mut word = |keys: &Value| -> Result<Value> {
        let word = cx.builder.slice(keys, &[own], &[own + 1], &[1])?;
        Ok(cx.builder.reshape(&word, &[])?)
    };
    Ok([word(&keys[0])?, word(&keys[1])?])
}

/// The keys of all operations, made together: of the step's key, the operation's position and the
/// replica.
fn all_keys(cx: &mut Context) -> Result<[Value; 2]> {
    if let Some(keys) = &cx.random_keys {
        return Ok(keys.clone());
    }
    let Some([first, second]) = cx.key.clone() else {
        return unsupported(
            "random numbers in a step need a key: declare one (`LowerOptions::random_key`)",
        );
    };
    let positions = cx.random_positions.iter();
    let bytes: Vec<u8> = positions.flat_map(|p| (*p as u32).to_le_bytes()).collect();
    let ty = TensorType::new([cx.random_positions.len()], ElementType::U32);
    let positions = cx.builder.constant(ty, &bytes)?;
    let replica = cx.builder.replica_id();
    let replica = cx
        .builder
        .broadcast_in_dim(&replica, positions.dims(), &[])?;
    let keys = cx
        .builder
        .threefry2x32([&first, &second], [&positions, &replica])?;
    cx.random_keys = Some(keys.clone());
    Ok(keys)
}

/// `count` pairs of random words.
fn words(cx: &mut Context, count: usize) -> Result<[Value; 2]> {
    let key = own_key(cx)?;
    let ty = TensorType::new([count], ElementType::U32);
    let counter = cx.builder.iota(ty, 0)?;
    let zero = cx.number_like(0.0, &counter);
    Ok(cx
        .builder
        .threefry2x32([&key[0], &key[1]], [&counter, &zero])?)
}

/// One random word per element, flat.
fn single_words(cx: &mut Context, count: usize) -> Result<Value> {
    let pair = words(cx, count.div_ceil(2))?;
    joined(cx, pair, count)
}

/// The first `count` elements of both halves.
fn joined(cx: &mut Context, halves: [Value; 2], count: usize) -> Result<Value> {
    let both = cx.builder.concatenate(&halves, 0)?;
    Ok(cx.builder.slice(&both, &[0], &[count], &[1])?)
}

/// One random word of 64 bits per element, flat.
fn double_words(cx: &mut Context, count: usize) -> Result<Value> {
    let [low, high] = words(cx, count)?;
    let low = cx.builder.convert(&low, ElementType::U64);
    let high = cx.builder.convert(&high, ElementType::U64);
    let high = cx.with_number(Binary::ShiftLeft, &high, 32.0)?;
    cx.binary(Binary::Or, &low, &high)
}

/// Floats in `[0, 1)` from words of as many bits: their upper bits, as many as the type is exact
/// to, so every multiple of 2^-24 (or 2^-53) comes equally often.
fn unit(cx: &mut Context, words: &Value) -> Result<Value> {
    let (bits, exact, element) = match words.element() {
        ElementType::U64 => (64, 53, ElementType::F64),
        _ => (32, 24, ElementType::F32),
    };
    let upper = cx.with_number(Binary::ShiftRightLogical, words, f64::from(bits - exact))?;
    let upper = cx.builder.convert(&upper, element);
    cx.with_number(Binary::Multiply, &upper, 2f64.powi(-exact))
}

fn flat_unit(cx: &mut Context, count: usize, element: ElementType) -> Result<Value> {
    let words = match element {
        ElementType::F64 => double_words(cx, count)?,
        _ => single_words(cx, count)?,
    };
    unit(cx, &words)
}

fn count(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// `[low, high)`: rounding must not reach `high`.
fn uniform(
    cx: &mut Context,
    dims: &[usize],
    element: ElementType,
    low: f64,
    high: f64,
) -> Result<Value> {
    let unit = flat_unit(cx, count(dims), element)?;
    let scaled = cx.with_number(Binary::Multiply, &unit, high - low)?;
    let moved = cx.with_number(Binary::Add, &scaled, low)?;
    let x = cx.builder.convert(&moved, element);
    let x = cx.builder.reshape(&x, dims)?;
    if low >= high {
        return Ok(x);
    }
    let last = cx.number_like(below(high, element), &x);
    cx.binary(Binary::Minimum, &x, &last)
}

/// The largest number of the type below `high`.
fn below(high: f64, element: ElementType) -> f64 {
    match element {
        ElementType::F64 => high.next_down(),
        ElementType::F32 => f64::from((high as f32).next_down()),
        // The type's own steps: 11 bits for f16, 8 for bf16.
        _ => {
            let bits = if element == ElementType::F16 { 11 } else { 8 };
            let exponent = high.abs().max(f64::MIN_POSITIVE).log2().floor() as i32;
            // Below a power of two the steps are half as large.
            let power = high == 2f64.powi(exponent);
            high - 2f64.powi(exponent + 1 - bits - i32::from(power))
        }
    }
}

/// Whether a uniform number of 24 bits is below the probability.
fn bernoulli(cx: &mut Context, dims: &[usize], probability: f64) -> Result<Value> {
    let unit = flat_unit(cx, count(dims), ElementType::F32)?;
    let unit = cx.builder.reshape(&unit, dims)?;
    let limit = cx.number_like(probability, &unit);
    Ok(cx.builder.compare(Comparison::Lt, &unit, &limit)?)
}

/// By Box and Muller: two normal numbers from two uniform ones.
fn normal(
    cx: &mut Context,
    dims: &[usize],
    element: ElementType,
    mean: f64,
    deviation: f64,
) -> Result<Value> {
    let count = count(dims);
    let half = count.div_ceil(2);
    let [first, second] = match element {
        ElementType::F64 => {
            let all = double_words(cx, half * 2)?;
            let first = cx.builder.slice(&all, &[0], &[half], &[1])?;
            [first, cx.builder.slice(&all, &[half], &[half * 2], &[1])?]
        }
        _ => words(cx, half)?,
    };
    let radius = unit(cx, &first)?;
    let one = cx.number_like(1.0, &radius);
    // In (0, 1], whose logarithm is finite.
    let radius = cx.binary(Binary::Subtract, &one, &radius)?;
    let radius = cx.unary(Unary::Log, &radius)?;
    let radius = cx.with_number(Binary::Multiply, &radius, -2.0)?;
    let radius = cx.unary(Unary::Sqrt, &radius)?;
    let angle = unit(cx, &second)?;
    let angle = cx.with_number(Binary::Multiply, &angle, 2.0 * std::f64::consts::PI)?;
    let cosine = cx.unary(Unary::Cosine, &angle)?;
    let sine = cx.unary(Unary::Sine, &angle)?;
    let first = cx.binary(Binary::Multiply, &radius, &cosine)?;
    let second = cx.binary(Binary::Multiply, &radius, &sine)?;
    let x = joined(cx, [first, second], count)?;
    let x = cx.with_number(Binary::Multiply, &x, deviation)?;
    let x = cx.with_number(Binary::Add, &x, mean)?;
    let x = cx.builder.convert(&x, element);
    Ok(cx.builder.reshape(&x, dims)?)
}

fn any_integer(cx: &mut Context, dims: &[usize], element: ElementType) -> Result<Value> {
    let words = double_words(cx, count(dims))?;
    let words = cx.builder.convert(&words, element);
    Ok(cx.builder.reshape(&words, dims)?)
}

/// `[low, high)` by the upper part of a product, which is even to one part in 2^32.
fn integer(
    cx: &mut Context,
    dims: &[usize],
    element: ElementType,
    low: i64,
    high: i64,
) -> Result<Value> {
    let range = high.saturating_sub(low);
    if !(1..=1 << 32).contains(&range) {
        return unsupported(format!(
            "no integers from {low} below {high}: 1 to 2^32 can be"
        ));
    }
    let words = single_words(cx, count(dims))?;
    let words = cx.builder.convert(&words, ElementType::U64);
    let range = cx.builder.splat(words.dims(), ElementType::U64, range);
    let product = cx.binary(Binary::Multiply, &words, &range)?;
    let upper = cx.with_number(Binary::ShiftRightLogical, &product, 32.0)?;
    let low = cx
        .builder
        .splat(words.dims(), ElementType::U64, Scalar::Int(low));
    let x = cx.binary(Binary::Add, &upper, &low)?;
    let x = cx.builder.convert(&x, element);
    Ok(cx.builder.reshape(&x, dims)?)
}
