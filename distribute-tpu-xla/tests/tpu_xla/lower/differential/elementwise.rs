//! Functions of each element of one or two float tensors.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::{BoolDType, FloatDType, IntDType, Scalar};

use super::{Random, Report, differ};
use crate::lower::harness::FLOATS;
use crate::lower::harness::Prim::{Bool, Float, Int};

const NATIVE: BoolDType = BoolDType::Native;

#[test]
fn functions() {
    let (mut random, mut report) = (Random::new(1), Report::default());
    for dtype in FLOATS {
        for seed in 0..2 {
            let shape = random.shape_or_empty(1, seed == 1 && dtype == DType::F32);
            let a = random.special(&shape, dtype, true);
            differ!(report, format!("{dtype:?}"), [a], (), |B, x| [
                Float(B::float_exp(x[0].f())),
                Float(B::float_log(x[0].f())),
                Float(B::float_log1p(x[0].f())),
                Float(B::float_sqrt(x[0].f())),
                Float(B::float_tanh(x[0].f())),
                Float(B::float_sin(x[0].f())),
                Float(B::float_cos(x[0].f())),
                Float(B::float_tan(x[0].f())),
                Float(B::float_sinh(x[0].f())),
                Float(B::float_cosh(x[0].f())),
                Float(B::float_asin(x[0].f())),
                Float(B::float_acos(x[0].f())),
                Float(B::float_atan(x[0].f())),
                Float(B::float_asinh(x[0].f())),
                Float(B::float_acosh(x[0].f())),
                Float(B::float_atanh(x[0].f())),
                Float(B::float_erf(x[0].f())),
                Float(B::float_recip(x[0].f())),
                Float(B::float_floor(x[0].f())),
                Float(B::float_ceil(x[0].f())),
                Float(B::float_round(x[0].f())),
                Float(B::float_trunc(x[0].f())),
                Float(B::float_neg(x[0].f())),
                Float(B::float_abs(x[0].f())),
                Float(B::float_sign(x[0].f())),
                Bool(B::float_is_nan(x[0].f(), NATIVE)),
                Bool(B::float_is_inf(x[0].f(), NATIVE)),
            ]);
        }
    }
    report.finish();
}

#[test]
fn activations() {
    let (mut random, mut report) = (Random::new(2), Report::default());
    for dtype in FLOATS {
        for _ in 0..2 {
            let shape = random.shape(2);
            let a = random.special(&shape, dtype, false);
            let b = random.special(&shape, dtype, false);
            let mut channels = vec![1; shape.len()];
            channels[1] = shape[1];
            let slope = random.special(&channels, dtype, false);
            let dim = random.below(shape.len());
            differ!(report, format!("{dtype:?}"), [a, b, slope], (dim: usize = dim), |B, x| [
                Float(B::relu(x[0].f())),
                Float(B::relu_backward(x[0].f(), x[1].f())),
                Float(B::leaky_relu(x[0].f(), Scalar::Float(0.01))),
                Float(B::prelu(x[0].f(), x[2].f())),
                Float(B::gelu(x[0].f())),
                Float(B::gelu_backward(x[0].f(), x[1].f())),
                Float(B::sigmoid(x[0].f())),
                Float(B::sigmoid_backward(x[0].f(), x[1].f())),
                Float(B::hard_sigmoid(x[0].f(), Scalar::Float(0.2), Scalar::Float(0.5))),
                Float(B::log_sigmoid(x[0].f())),
                Float(B::log_sigmoid_backward(x[0].f(), x[1].f())),
                Float(B::softmax(x[0].f(), *dim)),
                Float(B::log_softmax(x[0].f(), *dim)),
                Float(B::softmin(x[0].f(), *dim)),
            ]);
        }
    }
    report.finish();
}

#[test]
fn two_operands() {
    let (mut random, mut report) = (Random::new(3), Report::default());
    for dtype in FLOATS {
        for seed in 0..2 {
            let shape = random.shape_or_empty(1, seed == 1 && dtype == DType::F32);
            let [left, right] = random.broadcast(&shape);
            let a = random.special(&left, dtype, true);
            let b = random.special(&right, dtype, true);
            let label = format!("{dtype:?}");
            differ!(report, label, [a.clone(), b.clone()], (), |B, x| [
                Float(B::float_add(x[0].f(), x[1].f())),
                Float(B::float_sub(x[0].f(), x[1].f())),
                Float(B::float_mul(x[0].f(), x[1].f())),
                Float(B::float_div(x[0].f(), x[1].f())),
                Float(B::float_remainder(x[0].f(), x[1].f())),
                Float(B::float_powf(x[0].f(), x[1].f())),
                Float(B::float_atan2(x[0].f(), x[1].f())),
                Float(B::float_hypot(x[0].f(), x[1].f())),
                Bool(B::float_equal(x[0].f(), x[1].f(), NATIVE)),
                Bool(B::float_not_equal(x[0].f(), x[1].f(), NATIVE)),
                Bool(B::float_greater(x[0].f(), x[1].f(), NATIVE)),
                Bool(B::float_greater_equal(x[0].f(), x[1].f(), NATIVE)),
                Bool(B::float_lower(x[0].f(), x[1].f(), NATIVE)),
                Bool(B::float_lower_equal(x[0].f(), x[1].f(), NATIVE)),
            ]);
        }
        let shape = random.shape(1);
        let a = random.special(&shape, dtype, true);
        let mask = random.data.bools(&shape);
        let c = random.special(&shape, dtype, true);
        differ!(report, format!("{dtype:?}"), [a, mask, c], (), |B, x| [
            Float(B::float_mask_where(x[0].f(), x[1].b(), x[2].f())),
            Float(B::float_mask_fill(x[0].f(), x[1].b(), Scalar::Float(-0.0))),
            Float(B::float_mask_fill(
                x[0].f(),
                x[1].b(),
                Scalar::Float(f64::NAN)
            )),
        ]);
    }
    report.finish();
}

#[test]
fn scalars() {
    let (mut random, mut report) = (Random::new(4), Report::default());
    for dtype in FLOATS {
        for scalar in [0.0, -1.5, f64::NAN, f64::INFINITY] {
            let shape = random.shape(1);
            let a = random.special(&shape, dtype, true);
            let s = Scalar::Float(scalar);
            differ!(report, format!("{dtype:?} {scalar}"), [a], (s: Scalar = s), |B, x| [
                Float(B::float_add_scalar(x[0].f(), *s)),
                Float(B::float_sub_scalar(x[0].f(), *s)),
                Float(B::float_mul_scalar(x[0].f(), *s)),
                Float(B::float_div_scalar(x[0].f(), *s)),
                Float(B::float_remainder_scalar(x[0].f(), *s)),
                Float(B::float_powf_scalar(x[0].f(), *s)),
                Float(B::float_clamp_min(x[0].f(), *s)),
                Float(B::float_clamp_max(x[0].f(), *s)),
                Bool(B::float_equal_elem(x[0].f(), *s, NATIVE)),
                Bool(B::float_not_equal_elem(x[0].f(), *s, NATIVE)),
                Bool(B::float_greater_elem(x[0].f(), *s, NATIVE)),
                Bool(B::float_greater_equal_elem(x[0].f(), *s, NATIVE)),
                Bool(B::float_lower_elem(x[0].f(), *s, NATIVE)),
                Bool(B::float_lower_equal_elem(x[0].f(), *s, NATIVE)),
            ]);
        }
        let shape = random.shape(1);
        let a = random.special(&shape, dtype, true);
        differ!(report, format!("{dtype:?}"), [a], (), |B, x| [
            Float(B::float_powi_scalar(x[0].f(), Scalar::Int(0))),
            Float(B::float_powi_scalar(x[0].f(), Scalar::Int(2))),
            Float(B::float_powi_scalar(x[0].f(), Scalar::Int(3))),
            Float(B::float_powi_scalar(x[0].f(), Scalar::Int(-1))),
            Float(B::float_powi_scalar(x[0].f(), Scalar::Int(-2))),
            Float(B::float_powf_scalar(x[0].f(), Scalar::Float(0.5))),
            Float(B::float_powf_scalar(x[0].f(), Scalar::Float(-0.5))),
            Float(B::float_powf_scalar(x[0].f(), Scalar::Float(3.0))),
            Float(B::float_clamp(
                x[0].f(),
                Scalar::Float(-1.0),
                Scalar::Float(1.5)
            )),
            Float(B::float_clamp(
                x[0].f(),
                Scalar::Float(0.0),
                Scalar::Float(0.0)
            )),
            Float(B::float_clamp(
                x[0].f(),
                Scalar::Float(-0.0),
                Scalar::Float(9.0)
            )),
        ]);
    }
    report.finish();
}

#[test]
fn conversions() {
    let (mut random, mut report) = (Random::new(5), Report::default());
    for dtype in FLOATS {
        for seed in 0..2 {
            let shape = random.shape_or_empty(1, seed == 1);
            let a = random.special(&shape, dtype, true);
            differ!(report, format!("{dtype:?}"), [a], (), |B, x| [
                Float(B::float_cast(x[0].f(), FloatDType::F32)),
                Float(B::float_cast(x[0].f(), FloatDType::F64)),
                Float(B::float_cast(x[0].f(), FloatDType::F16)),
                Float(B::float_cast(x[0].f(), FloatDType::BF16)),
                Int(B::float_into_int(x[0].f(), IntDType::I64)),
                Int(B::float_into_int(x[0].f(), IntDType::I32)),
                Int(B::float_into_int(x[0].f(), IntDType::I16)),
                Int(B::float_into_int(x[0].f(), IntDType::I8)),
                Int(B::float_into_int(x[0].f(), IntDType::U64)),
                Int(B::float_into_int(x[0].f(), IntDType::U32)),
                Int(B::float_into_int(x[0].f(), IntDType::U16)),
                Int(B::float_into_int(x[0].f(), IntDType::U8)),
            ]);
        }
    }
    report.finish();
}
