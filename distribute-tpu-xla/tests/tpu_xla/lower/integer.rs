//! Bits, truth values, conversions.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::{BoolDType, FloatDType, IntDType, Scalar};

use crate::check;
use crate::lower::harness::Prim::{Bool, Float, Int};
use crate::lower::harness::{Data, FLOATS, INTS, typed};

#[test]
fn bits() {
    let mut data = Data::new(11);
    for dtype in INTS {
        let low = if matches!(dtype, DType::U32 | DType::U8) {
            0
        } else {
            -100
        };
        let a = data.ints(&[3, 4], dtype, low, 100);
        let b = data.ints(&[3, 4], dtype, 0, 12);
        check!(format!("bits {dtype:?}"), [a, b], |B, x| [
            Int(B::bitwise_and(x[0].i(), x[1].i())),
            Int(B::bitwise_or(x[0].i(), x[1].i())),
            Int(B::bitwise_xor(x[0].i(), x[1].i())),
            Int(B::bitwise_not(x[0].i())),
            Int(B::bitwise_left_shift(x[0].i(), x[1].i())),
            Int(B::bitwise_right_shift(x[0].i(), x[1].i())),
            Int(B::bitwise_and_scalar(x[0].i(), Scalar::Int(29))),
            Int(B::bitwise_or_scalar(x[0].i(), Scalar::Int(29))),
            Int(B::bitwise_xor_scalar(x[0].i(), Scalar::Int(29))),
            Int(B::bitwise_left_shift_scalar(x[0].i(), Scalar::Int(3))),
            Int(B::bitwise_right_shift_scalar(x[0].i(), Scalar::Int(3))),
            // More than eight bits have.
            Int(B::bitwise_left_shift_scalar(x[0].i(), Scalar::Int(9))),
        ]);
    }
}

#[test]
fn truth_values() {
    let mut data = Data::new(12);
    for shape in [[2, 3, 4], [1, 1, 40]] {
        let a = data.bools(&shape);
        let b = data.bools(&shape);
        check!("truth values", [a, b], |B, x| [
            Bool(B::bool_and(x[0].b(), x[1].b())),
            Bool(B::bool_or(x[0].b(), x[1].b())),
            Bool(B::bool_xor(x[0].b(), x[1].b())),
            Bool(B::bool_not(x[0].b())),
            Bool(B::bool_equal(x[0].b(), x[1].b())),
            Bool(B::bool_not_equal(x[0].b(), x[1].b())),
            Bool(B::bool_equal_elem(x[0].b(), Scalar::Bool(true))),
            Bool(B::bool_any(x[0].b())),
            Bool(B::bool_all(x[0].b())),
            Bool(B::bool_any_dim(x[0].b(), 2)),
            Bool(B::bool_all_dim(x[0].b(), 1)),
            Int(B::bool_into_int(x[0].b(), IntDType::I32)),
            Int(B::bool_into_int(x[0].b(), IntDType::I64)),
            Float(B::bool_into_float(x[0].b(), FloatDType::F32)),
            Float(B::bool_into_float(x[0].b(), FloatDType::BF16)),
        ]);
    }
}

#[test]
fn truth_of_numbers() {
    let mut data = Data::new(13);
    let a = data.ints(&[3, 5], DType::I32, 0, 3);
    let b = typed(
        vec![0.0, 1.0, -0.0, f64::NAN, 0.0, 2.0],
        &[2, 3],
        DType::F32,
    );
    check!("truth of numbers", [a, b], |B, x| [
        Bool(B::int_any(x[0].i(), BoolDType::Native)),
        Bool(B::int_all(x[0].i(), BoolDType::Native)),
        Bool(B::int_any_dim(x[0].i(), 1, BoolDType::Native)),
        Bool(B::float_any_dim(x[1].f(), 1, BoolDType::Native)),
        Bool(B::float_all_dim(x[1].f(), 0, BoolDType::Native)),
        Bool(B::float_any(x[1].f(), BoolDType::Native)),
        Bool(B::float_all(x[1].f(), BoolDType::Native)),
    ]);
}

#[test]
fn floats_become_integers_as_in_rust() {
    let values = [
        0.0,
        -0.0,
        1.9,
        -1.9,
        127.5,
        128.0,
        -129.0,
        256.0,
        3e9,
        -3e9,
        1e19,
        -1e19,
        2e19,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    for dtype in FLOATS {
        let a = typed(values.to_vec(), &[16], dtype);
        check!(format!("into int {dtype:?}"), [a], |B, x| [
            Int(B::float_into_int(x[0].f(), IntDType::I64)),
            Int(B::float_into_int(x[0].f(), IntDType::I32)),
            Int(B::float_into_int(x[0].f(), IntDType::I16)),
            Int(B::float_into_int(x[0].f(), IntDType::I8)),
            Int(B::float_into_int(x[0].f(), IntDType::U32)),
            Int(B::float_into_int(x[0].f(), IntDType::U8)),
        ]);
    }
}

#[test]
fn casts() {
    let mut data = Data::new(14);
    for dtype in FLOATS {
        let a = data.floats(&[3, 4], dtype, -300.0, 300.0);
        check!(format!("casts {dtype:?}"), [a], |B, x| [
            Float(B::float_cast(x[0].f(), FloatDType::F32)),
            Float(B::float_cast(x[0].f(), FloatDType::F64)),
            Float(B::float_cast(x[0].f(), FloatDType::F16)),
            Float(B::float_cast(x[0].f(), FloatDType::BF16)),
        ]);
    }
    for dtype in INTS {
        let low = if matches!(dtype, DType::U32 | DType::U8) {
            0
        } else {
            -100
        };
        let a = data.ints(&[3, 4], dtype, low, 250);
        check!(format!("int casts {dtype:?}"), [a], |B, x| [
            Int(B::int_cast(x[0].i(), IntDType::I64)),
            Int(B::int_cast(x[0].i(), IntDType::I32)),
            Int(B::int_cast(x[0].i(), IntDType::I8)),
            Int(B::int_cast(x[0].i(), IntDType::U8)),
            Float(B::int_into_float(x[0].i(), FloatDType::F32)),
            Float(B::int_into_float(x[0].i(), FloatDType::BF16)),
        ]);
    }
}
