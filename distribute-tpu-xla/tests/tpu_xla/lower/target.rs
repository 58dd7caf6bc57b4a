//! Forms of operations that are for the TPU's compiler only: which operations they are made of, and
//! that they give what the general forms and burn's flex backend give.

use burn::tensor::{DType, IndexingUpdateOp, Shape, TensorData, TensorId};
use distribute_core::burn_internals::backend;
use distribute_core::burn_internals::backend::ops::{ConvOptions, MaxPool2dWithIndices};
use distribute_core::burn_internals::backend::{Backend, IntDType};
use distribute_tpu_xla::lower::{LowerOptions, Lowered, Target};
use distribute_tpu_xla::stablehlo::Precision;

use crate::check;
use crate::lower::harness::Prim::{Float, Int};
use crate::lower::harness::{
    Captured, Data, FLOATS, INTS, Prim, Step, capture, client, execute, forms, ints, lower_with,
    typed,
};
use crate::lower::pooling::{Window, output};

/// The gradient for the weights of a convolution of `x[0]` with `x[1]`; `x[2]` is the result's.
struct WeightGradient(ConvOptions<2>);

impl Step for WeightGradient {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let options = self.0.clone();
        let gradient = B::conv2d_weight_backward(x[0].f(), x[1].f(), x[2].f(), options);
        vec![Float(gradient)]
    }
}

/// Input, weights and the gradient of the result.
fn convolved(
    data: &mut Data,
    dtype: DType,
    channels: [usize; 2],
    size: [usize; 2],
    kernel: [usize; 2],
    options: &ConvOptions<2>,
) -> Option<[TensorData; 3]> {
    let along = |d: usize| {
        let padding = options.padding[d].0 + options.padding[d].1;
        let room = (size[d] + padding).checked_sub(options.dilation[d] * (kernel[d] - 1) + 1)?;
        Some(room / options.stride[d] + 1)
    };
    let [rows, columns] = [along(0)?, along(1)?];
    let [inside, outside] = channels;
    Some([
        data.normal(&[2, inside, size[0], size[1]], dtype),
        data.normal(
            &[outside, inside / options.groups, kernel[0], kernel[1]],
            dtype,
        ),
        data.normal(&[2, outside, rows, columns], dtype),
    ])
}

fn for_tpu(captured: &Captured, precision: Precision) -> String {
    let options = LowerOptions {
        target: Target::Tpu,
        precision,
        ..LowerOptions::default()
    };
    lower_with(captured, &options).program.text
}

/// Whether the TPU has a form of its own; [`crate::lower::harness::compare`] runs both then.
fn differs(inputs: &[TensorData], step: &impl Step) -> bool {
    forms(&capture(inputs, step)).len() == 2
}

/// As a convolution these take the TPU's compiler minutes; others, and those for other compilers,
/// stay what they are.
#[test]
fn weight_gradients_of_few_channels_are_no_convolutions() {
    let mut data = Data::new(81);
    let (highest, f32, large) = (Some(Precision::Highest), DType::F32, [12, 9]);
    // Element type, channels, groups, image, precision on a TPU, groups of the convolution.
    let cases = [
        (f32, [1, 4], 1, large, highest, None),
        (f32, [3, 4], 1, large, highest, None),
        (f32, [7, 4], 1, large, highest, None),
        (f32, [3, 4], 1, large, Some(Precision::High), None),
        (f32, [4, 8], 4, large, highest, None),
        // Groups of few channels, but many in all: one convolution without groups.
        (f32, [16, 16], 4, large, highest, Some(1)),
        (f32, [8, 4], 1, large, highest, Some(1)),
        (f32, [16, 16], 16, large, highest, Some(16)),
        (f32, [16, 16], 2, large, highest, Some(2)),
        (f32, [3, 4], 1, [8, 8], highest, Some(1)),
        (f32, [3, 4], 1, large, Some(Precision::Default), Some(1)),
        (DType::BF16, [3, 4], 1, large, highest, Some(1)),
        (f32, [3, 4], 1, large, None, Some(1)),
    ];
    for (dtype, channels, groups, image, precision, convolution) in cases {
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], groups);
        let inputs = convolved(&mut data, dtype, channels, image, [3, 3], &options).unwrap();
        let captured = capture(&inputs, &WeightGradient(options));
        let text = match precision {
            Some(precision) => for_tpu(&captured, precision),
            None => lower_with(&captured, &LowerOptions::default()).program.text,
        };
        let name = format!("{dtype:?} {channels:?} {groups} {image:?} {precision:?}\n{text}");
        assert_eq!(
            text.contains("convolution"),
            convolution.is_some(),
            "{name}"
        );
        if let Some(groups) = convolution {
            assert!(
                text.contains(&format!("batch_group_count = {groups}")),
                "{name}"
            );
        }
    }
}

#[test]
fn weight_gradients_of_few_channels_are_right() {
    let mut data = Data::new(82);
    let mut between = {
        let mut random = Data::new(83);
        move |low: usize, high: usize| low + (random.next() >> 33) as usize % (high - low + 1)
    };
    let mut compared = 0;
    for round in 0..40 {
        let dtype = if round % 4 == 3 {
            DType::F64
        } else {
            DType::F32
        };
        let groups = [1, 1, 2, 3][between(0, 3)];
        let channels = [groups * between(1, 4), groups * between(1, 3)];
        let pair = |low, high, between: &mut dyn FnMut(usize, usize) -> usize| {
            [between(low, high), between(low, high)]
        };
        let size = pair(9, 16, &mut between);
        let kernel = pair(1, 4, &mut between);
        let padding = [0, 1].map(|_| (between(0, 2), between(0, 2)));
        let [stride, dilation] = [0; 2].map(|_| pair(1, 3, &mut between));
        let options = ConvOptions::new_with_padding(stride, padding, dilation, groups);
        let inputs = convolved(&mut data, dtype, channels, size, kernel, &options);
        let Some(inputs) = inputs else { continue };
        if inputs[2].shape()[2..].iter().product::<usize>() <= 64 {
            continue; // Small images keep it too.
        }
        if groups > 1 && channels[0] * channels[1] == groups * groups {
            continue; // One channel to one channel keeps its form.
        }
        let name = format!("{dtype:?} {channels:?} {size:?} {kernel:?} {options:?}");
        let step = WeightGradient(options.clone());
        assert!(differs(&inputs, &step), "{name}");
        let [x, weight, gradient] = inputs;
        check!(name, [x, weight, gradient], (o: ConvOptions<2> = options), |B, x| [
            Float(B::conv2d_weight_backward(x[0].f(), x[1].f(), x[2].f(), o.clone()))
        ]);
        compared += 1;
    }
    assert!(compared > 8, "{compared}");
}

#[test]
fn one_and_three_dimensions_and_transposed_ones_are_right() {
    let mut data = Data::new(84);
    let (x, weight) = ([2, 3, 151], [4, 3, 3]);
    let [x, weight] = [
        data.normal(&x, DType::F32),
        data.normal(&weight, DType::F32),
    ];
    let gradient = data.normal(&[2, 4, 75], DType::F32);
    check!("conv1d", [x, weight, gradient], (), |B, x| [Float(
        B::conv1d_weight_backward(
            x[0].f(),
            x[1].f(),
            x[2].f(),
            ConvOptions::new([2], [1], [2], 1)
        )
    )]);
    let x = data.normal(&[2, 1, 4, 5, 6], DType::F32);
    let weight = data.normal(&[3, 1, 2, 3, 2], DType::F32);
    let gradient = data.normal(&[2, 3, 5, 2, 7], DType::F32);
    check!("conv3d", [x, weight, gradient], (), |B, x| [Float(
        B::conv3d_weight_backward(
            x[0].f(),
            x[1].f(),
            x[2].f(),
            ConvOptions::new([1, 2, 1], [1, 0, 1], [1, 1, 1], 1)
        )
    )]);
    // The gradient for transposed weights: the result's channels are the few ones.
    let x = data.normal(&[2, 6, 9, 8], DType::F32);
    let weight = data.normal(&[6, 1, 3, 3], DType::F32);
    let gradient = data.normal(&[2, 2, 19, 8], DType::F32);
    check!("transposed", [x, weight, gradient], (), |B, x| [Float(
        B::conv_transpose2d_weight_backward(
            x[0].f(),
            x[1].f(),
            x[2].f(),
            backend::ops::ConvTransposeOptions::new([2, 1], [0, 1], [0, 0], [1, 1], 2)
        )
    )]);
}

/// The largest elements of windows over `x[0]`, and the gradient from that of the result, `x[1]`.
struct Pool {
    window: Window,
    /// Whether the positions are a result too.
    positions: bool,
}

fn pooled<B: Backend>(x: B::FloatTensorPrimitive, w: Window) -> MaxPool2dWithIndices<B> {
    B::max_pool2d_with_indices(x, w.1, w.2, w.3, w.4, w.5, IntDType::I64)
}

impl Step for Pool {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let w = self.window;
        let found = pooled::<B>(x[0].f(), w);
        let gradient = B::max_pool2d_with_indices_backward(
            x[0].f(),
            w.1,
            w.2,
            w.3,
            w.4,
            w.5,
            x[1].f(),
            found.indices.clone(),
        );
        let mut results = vec![Float(found.output), Float(gradient.x_grad)];
        if self.positions {
            results.push(Int(found.indices));
        }
        results
    }
}

const WINDOWS: [Window; 12] = [
    ([8, 8], [2, 2], [2, 2], [0, 0], [1, 1], false),
    ([7, 9], [3, 3], [2, 2], [1, 1], [1, 1], false),
    ([7, 8], [3, 2], [1, 1], [0, 0], [1, 1], false),
    ([9, 10], [2, 3], [3, 2], [1, 0], [2, 1], false),
    ([7, 8], [3, 3], [2, 3], [1, 1], [1, 1], true),
    ([5, 5], [2, 2], [2, 2], [0, 0], [1, 1], true),
    ([6, 5], [2, 2], [3, 3], [1, 1], [1, 1], true),
    ([9, 7], [2, 2], [4, 5], [0, 0], [1, 1], false),
    ([12, 12], [7, 6], [3, 4], [2, 2], [1, 1], false),
    ([5, 3], [1, 1], [2, 2], [0, 0], [1, 1], false),
    ([4, 6], [4, 6], [1, 1], [0, 0], [1, 1], false),
    ([7, 7], [2, 2], [1, 3], [1, 0], [3, 3], false),
];

#[test]
fn largest_elements_and_their_gradients_are_right() {
    let mut data = Data::new(85);
    for (number, window) in WINDOWS.into_iter().enumerate() {
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::F16][number % 4];
        let [rows, columns] = window.0;
        let channels = number % 4 + 1;
        let shape = [2, channels, rows, columns];
        // Few values, so that many windows have several largest ones.
        let few = data.ints(&shape, DType::I64, -3, 3);
        let x = typed(few.iter::<f64>().collect(), &shape, dtype);
        let positions = number % 2 == 0;
        let name = format!("{dtype:?} {window:?}");
        let step = Pool { window, positions };
        let [out_rows, out_columns] = output(&window);
        let gradient = data.normal(&[2, channels, out_rows, out_columns], dtype);
        let inputs = vec![x, gradient];
        assert!(differs(&inputs, &step), "{name}");
        crate::lower::harness::compare(&name, inputs, &step);
    }
}

/// With padding XLA does not go through a window row by row.
#[test]
fn of_equals_the_first_wins_beside_padding_too() {
    let mut data = Data::new(91);
    for window in WINDOWS.into_iter().filter(|w| w.4 == [1, 1]) {
        let [rows, columns] = window.0;
        let [out_rows, out_columns] = output(&window);
        for round in 0..4 {
            let few = data.ints(&[2, 3, rows, columns], DType::I64, 0, 2);
            let x = typed(
                few.iter::<f64>().collect(),
                &[2, 3, rows, columns],
                DType::F32,
            );
            let gradient = data.normal(&[2, 3, out_rows, out_columns], DType::F32);
            let inputs = vec![x, gradient];
            let step = Pool {
                window,
                positions: false,
            };
            let text = for_tpu(&capture(&inputs, &step), Precision::Highest);
            assert!(text.contains("select_and_scatter"), "{window:?}");
            assert!(!text.contains("ui32"), "{window:?}: positions");
            crate::lower::harness::compare(&format!("{window:?} {round}"), inputs, &step);
        }
    }
}

/// Of NaNs the last gets the gradient, of equals the first, also where all are the lowest.
#[test]
fn special_values_win_as_they_do_elsewhere() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let values = [nan, inf, -inf, -inf, 0.0, 1.0, nan, -inf];
    let mut random = Data::new(86);
    for window in [
        ([6, 6], [2, 2], [2, 2], [0, 0], [1, 1], false),
        ([6, 6], [3, 3], [1, 1], [1, 1], [1, 1], false),
        ([5, 6], [3, 2], [2, 2], [1, 0], [1, 1], true),
    ] {
        let [rows, columns] = window.0;
        for _ in 0..2 {
            let numbers = (0..2 * rows * columns)
                .map(|_| values[(random.next() >> 33) as usize % values.len()])
                .collect();
            let x = typed(numbers, &[1, 2, rows, columns], DType::F32);
            let [out_rows, out_columns] = output(&window);
            let gradient = random.normal(&[1, 2, out_rows, out_columns], DType::F32);
            let step = Pool {
                window,
                positions: true,
            };
            crate::lower::harness::compare("special", vec![x, gradient], &step);
        }
    }
}

/// The positions of one pooling, for the gradient of another one's input.
struct Foreign;

impl Step for Foreign {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let (k, s, p) = ([2, 2], [2, 2], [0, 0]);
        let window = ([4, 4], k, s, p, [1, 1], false);
        let found = pooled::<B>(x[0].f(), window);
        let gradient = found.output;
        let back = B::max_pool2d_with_indices_backward(
            x[1].f(),
            k,
            s,
            p,
            [1, 1],
            false,
            gradient,
            found.indices,
        );
        vec![Float(back.x_grad)]
    }
}

#[test]
fn positions_are_made_only_where_something_needs_them() {
    let mut data = Data::new(87);
    let x = data.normal(&[1, 2, 8, 8], DType::F32);
    let window = WINDOWS[0];
    let gradient = data.normal(&[1, 2, 4, 4], DType::F32);
    let text = |positions| {
        let inputs = [x.clone(), gradient.clone()];
        let captured = capture(&inputs, &Pool { window, positions });
        for_tpu(&captured, Precision::Highest)
    };
    let (without, with) = (text(false), text(true));
    assert!(without.contains("select_and_scatter") && !without.contains("ui32"));
    assert!(with.contains("select_and_scatter") && with.contains("ui32"));
    let [a, b] = [0; 2].map(|_| data.normal(&[1, 2, 4, 4], DType::F32));
    let captured = capture(&[a.clone(), b.clone()], &Foreign);
    let text = for_tpu(&captured, Precision::Highest);
    assert!(
        !text.contains("select_and_scatter"),
        "positions of another input"
    );
    crate::lower::harness::compare("foreign positions", vec![a, b], &Foreign);
}

/// The element of each row that `x[1]` names, and `x[0]` with `x[2]` added to it.
struct Rows(usize);

impl Step for Rows {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let add = IndexingUpdateOp::Add;
        let sum = B::float_scatter(self.0, x[0].f(), x[1].i(), x[2].f(), add);
        vec![
            Float(B::float_gather(self.0, x[0].f(), x[1].i())),
            Float(sum),
        ]
    }
}

#[test]
fn one_element_of_each_row_is_chosen_by_comparing() {
    let mut data = Data::new(89);
    // Dimensions, along which, how many of each row, and whether a TPU compares.
    let cases: [(&[usize], usize, usize, bool); 6] = [
        (&[7, 10], 1, 1, true),
        (&[5, 4], 0, 1, true),
        (&[2, 3, 4, 5], 1, 1, true),
        (&[3, 1], 1, 1, true),
        (&[7, 10], 1, 2, false),
        (&[9], 0, 1, false),
    ];
    for (number, (dims, dim, count, compares)) in cases.into_iter().enumerate() {
        let dtype = FLOATS[number % 4];
        let mut rows = dims.to_vec();
        rows[dim] = count;
        let x = data.normal(dims, dtype);
        let size = dims[dim] as i64;
        let at = data.ints(&rows, INTS[number % 3], 0, size);
        let value = data.normal(&rows, dtype);
        let inputs = vec![x, at, value];
        let name = format!("{dims:?} {dim} {count}");
        let text = for_tpu(&capture(&inputs, &Rows(dim)), Precision::Highest);
        let moves = text.contains("stablehlo.gather") || text.contains("stablehlo.scatter");
        assert_eq!(moves, !compares, "{name}");
        crate::lower::harness::compare(&name, inputs, &Rows(dim));
    }
}

/// What is not chosen counts for nothing, whatever it is, and what is chosen keeps its sign. An
/// index outside reads the nearest element and writes none, as a gather and a scatter do.
#[test]
fn special_values_and_indices_outside_of_rows() {
    let Some(client) = client() else { return };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let x = typed(
        vec![
            nan, -0.0, inf, 1.0, nan, -inf, -inf, 2.0, nan, 3.0, 4.0, 5.0,
        ],
        &[4, 3],
        DType::F32,
    );
    let value = typed(vec![1.0, -0.0, nan, inf], &[4, 1], DType::F32);
    let run = |at: &[i64], dtype| {
        let inputs = vec![x.clone(), ints(at.to_vec(), &[4, 1], dtype), value.clone()];
        let captured = capture(&inputs, &Rows(1));
        forms(&captured)
            .into_iter()
            .map(|(_, lowered)| {
                let results = execute(client, &lowered, std::slice::from_ref(&inputs)).remove(0);
                let bits = |data: &TensorData| {
                    let values = data.iter::<f32>();
                    let bits = |v: f32| if v.is_nan() { 0 } else { v.to_bits() };
                    values.map(bits).collect::<Vec<_>>()
                };
                results.iter().map(bits).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    for (at, dtype) in [
        ([1, 1, 0, 2], DType::I64),
        ([0, 2, 2, 1], DType::I32),
        ([-1, 3, 7, -5], DType::I64),
        ([-1, 3, 127, -128], DType::I8),
        ([3, 0, 200, 255], DType::U8),
        ([3, 1, 4, 0xFFFF_FFFF], DType::U32),
    ] {
        let found = run(&at, dtype);
        assert_eq!(found.len(), 2, "a TPU has a form of its own");
        assert_eq!(found[0], found[1], "{at:?} of {dtype:?}");
    }
    assert_eq!(
        run(&[1, 0, 0, 0], DType::I64)[1][0][0],
        (-0.0_f32).to_bits()
    );
}

/// Four tensors of 6 x 20: read in other dimensions after two reshapes, after two equal ones, in
/// its own dimensions too, and in two different ones.
struct Reshaped;

impl Step for Reshaped {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let to = |x: B::FloatTensorPrimitive, dims: &[usize]| {
            B::float_reshape(x, Shape::from(dims.to_vec()))
        };
        let image = [6, 1, 4, 5];
        let read = [
            B::float_exp(to(to(x[0].f(), &[6, 2, 10]), &image)),
            B::float_exp(to(x[1].f(), &image)),
            B::float_neg(to(x[1].f(), &image)),
            B::float_exp(to(x[2].f(), &image)),
            B::float_neg(x[2].f()),
            B::float_exp(to(x[3].f(), &image)),
            B::float_neg(to(x[3].f(), &[12, 10])),
        ];
        read.into_iter().map(Float).collect()
    }
}

#[test]
fn a_batch_arrives_in_the_dimensions_in_which_it_is_read() {
    let Some(client) = client() else { return };
    let mut data = Data::new(90);
    let inputs: Vec<TensorData> = (0..4).map(|_| data.normal(&[6, 20], DType::F32)).collect();
    let captured = capture(&inputs, &Reshaped);
    let lowered = |target, sent: &[TensorId]| {
        let options = LowerOptions {
            target,
            host_inputs: sent.iter().copied().collect(),
            ..LowerOptions::default()
        };
        lower_with(&captured, &options)
    };
    let dims = |lowered: &Lowered| -> Vec<Vec<usize>> {
        let inputs = lowered.program.inputs.iter();
        inputs.map(|ty| ty.dims().to_vec()).collect()
    };
    let [image, rows] = [vec![6, 1, 4, 5], vec![6, 20]];
    let tpu = lowered(Target::Tpu, &captured.inputs);
    let expected = [&image, &image, &rows, &rows].map(Clone::clone);
    assert_eq!(dims(&tpu), expected);
    // What stays on the device has its own dimensions, and so has everything for other compilers.
    let kept = lowered(Target::Tpu, &captured.inputs[1..]);
    assert_eq!(dims(&kept)[0], rows);
    let any = lowered(Target::Any, &captured.inputs);
    assert_eq!(dims(&any), [&rows; 4].map(Clone::clone));
    let [found, expected] = [&tpu, &any]
        .map(|lowered| execute(client, lowered, std::slice::from_ref(&inputs)).remove(0));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(
            (found.shape(), found.as_bytes()),
            (expected.shape(), expected.as_bytes())
        );
    }
}

#[test]
fn the_precision_is_that_of_every_product() {
    let mut data = Data::new(88);
    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let inputs = convolved(&mut data, DType::F32, [8, 4], [6, 5], [3, 3], &options).unwrap();
    let captured = capture(&inputs, &WeightGradient(options));
    for precision in Precision::ALL {
        let text = for_tpu(&captured, precision);
        let name = precision.name().to_uppercase();
        assert_eq!(
            text.matches(&format!("<precision {name}>")).count(),
            2,
            "{text}"
        );
        assert_eq!(text.matches("<precision ").count(), 2);
        assert_eq!(precision.name().parse(), Ok(precision));
    }
    assert!("fast".parse::<Precision>().is_err());
}
