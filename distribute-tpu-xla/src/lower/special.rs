//! The error function, which StableHLO does not have, and functions based on it.

// Coefficients as they were published, with more digits than f64 holds.
#![expect(
    clippy::excessive_precision,
    reason = "the coefficients stand as they are published"
)]

use crate::stablehlo::{Binary, Comparison, ElementType, Unary, Value};

use super::context::Context;
use super::error::Result;

/// `erf(x) = x * P(x^2) / Q(x^2)` for |x| <= 4, highest power first: the minimax approximation that
/// XLA and Eigen use for f32 (at most some 3e-7 off).
const SINGLE_P: [f64; 7] = [
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
];
const SINGLE_Q: [f64; 5] = [
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
];

/// Cephes' `erf` for f64: `x * T(x^2) / U(x^2)` for |x| < 1, highest power first.
const T: [f64; 5] = [
    9.60497373987051638749E0,
    9.00260197203842689217E1,
    2.23200534594684319226E3,
    7.00332514112805075473E3,
    5.55923013010394962768E4,
];
const U: [f64; 6] = [
    1.0,
    3.35617141647503099647E1,
    5.21357949780152679795E2,
    4.59432382970980127987E3,
    2.26290000613890934246E4,
    4.92673942608635921086E4,
];
/// Cephes' `erfc` for 1 <= x < 8: `exp(-x^2) * P(x) / Q(x)`.
const P: [f64; 9] = [
    2.46196981473530512524E-10,
    5.64189564831068821977E-1,
    7.46321056442269912687E0,
    4.86371970985681366614E1,
    1.96520832956077098242E2,
    5.26445194995477358631E2,
    9.34528527171957607540E2,
    1.02755188689515710272E3,
    5.57535335369399327526E2,
];
const Q: [f64; 9] = [
    1.0,
    1.32281951154744992508E1,
    8.67072140885989742329E1,
    3.54937778887819891062E2,
    9.75708501743205489753E2,
    1.82390916687909736289E3,
    2.24633760818710981792E3,
    1.65666309194161350182E3,
    5.57535340817727675546E2,
];

/// A polynomial by Horner's rule, highest power first.
fn polynomial(cx: &mut Context, x: &Value, coefficients: &[f64]) -> Result<Value> {
    let mut sum = cx.number_like(coefficients[0], x);
    for coefficient in &coefficients[1..] {
        sum = cx.binary(Binary::Multiply, &sum, x)?;
        sum = cx.with_number(Binary::Add, &sum, *coefficient)?;
    }
    Ok(sum)
}

fn ratio(cx: &mut Context, x: &Value, over: &[f64], under: &[f64]) -> Result<Value> {
    let over = polynomial(cx, x, over)?;
    let under = polynomial(cx, x, under)?;
    cx.binary(Binary::Divide, &over, &under)
}

/// The error function of f32 or f64.
pub(super) fn erf(cx: &mut Context, x: &Value) -> Result<Value> {
    if x.element() == ElementType::F64 {
        return double(cx, x);
    }
    let low = cx.number_like(-4.0, x);
    let high = cx.number_like(4.0, x);
    let x = cx.builder.clamp(&low, x, &high)?;
    let square = cx.binary(Binary::Multiply, &x, &x)?;
    let ratio = ratio(cx, &square, &SINGLE_P, &SINGLE_Q)?;
    cx.binary(Binary::Multiply, &x, &ratio)
}

fn double(cx: &mut Context, x: &Value) -> Result<Value> {
    let magnitude = cx.unary(Unary::Abs, x)?;
    let eight = cx.number_like(8.0, x);
    let one = cx.number_like(1.0, x);
    let limited = cx.binary(Binary::Minimum, &magnitude, &eight)?;
    let square = cx.binary(Binary::Multiply, &limited, &limited)?;
    let inner = ratio(cx, &square, &T, &U)?;
    let inner = cx.binary(Binary::Multiply, &limited, &inner)?;
    let decay = cx.unary(Unary::Negate, &square)?;
    let decay = cx.unary(Unary::Exponential, &decay)?;
    let outer = ratio(cx, &limited, &P, &Q)?;
    let outer = cx.binary(Binary::Multiply, &decay, &outer)?;
    let outer = cx.binary(Binary::Subtract, &one, &outer)?;
    let is_inner = cx.builder.compare(Comparison::Lt, &magnitude, &one)?;
    let result = cx.builder.select(&is_inner, &inner, &outer)?;
    let sign = cx.unary(Unary::Sign, x)?;
    cx.binary(Binary::Multiply, &sign, &result)
}

/// `0.5 * (1 + erf(x / sqrt 2))`, the normal distribution.
pub(super) fn normal_cdf(cx: &mut Context, x: &Value) -> Result<Value> {
    let scaled = cx.with_number(Binary::Divide, x, std::f64::consts::SQRT_2)?;
    let erf = erf(cx, &scaled)?;
    let sum = cx.with_number(Binary::Add, &erf, 1.0)?;
    cx.with_number(Binary::Multiply, &sum, 0.5)
}
