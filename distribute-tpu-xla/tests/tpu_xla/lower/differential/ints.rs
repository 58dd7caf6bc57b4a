//! Integers and truth values.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::{BoolDType, FloatDType, IntDType, Scalar};

use super::{ALL_INTS, Random, Report, differ, limits};
use crate::lower::harness::Prim::{Bool, Float, Int};
use crate::lower::harness::ints;

const NATIVE: BoolDType = BoolDType::Native;

#[test]
fn two_operands() {
    let (mut random, mut report) = (Random::new(11), Report::default());
    for dtype in ALL_INTS {
        for seed in 0..2 {
            let shape = random.shape_or_empty(1, seed == 1 && dtype == DType::I32);
            let [left, right] = random.broadcast(&shape);
            let (a, b) = match seed {
                0 => (
                    random.integers(&left, dtype),
                    random.integers(&right, dtype),
                ),
                _ => (
                    random.data.ints(&left, dtype, 9, 20),
                    random.data.ints(&right, dtype, 0, 9),
                ),
            };
            differ!(report, format!("{dtype:?}"), [a, b], (), |B, x| [
                Int(B::int_add(x[0].i(), x[1].i())),
                Int(B::int_sub(x[0].i(), x[1].i())),
                Int(B::int_mul(x[0].i(), x[1].i())),
                Int(B::bitwise_and(x[0].i(), x[1].i())),
                Int(B::bitwise_or(x[0].i(), x[1].i())),
                Int(B::bitwise_xor(x[0].i(), x[1].i())),
                Int(B::bitwise_not(x[0].i())),
                Int(B::bitwise_left_shift(x[0].i(), x[1].i())),
                Int(B::bitwise_right_shift(x[0].i(), x[1].i())),
                Bool(B::int_equal(x[0].i(), x[1].i(), NATIVE)),
                Bool(B::int_not_equal(x[0].i(), x[1].i(), NATIVE)),
                Bool(B::int_greater(x[0].i(), x[1].i(), NATIVE)),
                Bool(B::int_greater_equal(x[0].i(), x[1].i(), NATIVE)),
                Bool(B::int_lower(x[0].i(), x[1].i(), NATIVE)),
                Bool(B::int_lower_equal(x[0].i(), x[1].i(), NATIVE)),
                Int(B::int_abs(x[0].i())),
                Int(B::int_neg(x[0].i())),
                Int(B::int_sign(x[0].i())),
            ]);
        }
    }
    report.finish();
}

#[test]
fn division_and_powers() {
    let (mut random, mut report) = (Random::new(12), Report::default());
    for dtype in ALL_INTS {
        let shape = random.shape(1);
        let a = random.integers(&shape, dtype);
        let small = random.data.ints(&shape, dtype, 0, 4);
        let [low, high] = limits(dtype);
        // Zero is no divisor in flex, and `MIN / -1` of 64 bits neither.
        let divisors = [1, 2, 3, 7, high, 5, if low == 0 { 4 } else { -3 }, low | 2];
        let count = shape.iter().product();
        let b = (0..count).map(|_| divisors[random.below(8)]).collect();
        let b = ints(b, &shape, dtype);
        let exponent = random.data.ints(&shape, dtype, 0, 7);
        differ!(
            report,
            format!("{dtype:?}"),
            [a, b, exponent, small],
            (),
            |B, x| [
                Int(B::int_powi(x[3].i(), x[2].i())),
                Int(B::int_powi_scalar(x[3].i(), Scalar::Int(5))),
                Int(B::int_div(x[0].i(), x[1].i())),
                Int(B::int_remainder(x[0].i(), x[1].i())),
                Int(B::int_powi(x[0].i(), x[2].i())),
                Int(B::int_powi_scalar(x[0].i(), Scalar::Int(0))),
                Int(B::int_powi_scalar(x[0].i(), Scalar::Int(2))),
                Int(B::int_powi_scalar(x[0].i(), Scalar::Int(5))),
            ]
        );
    }
    report.finish();
}

#[test]
fn scalars() {
    let (mut random, mut report) = (Random::new(13), Report::default());
    for dtype in ALL_INTS {
        for scalar in [3, if limits(dtype)[0] == 0 { 7 } else { -3 }] {
            let shape = random.shape(1);
            let a = random.integers(&shape, dtype);
            let small = random.data.ints(&shape, dtype, 9, 20);
            let s = Scalar::Int(scalar);
            let label = format!("{dtype:?} {scalar}");
            differ!(report, label, [a, small], (s: Scalar = s), |B, x| [
                Int(B::int_add_scalar(x[1].i(), *s)),
                Int(B::int_sub_scalar(x[1].i(), *s)),
                Int(B::int_mul_scalar(x[1].i(), *s)),
                Int(B::int_add_scalar(x[0].i(), *s)),
                Int(B::int_sub_scalar(x[0].i(), *s)),
                Int(B::int_mul_scalar(x[0].i(), *s)),
                Int(B::int_div_scalar(x[0].i(), *s)),
                Int(B::int_remainder_scalar(x[0].i(), *s)),
                Int(B::int_clamp_min(x[0].i(), *s)),
                Int(B::int_clamp_max(x[0].i(), *s)),
                Int(B::int_clamp(x[0].i(), *s, Scalar::Int(111))),
                Int(B::bitwise_and_scalar(x[0].i(), *s)),
                Int(B::bitwise_or_scalar(x[0].i(), *s)),
                Int(B::bitwise_xor_scalar(x[0].i(), *s)),
                Int(B::bitwise_left_shift_scalar(x[0].i(), *s)),
                Int(B::bitwise_right_shift_scalar(x[0].i(), *s)),
                Bool(B::int_equal_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_not_equal_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_greater_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_greater_equal_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_lower_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_lower_equal_elem(x[0].i(), *s, NATIVE)),
            ]);
        }
    }
    report.finish();
}

/// Scalars that the element type does not hold.
#[test]
fn wide_scalars() {
    let (mut random, mut report) = (Random::new(14), Report::default());
    for dtype in [
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U32,
        DType::U16,
        DType::U8,
    ] {
        for scalar in [1i64 << 33, -1] {
            let shape = random.shape(1);
            let a = random.integers(&shape, dtype);
            let s = Scalar::Int(scalar);
            differ!(report, format!("{dtype:?} {scalar}"), [a], (s: Scalar = s), |B, x| [
                Int(B::int_add_scalar(x[0].i(), *s)),
                Int(B::int_sub_scalar(x[0].i(), *s)),
                Int(B::int_mul_scalar(x[0].i(), *s)),
                Int(B::int_div_scalar(x[0].i(), *s)),
                Int(B::int_remainder_scalar(x[0].i(), *s)),
                Int(B::bitwise_and_scalar(x[0].i(), *s)),
                Int(B::bitwise_or_scalar(x[0].i(), *s)),
                Int(B::bitwise_xor_scalar(x[0].i(), *s)),
                Int(B::bitwise_left_shift_scalar(x[0].i(), *s)),
                Int(B::bitwise_right_shift_scalar(x[0].i(), *s)),
                Bool(B::int_equal_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_not_equal_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_greater_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_greater_equal_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_lower_elem(x[0].i(), *s, NATIVE)),
                Bool(B::int_lower_equal_elem(x[0].i(), *s, NATIVE)),
            ]);
        }
    }
    report.finish();
}

/// Limits that the element type does not hold limit nothing.
#[test]
fn wide_limits() {
    let (mut random, mut report) = (Random::new(17), Report::default());
    for (dtype, low, high) in [
        (DType::U8, -1, 256),
        (DType::I8, -129, 300),
        (DType::U16, -5, 70_000),
        (DType::I16, -70_000, 70_000),
        (DType::U32, -1, 1 << 33),
        (DType::I32, -(1 << 33), 1 << 33),
    ] {
        let shape = random.shape(1);
        let a = random.integers(&shape, dtype);
        differ!(report, format!("{dtype:?}"), [a], (l: i64 = low, h: i64 = high), |B, x| [
            Int(B::int_clamp_min(x[0].i(), Scalar::Int(*l))),
            Int(B::int_clamp_max(x[0].i(), Scalar::Int(*h))),
            Int(B::int_clamp(x[0].i(), Scalar::Int(*l), Scalar::Int(*h))),
            Int(B::int_clamp(x[0].i(), Scalar::Int(3), Scalar::Int(*h))),
            Int(B::int_clamp(x[0].i(), Scalar::Int(*l), Scalar::Int(3))),
        ]);
    }
    report.finish();
}

#[test]
fn conversions_masks_and_truth() {
    let (mut random, mut report) = (Random::new(15), Report::default());
    for dtype in ALL_INTS {
        for seed in 0..2 {
            let shape = random.shape_or_empty(1, seed == 1);
            let dim = random.below(shape.len());
            let a = random.integers(&shape, dtype);
            let mask = random.data.bools(&shape);
            let b = random.integers(&shape, dtype);
            differ!(report, format!("{dtype:?}"), [a, mask, b], (dim: usize = dim), |B, x| [
                Int(B::int_cast(x[0].i(), IntDType::I64)),
                Int(B::int_cast(x[0].i(), IntDType::I32)),
                Int(B::int_cast(x[0].i(), IntDType::I16)),
                Int(B::int_cast(x[0].i(), IntDType::I8)),
                Int(B::int_cast(x[0].i(), IntDType::U64)),
                Int(B::int_cast(x[0].i(), IntDType::U32)),
                Int(B::int_cast(x[0].i(), IntDType::U16)),
                Int(B::int_cast(x[0].i(), IntDType::U8)),
                Float(B::int_into_float(x[0].i(), FloatDType::F32)),
                Float(B::int_into_float(x[0].i(), FloatDType::F64)),
                Float(B::int_into_float(x[0].i(), FloatDType::F16)),
                Float(B::int_into_float(x[0].i(), FloatDType::BF16)),
                Int(B::int_mask_where(x[0].i(), x[1].b(), x[2].i())),
                Int(B::int_mask_fill(x[0].i(), x[1].b(), Scalar::Int(7))),
                Bool(B::int_any(x[0].i(), NATIVE)),
                Bool(B::int_all(x[0].i(), NATIVE)),
                Bool(B::int_any_dim(x[0].i(), *dim, NATIVE)),
                Bool(B::int_all_dim(x[0].i(), *dim, NATIVE)),
            ]);
        }
    }
    report.finish();
}

#[test]
fn truth_values() {
    let (mut random, mut report) = (Random::new(16), Report::default());
    for seed in 0..4 {
        let shape = random.shape_or_empty(1, seed == 3);
        let [left, right] = random.broadcast(&shape);
        let dim = random.below(shape.len());
        let (a, b) = (random.data.bools(&left), random.data.bools(&right));
        let (c, d) = (random.data.bools(&shape), random.data.bools(&shape));
        differ!(report, "bool", [a, b, c, d], (dim: usize = dim), |B, x| [
            Bool(B::bool_not(x[0].b())),
            Bool(B::bool_and(x[0].b(), x[1].b())),
            Bool(B::bool_or(x[0].b(), x[1].b())),
            Bool(B::bool_xor(x[0].b(), x[1].b())),
            Bool(B::bool_equal(x[0].b(), x[1].b())),
            Bool(B::bool_not_equal(x[0].b(), x[1].b())),
            Bool(B::bool_equal_elem(x[0].b(), Scalar::Bool(true))),
            Bool(B::bool_equal_elem(x[0].b(), Scalar::Bool(false))),
            Bool(B::bool_not_equal_elem(x[0].b(), Scalar::Bool(true))),
            Bool(B::bool_any(x[2].b())),
            Bool(B::bool_all(x[2].b())),
            Bool(B::bool_any_dim(x[2].b(), *dim)),
            Bool(B::bool_all_dim(x[2].b(), *dim)),
            Bool(B::bool_mask_where(x[2].b(), x[3].b(), x[3].b())),
            Bool(B::bool_mask_fill(x[2].b(), x[3].b(), Scalar::Bool(true))),
            Int(B::bool_into_int(x[0].b(), IntDType::I64)),
            Int(B::bool_into_int(x[0].b(), IntDType::I32)),
            Int(B::bool_into_int(x[0].b(), IntDType::U8)),
            Float(B::bool_into_float(x[0].b(), FloatDType::F32)),
            Float(B::bool_into_float(x[0].b(), FloatDType::F64)),
            Float(B::bool_into_float(x[0].b(), FloatDType::F16)),
            Float(B::bool_into_float(x[0].b(), FloatDType::BF16)),
        ]);
    }
    report.finish();
}
