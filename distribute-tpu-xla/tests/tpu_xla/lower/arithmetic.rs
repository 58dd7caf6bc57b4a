//! Arithmetic, comparisons, choices.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::{BoolDType, Scalar};

use crate::check;
use crate::lower::harness::Prim::{Bool, Float, Int};
use crate::lower::harness::{Data, FLOATS, INTS, typed};

/// Two shapes that broadcast, and two that are equal.
const SHAPES: [([usize; 3], [usize; 3]); 3] = [
    ([2, 3, 4], [2, 3, 4]),
    ([5, 1, 3], [1, 4, 3]),
    ([1, 1, 1], [2, 1, 7]),
];

#[test]
fn float_arithmetic_broadcasts() {
    let mut data = Data::new(1);
    for dtype in FLOATS {
        for (left, right) in SHAPES {
            let a = data.normal(&left, dtype);
            let b = data.floats(&right, dtype, 0.5, 3.0);
            check!(format!("arithmetic {dtype:?}"), [a, b], |B, x| [
                Float(B::float_add(x[0].f(), x[1].f())),
                Float(B::float_sub(x[0].f(), x[1].f())),
                Float(B::float_mul(x[0].f(), x[1].f())),
                Float(B::float_div(x[0].f(), x[1].f())),
                Float(B::float_remainder(x[0].f(), x[1].f())),
                Float(B::float_powf(x[1].f(), x[0].f())),
                Float(B::float_atan2(x[0].f(), x[1].f())),
                Float(B::float_hypot(x[0].f(), x[1].f())),
            ]);
        }
    }
}

#[test]
fn float_scalars() {
    let mut data = Data::new(2);
    for dtype in FLOATS {
        let a = data.normal(&[3, 5], dtype);
        let positive = data.floats(&[3, 5], dtype, 0.1, 3.0);
        check!(format!("scalars {dtype:?}"), [a, positive], |B, x| [
            Float(B::float_add_scalar(x[0].f(), Scalar::Float(0.3))),
            Float(B::float_sub_scalar(x[0].f(), Scalar::Float(-1.7))),
            Float(B::float_mul_scalar(x[0].f(), Scalar::Int(3))),
            Float(B::float_div_scalar(x[0].f(), Scalar::Float(0.7))),
            Float(B::float_remainder_scalar(x[0].f(), Scalar::Float(-0.7))),
            Float(B::float_powf_scalar(x[1].f(), Scalar::Float(1.7))),
            Float(B::float_powf_scalar(x[1].f(), Scalar::Float(-0.5))),
            Float(B::float_powi_scalar(x[0].f(), Scalar::Int(3))),
            Float(B::float_powi_scalar(x[1].f(), Scalar::Int(-3))),
            Float(B::float_clamp(
                x[0].f(),
                Scalar::Float(-0.5),
                Scalar::Float(1.0)
            )),
            Float(B::float_clamp_min(x[0].f(), Scalar::Float(0.25))),
            Float(B::float_clamp_max(x[0].f(), Scalar::Float(0.25))),
            Float(B::float_neg(x[0].f())),
            Float(B::float_abs(x[0].f())),
            Float(B::float_sign(x[0].f())),
        ]);
    }
}

#[test]
fn the_remainder_has_the_sign_of_the_divisor() {
    let a = typed(vec![5.0, -5.0, 5.0, -5.0, 6.0, -6.0], &[6], DType::F32);
    let b = typed(vec![3.0, 3.0, -3.0, -3.0, 3.0, -3.0], &[6], DType::F32);
    check!("remainder", [a, b], |B, x| [Float(B::float_remainder(
        x[0].f(),
        x[1].f()
    ))]);
}

#[test]
fn nan_and_infinity_pass_as_in_flex() {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.5];
    for dtype in FLOATS {
        let a = typed(special.to_vec(), &[6], dtype);
        check!(format!("special {dtype:?}"), [a], |B, x| [
            Float(B::float_sign(x[0].f())),
            Float(B::float_clamp(
                x[0].f(),
                Scalar::Float(-1.0),
                Scalar::Float(1.0)
            )),
            Float(B::float_clamp_min(x[0].f(), Scalar::Float(1.0))),
            Float(B::float_clamp_max(x[0].f(), Scalar::Float(1.0))),
            Float(B::relu(x[0].f())),
            Float(B::relu_backward(x[0].f(), x[0].f())),
            Bool(B::float_is_nan(x[0].f(), BoolDType::Native)),
            Bool(B::float_is_inf(x[0].f(), BoolDType::Native)),
            Bool(B::float_equal(x[0].f(), x[0].f(), BoolDType::Native)),
            Bool(B::float_not_equal(x[0].f(), x[0].f(), BoolDType::Native)),
            Float(B::float_max(x[0].f())),
        ]);
    }
}

#[test]
fn float_comparisons() {
    let mut data = Data::new(3);
    for dtype in FLOATS {
        for (left, right) in SHAPES {
            // Few values, so that some are equal.
            let a = data.ints(&left, DType::I64, -2, 3).iter::<f64>().collect();
            let b = data.ints(&right, DType::I64, -2, 3).iter::<f64>().collect();
            let (a, b) = (typed(a, &left, dtype), typed(b, &right, dtype));
            check!(format!("comparisons {dtype:?}"), [a, b], |B, x| [
                Bool(B::float_equal(x[0].f(), x[1].f(), BoolDType::Native)),
                Bool(B::float_not_equal(x[0].f(), x[1].f(), BoolDType::Native)),
                Bool(B::float_greater(x[0].f(), x[1].f(), BoolDType::Native)),
                Bool(B::float_greater_equal(
                    x[0].f(),
                    x[1].f(),
                    BoolDType::Native
                )),
                Bool(B::float_lower(x[0].f(), x[1].f(), BoolDType::Native)),
                Bool(B::float_lower_equal(x[0].f(), x[1].f(), BoolDType::Native)),
                Bool(B::float_equal_elem(
                    x[0].f(),
                    Scalar::Int(1),
                    BoolDType::Native
                )),
                Bool(B::float_not_equal_elem(
                    x[0].f(),
                    Scalar::Int(1),
                    BoolDType::Native
                )),
                Bool(B::float_greater_elem(
                    x[0].f(),
                    Scalar::Float(0.5),
                    BoolDType::Native
                )),
                Bool(B::float_greater_equal_elem(
                    x[0].f(),
                    Scalar::Int(1),
                    BoolDType::Native
                )),
                Bool(B::float_lower_elem(
                    x[0].f(),
                    Scalar::Float(0.5),
                    BoolDType::Native
                )),
                Bool(B::float_lower_equal_elem(
                    x[0].f(),
                    Scalar::Int(1),
                    BoolDType::Native
                )),
            ]);
        }
    }
}

#[test]
fn int_arithmetic_and_comparisons() {
    let mut data = Data::new(4);
    for dtype in INTS {
        let low = if matches!(dtype, DType::U32 | DType::U8) {
            0
        } else {
            -9
        };
        for (left, right) in SHAPES {
            let a = data.ints(&left, dtype, low, 10);
            let b = data.ints(&right, dtype, 1, 6);
            check!(format!("int arithmetic {dtype:?}"), [a, b], |B, x| [
                Int(B::int_add(x[0].i(), x[1].i())),
                Int(B::int_sub(x[1].i(), x[1].i())),
                Int(B::int_mul(x[0].i(), x[1].i())),
                Int(B::int_div(x[0].i(), x[1].i())),
                Int(B::int_remainder(x[0].i(), x[1].i())),
                Int(B::int_powi(x[0].i(), x[1].i())),
                Int(B::int_powi_scalar(x[0].i(), Scalar::Int(3))),
                Int(B::int_powi_scalar(x[0].i(), Scalar::Int(2))),
                Int(B::int_add_scalar(x[0].i(), Scalar::Int(7))),
                Int(B::int_mul_scalar(x[0].i(), Scalar::Int(3))),
                Int(B::int_div_scalar(x[0].i(), Scalar::Int(3))),
                Int(B::int_remainder_scalar(x[0].i(), Scalar::Int(4))),
                Int(B::int_clamp(x[0].i(), Scalar::Int(2), Scalar::Int(5))),
                Int(B::int_clamp_min(x[0].i(), Scalar::Int(2))),
                Int(B::int_clamp_max(x[0].i(), Scalar::Int(5))),
                Int(B::int_abs(x[0].i())),
                Int(B::int_sign(x[0].i())),
                Bool(B::int_equal(x[0].i(), x[1].i(), BoolDType::Native)),
                Bool(B::int_greater(x[0].i(), x[1].i(), BoolDType::Native)),
                Bool(B::int_lower_equal(x[0].i(), x[1].i(), BoolDType::Native)),
                Bool(B::int_greater_equal_elem(
                    x[0].i(),
                    Scalar::Int(3),
                    BoolDType::Native
                )),
                Bool(B::int_lower_elem(
                    x[0].i(),
                    Scalar::Int(3),
                    BoolDType::Native
                )),
                Bool(B::int_equal_elem(
                    x[0].i(),
                    Scalar::Int(3),
                    BoolDType::Native
                )),
            ]);
        }
    }
    for dtype in [DType::I64, DType::I32] {
        let a = data.ints(&[3, 4], dtype, -9, 10);
        let b = data.ints(&[3, 4], dtype, -4, -1);
        check!(format!("negative divisors {dtype:?}"), [a, b], |B, x| [
            Int(B::int_div(x[0].i(), x[1].i())),
            Int(B::int_remainder(x[0].i(), x[1].i())),
            Int(B::int_neg(x[0].i())),
        ]);
    }
}

#[test]
fn masks() {
    let mut data = Data::new(5);
    for dtype in FLOATS {
        let a = data.normal(&[2, 3, 4], dtype);
        let value = data.normal(&[2, 3, 4], dtype);
        let mask = data.bools(&[2, 3, 4]);
        let narrow = data.bools(&[1, 3, 1]);
        check!(
            format!("masks {dtype:?}"),
            [a, mask, value, narrow],
            |B, x| [
                Float(B::float_mask_where(x[0].f(), x[1].b(), x[2].f())),
                Float(B::float_mask_fill(
                    x[0].f(),
                    x[1].b(),
                    Scalar::Float(f64::NEG_INFINITY)
                )),
                Float(B::float_mask_fill(x[0].f(), x[3].b(), Scalar::Int(7))),
            ]
        );
    }
    let a = data.ints(&[4, 3], DType::I32, -5, 5);
    let mask = data.bools(&[4, 3]);
    check!("int masks", [a, mask], |B, x| [
        Int(B::int_mask_where(x[0].i(), x[1].b(), x[0].i())),
        Int(B::int_mask_fill(x[0].i(), x[1].b(), Scalar::Int(7))),
        Bool(B::bool_mask_fill(x[1].b(), x[1].b(), Scalar::Bool(false))),
    ]);
}
