//! Matrix products and convolutions.

use super::builder::{Builder, Value, ensure, i64_array, padding_attribute, plain_list};
use super::error::Result;

/// Which dimensions of a product are batched and which are summed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DotDimensions {
    /// Batch dimensions of the left operand.
    pub lhs_batching: Vec<usize>,
    /// Batch dimensions of the right operand, in the same order.
    pub rhs_batching: Vec<usize>,
    /// Dimensions of the left operand that are summed over.
    pub lhs_contracting: Vec<usize>,
    /// Dimensions of the right operand that are summed over, in the same order.
    pub rhs_contracting: Vec<usize>,
}

/// Where the dimensions of a convolution are, and how its window moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Batch dimension, feature dimension and then spatial dimensions of the input.
    pub input: Vec<usize>,
    /// Input feature, output feature and then spatial dimensions of the kernel.
    pub kernel: Vec<usize>,
    /// Batch dimension, feature dimension and then spatial dimensions of the output.
    pub output: Vec<usize>,
    /// Steps of the window.
    pub strides: Vec<usize>,
    /// Zeros before and after; negative ones remove elements.
    pub padding: Vec<(i64, i64)>,
    /// Distance of neighbouring elements of the input (1: no zeros between them).
    pub lhs_dilation: Vec<usize>,
    /// Distance of neighbouring elements of the kernel (1: no zeros between them).
    pub rhs_dilation: Vec<usize>,
    /// Into how many groups the features are split.
    pub feature_groups: usize,
    /// Into how many groups the batch is split (for gradients of grouped convolutions).
    pub batch_groups: usize,
}

impl Builder {
    /// The product of two tensors. The result has the batch dimensions, then the free ones of the
    /// left operand, then the free ones of the right operand.
    ///
    /// # Errors
    /// The dimensions do not pair up, or the element types differ.
    pub fn dot_general(&mut self, lhs: &Value, rhs: &Value, dims: &DotDimensions) -> Result<Value> {
        let paired = |l: &[usize], r: &[usize]| {
            l.len() == r.len()
                && l.iter().zip(r).all(|(l, r)| {
                    *l < lhs.rank() && *r < rhs.rank() && lhs.dims()[*l] == rhs.dims()[*r]
                })
        };
        let valid = paired(&dims.lhs_batching, &dims.rhs_batching)
            && paired(&dims.lhs_contracting, &dims.rhs_contracting)
            && lhs.element() == rhs.element();
        ensure(valid, "dot_general", &[lhs, rhs], || {
            format!("the dimensions of {dims:?} do not pair up")
        })?;
        let free = |x: &Value, batch: &[usize], contracting: &[usize]| -> Vec<usize> {
            (0..x.rank())
                .filter(|d| !batch.contains(d) && !contracting.contains(d))
                .map(|d| x.dims()[d])
                .collect()
        };
        let mut result: Vec<usize> = dims.lhs_batching.iter().map(|d| lhs.dims()[*d]).collect();
        result.extend(free(lhs, &dims.lhs_batching, &dims.lhs_contracting));
        result.extend(free(rhs, &dims.rhs_batching, &dims.rhs_contracting));
        let attributes = format!(
            "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {}, \
             rhs_batching_dimensions = {}, lhs_contracting_dimensions = {}, \
             rhs_contracting_dimensions = {}>, {}",
            plain_list(&dims.lhs_batching),
            plain_list(&dims.rhs_batching),
            plain_list(&dims.lhs_contracting),
            plain_list(&dims.rhs_contracting),
            self.precision().attribute(),
        );
        let ty = lhs.ty().with_dims(result);
        Ok(self.emit_one("dot_general", &[lhs, rhs], &attributes, &[], ty))
    }

    /// A convolution (a cross-correlation: the kernel is not reversed).
    ///
    /// # Errors
    /// Dimensions, groups and features do not fit together, or the element types differ.
    pub fn convolution(&mut self, x: &Value, kernel: &Value, how: &Convolution) -> Result<Value> {
        let dims = convolution_dims(x, kernel, how)?;
        let spatial = how.strides.len();
        let reversal = vec!["false"; spatial].join(", ");
        let attributes = format!(
            "batch_group_count = {} : i64, feature_group_count = {} : i64, \
             dimension_numbers = #stablehlo.conv<[{}]x[{}]->[{}]>, window_strides = {}, \
             padding = {}, lhs_dilation = {}, rhs_dilation = {}, \
             window_reversal = array<i1{}{reversal}>, {}",
            how.batch_groups,
            how.feature_groups,
            dimension_names(&how.input, "b", "f"),
            dimension_names(&how.kernel, "i", "o"),
            dimension_names(&how.output, "b", "f"),
            i64_array(&how.strides),
            padding_attribute(&how.padding),
            i64_array(&how.lhs_dilation),
            i64_array(&how.rhs_dilation),
            if spatial == 0 { "" } else { ": " },
            self.precision().attribute(),
        );
        let ty = x.ty().with_dims(dims);
        Ok(self.emit_one("convolution", &[x, kernel], &attributes, &[], ty))
    }
}

/// The output's dimensions, after all checks.
fn convolution_dims(x: &Value, kernel: &Value, how: &Convolution) -> Result<Vec<usize>> {
    let operands = [x, kernel];
    let rank = x.rank();
    let places = [&how.input, &how.kernel, &how.output];
    let permuted = |p: &&Vec<usize>| {
        let mut sorted = p.to_vec();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..rank)
    };
    let spatial = rank.saturating_sub(2);
    let complete = rank >= 2
        && kernel.rank() == rank
        && x.element() == kernel.element()
        && places.iter().all(permuted)
        && [&how.strides, &how.lhs_dilation, &how.rhs_dilation]
            .iter()
            .all(|l| l.len() == spatial && l.iter().all(|v| *v > 0))
        && how.padding.len() == spatial;
    ensure(complete, "convolution", &operands, || {
        format!("dimensions and window are incomplete: {how:?}")
    })?;
    let (batch, features) = (x.dims()[how.input[0]], x.dims()[how.input[1]]);
    let (kernel_in, kernel_out) = (kernel.dims()[how.kernel[0]], kernel.dims()[how.kernel[1]]);
    let groups = how.feature_groups;
    let fits = groups > 0
        && how.batch_groups > 0
        && features == kernel_in * groups
        && kernel_out.is_multiple_of(groups)
        && kernel_out.is_multiple_of(how.batch_groups)
        && batch.is_multiple_of(how.batch_groups);
    ensure(fits, "convolution", &operands, || {
        format!("features and groups do not fit together: {how:?}")
    })?;
    let mut dims = vec![0; rank];
    dims[how.output[0]] = batch / how.batch_groups;
    dims[how.output[1]] = kernel_out;
    for s in 0..spatial {
        let dilated = |size: usize, by: usize| size.saturating_sub(1) * by + size.min(1);
        let input = dilated(x.dims()[how.input[s + 2]], how.lhs_dilation[s]) as i64;
        let window = dilated(kernel.dims()[how.kernel[s + 2]], how.rhs_dilation[s]) as i64;
        let room = input + how.padding[s].0 + how.padding[s].1 - window;
        dims[how.output[s + 2]] = match room {
            ..0 => 0,
            _ => room as usize / how.strides[s] + 1,
        };
    }
    Ok(dims)
}

fn dimension_names(places: &[usize], first: &str, second: &str) -> String {
    let mut names = vec![String::new(); places.len()];
    for (i, place) in places.iter().enumerate() {
        names[*place] = match i {
            0 => first.into(),
            1 => second.into(),
            n => (n - 2).to_string(),
        };
    }
    names.join(", ")
}
