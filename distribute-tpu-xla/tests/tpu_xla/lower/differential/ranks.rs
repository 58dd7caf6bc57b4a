//! The operations of one and three spatial dimensions, and new tensors, for every element type.

use burn::tensor::{Shape, Slice};
use distribute_core::burn_internals::backend::ops::{ConvOptions, ConvTransposeOptions};
use distribute_core::burn_internals::backend::{FloatDType, IntDType, Scalar, TensorMetadata};

use super::{ALL_INTS, Random, Report, differ};
use crate::lower::harness::FLOATS;
use crate::lower::harness::Prim::{Float, Int};

#[test]
fn convolutions() {
    let (mut random, mut report) = (Random::new(51), Report::default());
    for dtype in FLOATS {
        let mut normal = |shape: &[usize]| random.data.normal(shape, dtype);
        let line = [
            normal(&[2, 4, 9]),
            normal(&[6, 4, 3]),
            normal(&[6]),
            normal(&[2, 6, 5]),
        ];
        let cube = [
            normal(&[1, 2, 3, 4, 3]),
            normal(&[2, 2, 2, 2, 2]),
            normal(&[2]),
        ];
        let [x, w, b, g] = line;
        let [y, v, c] = cube;
        let h = normal(&[1, 2, 2, 2, 2]);
        let one = ConvOptions::new([2], [1], [1], 1);
        let three = ConvOptions::new([1, 2, 1], [0, 0, 0], [1, 1, 1], 1);
        differ!(
            report,
            format!("{dtype:?}"),
            [x, w, b, g, y, v, c, h],
            (o: ConvOptions<1> = one, p: ConvOptions<3> = three),
            |B, x| [
                Float(B::conv1d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
                Float(B::conv1d_x_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv1d_weight_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv1d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
                Float(B::conv3d(x[4].f(), x[5].f(), Some(x[6].f()), p.clone())),
                Float(B::conv3d_x_backward(x[4].f(), x[5].f(), x[7].f(), p.clone())),
                Float(B::conv3d_weight_backward(x[4].f(), x[5].f(), x[7].f(), p.clone())),
                Float(B::conv3d_bias_backward(x[4].f(), x[6].f(), x[7].f())),
            ]
        );
    }
    report.finish();
}

#[test]
fn transposed_convolutions() {
    let (mut random, mut report) = (Random::new(52), Report::default());
    for dtype in FLOATS {
        let mut normal = |shape: &[usize]| random.data.normal(shape, dtype);
        let [x, w, b, g] = [
            normal(&[2, 4, 5]),
            normal(&[4, 3, 3]),
            normal(&[3]),
            normal(&[2, 3, 10]),
        ];
        let [y, v, h] = [
            normal(&[1, 2, 3, 4, 3]),
            normal(&[2, 3, 2, 3, 2]),
            normal(&[1, 3, 4, 9, 4]),
        ];
        let one = ConvTransposeOptions::new([2], [1], [1], [1], 1);
        let three = ConvTransposeOptions::new([1, 2, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1);
        differ!(
            report,
            format!("{dtype:?}"),
            [x, w, b, g, y, v, h],
            (o: ConvTransposeOptions<1> = one, p: ConvTransposeOptions<3> = three),
            |B, x| [
                Float(B::conv_transpose1d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
                Float(B::conv_transpose1d_weight_backward(
                    x[0].f(),
                    x[1].f(),
                    x[3].f(),
                    o.clone()
                )),
                Float(B::conv_transpose1d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
                Float(B::conv_transpose3d(x[4].f(), x[5].f(), Some(x[2].f()), p.clone())),
                Float(B::conv_transpose3d_weight_backward(
                    x[4].f(),
                    x[5].f(),
                    x[6].f(),
                    p.clone()
                )),
                Float(B::conv_transpose3d_bias_backward(x[4].f(), x[2].f(), x[6].f())),
            ]
        );
    }
    report.finish();
}

#[test]
fn pooling() {
    let (mut random, mut report) = (Random::new(53), Report::default());
    for dtype in FLOATS {
        let mut normal = |shape: &[usize]| random.data.normal(shape, dtype);
        let [x, g, a] = [normal(&[2, 3, 11]), normal(&[2, 3, 6]), normal(&[2, 3, 4])];
        let [y, h] = [normal(&[1, 2, 4, 5, 6]), normal(&[1, 2, 2, 2, 4])];
        let [z, i] = [normal(&[1, 2, 5, 6]), normal(&[1, 2, 2, 4])];
        differ!(
            report,
            format!("{dtype:?}"),
            [x, g, a, y, h, z, i],
            (),
            |B, x| [
                Float(B::max_pool1d(x[0].f(), 3, 2, 1, 1, false)),
                Float(
                    B::max_pool1d_with_indices(x[0].f(), 3, 2, 1, 1, false, IntDType::I64).output
                ),
                Int(B::max_pool1d_with_indices(x[0].f(), 3, 2, 1, 1, false, IntDType::I64).indices),
                Float(
                    B::max_pool1d_with_indices_backward(
                        x[0].f(),
                        3,
                        2,
                        1,
                        1,
                        false,
                        x[1].f(),
                        B::max_pool1d_with_indices(x[0].f(), 3, 2, 1, 1, false, IntDType::I64)
                            .indices,
                    )
                    .x_grad
                ),
                Float(B::avg_pool1d(x[0].f(), 3, 2, 1, true, false)),
                Float(B::avg_pool1d_backward(
                    x[0].f(),
                    x[1].f(),
                    3,
                    2,
                    1,
                    true,
                    false
                )),
                Float(B::adaptive_avg_pool1d(x[0].f(), 4)),
                Float(B::adaptive_avg_pool1d_backward(x[0].f(), x[2].f())),
                Float(B::adaptive_avg_pool2d_backward(x[5].f(), x[6].f())),
                Float(B::adaptive_avg_pool3d(x[3].f(), [2, 2, 4])),
                Float(B::adaptive_avg_pool3d_backward(x[3].f(), x[4].f())),
            ]
        );
    }
    report.finish();
}

#[test]
fn new_tensors_and_parts() {
    let (mut random, mut report) = (Random::new(54), Report::default());
    let parts = vec![Slice::new(1, None, 2), Slice::new(0, Some(2), -1)];
    for dtype in FLOATS {
        let a = random.special(&[5, 3], dtype, true);
        let b = random.special(&[2, 2], dtype, true);
        let of: FloatDType = dtype.into();
        differ!(
            report,
            format!("{dtype:?}"),
            [a, b],
            (t: FloatDType = of, s: Vec<Slice> = parts.clone()),
            |B, x| [
                Float(B::float_zeros(Shape::from(vec![2, 3]), &x[0].f().device(), *t)),
                Float(B::float_ones(Shape::from(vec![2, 3]), &x[0].f().device(), *t)),
                Float(B::float_full(
                    Shape::from(vec![3]),
                    Scalar::Float(-0.3),
                    &x[0].f().device(),
                    *t
                )),
                Float(B::float_slice_assign(x[0].f(), s, x[1].f())),
            ]
        );
    }
    for dtype in ALL_INTS {
        let a = random.integers(&[5, 3], dtype);
        let b = random.integers(&[2, 2], dtype);
        let flags = random.data.bools(&[4]);
        let of: IntDType = dtype.into();
        differ!(
            report,
            format!("{dtype:?}"),
            [a, b, flags],
            (t: IntDType = of, s: Vec<Slice> = parts.clone()),
            |B, x| [
                Int(B::int_zeros(Shape::from(vec![2, 3]), &x[0].i().device(), *t)),
                Int(B::int_ones(Shape::from(vec![2, 3]), &x[0].i().device(), *t)),
                Int(B::int_full(Shape::from(vec![3]), Scalar::Int(7), &x[0].i().device(), *t)),
                Int(B::int_slice_assign(x[0].i(), s, x[1].i())),
                Int(B::bool_into_int(x[2].b(), *t)),
            ]
        );
    }
    report.finish();
}
