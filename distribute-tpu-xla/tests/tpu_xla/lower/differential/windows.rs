//! Products of matrices, convolutions, pooling and layers, at random sizes and options.

use burn::tensor::{DType, TensorData};
use distribute_core::burn_internals::backend;
use distribute_core::burn_internals::backend::IntDType;
use distribute_core::burn_internals::backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions,
};

use super::{ALL_INTS, Random, Report, differ};
use crate::lower::harness::FLOATS;
use crate::lower::harness::Prim::{Float, Int};

#[test]
fn products() {
    let (mut random, mut report) = (Random::new(41), Report::default());
    for round in 0..12 {
        let batch = random.shape(1);
        let batch = batch[..random.below(3).min(batch.len())].to_vec();
        let [left, right] = random.broadcast(&batch);
        let [m, k, n] = [0; 3].map(|_| random.between(1, 7));
        let (left, right) = ([left, vec![m, k]].concat(), [right, vec![k, n]].concat());
        let label = format!("{left:?} {right:?}");
        if round < 4 {
            let dtype = FLOATS[round];
            let a = random.data.normal(&left, dtype);
            let b = random.data.normal(&right, dtype);
            differ!(report, format!("{dtype:?} {label}"), [a, b], (), |B, x| [
                Float(B::float_matmul(x[0].f(), x[1].f()))
            ]);
        } else {
            let dtype = ALL_INTS[round - 4];
            let a = random.data.ints(&left, dtype, 0, 30);
            let b = random.data.ints(&right, dtype, 0, 30);
            differ!(report, format!("{dtype:?} {label}"), [a, b], (), |B, x| [
                Int(B::int_matmul(x[0].i(), x[1].i()))
            ]);
        }
    }
    for dtype in FLOATS {
        let mut shape = random.shape(2);
        let dim = random.below(shape.len());
        shape[dim] = 3;
        let (a, b) = (
            random.data.normal(&shape, dtype),
            random.data.normal(&shape, dtype),
        );
        differ!(report, format!("{dtype:?}"), [a, b], (d: usize = dim), |B, x| [
            Float(B::float_cross(x[0].f(), x[1].f(), *d))
        ]);
    }
    report.finish();
}

/// Long sums of half floats keep their small parts.
#[test]
fn long_products() {
    let (mut random, mut report) = (Random::new(46), Report::default());
    for dtype in [DType::F16, DType::BF16] {
        let a = random.data.floats(&[2, 3000], dtype, 0.0, 1.0);
        let b = random.data.floats(&[3000, 3], dtype, 0.0, 1.0);
        differ!(report, format!("{dtype:?}"), [a, b], (), |B, x| [
            Float(B::float_matmul(x[0].f(), x[1].f())),
            Float(B::linear(x[0].f(), x[1].f(), None)),
        ]);
    }
    report.finish();
}

/// A kernel that XLA takes for groups: compiling this ended the process.
#[test]
fn two_elements_over_every_other_one() {
    let (mut random, mut report) = (Random::new(47), Report::default());
    for groups in [1, 2] {
        let x = random.data.normal(&[2, 4, 6, 3], DType::F32);
        let weight = random.data.normal(&[2, 4 / groups, 2, 2], DType::F32);
        let gradient = random.data.normal(&[2, 2, 4, 1], DType::F32);
        let options = ConvOptions::new([2, 2], [1, 0], [1, 1], groups);
        let label = format!("{groups}");
        differ!(report, label, [x, weight, gradient], (o: ConvOptions<2> = options), |B, x| [
            Float(B::conv2d_x_backward(x[0].f(), x[1].f(), x[2].f(), o.clone()))
        ]);
    }
    report.finish();
}

#[test]
fn layers() {
    let (mut random, mut report) = (Random::new(42), Report::default());
    for dtype in FLOATS {
        let rows = random.shape(1)[..1].to_vec();
        let rows = if random.flag() {
            vec![2, rows[0]]
        } else {
            rows
        };
        let [inside, outside] = [random.between(1, 7), random.between(2, 7)];
        let x = random
            .data
            .normal(&[rows.clone(), vec![inside]].concat(), dtype);
        let weight = random.data.normal(&[inside, outside], dtype);
        let bias = random.data.normal(&[outside], dtype);
        let gradient = random.data.normal(&[rows, vec![outside]].concat(), dtype);
        let at = super::whole(vec![0; 6], &[2, 3], DType::I64);
        let words = random.data.normal(&[2, 3, outside], dtype);
        differ!(
            report,
            format!("{dtype:?}"),
            [x, weight, bias, gradient, at, words],
            (),
            |B, x| [
                Float(B::linear(x[0].f(), x[1].f(), Some(x[2].f()))),
                Float(B::linear(x[0].f(), x[1].f(), None)),
                Float(B::linear_x_backward(x[1].f(), x[3].f())),
                Float(B::linear_weight_backward(x[0].f(), x[3].f())),
                Float(B::linear_bias_backward(x[3].f())),
                Float(B::embedding(x[1].f(), x[4].i())),
                Float(B::embedding_backward(x[1].f(), x[5].f(), x[4].i())),
                Float(B::layer_norm(x[3].f(), x[2].f(), Some(x[2].f()), 1e-2)),
                Float(B::layer_norm(x[3].f(), x[2].f(), None, 1e-2)),
            ]
        );
        let channels = random.between(1, 4);
        let x = random.data.normal(&[2, channels, 3, 2], dtype);
        let gamma = random.data.normal(&[channels], dtype);
        let variance = random.data.floats(&[channels], dtype, 0.5, 2.0);
        differ!(
            report,
            format!("{dtype:?}"),
            [x, gamma, variance],
            (),
            |B, x| [Float(B::batch_norm(
                x[0].f(),
                x[1].f(),
                x[1].f(),
                x[1].f(),
                x[2].f(),
                1e-3
            ))]
        );
        let [heads, queries, keys, depth] = [0; 4].map(|_| random.between(1, 5));
        let q = random.data.normal(&[2, heads, queries, depth], dtype);
        let k = random.data.normal(&[2, heads, keys, depth], dtype);
        let v = random.data.normal(&[2, heads, keys, 3], dtype);
        let options = AttentionModuleOptions {
            scale: random.flag().then_some(0.4),
            softcap: random.flag().then_some(3.0),
            is_causal: random.flag(),
        };
        let label = format!("{dtype:?} {options:?}");
        differ!(report, label, [q, k, v], (o: AttentionModuleOptions = options), |B, x| [Float(
            B::attention(x[0].f(), x[1].f(), x[2].f(), None, None, *o)
        )]);
    }
    report.finish();
}

/// Kernel, stride, padding, dilation along one dimension, and a size that has room for it.
#[derive(Clone, Copy, Debug)]
struct Line {
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Line {
    fn random(random: &mut Random, dilated: bool) -> Self {
        let kernel = random.between(1, 3);
        let dilation = if dilated { random.between(1, 2) } else { 1 };
        let padding = random.between(0, kernel / 2);
        let span = dilation * (kernel - 1) + 1;
        Self {
            size: random.between(span.max(2), span + 6),
            kernel,
            stride: random.between(1, 3),
            padding,
            dilation,
        }
    }

    fn output(&self, ceil: bool) -> usize {
        let room = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1;
        if !ceil {
            return room / self.stride + 1;
        }
        let count = room.div_ceil(self.stride) + 1;
        let outside = (count - 1) * self.stride >= self.size + self.padding;
        count - usize::from(outside)
    }
}

#[test]
fn pooling() {
    let (mut random, mut report) = (Random::new(43), Report::default());
    for dtype in FLOATS {
        for ceil in [false, true] {
            let max = [0; 2].map(|_| Line::random(&mut random, true));
            let mean = [0; 2].map(|_| Line::random(&mut random, false));
            let shape = |l: [Line; 2]| vec![2, 3, l[0].size, l[1].size];
            let out = |l: [Line; 2]| vec![2, 3, l[0].output(ceil), l[1].output(ceil)];
            let few = random.data.ints(&shape(max), DType::I64, -3, 3);
            let a = super::typed(few.iter::<f64>().collect(), &shape(max), dtype);
            let b = random.data.normal(&shape(mean), dtype);
            let [to_max, to_mean] = [max, mean].map(|l| random.data.normal(&out(l), dtype));
            differ!(
                report,
                format!("{dtype:?} {ceil} {max:?} {mean:?}"),
                [a, b, to_max, to_mean],
                (m: [Line; 2] = max, n: [Line; 2] = mean, c: bool = ceil),
                |B, x| [
                    Float(pool::<B>(x[0].f(), m, *c).output),
                    Int(pool::<B>(x[0].f(), m, *c).indices),
                    Float(B::max_pool2d(x[0].f(), ks(m), st(m), pd(m), di(m), *c)),
                    Float(
                        B::max_pool2d_with_indices_backward(
                            x[0].f(),
                            ks(m),
                            st(m),
                            pd(m),
                            di(m),
                            *c,
                            x[2].f(),
                            pool::<B>(x[0].f(), m, *c).indices,
                        )
                        .x_grad
                    ),
                    Float(B::avg_pool2d(x[1].f(), ks(n), st(n), pd(n), true, *c)),
                    Float(B::avg_pool2d(x[1].f(), ks(n), st(n), pd(n), false, *c)),
                    Float(B::avg_pool2d_backward(
                        x[1].f(),
                        x[3].f(),
                        ks(n),
                        st(n),
                        pd(n),
                        true,
                        *c
                    )),
                    Float(B::avg_pool2d_backward(
                        x[1].f(),
                        x[3].f(),
                        ks(n),
                        st(n),
                        pd(n),
                        false,
                        *c
                    )),
                    Float(B::adaptive_avg_pool2d(x[1].f(), [2, 3])),
                ]
            );
        }
    }
    report.finish();
}

fn ks(l: &[Line; 2]) -> [usize; 2] {
    l.map(|l| l.kernel)
}

fn st(l: &[Line; 2]) -> [usize; 2] {
    l.map(|l| l.stride)
}

fn pd(l: &[Line; 2]) -> [usize; 2] {
    l.map(|l| l.padding)
}

fn di(l: &[Line; 2]) -> [usize; 2] {
    l.map(|l| l.dilation)
}

fn pool<B: backend::Backend>(
    x: B::FloatTensorPrimitive,
    l: &[Line; 2],
    ceil: bool,
) -> backend::ops::MaxPool2dWithIndices<B> {
    B::max_pool2d_with_indices(x, ks(l), st(l), pd(l), di(l), ceil, IntDType::I64)
}

/// `x`, weight, bias and the gradient of the output of a random convolution.
fn convolution(random: &mut Random, dtype: DType) -> ([TensorData; 4], ConvOptions<2>) {
    let lines = [0; 2].map(|_| Line::random(random, true));
    let groups = random.between(1, 3);
    let [inside, outside] = [random.between(1, 2) * groups, random.between(1, 2) * groups];
    let options = ConvOptions::new(st(&lines), pd(&lines), di(&lines), groups);
    let tensors = [
        random
            .data
            .normal(&[2, inside, lines[0].size, lines[1].size], dtype),
        random.data.normal(
            &[outside, inside / groups, lines[0].kernel, lines[1].kernel],
            dtype,
        ),
        random.data.normal(&[outside], dtype),
        random.data.normal(
            &[2, outside, lines[0].output(false), lines[1].output(false)],
            dtype,
        ),
    ];
    (tensors, options)
}

#[test]
fn convolutions() {
    let (mut random, mut report) = (Random::new(44), Report::default());
    for dtype in FLOATS {
        for _ in 0..2 {
            let ([x, weight, bias, gradient], o) = convolution(&mut random, dtype);
            let label = format!("{dtype:?} {o:?}");
            differ!(report, label, [x, weight, bias, gradient], (o: ConvOptions<2> = o), |B, x| [
                Float(B::conv2d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
                Float(B::conv2d_x_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv2d_weight_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv2d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
            ]);
        }
    }
    report.finish();
}

#[test]
fn transposed_convolutions() {
    let (mut random, mut report) = (Random::new(45), Report::default());
    for dtype in FLOATS {
        for _ in 0..2 {
            let lines = [0; 2].map(|_| Line::random(&mut random, true));
            let groups = random.between(1, 2);
            let extra = lines.map(|l| random.below(l.stride));
            let options =
                ConvTransposeOptions::new(st(&lines), pd(&lines), extra, di(&lines), groups);
            let [inside, outside] = [random.between(1, 2) * groups, random.between(1, 2)];
            let out = [0, 1].map(|d| {
                let l = lines[d];
                (l.size - 1) * l.stride + l.dilation * (l.kernel - 1) + extra[d] + 1 - 2 * l.padding
            });
            let x = random
                .data
                .normal(&[2, inside, lines[0].size, lines[1].size], dtype);
            let kernel = [inside, outside, lines[0].kernel, lines[1].kernel];
            let weight = random.data.normal(&kernel, dtype);
            let bias = random.data.normal(&[outside * groups], dtype);
            let gradient = random
                .data
                .normal(&[2, outside * groups, out[0], out[1]], dtype);
            differ!(
                report,
                format!("{dtype:?} {options:?}"),
                [x, weight, bias, gradient],
                (o: ConvTransposeOptions<2> = options.clone()),
                |B, x| [
                    Float(B::conv_transpose2d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
                    Float(B::conv_transpose2d_weight_backward(
                        x[0].f(),
                        x[1].f(),
                        x[3].f(),
                        o.clone()
                    )),
                    Float(B::conv_transpose2d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
                ]
            );
        }
    }
    report.finish();
}
