//! Convolution gives burn's results, but for rounding, and always the same ones.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2dConfig;
use burn::tensor::activation::relu;
use burn::tensor::module;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_kernels::nn::Conv2d;
use distribute_kernels::{conv2d, conv2d_relu};
use proptest::prelude::*;
use rstest::rstest;

use crate::support::{Numbers, bits};

type Convolution = fn(Tensor<4>, Tensor<4>, Option<Tensor<1>>, ConvOptions<2>) -> Tensor<4>;

fn tensor<const D: usize>(shape: [usize; D], numbers: &mut Numbers) -> Tensor<D> {
    let values = (0..shape.iter().product()).map(|_| numbers.next() - 0.5);
    let values = TensorData::new(values.collect::<Vec<f32>>(), shape);
    Tensor::from_data(values, &Device::flex().autodiff())
}

/// Images, filters and perhaps a bias.
#[derive(Clone)]
struct Inputs(Tensor<4>, Tensor<4>, Option<Tensor<1>>);

impl Inputs {
    fn new(images: [usize; 4], filters: [usize; 4], bias: bool, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let [images, filters] = [images, filters].map(|shape| tensor(shape, &mut numbers));
        let bias = bias.then(|| tensor([filters.dims()[0]], &mut numbers));
        Self(images, filters, bias)
    }
}

/// The gradients that outputs of this shape have in these tests.
fn weights(shape: [usize; 4]) -> Tensor<4> {
    tensor(shape, &mut Numbers(77))
}

/// The output, and the gradients of images, filters and bias if outputs have the gradients that
/// `of_output` says for their shape.
fn trained(
    convolution: Convolution,
    inputs: &Inputs,
    options: &ConvOptions<2>,
    of_output: &dyn Fn([usize; 4]) -> Tensor<4>,
) -> Vec<Tensor<1>> {
    let Inputs(images, filters, bias) = inputs.clone();
    let (images, filters) = (images.require_grad(), filters.require_grad());
    let bias = bias.map(Tensor::require_grad);
    let output = convolution(
        images.clone(),
        filters.clone(),
        bias.clone(),
        options.clone(),
    );
    let weights = of_output(output.dims());
    let gradients = (output.clone() * weights).sum().backward();
    let mut all = vec![output.flatten(0, 3)];
    all.push(images.grad(&gradients).unwrap().reshape([-1]));
    all.push(filters.grad(&gradients).unwrap().reshape([-1]));
    all.extend(bias.map(|bias| bias.grad(&gradients).unwrap()));
    all
}

/// The largest difference, beside the largest of `products`.
fn difference(ours: &Tensor<1>, expected: &Tensor<1>, products: &Tensor<1>) -> f32 {
    let values = |x: &Tensor<1>| x.to_data().try_to_vec::<f32>().unwrap();
    let (ours, expected) = (values(ours), values(expected));
    assert_eq!(ours.len(), expected.len());
    let largest = values(products)
        .iter()
        .fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    let pairs = ours.iter().zip(&expected);
    pairs.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// Errors of rounding grow with the sums of the products' sizes, however small the sums of the
/// products are. An output that is zero but for rounding gets no gradient: a rectifier passes all
/// of it or nothing, by the sign of the rounding.
fn check(inputs: &Inputs, options: &ConvOptions<2>) {
    let Inputs(images, filters, bias) = inputs.clone();
    let sizes = Inputs(
        images.clone().abs(),
        filters.clone().abs(),
        bias.clone().map(Tensor::abs),
    );
    let size = |Inputs(x, w, b): Inputs| module::conv2d(x, w, b, options.clone()).abs();
    let decided = size(inputs.clone())
        .greater(size(sizes.clone()) * 1e-5)
        .float();
    let of_output = |shape| weights(shape) * decided.clone();
    let products = trained(module::conv2d, &sizes, options, &|shape| {
        weights(shape).abs()
    });
    let rectified = |x, w, b, o| relu(module::conv2d(x, w, b, o));
    let pairs: [(Convolution, Convolution); 2] =
        [(conv2d, module::conv2d), (conv2d_relu, rectified)];
    for (ours, of_burn) in pairs {
        let ours = trained(ours, inputs, options, &of_output);
        let expected = trained(of_burn, inputs, options, &of_output);
        assert_eq!(ours.len(), expected.len());
        for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            let difference = difference(ours, expected, &products[i]);
            assert!(difference <= 1e-6, "{i}: {difference} {options:?}");
        }
    }
}

fn any_options() -> impl Strategy<Value = ConvOptions<2>> {
    let pair = |values: std::ops::Range<usize>| [values.clone(), values];
    let padding = [0..3_usize, 0..3, 0..3, 0..3];
    (pair(1..4), padding, pair(1..4)).prop_map(|(stride, [top, bottom, left, right], dilation)| {
        ConvOptions::new_with_padding(stride, [(top, bottom), (left, right)], dilation, 1)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_filters_give_what_burn_computes(
        [batch, channels, height, width] in [1..4_usize, 1..12, 1..24, 1..24],
        [filters, rows, columns] in [1..40_usize, 1..5, 1..5],
        options in any_options(),
        bias in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let fits = |i: usize, input: usize, size: usize| {
            let (before, after) = options.padding[i];
            input + before + after > options.dilation[i] * (size - 1)
        };
        prop_assume!(fits(0, height, rows) && fits(1, width, columns));
        let images = [batch, channels, height, width];
        let filters = [filters, channels, rows, columns];
        check(&Inputs::new(images, filters, bias, seed), &options);
    }
}

/// Sizes at which the kernels take tiles of every width, with and without a rest.
#[rstest]
#[case([64, 1, 28, 28], [32, 1, 3, 3])]
#[case([5, 32, 13, 13], [64, 32, 3, 3])]
#[case([2, 64, 7, 7], [128, 64, 1, 1])]
#[case([2, 40, 9, 30], [50, 40, 3, 5])]
fn layers_of_networks_give_what_burn_computes(
    #[case] images: [usize; 4],
    #[case] filters: [usize; 4],
) {
    for stride in [1, 2] {
        let options = ConvOptions::new([stride, stride], [1, 1], [1, 1], 1);
        check(&Inputs::new(images, filters, true, 5), &options);
    }
}

/// Several groups, and channels that differ, are burn's to compute or to refuse.
#[test]
fn groups_go_to_burn() {
    let inputs = Inputs::new([2, 4, 6, 6], [6, 2, 3, 3], true, 1);
    check(&inputs, &ConvOptions::new([1, 1], [1, 1], [1, 1], 2));
}

/// An image's output does not depend on what else is in the batch, nor on the thread.
#[test]
fn an_image_has_the_same_bits_in_every_batch_and_on_every_thread() {
    let Inputs(images, filters, bias) = Inputs::new([9, 5, 11, 12], [20, 5, 3, 3], true, 3);
    let options = ConvOptions::new([1, 2], [1, 0], [1, 1], 1);
    let one = |from: usize, to: usize| {
        let images = images.clone().narrow(0, from, to - from);
        bits(&conv2d(
            images,
            filters.clone(),
            bias.clone(),
            options.clone(),
        ))
    };
    let together = one(0, 9);
    let alone: Vec<u32> = (0..9).flat_map(|i| one(i, i + 1)).collect();
    assert_eq!(alone, together);
    let on_threads = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(|| one(0, 9)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(on_threads, [together.clone(), together.clone(), together]);
}

/// A filter's gradient is the sum of the images' gradients, in their order. (These images have
/// fewer outputs than a chain.)
#[test]
fn the_gradient_of_filters_adds_images_in_their_order() {
    let inputs = Inputs::new([6, 3, 8, 9], [17, 3, 2, 3], true, 11);
    let options = ConvOptions::new([1, 1], [0, 1], [1, 1], 1);
    let gradients = |images: Tensor<4>, upstream: Tensor<4>| {
        let (filters, bias) = (
            inputs.1.clone().require_grad(),
            inputs.2.clone().unwrap().require_grad(),
        );
        let output = conv2d(images, filters.clone(), Some(bias.clone()), options.clone());
        let gradients = (output * upstream).sum().backward();
        (
            filters.grad(&gradients).unwrap(),
            bias.grad(&gradients).unwrap(),
        )
    };
    let upstream: Tensor<4> = tensor([6, 17, 7, 9], &mut Numbers(2));
    let together = gradients(inputs.0.clone(), upstream.clone());
    let mut sum = (together.0.zeros_like(), together.1.zeros_like());
    for i in 0..6 {
        let of = |all: &Tensor<4>| all.clone().narrow(0, i, 1);
        let one = gradients(of(&inputs.0), of(&upstream));
        sum = (sum.0 + one.0, sum.1 + one.1);
    }
    assert_eq!(bits(&together.0), bits(&sum.0));
    assert_eq!(bits(&together.1), bits(&sum.1));
}

/// Infinities and NaN arrive where they have to.
#[test]
fn what_is_not_finite_spreads_to_the_outputs_that_read_it() {
    let images = Tensor::<4>::zeros([1, 1, 4, 4], &Device::flex());
    let corner = [0..1, 0..1, 0..1, 0..1];
    let nan = images.slice_assign(
        corner,
        Tensor::full([1, 1, 1, 1], f32::NAN, &Device::flex()),
    );
    let filters = Tensor::<4>::ones([1, 1, 2, 2], &Device::flex());
    for convolution in [conv2d as Convolution, conv2d_relu] {
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        let output = convolution(nan.clone(), filters.clone(), None, options);
        let values = output.to_data().try_to_vec::<f32>().unwrap();
        assert!(values[0].is_nan());
        assert_eq!(values[1..], [0.0; 8]);
    }
}

/// The layer takes the settings of burn's, and has its parameters.
#[rstest]
#[case(PaddingConfig2d::Valid)]
#[case(PaddingConfig2d::Same)]
#[case(PaddingConfig2d::Explicit(1, 0, 1, 2))]
fn the_layer_does_what_the_one_of_burn_does(#[case] padding: PaddingConfig2d) {
    let device = Device::flex().autodiff();
    let images: Tensor<4> = tensor([2, 3, 11, 14], &mut Numbers(9));
    for (size, stride) in [([2, 2], [2, 2]), ([3, 2], [2, 1]), ([2, 4], [1, 3])] {
        let config = Conv2dConfig::new([3, 8], size)
            .with_stride(stride)
            .with_padding(padding.clone());
        let layer = config.init(&device);
        let ours = Conv2d::from(layer.clone());
        assert_eq!(ours.num_params(), layer.num_params());
        let expected: Tensor<1> = layer.forward(images.clone()).flatten(0, 3);
        let found: Tensor<1> = ours.forward(images.clone()).flatten(0, 3);
        assert!(
            difference(&found, &expected, &expected) <= 2e-6,
            "{config:?}"
        );
        let found: Tensor<1> = ours.forward_relu(images.clone()).flatten(0, 3);
        let expected = relu(expected);
        assert!(
            difference(&found, &expected, &expected) <= 2e-6,
            "{config:?}"
        );
    }
}
