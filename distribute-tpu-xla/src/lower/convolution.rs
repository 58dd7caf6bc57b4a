//! Convolutions of one to three spatial dimensions with their gradients, and transposed ones.
//!
//! Layout as in burn: inputs `[batch, channels, ..]`, weights `[out, in / groups, ..]`; for
//! transposed convolutions `[in, out / groups, ..]`.

use distribute_core::burn_internals::ir::{
    Conv1dBiasBackwardOpIr, Conv1dOpIr, Conv1dOptionsIr, Conv1dWeightBackwardOpIr,
    Conv1dXBackwardOpIr, Conv2dBiasBackwardOpIr, Conv2dOpIr, Conv2dOptionsIr,
    Conv2dWeightBackwardOpIr, Conv2dXBackwardOpIr, Conv3dBiasBackwardOpIr, Conv3dOpIr,
    Conv3dOptionsIr, Conv3dWeightBackwardOpIr, Conv3dXBackwardOpIr,
    ConvTranspose1dBiasBackwardOpIr, ConvTranspose1dOpIr, ConvTranspose1dOptionsIr,
    ConvTranspose1dWeightBackwardOpIr, ConvTranspose2dBiasBackwardOpIr, ConvTranspose2dOpIr,
    ConvTranspose2dOptionsIr, ConvTranspose2dWeightBackwardOpIr, ConvTranspose3dBiasBackwardOpIr,
    ConvTranspose3dOpIr, ConvTranspose3dOptionsIr, ConvTranspose3dWeightBackwardOpIr, TensorIr,
};

use crate::stablehlo::{
    Binary, Comparison, Convolution, DotDimensions, ElementType, Precision, TensorType, Value,
};

use super::context::Context;
use super::error::Result;
use super::options::Target;
use super::pooling::offsets as places;
use super::reduction::over;

/// How a convolution of any number of spatial dimensions moves.
struct Options {
    stride: Vec<usize>,
    /// Before and after.
    padding: Vec<(usize, usize)>,
    dilation: Vec<usize>,
    groups: usize,
}

impl From<&Conv1dOptionsIr> for Options {
    fn from(o: &Conv1dOptionsIr) -> Self {
        Self {
            stride: o.stride.to_vec(),
            padding: o.padding.to_vec(),
            dilation: o.dilation.to_vec(),
            groups: o.groups,
        }
    }
}

impl From<&Conv2dOptionsIr> for Options {
    fn from(o: &Conv2dOptionsIr) -> Self {
        Self {
            stride: o.stride.to_vec(),
            padding: o.padding.to_vec(),
            dilation: o.dilation.to_vec(),
            groups: o.groups,
        }
    }
}

/// Options with the same padding on both sides.
macro_rules! symmetric {
    ($($ty:ty),*) => {
        $(impl From<&$ty> for Options {
            fn from(o: &$ty) -> Self {
                Self {
                    stride: o.stride.to_vec(),
                    padding: o.padding.iter().map(|p| (*p, *p)).collect(),
                    dilation: o.dilation.to_vec(),
                    groups: o.groups,
                }
            }
        })*
    };
}

symmetric!(
    Conv3dOptionsIr,
    ConvTranspose1dOptionsIr,
    ConvTranspose2dOptionsIr,
    ConvTranspose3dOptionsIr
);

impl Options {
    /// A convolution in burn's layout, without strides and padding.
    fn plain(rank: usize) -> Convolution {
        let spatial = rank - 2;
        let natural: Vec<usize> = (0..rank).collect();
        let mut kernel = natural.clone();
        kernel.swap(0, 1);
        Convolution {
            input: natural.clone(),
            kernel,
            output: natural,
            strides: vec![1; spatial],
            padding: vec![(0, 0); spatial],
            lhs_dilation: vec![1; spatial],
            rhs_dilation: vec![1; spatial],
            feature_groups: 1,
            batch_groups: 1,
        }
    }
}

/// What `size` elements span when they are `dilation` apart.
fn span(size: usize, dilation: usize) -> i64 {
    ((size - 1) * dilation + 1) as i64
}

fn forward(cx: &mut Context, x: &Value, weight: &Value, options: &Options) -> Result<Value> {
    let mut how = Options::plain(x.rank());
    how.strides.clone_from(&options.stride);
    how.rhs_dilation.clone_from(&options.dilation);
    how.padding = options
        .padding
        .iter()
        .map(|p| (p.0 as i64, p.1 as i64))
        .collect();
    how.feature_groups = options.groups;
    Ok(cx.builder.convolution(x, weight, &how)?)
}

/// Adds one number per channel.
fn biased(cx: &mut Context, x: Value, bias: Option<&TensorIr>) -> Result<Value> {
    let Some(bias) = bias else {
        return Ok(x);
    };
    let bias = cx.get(bias)?;
    let bias = cx.spread(&bias, &x, &[1])?;
    cx.binary(Binary::Add, &x, &bias)
}

/// What a convolution does to its input, backwards: from `[batch, out, ..]` to `[batch, in, ..]`
/// with the spatial dimensions `target`. It is the gradient for the input, and the transposed
/// convolution.
fn transposed(
    cx: &mut Context,
    y: &Value,
    weight: &Value,
    options: &Options,
    target: &[usize],
) -> Result<Value> {
    let spatial = target.len();
    let weight = swapped(cx, weight, options.groups)?;
    let flipped: Vec<usize> = (2..2 + spatial).collect();
    let mut weight = cx.builder.reverse(&weight, &flipped)?;
    let mut how = Options::plain(y.rank());
    how.lhs_dilation.clone_from(&options.stride);
    how.rhs_dilation.clone_from(&options.dilation);
    how.feature_groups = options.groups;
    for (d, size) in target.iter().enumerate() {
        let window = span(weight.dims()[d + 2], options.dilation[d]);
        let input = span(y.dims()[d + 2], options.stride[d]);
        let low = window - 1 - options.padding[d].0 as i64;
        how.padding[d] = (low, *size as i64 + window - 1 - input - low);
        if resembles_groups(&how, d, weight.dims()[d + 2]) {
            weight = one_zero_more(cx, &weight, d + 2)?;
            how.padding[d].1 += 1;
        }
    }
    Ok(cx.builder.convolution(y, &weight, &how)?)
}

/// Whether XLA takes dimension `d` for one of groups, whatever the size of the input, and ends the
/// process when it swaps the operands (`SwapConvOperands`, in XLA of 2025): two elements over an
/// input whose elements are two apart, without padding.
fn resembles_groups(how: &Convolution, d: usize, kernel: usize) -> bool {
    kernel == 2 && how.lhs_dilation[d] == 2 && how.rhs_dilation[d] == 1 && how.padding[d] == (0, 0)
}

/// Weights with a zero behind the last element of `dim`.
fn one_zero_more(cx: &mut Context, weight: &Value, dim: usize) -> Result<Value> {
    let none = vec![0; weight.rank()];
    let mut high = none.clone();
    high[dim] = 1;
    let zero = cx.builder.scalar(weight.element(), 0i64);
    Ok(cx.builder.pad(weight, &zero, &none, &high, &none)?)
}

/// Weights `[out, in / groups, ..]` as weights of the backward convolution, `[in, out / groups,
/// ..]`.
fn swapped(cx: &mut Context, weight: &Value, groups: usize) -> Result<Value> {
    let (out, kernel) = (weight.dims()[0], &weight.dims()[2..]);
    let inside = weight.dims()[1];
    let rank = weight.rank();
    let split = [&[groups, out / groups, inside], kernel].concat();
    let joined = [&[groups * inside, out / groups], kernel].concat();
    let weight = cx.builder.reshape(weight, &split)?;
    let mut order: Vec<usize> = (0..=rank).collect();
    order.swap(1, 2);
    let weight = cx.builder.transpose(&weight, &order)?;
    Ok(cx.builder.reshape(&weight, &joined)?)
}

/// The gradient for weights `[out, in / groups, kernel..]` of a convolution from `x` to `y`: a
/// convolution over the batch, in which the gradient of `y` is the kernel.
fn weight_gradient(
    cx: &mut Context,
    x: &Value,
    y: &Value,
    options: &Options,
    kernel: &[usize],
) -> Result<Value> {
    if compiles_for_minutes(cx, x, y, options) && kernel.iter().chain(y.dims()).all(|n| *n > 0) {
        return match options.groups {
            1 => weight_gradient_by_slices(cx, x, y, options, kernel),
            _ => weight_gradient_without_groups(cx, x, y, options, kernel),
        };
    }
    let rank = x.rank();
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(0, 1);
    let mut how = Options::plain(rank);
    how.input.clone_from(&swapped);
    how.kernel = (0..rank).collect();
    how.output = swapped;
    how.strides.clone_from(&options.dilation);
    how.rhs_dilation.clone_from(&options.stride);
    how.batch_groups = options.groups;
    for (d, size) in kernel.iter().enumerate() {
        let low = options.padding[d].0 as i64;
        let window = span(y.dims()[d + 2], options.stride[d]);
        let high = span(*size, options.dilation[d]) - 1 + window - low;
        how.padding[d] = (low, high - x.dims()[d + 2] as i64);
    }
    Ok(cx.builder.convolution(x, y, &how)?)
}

/// Weight gradients of fewer input channels than this are not convolutions on a TPU.
const FEW_CHANNELS: usize = 8;

/// And those with results of more places than this.
const FEW_PLACES: usize = 64;

/// Whether the TPU compiler takes minutes and gigabytes for a weight gradient as a convolution: it
/// does where f32 is split into several bf16 and few channels of the input are its batch (one
/// channel of 28 x 28 images: 98 s and 2.8 GB; 3 channels: more than 60 s; 8: 5 s), unless images
/// are small (14 x 14: more than 60 s; 8 x 8: 10 s, and then the convolution is the faster
/// program). So it does with groups, except where each has one channel of the input and one of the
/// result.
fn compiles_for_minutes(cx: &Context, x: &Value, y: &Value, options: &Options) -> bool {
    let [inside, outside] = [x, y].map(|t| t.dims()[1] / options.groups);
    cx.target == Target::Tpu
        && cx.builder.precision() != Precision::Default
        && matches!(x.element(), ElementType::F32 | ElementType::F64)
        && inside < FEW_CHANNELS
        && y.dims()[2..].iter().product::<usize>() > FEW_PLACES
        && (options.groups == 1 || inside * outside > 1)
}

/// [`weight_gradient`] without groups as one matrix product: of the gradient of `y` with what each
/// place of the kernel sees of `x`, a slice for each place.
fn weight_gradient_by_slices(
    cx: &mut Context,
    x: &Value,
    y: &Value,
    options: &Options,
    kernel: &[usize],
) -> Result<Value> {
    let [inside, outside] = [x, y].map(|t| t.dims()[1]);
    let x = padded_to_windows(cx, x, options, kernel, &y.dims()[2..])?;
    let mut slices = Vec::new();
    for place in places(kernel) {
        let (mut start, mut limit) = (vec![0; x.rank()], x.dims().to_vec());
        let mut strides = vec![1; x.rank()];
        for (d, at) in place.into_iter().enumerate() {
            start[d + 2] = at * options.dilation[d];
            limit[d + 2] = start[d + 2] + (y.dims()[d + 2] - 1) * options.stride[d] + 1;
            strides[d + 2] = options.stride[d];
        }
        slices.push(cx.builder.slice(&x, &start, &limit, &strides)?);
    }
    let seen = cx.builder.concatenate(&slices, 1)?;
    let summed: Vec<usize> = (0..x.rank()).filter(|d| *d != 1).collect();
    let dot = DotDimensions {
        lhs_contracting: summed.clone(),
        rhs_contracting: summed,
        ..DotDimensions::default()
    };
    let product = cx.builder.dot_general(y, &seen, &dot)?;
    let product = cx
        .builder
        .reshape(&product, &[outside, slices.len(), inside])?;
    let product = cx.builder.transpose(&product, &[0, 2, 1])?;
    Ok(cx
        .builder
        .reshape(&product, &[&[outside, inside], kernel].concat())?)
}

/// [`weight_gradient`] of a convolution with groups: the gradient without groups, of which the
/// groups' own weights are kept.
fn weight_gradient_without_groups(
    cx: &mut Context,
    x: &Value,
    y: &Value,
    options: &Options,
    kernel: &[usize],
) -> Result<Value> {
    let groups = options.groups;
    let [inside, outside] = [x, y].map(|t| t.dims()[1] / groups);
    let together = Options {
        stride: options.stride.clone(),
        padding: options.padding.clone(),
        dilation: options.dilation.clone(),
        groups: 1,
    };
    let all = weight_gradient(cx, x, y, &together, kernel)?;
    let places: usize = kernel.iter().product();
    let dims = [groups, outside, groups, inside, places];
    let all = cx.builder.reshape(&all, &dims)?;
    let numbers = TensorType::new(dims, ElementType::I32);
    let of_result = cx.builder.iota(numbers.clone(), 0)?;
    let of_input = cx.builder.iota(numbers, 2)?;
    let own = cx.builder.compare(Comparison::Eq, &of_result, &of_input)?;
    let zeros = cx.number_like(0.0, &all);
    let all = cx.builder.select(&own, &all, &zeros)?;
    let weights = over(cx, Binary::Add, &all, &[2])?;
    Ok(cx
        .builder
        .reshape(&weights, &[&[groups * outside, inside], kernel].concat())?)
}

/// `x` with the zeros around it that the windows see, without what none sees.
fn padded_to_windows(
    cx: &mut Context,
    x: &Value,
    options: &Options,
    kernel: &[usize],
    windows: &[usize],
) -> Result<Value> {
    let none = vec![0; x.rank()];
    let (mut low, mut high) = (none.clone(), none.clone());
    for (d, size) in kernel.iter().enumerate() {
        let needed = span(windows[d], options.stride[d]) + span(*size, options.dilation[d]) - 1;
        low[d + 2] = options.padding[d].0 as i64;
        high[d + 2] = needed - low[d + 2] - x.dims()[d + 2] as i64;
    }
    if low == none && high == none {
        return Ok(x.clone());
    }
    let zero = cx.builder.scalar(x.element(), 0i64);
    Ok(cx.builder.pad(x, &zero, &low, &high, &none)?)
}

/// The gradient for one number per channel.
fn bias_gradient(cx: &mut Context, y: &TensorIr, out: &TensorIr) -> Result<()> {
    let y = cx.get(y)?;
    let axes: Vec<usize> = (0..y.rank()).filter(|d| *d != 1).collect();
    let x = over(cx, Binary::Add, &y, &axes)?;
    cx.set_reshaped(out, &x)
}

/// The functions of one number of spatial dimensions.
macro_rules! convolutions {
    ($($conv:ident($conv_op:ty), $x:ident($x_op:ty), $weight:ident($weight_op:ty),
        $bias:ident($bias_op:ty);)*) => {
        $(pub(super) fn $conv(cx: &mut Context, op: &$conv_op) -> Result<()> {
            let x = cx.get(&op.x)?;
            let weight = cx.get(&op.weight)?;
            let y = forward(cx, &x, &weight, &Options::from(&op.options))?;
            let y = biased(cx, y, op.bias.as_ref())?;
            cx.set(&op.out, y)
        }

        pub(super) fn $x(cx: &mut Context, op: &$x_op) -> Result<()> {
            let weight = cx.get(&op.weight)?;
            let y = cx.get(&op.output_grad)?;
            let target = &op.x.shape[2..];
            let x = transposed(cx, &y, &weight, &Options::from(&op.options), target)?;
            cx.set(&op.out, x)
        }

        pub(super) fn $weight(cx: &mut Context, op: &$weight_op) -> Result<()> {
            let x = cx.get(&op.x)?;
            let y = cx.get(&op.output_grad)?;
            let kernel = &op.weight.shape[2..];
            let x = weight_gradient(cx, &x, &y, &Options::from(&op.options), kernel)?;
            cx.set(&op.out, x)
        }

        pub(super) fn $bias(cx: &mut Context, op: &$bias_op) -> Result<()> {
            bias_gradient(cx, &op.output_grad, &op.out)
        })*
    };
}

convolutions! {
    conv1d(Conv1dOpIr), conv1d_x_backward(Conv1dXBackwardOpIr),
        conv1d_weight_backward(Conv1dWeightBackwardOpIr),
        conv1d_bias_backward(Conv1dBiasBackwardOpIr);
    conv2d(Conv2dOpIr), conv2d_x_backward(Conv2dXBackwardOpIr),
        conv2d_weight_backward(Conv2dWeightBackwardOpIr),
        conv2d_bias_backward(Conv2dBiasBackwardOpIr);
    conv3d(Conv3dOpIr), conv3d_x_backward(Conv3dXBackwardOpIr),
        conv3d_weight_backward(Conv3dWeightBackwardOpIr),
        conv3d_bias_backward(Conv3dBiasBackwardOpIr);
}

/// The functions of transposed convolutions of one number of spatial dimensions. Their weights'
/// gradient is the convolution in the other direction.
macro_rules! transposed_convolutions {
    ($($conv:ident($conv_op:ty), $weight:ident($weight_op:ty), $bias:ident($bias_op:ty);)*) => {
        $(pub(super) fn $conv(cx: &mut Context, op: &$conv_op) -> Result<()> {
            let x = cx.get(&op.x)?;
            let weight = cx.get(&op.weight)?;
            let target = &op.out.shape[2..];
            let y = transposed(cx, &x, &weight, &Options::from(&op.options), target)?;
            let y = biased(cx, y, op.bias.as_ref())?;
            cx.set(&op.out, y)
        }

        pub(super) fn $weight(cx: &mut Context, op: &$weight_op) -> Result<()> {
            let x = cx.get(&op.x)?;
            let y = cx.get(&op.output_grad)?;
            let kernel = &op.weight.shape[2..];
            let x = weight_gradient(cx, &y, &x, &Options::from(&op.options), kernel)?;
            cx.set(&op.out, x)
        }

        pub(super) fn $bias(cx: &mut Context, op: &$bias_op) -> Result<()> {
            bias_gradient(cx, &op.output_grad, &op.out)
        })*
    };
}

transposed_convolutions! {
    conv_transpose1d(ConvTranspose1dOpIr),
        conv_transpose1d_weight_backward(ConvTranspose1dWeightBackwardOpIr),
        conv_transpose1d_bias_backward(ConvTranspose1dBiasBackwardOpIr);
    conv_transpose2d(ConvTranspose2dOpIr),
        conv_transpose2d_weight_backward(ConvTranspose2dWeightBackwardOpIr),
        conv_transpose2d_bias_backward(ConvTranspose2dBiasBackwardOpIr);
    conv_transpose3d(ConvTranspose3dOpIr),
        conv_transpose3d_weight_backward(ConvTranspose3dWeightBackwardOpIr),
        conv_transpose3d_bias_backward(ConvTranspose3dBiasBackwardOpIr);
}
