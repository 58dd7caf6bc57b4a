//! Pooling and its gradients: strides, padding, dilation, both rounding modes, ties.

use burn::tensor::DType;
use distribute_core::burn_internals::backend;
use distribute_core::burn_internals::backend::IntDType;

use crate::check;
use crate::lower::harness::Prim::{Float, Int};
use crate::lower::harness::{Data, typed};

/// Input size, kernel, stride, padding, dilation, whether sizes are rounded up.
pub type Window = (
    [usize; 2],
    [usize; 2],
    [usize; 2],
    [usize; 2],
    [usize; 2],
    bool,
);

const WINDOWS: [Window; 9] = [
    ([8, 8], [2, 2], [2, 2], [0, 0], [1, 1], false),
    ([7, 9], [3, 3], [2, 2], [1, 1], [1, 1], false),
    ([7, 8], [3, 2], [1, 1], [0, 0], [1, 1], false),
    ([9, 10], [2, 3], [3, 2], [1, 0], [2, 1], false),
    ([7, 8], [3, 3], [2, 3], [1, 1], [1, 1], true),
    ([5, 5], [2, 2], [2, 2], [0, 0], [1, 1], true),
    ([6, 5], [2, 2], [3, 3], [1, 1], [1, 1], true),
    ([9, 7], [2, 2], [4, 5], [0, 0], [1, 1], false),
    ([12, 12], [7, 6], [3, 4], [2, 2], [1, 1], false),
];

/// As burn counts windows.
fn windows(size: usize, kernel: usize, stride: usize, padding: usize, ceil: bool) -> usize {
    let room = size + 2 * padding - kernel;
    if !ceil {
        return room / stride + 1;
    }
    let count = room.div_ceil(stride) + 1;
    if (count - 1) * stride >= size + padding {
        count - 1
    } else {
        count
    }
}

pub fn output(window: &Window) -> [usize; 2] {
    let (size, kernel, stride, padding, dilation, ceil) = *window;
    [0, 1].map(|d| {
        let span = dilation[d] * (kernel[d] - 1) + 1;
        windows(size[d], span, stride[d], padding[d], ceil)
    })
}

#[test]
fn the_largest_and_where_it_is() {
    let mut data = Data::new(61);
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for window in WINDOWS {
            let [h, w] = window.0;
            // Few values, so that many windows have several largest ones.
            let few = data.ints(&[2, 3, h, w], DType::I64, -3, 3);
            let a = typed(few.iter::<f64>().collect(), &[2, 3, h, w], dtype);
            check!(
                format!("max pool {dtype:?} {window:?}"),
                [a],
                (w: Window = window),
                |B, x| [
                    Float(B::max_pool2d(x[0].f(), w.1, w.2, w.3, w.4, w.5)),
                    Float(with_indices::<B>(x[0].f(), w).output),
                    Int(with_indices::<B>(x[0].f(), w).indices),
                ]
            );
        }
    }
}

fn with_indices<B: backend::Backend>(
    x: B::FloatTensorPrimitive,
    w: Window,
) -> backend::ops::MaxPool2dWithIndices<B> {
    B::max_pool2d_with_indices(x, w.1, w.2, w.3, w.4, w.5, IntDType::I64)
}

#[test]
fn gradients_go_to_the_largest() {
    let mut data = Data::new(62);
    for dtype in [DType::F32, DType::F64, DType::F16] {
        for window in WINDOWS {
            let [h, w] = window.0;
            let few = data.ints(&[2, 3, h, w], DType::I64, -3, 3);
            let a = typed(few.iter::<f64>().collect(), &[2, 3, h, w], dtype);
            let [oh, ow] = output(&window);
            let gradient = data.normal(&[2, 3, oh, ow], dtype);
            check!(
                format!("max pool backward {dtype:?} {window:?}"),
                [a, gradient],
                (w: Window = window),
                |B, x| [Float(
                    B::max_pool2d_with_indices_backward(
                        x[0].f(),
                        w.1,
                        w.2,
                        w.3,
                        w.4,
                        w.5,
                        x[1].f(),
                        with_indices::<B>(x[0].f(), w).indices,
                    )
                    .x_grad
                )]
            );
        }
    }
}

#[test]
fn special_values_in_windows() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let rows = vec![
        1.0, nan, 5.0, 2.0, //
        nan, 2.0, 1.0, inf, //
        -inf, -inf, -inf, 3.0, //
        -inf, -inf, 1.0, nan,
    ];
    let a = typed(rows, &[1, 1, 4, 4], DType::F32);
    for window in [
        ([4, 4], [2, 2], [2, 2], [0, 0], [1, 1], false),
        ([4, 4], [3, 3], [1, 1], [1, 1], [1, 1], false),
    ] {
        check!("special pool", [a.clone()], (w: Window = window), |B, x| [
            Float(with_indices::<B>(x[0].f(), w).output),
            Int(with_indices::<B>(x[0].f(), w).indices),
        ]);
    }
}

#[test]
fn one_dimension() {
    let mut data = Data::new(63);
    for (kernel, stride, padding, dilation, ceil) in
        [(2, 2, 0, 1, false), (3, 2, 1, 1, true), (3, 1, 2, 2, false)]
    {
        let a = data.normal(&[2, 3, 11], DType::F32);
        check!(
            "pool 1d",
            [a],
            (k: usize = kernel, s: usize = stride, p: usize = padding, d: usize = dilation,
                c: bool = ceil),
            |B, x| [
                Float(B::max_pool1d(x[0].f(), k, s, p, d, c)),
                Float(B::avg_pool1d(x[0].f(), k, s, p, false, c)),
                Float(B::avg_pool1d(x[0].f(), k, s, p, true, c)),
                Float(B::adaptive_avg_pool1d(x[0].f(), 4)),
            ]
        );
    }
}

#[test]
fn gradients_of_one_dimension() {
    let mut data = Data::new(66);
    for (kernel, stride, padding, dilation) in [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 2, 2)] {
        let out = windows(11, dilation * (kernel - 1) + 1, stride, padding, false);
        let dense = windows(11, kernel, stride, padding, false);
        let few = data.ints(&[2, 3, 11], DType::I64, -3, 3);
        let a = typed(few.iter::<f64>().collect(), &[2, 3, 11], DType::F32);
        let gradient = data.normal(&[2, 3, out], DType::F32);
        let mean = data.normal(&[2, 3, dense], DType::F32);
        let adaptive = data.normal(&[2, 3, 4], DType::F32);
        check!(
            "pool 1d backward",
            [a, gradient, mean, adaptive],
            (k: usize = kernel, s: usize = stride, p: usize = padding, d: usize = dilation),
            |B, x| [
                Float(line::<B>(x[0].f(), k, s, p, d).output),
                Int(line::<B>(x[0].f(), k, s, p, d).indices),
                Float(
                    B::max_pool1d_with_indices_backward(
                        x[0].f(),
                        k,
                        s,
                        p,
                        d,
                        false,
                        x[1].f(),
                        line::<B>(x[0].f(), k, s, p, d).indices,
                    )
                    .x_grad
                ),
                Float(B::avg_pool1d_backward(x[0].f(), x[2].f(), k, s, p, true, false)),
                Float(B::avg_pool1d_backward(x[0].f(), x[2].f(), k, s, p, false, false)),
                Float(B::adaptive_avg_pool1d_backward(x[0].f(), x[3].f())),
            ]
        );
    }
}

fn line<B: backend::Backend>(
    x: B::FloatTensorPrimitive,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
) -> backend::ops::MaxPool1dWithIndices<B> {
    B::max_pool1d_with_indices(x, kernel, stride, padding, dilation, false, IntDType::I64)
}

#[test]
fn averages_and_their_gradients() {
    let mut data = Data::new(64);
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for window in WINDOWS.into_iter().filter(|w| w.4 == [1, 1]) {
            for include in [false, true] {
                let [h, w] = window.0;
                let a = data.normal(&[2, 3, h, w], dtype);
                let [oh, ow] = output(&window);
                let gradient = data.normal(&[2, 3, oh, ow], dtype);
                check!(
                    format!("avg pool {dtype:?} {include} {window:?}"),
                    [a, gradient],
                    (w: Window = window, i: bool = include),
                    |B, x| [
                        Float(B::avg_pool2d(x[0].f(), w.1, w.2, w.3, i, w.5)),
                        Float(B::avg_pool2d_backward(x[0].f(), x[1].f(), w.1, w.2, w.3, i, w.5)),
                    ]
                );
            }
        }
    }
}

#[test]
fn adaptive_averages_and_their_gradients() {
    let mut data = Data::new(65);
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for (size, target) in [
            ([8, 8], [2, 4]),
            ([7, 9], [3, 4]),
            ([5, 6], [1, 1]),
            ([3, 4], [5, 7]),
        ] {
            let a = data.normal(&[2, 3, size[0], size[1]], dtype);
            let gradient = data.normal(&[2, 3, target[0], target[1]], dtype);
            check!(
                format!("adaptive {dtype:?} {size:?} {target:?}"),
                [a, gradient],
                (t: [usize; 2] = target),
                |B, x| [
                    Float(B::adaptive_avg_pool2d(x[0].f(), t)),
                    Float(B::adaptive_avg_pool2d_backward(x[0].f(), x[1].f())),
                ]
            );
        }
    }
    let a = data.normal(&[1, 2, 4, 5, 6], DType::F32);
    let gradient = data.normal(&[1, 2, 2, 2, 4], DType::F32);
    check!("adaptive 3d", [a, gradient], |B, x| [
        Float(B::adaptive_avg_pool3d(x[0].f(), [2, 2, 4])),
        Float(B::adaptive_avg_pool3d_backward(x[0].f(), x[1].f())),
    ]);
}
