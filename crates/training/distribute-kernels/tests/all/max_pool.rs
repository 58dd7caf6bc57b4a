//! Max-pooling gives burn's bits.

use burn::nn::PaddingConfig2d;
use burn::nn::pool::MaxPool2dConfig;
use burn::tensor::module;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use distribute_kernels::max_pool2d;
use distribute_kernels::nn::MaxPool2d;
use proptest::prelude::*;
use rstest::rstest;

use crate::support::{Numbers, bits};

type Pool = fn(Tensor<4>, MaxPoolOptions<2>) -> Tensor<4>;

/// The output, and the gradient of the input if outputs have the gradients of `weights`.
fn trained(pool: Pool, images: &Tensor<4>, options: &MaxPoolOptions<2>) -> [Vec<u32>; 2] {
    let images = images.clone().require_grad();
    let output = pool(images.clone(), options.clone());
    let mut numbers = Numbers(3);
    let weights: Vec<f32> = (0..output.shape().num_elements())
        .map(|i| {
            if i % 7 == 0 {
                -0.0
            } else {
                numbers.next() - 0.5
            }
        })
        .collect();
    let weights = Tensor::from_data(TensorData::new(weights, output.shape()), &output.device());
    let gradients = (output.clone() * weights).sum().backward();
    let gradient = images.grad(&gradients).expect("images have a gradient");
    [bits(&output), bits(&gradient)]
}

fn images(shape: [usize; 4], value: impl FnMut(usize) -> f32) -> Tensor<4> {
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
}

/// Both give the same bits, with autodiff and without.
fn same(images: &Tensor<4>, options: &MaxPoolOptions<2>) {
    let expected = trained(module::max_pool2d, images, options);
    assert_eq!(
        trained(max_pool2d, images, options),
        expected,
        "{options:?}"
    );
    let plain = images.clone().without_autodiff();
    assert_eq!(
        bits(&max_pool2d(plain, options.clone())),
        expected[0],
        "{options:?}"
    );
}

fn any_options() -> impl Strategy<Value = MaxPoolOptions<2>> {
    let pair = |values: std::ops::Range<usize>| [values.clone(), values];
    let padding = [0..3_usize, 0..3, 0..3, 0..3];
    (pair(1..5), pair(1..4), padding, pair(1..3), any::<bool>()).prop_map(
        |(size, stride, [top, bottom, left, right], dilation, ceil)| {
            MaxPoolOptions::new(size)
                .with_stride(stride)
                .with_padding_pairs([(top, bottom), (left, right)])
                .with_dilation(dilation)
                .with_ceil_mode(ceil)
        },
    )
}

fn fits(shape: [usize; 4], options: &MaxPoolOptions<2>) -> bool {
    (0..2).all(|i| {
        let window = options.dilation[i] * (options.kernel_size[i] - 1) + 1;
        shape[2 + i] + options.padding[i].0 + options.padding[i].1 >= window
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Few different values, so that there are ties, with NaN and infinities among them.
    #[test]
    fn any_windows_give_the_bits_of_burn(
        shape in [1..3_usize, 1..4, 1..20, 1..20],
        options in any_options(),
        seed in any::<u64>(),
    ) {
        prop_assume!(fits(shape, &options));
        let special = [f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY];
        let values = [special.as_slice(), &[0.0, -0.0, 1.0, 1.5, -2.0]].concat();
        let mut numbers = Numbers(seed);
        let pick = |numbers: &mut Numbers| values[(numbers.next() * values.len() as f32) as usize];
        same(&images(shape, |_| pick(&mut numbers)), &options);
    }

    /// The pool that most networks have, at any size.
    #[test]
    fn halving_gives_the_bits_of_burn(
        shape in [1..4_usize, 1..5, 2..40, 2..40],
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let mut value = || match numbers.next() {
            special if special < 0.02 => f32::NAN,
            tie if tie < 0.3 => 0.0,
            other => other - 0.6,
        };
        same(&images(shape, |_| value()), &MaxPoolOptions::new([2, 2]));
    }
}

/// Views that are not in row-major order are pooled as what they show.
#[rstest]
#[case([0, 1, 3, 2])]
#[case([1, 0, 2, 3])]
#[case([3, 2, 1, 0])]
fn views_are_pooled(#[case] order: [isize; 4]) {
    let mut numbers = Numbers(1);
    let images = images([6, 5, 7, 8], |_| numbers.next()).permute(order);
    same(&images, &MaxPoolOptions::new([2, 2]));
    same(
        &images.slice([1..4, 1..3]),
        &MaxPoolOptions::new([3, 3]).with_stride([2, 2]),
    );
}

/// No image at all, and other types than f32, are burn's.
#[test]
fn what_is_not_taken_goes_to_burn() {
    let options = MaxPoolOptions::new([2, 2]);
    let none = images([0, 3, 4, 4], |_| 0.0);
    assert_eq!(max_pool2d(none, options.clone()).dims(), [0, 3, 2, 2]);
    let mut numbers = Numbers(5);
    let doubles = images([2, 3, 6, 6], |_| numbers.next()).cast(FloatDType::F64);
    let pooled = max_pool2d(doubles.clone(), options.clone());
    assert_eq!(pooled.dtype(), DType::F64);
    pooled
        .into_data()
        .assert_eq(&module::max_pool2d(doubles, options).into_data(), true);
}

/// The layer takes the settings of burn's.
#[rstest]
#[case(PaddingConfig2d::Valid)]
#[case(PaddingConfig2d::Same)]
#[case(PaddingConfig2d::Explicit(1, 0, 1, 2))]
fn the_layer_does_what_the_one_of_burn_does(#[case] padding: PaddingConfig2d) {
    let mut numbers = Numbers(9);
    let images = images([2, 3, 11, 14], |_| numbers.next());
    for (size, stride) in [([2, 2], [2, 2]), ([3, 2], [2, 1]), ([2, 4], [1, 3])] {
        let config = MaxPool2dConfig::new(size)
            .with_strides(stride)
            .with_padding(padding.clone());
        let ours = MaxPool2d::from(config.init()).forward(images.clone());
        assert_eq!(
            bits(&ours),
            bits(&config.init().forward(images.clone())),
            "{config:?}"
        );
    }
}
