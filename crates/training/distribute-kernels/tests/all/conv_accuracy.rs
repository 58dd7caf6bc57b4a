//! How far the convolution is from exact sums, in units of the sum of the absolute products: the
//! measure that rounding errors are bounded in, whatever cancels.

use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_kernels::conv2d;
use rstest::rstest;

use crate::support::Numbers;

/// What the issue of the kernels promises, in these units.
const BOUND: f64 = 1e-6;

/// Sizes: batch, channels, filters, and rows and columns of the images.
type Sizes = ([usize; 3], [usize; 2]);

/// One convolution.
struct Case {
    sizes: Sizes,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [(usize, usize); 2],
    dilation: [usize; 2],
}

/// Numbers in f64, with the sums of the absolute values of what was added to them.
struct Exact {
    sums: Vec<f64>,
    absolute: Vec<f64>,
}

impl Exact {
    fn zeros(count: usize) -> Self {
        Self {
            sums: vec![0.0; count],
            absolute: vec![0.0; count],
        }
    }

    fn add(&mut self, index: usize, product: f64) {
        self.sums[index] += product;
        self.absolute[index] += product.abs();
    }

    /// The largest error of `found`, in units of the sum of the absolute products.
    fn error(&self, found: &Tensor<1>) -> f64 {
        let found = found.to_data().try_to_vec::<f32>().unwrap();
        assert_eq!(found.len(), self.sums.len());
        let all = found.iter().zip(self.sums.iter().zip(&self.absolute));
        let errors = all.map(|(found, (sum, absolute))| {
            let error = (f64::from(*found) - sum).abs();
            if *absolute > 0.0 {
                error / absolute
            } else {
                error
            }
        });
        errors.fold(0.0, f64::max)
    }
}

impl Case {
    fn outputs(&self) -> Option<[usize; 2]> {
        let along = |i: usize| {
            let (before, after) = self.padding[i];
            let padded = self.sizes.1[i] + before + after;
            let window = self.dilation[i] * (self.kernel[i] - 1) + 1;
            Some(padded.checked_sub(window)? / self.stride[i] + 1)
        };
        Some([along(0)?, along(1)?])
    }

    /// Calls `with` with the index of an output, an image's value and a weight for all products.
    fn products(&self, outputs: [usize; 2], mut with: impl FnMut(usize, usize, usize)) {
        let ([batch, channels, filters], [height, width]) = self.sizes;
        let [rows, columns] = self.kernel;
        let at = |i: usize, output: usize, tap: usize, input: usize| {
            let at = output * self.stride[i] + tap * self.dilation[i];
            at.checked_sub(self.padding[i].0).filter(|at| *at < input)
        };
        for (image, filter, channel) in triples(batch, filters, channels) {
            for (tap, place) in pairs(rows * columns, outputs[0] * outputs[1]) {
                let (y, x) = (place / outputs[1], place % outputs[1]);
                let row = at(0, y, tap / columns, height);
                let column = at(1, x, tap % columns, width);
                let (Some(row), Some(column)) = (row, column) else {
                    continue;
                };
                let output = (image * filters + filter) * outputs[0] * outputs[1] + place;
                let input = ((image * channels + channel) * height + row) * width + column;
                let weight = (filter * channels + channel) * rows * columns + tap;
                with(output, input, weight);
            }
        }
    }

    /// The errors of the output, and of the gradients of images, filters and bias.
    fn errors(&self, outputs: [usize; 2], shift: f32) -> [f64; 4] {
        let ([batch, channels, filters], [height, width]) = self.sizes;
        let [rows, columns] = self.kernel;
        let mut numbers = Numbers(17);
        let mut values =
            |count: usize| -> Vec<f32> { (0..count).map(|_| numbers.next() - shift).collect() };
        let images = values(batch * channels * height * width);
        let weights = values(filters * channels * rows * columns);
        let bias = values(filters);
        let places = outputs[0] * outputs[1];
        let upstream = values(batch * filters * places);
        let device = Device::flex().autodiff();
        let x = tensor(&images, [batch, channels, height, width], &device).require_grad();
        let w = tensor(&weights, [filters, channels, rows, columns], &device).require_grad();
        let b = tensor(&bias, [filters], &device).require_grad();
        let up = tensor(&upstream, [batch, filters, outputs[0], outputs[1]], &device);
        let options = ConvOptions::new_with_padding(self.stride, self.padding, self.dilation, 1);
        let output = conv2d(x.clone(), w.clone(), Some(b.clone()), options);
        let gradients = (output.clone() * up).sum().backward();

        let mut exact = [images.len(), weights.len(), filters].map(Exact::zeros);
        let mut forward = Exact::zeros(upstream.len());
        self.products(outputs, |output, input, weight| {
            let [x, w, up] = [images[input], weights[weight], upstream[output]].map(f64::from);
            forward.add(output, x * w);
            exact[0].add(input, w * up);
            exact[1].add(weight, x * up);
        });
        for (output, up) in upstream.iter().enumerate() {
            let filter = output / places % filters;
            forward.add(output, f64::from(bias[filter]));
            exact[2].add(filter, f64::from(*up));
        }
        [
            forward.error(&output.reshape([-1])),
            exact[0].error(&x.grad(&gradients).unwrap().reshape([-1])),
            exact[1].error(&w.grad(&gradients).unwrap().reshape([-1])),
            exact[2].error(&b.grad(&gradients).unwrap()),
        ]
    }
}

fn pairs(a: usize, b: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..a).flat_map(move |a| (0..b).map(move |b| (a, b)))
}

fn triples(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    pairs(a, b).flat_map(move |(a, b)| (0..c).map(move |c| (a, b, c)))
}

fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// Kernels of every size, strides, paddings and dilations, over batches of every kind. Values of
/// both signs cancel; positive ones have the longest partial sums.
#[rstest]
fn sums_are_exact_to_a_millionth_of_their_absolute_products(
    #[values(1, 3, 5, 7)] kernel: usize,
    #[values(1, 2)] stride: usize,
    #[values(
        ([1, 70, 9], [11, 9]),
        ([5, 17, 33], [9, 8]),
        ([5, 1, 5], [30, 31]),
        ([64, 3, 4], [12, 13])
    )]
    sizes: Sizes,
) {
    let mut most = [0.0_f64; 4];
    let paddings = [(0, 0), (kernel / 2, kernel / 2), (kernel - 1, 1)];
    for (padding, dilation) in pairs(paddings.len(), 2) {
        let case = Case {
            sizes,
            kernel: [kernel, kernel],
            stride: [stride, stride],
            padding: [paddings[padding], paddings[paddings.len() - 1 - padding]],
            dilation: [dilation + 1, dilation + 1],
        };
        let Some(outputs) = case.outputs() else {
            continue;
        };
        for shift in [0.5, 0.0] {
            let errors = case.errors(outputs, shift);
            most = std::array::from_fn(|i| most[i].max(errors[i]));
        }
    }
    println!("{kernel} {stride} {sizes:?}: {most:?}");
    assert!(most.iter().all(|error| *error <= BOUND), "{most:?}");
}

/// A batch without images has no output, and gradients of 0.
#[rstest]
fn no_images_are_no_outputs_and_gradients_of_zero(#[values(1, 3, 5, 7)] kernel: usize) {
    let case = Case {
        sizes: ([0, 3, 4], [9, 8]),
        kernel: [kernel, kernel],
        stride: [1, 1],
        padding: [(kernel / 2, kernel / 2); 2],
        dilation: [1, 1],
    };
    let outputs = case.outputs().unwrap();
    assert_eq!(case.errors(outputs, 0.5), [0.0; 4]);
}
