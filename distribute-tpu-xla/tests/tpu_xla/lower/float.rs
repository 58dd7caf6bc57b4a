//! Functions of floats and activations.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::Scalar;

use crate::check;
use crate::lower::harness::Prim::Float;
use crate::lower::harness::{Data, FLOATS, typed};

#[test]
fn functions() {
    let mut data = Data::new(21);
    for dtype in FLOATS {
        for shape in [[4, 5], [1, 33]] {
            let a = data.normal(&shape, dtype);
            let positive = data.floats(&shape, dtype, 0.05, 9.0);
            check!(format!("functions {dtype:?}"), [a, positive], |B, x| [
                Float(B::float_exp(x[0].f())),
                Float(B::float_log(x[1].f())),
                Float(B::float_log1p(x[1].f())),
                Float(B::float_sqrt(x[1].f())),
                Float(B::float_tanh(x[0].f())),
                Float(B::float_sin(x[0].f())),
                Float(B::float_cos(x[0].f())),
                Float(B::float_erf(x[0].f())),
                Float(B::float_recip(x[1].f())),
                Float(B::float_floor(x[0].f())),
                Float(B::float_ceil(x[0].f())),
                Float(B::float_trunc(x[0].f())),
                Float(B::float_sinh(x[0].f())),
                Float(B::float_cosh(x[0].f())),
                Float(B::float_atan(x[0].f())),
                Float(B::float_asinh(x[0].f())),
            ]);
        }
    }
}

#[test]
fn functions_with_narrow_domains() {
    let mut data = Data::new(22);
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let inside = data.floats(&[40], dtype, -0.95, 0.95);
        let above = data.floats(&[40], dtype, 1.0, 20.0);
        check!(
            format!("narrow domains {dtype:?}"),
            [inside, above],
            |B, x| [
                Float(B::float_asin(x[0].f())),
                Float(B::float_acos(x[0].f())),
                Float(B::float_atanh(x[0].f())),
                Float(B::float_tan(x[0].f())),
                Float(B::float_acosh(x[1].f())),
            ]
        );
    }
}

#[test]
fn rounding_goes_to_the_even_neighbour() {
    let values = vec![0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 1e20, f64::NAN, -2.5];
    for dtype in [DType::F32, DType::F64] {
        let a = typed(values.clone(), &[9], dtype);
        check!("round", [a], |B, x| [Float(B::float_round(x[0].f()))]);
    }
}

#[test]
fn the_error_function_holds_far_out() {
    let values: Vec<f64> = (-60..=60).map(|i| f64::from(i) * 0.15).collect();
    for dtype in [DType::F32, DType::F64] {
        let a = typed(values.clone(), &[121], dtype);
        check!("erf far out", [a], |B, x| [
            Float(B::float_erf(x[0].f())),
            Float(B::gelu(x[0].f())),
            Float(B::log_sigmoid(x[0].f())),
            Float(B::sigmoid(x[0].f())),
            Float(B::float_tanh(x[0].f())),
        ]);
    }
}

#[test]
fn activations_and_their_gradients() {
    let mut data = Data::new(23);
    for dtype in FLOATS {
        for shape in [[3, 7], [16, 1]] {
            let a = data.floats(&shape, dtype, -4.0, 4.0);
            let gradient = data.normal(&shape, dtype);
            let slope = data.floats(&[1, shape[1]], dtype, 0.0, 0.5);
            check!(
                format!("activations {dtype:?}"),
                [a, gradient, slope],
                |B, x| [
                    Float(B::relu(x[0].f())),
                    Float(B::relu_backward(x[0].f(), x[1].f())),
                    Float(B::leaky_relu(x[0].f(), Scalar::Float(0.01))),
                    Float(B::prelu(x[0].f(), x[2].f())),
                    Float(B::gelu(x[0].f())),
                    Float(B::gelu_backward(x[0].f(), x[1].f())),
                    Float(B::sigmoid(x[0].f())),
                    Float(B::sigmoid_backward(x[0].f(), x[1].f())),
                    Float(B::hard_sigmoid(
                        x[0].f(),
                        Scalar::Float(0.2),
                        Scalar::Float(0.5)
                    )),
                    Float(B::log_sigmoid(x[0].f())),
                    Float(B::log_sigmoid_backward(x[0].f(), x[1].f())),
                    Float(B::float_tanh(x[0].f())),
                ]
            );
        }
    }
}

#[test]
fn softmax_and_its_relatives() {
    let mut data = Data::new(24);
    for dtype in FLOATS {
        for dim in 0..3 {
            let a = data.floats(&[3, 4, 5], dtype, -20.0, 20.0);
            check!(format!("softmax {dtype:?}"), [a], (dim: usize = dim), |B, x| [
                Float(B::softmax(x[0].f(), dim)),
                Float(B::log_softmax(x[0].f(), dim)),
                Float(B::softmin(x[0].f(), dim)),
            ]);
        }
    }
}

/// Where the formulas need care: squares that overflow, zeros with a sign.
#[test]
fn odd_functions_keep_zeros_and_ends() {
    let values = vec![
        f64::INFINITY,
        f64::NEG_INFINITY,
        -0.0,
        0.0,
        1e30,
        -1e30,
        1e9,
        -3e9,
    ];
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let a = typed(values.clone(), &[8], dtype);
        check!(format!("ends {dtype:?}"), [a], |B, x| [
            Float(B::float_asinh(x[0].f())),
            Float(B::float_recip(B::float_sinh(x[0].f()))),
            Float(B::float_recip(B::float_sign(x[0].f()))),
            Float(B::float_recip(B::log_sigmoid(x[0].f()))),
        ]);
    }
}
