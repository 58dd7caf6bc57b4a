//! Convolutions with strides, padding, dilation and groups, and their gradients.

use burn::tensor::{DType, Shape, TensorData, read_sync};
use burn_flex::Flex;
use distribute_core::burn_internals::backend::Backend;
use distribute_core::burn_internals::backend::ops::{
    ConvOptions, ConvTransposeOptions, FloatTensorOps, ModuleOps,
};

use crate::check;
use crate::lower::harness::Prim::Float;
use crate::lower::harness::{
    Data, Prim, Step, Tolerance, assert_close, capture, client, execute, lowered,
};

/// Batch, channels in and out, size, kernel, options; the gradient's size follows.
type Case2d = (usize, [usize; 2], [usize; 2], [usize; 2], ConvOptions<2>);

fn cases() -> Vec<Case2d> {
    vec![
        (
            2,
            [1, 4],
            [8, 8],
            [3, 3],
            ConvOptions::new([1, 1], [1, 1], [1, 1], 1),
        ),
        (
            3,
            [3, 5],
            [9, 7],
            [3, 2],
            ConvOptions::new([1, 1], [0, 0], [1, 1], 1),
        ),
        (
            1,
            [4, 6],
            [11, 10],
            [3, 3],
            ConvOptions::new([2, 3], [1, 2], [1, 1], 2),
        ),
        (
            2,
            [6, 6],
            [9, 9],
            [2, 3],
            ConvOptions::new([2, 1], [0, 2], [2, 2], 3),
        ),
        (
            2,
            [4, 4],
            [6, 6],
            [3, 3],
            ConvOptions::new([1, 1], [2, 2], [1, 1], 4),
        ),
        (
            1,
            [2, 3],
            [5, 5],
            [1, 1],
            ConvOptions::new([2, 2], [1, 1], [1, 1], 1),
        ),
        // Padding larger than the kernel, rows that no window reaches.
        (
            1,
            [2, 2],
            [7, 8],
            [2, 2],
            ConvOptions::new([3, 3], [3, 0], [1, 2], 1),
        ),
    ]
}

fn output(size: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> usize {
    (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1
}

/// `x`, weight, bias and the gradient of the output.
fn tensors(data: &mut Data, case: &Case2d, dtype: DType) -> [TensorData; 4] {
    let (batch, [inside, outside], size, kernel, options) = case;
    let along = |d: usize| {
        let padding = options.padding[d].0;
        output(
            size[d],
            kernel[d],
            options.stride[d],
            padding,
            options.dilation[d],
        )
    };
    let groups = options.groups;
    [
        data.normal(&[*batch, *inside, size[0], size[1]], dtype),
        data.normal(&[*outside, inside / groups, kernel[0], kernel[1]], dtype),
        data.normal(&[*outside], dtype),
        data.normal(&[*batch, *outside, along(0), along(1)], dtype),
    ]
}

#[test]
fn two_dimensions_forward_and_backward() {
    let mut data = Data::new(51);
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for case in cases() {
            let [x, weight, bias, gradient] = tensors(&mut data, &case, dtype);
            check!(
                format!("conv2d {dtype:?} {case:?}"),
                [x, weight, bias, gradient],
                (o: ConvOptions<2> = case.4.clone()),
                |B, x| [
                    Float(B::conv2d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
                    Float(B::conv2d(x[0].f(), x[1].f(), None, o.clone())),
                ]
            );
        }
    }
    for case in cases() {
        let [x, weight, bias, gradient] = tensors(&mut data, &case, DType::F32);
        check!(
            format!("conv2d backward {case:?}"),
            [x, weight, bias, gradient],
            (o: ConvOptions<2> = case.4.clone()),
            |B, x| [
                Float(B::conv2d_x_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv2d_weight_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv2d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
            ]
        );
    }
}

#[test]
fn padding_may_differ_between_the_ends() {
    let mut data = Data::new(52);
    let options = ConvOptions::new_with_padding([1, 2], [(0, 1), (2, 1)], [1, 1], 1);
    let x = data.normal(&[2, 3, 6, 7], DType::F32);
    let weight = data.normal(&[4, 3, 2, 3], DType::F32);
    let gradient = data.normal(&[2, 4, 6, 4], DType::F32);
    check!("one-sided", [x, weight, gradient], (o: ConvOptions<2> = options), |B, x| [
        Float(B::conv2d(x[0].f(), x[1].f(), None, o.clone())),
        Float(B::conv2d_x_backward(x[0].f(), x[1].f(), x[2].f(), o.clone())),
        Float(B::conv2d_weight_backward(x[0].f(), x[1].f(), x[2].f(), o.clone())),
    ]);
}

#[test]
fn one_dimension() {
    let mut data = Data::new(53);
    // Of 13 elements, because burn's gradient for grouped weights is wrong where the last
    // elements are in no window.
    for (stride, padding, dilation, groups) in [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 3, 1)] {
        let out = output(13, 3, stride, padding, dilation);
        let x = data.normal(&[2, 4, 13], DType::F32);
        let weight = data.normal(&[6, 4 / groups, 3], DType::F32);
        let bias = data.normal(&[6], DType::F32);
        let gradient = data.normal(&[2, 6, out], DType::F32);
        let options = ConvOptions::new([stride], [padding], [dilation], groups);
        check!(
            format!("conv1d {options:?}"),
            [x, weight, bias, gradient],
            (o: ConvOptions<1> = options.clone()),
            |B, x| [
                Float(B::conv1d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
                Float(B::conv1d_x_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv1d_weight_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
                Float(B::conv1d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
            ]
        );
    }
}

/// The same convolution in two dimensions, where burn is right.
#[test]
fn grouped_weights_of_one_dimension_where_a_row_is_left_over() {
    let mut data = Data::new(56);
    let x = data.normal(&[2, 4, 12], DType::F32);
    let weight = data.normal(&[6, 2, 3], DType::F32);
    let gradient = data.normal(&[2, 6, 6], DType::F32);
    let step = WeightGradient1d;
    let captured = capture(&[x.clone(), weight.clone(), gradient.clone()], &step);
    let Some(client) = client() else { return };
    let inputs = vec![x.clone(), weight.clone(), gradient.clone()];
    let actual = execute(client, &lowered(&captured), &[inputs]).remove(0);
    let flat = |t: TensorData, dims: [usize; 4]| {
        Flex::float_reshape(
            Flex::float_from_data(t, &Default::default()),
            Shape::from(dims),
        )
    };
    let expected = Flex::conv2d_weight_backward(
        flat(x, [2, 4, 1, 12]),
        flat(weight, [6, 2, 1, 3]),
        flat(gradient, [2, 6, 1, 6]),
        ConvOptions::new([1, 2], [0, 1], [1, 1], 2),
    );
    let expected = Flex::float_reshape(expected, Shape::from([6, 2, 3]));
    let expected = read_sync(Flex::float_into_data(expected)).unwrap();
    assert_close("grouped", &expected, &actual[0], Tolerance::new(1e-5, 1e-6));
}

struct WeightGradient1d;

impl Step for WeightGradient1d {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let options = ConvOptions::new([2], [1], [1], 2);
        vec![Float(B::conv1d_weight_backward(
            x[0].f(),
            x[1].f(),
            x[2].f(),
            options,
        ))]
    }
}

#[test]
fn three_dimensions() {
    let mut data = Data::new(54);
    let options = ConvOptions::new([1, 2, 1], [1, 0, 1], [1, 1, 2], 1);
    let x = data.normal(&[1, 2, 4, 5, 6], DType::F32);
    let weight = data.normal(&[3, 2, 2, 3, 2], DType::F32);
    let gradient = data.normal(&[1, 3, 5, 2, 6], DType::F32);
    let bias = data.normal(&[3], DType::F32);
    check!("conv3d", [x, weight, gradient, bias], (o: ConvOptions<3> = options), |B, x| [
        Float(B::conv3d(x[0].f(), x[1].f(), Some(x[3].f()), o.clone())),
        Float(B::conv3d_bias_backward(x[0].f(), x[3].f(), x[2].f())),
        Float(B::conv3d_x_backward(x[0].f(), x[1].f(), x[2].f(), o.clone())),
        Float(B::conv3d_weight_backward(x[0].f(), x[1].f(), x[2].f(), o.clone())),
    ]);
}

#[test]
fn transposed() {
    let mut data = Data::new(55);
    let cases = [
        ([1, 1], [0, 0], [0, 0], [1, 1], 1),
        ([2, 3], [1, 0], [1, 2], [1, 2], 2),
    ];
    for (stride, padding, padding_out, dilation, groups) in cases {
        let options = ConvTransposeOptions::new(stride, padding, padding_out, dilation, groups);
        let out = |size: usize, d: usize| {
            (size - 1) * stride[d] + dilation[d] * 2 + padding_out[d] + 1 - 2 * padding[d]
        };
        let x = data.normal(&[2, 4, 5, 6], DType::F32);
        let weight = data.normal(&[4, 3, 3, 3], DType::F32);
        let bias = data.normal(&[3 * groups], DType::F32);
        let gradient = data.normal(&[2, 3 * groups, out(5, 0), out(6, 1)], DType::F32);
        check!(
            format!("conv_transpose2d {options:?}"),
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

#[test]
fn transposed_in_one_and_three_dimensions() {
    let mut data = Data::new(57);
    let x = data.normal(&[2, 4, 5], DType::F32);
    let weight = data.normal(&[4, 3, 3], DType::F32);
    let bias = data.normal(&[3], DType::F32);
    let gradient = data.normal(&[2, 3, 10], DType::F32);
    let options = ConvTransposeOptions::new([2], [1], [1], [1], 1);
    check!(
        "conv_transpose1d",
        [x, weight, bias, gradient],
        (o: ConvTransposeOptions<1> = options),
        |B, x| [
            Float(B::conv_transpose1d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
            Float(B::conv_transpose1d_weight_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
            Float(B::conv_transpose1d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
        ]
    );
    let x = data.normal(&[1, 2, 3, 4, 3], DType::F32);
    let weight = data.normal(&[2, 3, 2, 3, 2], DType::F32);
    let bias = data.normal(&[3], DType::F32);
    let gradient = data.normal(&[1, 3, 4, 9, 4], DType::F32);
    let options = ConvTransposeOptions::new([1, 2, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1);
    check!(
        "conv_transpose3d",
        [x, weight, bias, gradient],
        (o: ConvTransposeOptions<3> = options),
        |B, x| [
            Float(B::conv_transpose3d(x[0].f(), x[1].f(), Some(x[2].f()), o.clone())),
            Float(B::conv_transpose3d_weight_backward(x[0].f(), x[1].f(), x[3].f(), o.clone())),
            Float(B::conv_transpose3d_bias_backward(x[0].f(), x[2].f(), x[3].f())),
        ]
    );
}
