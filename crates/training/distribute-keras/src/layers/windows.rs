//! The windows of convolutions and pools.

use burn::tensor::Tensor;

use super::options::{channels_last, extents, required_extents};
use crate::fields::Fields;
use crate::shape::tuple;
use crate::{ModelError, Shape};

/// How a convolution or pool treats the borders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// Only windows that lie inside.
    #[default]
    Valid,
    /// As many windows as the input has positions, divided by the stride, rounded up. The odd
    /// row or column of padding goes to the end.
    Same,
    /// Of sequences: as with `Same`, but all of the padding at the start, so that no output sees a
    /// later step.
    Causal,
}

/// The windows of a convolution over images, or over as many axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows<const N: usize = 2> {
    /// The extents of the kernel: rows and columns.
    pub kernel_size: [usize; N],
    /// Steps between windows.
    pub strides: [usize; N],
    /// What happens at the borders.
    pub padding: Padding,
    /// Steps between the kernel's elements.
    pub dilation_rate: [usize; N],
}

impl Windows {
    /// The windows of a convolution of sequences, which are images of one row.
    pub(super) fn of_row(fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Windows::<1>::of_convolution(fields).map(Windows::<1>::in_row)
    }

    /// The windows of a pool of sequences.
    pub(super) fn of_row_pool(fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Windows::<1>::of_pool(fields).map(Windows::<1>::in_row)
    }

    /// An image of this many channels, with a place for each window in the input.
    pub(super) fn output_shape(&self, input: Shape, channels: usize) -> Result<Shape, String> {
        let (height, width, _) = input.needs_image()?;
        let [rows, columns] = self.places([height, width])?;
        Ok(Shape::Image(rows, columns, channels))
    }

    pub(super) fn pads(&self, x: &Tensor<4>) -> [(usize, usize); 2] {
        let [_, _, height, width] = x.dims();
        self.pads_of([height, width])
    }
}

impl Windows<3> {
    /// A volume of this many channels, with a place for each window in the input.
    pub(super) fn output_shape(&self, input: Shape, channels: usize) -> Result<Shape, String> {
        let (input, _) = input.needs_volume()?;
        let [depth, rows, columns] = self.places(input)?;
        Ok(Shape::Volume(depth, rows, columns, channels))
    }
}

impl Windows<1> {
    fn in_row(self) -> Windows {
        let in_row = |[columns]: [usize; 1]| [1, columns];
        Windows {
            kernel_size: in_row(self.kernel_size),
            strides: in_row(self.strides),
            padding: self.padding,
            dilation_rate: in_row(self.dilation_rate),
        }
    }
}

impl<const N: usize> Windows<N> {
    /// The windows of a convolution.
    pub(super) fn of_convolution(fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            kernel_size: required_extents(fields, "kernel_size")?,
            strides: extents(fields, "strides")?.unwrap_or([1; N]),
            padding: padding(fields, N == 1)?,
            dilation_rate: extents(fields, "dilation_rate")?.unwrap_or([1; N]),
        })
    }

    /// The windows of a pool.
    pub(super) fn of_pool(fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let size = required_extents(fields, "pool_size")?;
        let strides = extents(fields, "strides")?.unwrap_or(size);
        Ok(Self::pool(size, strides, padding(fields, false)?))
    }

    /// Windows without gaps between the elements.
    pub(super) fn pool(kernel_size: [usize; N], strides: [usize; N], padding: Padding) -> Self {
        Self {
            kernel_size,
            strides,
            padding,
            dilation_rate: [1; N],
        }
    }

    /// How far one output sees along each axis, from the first element to the last.
    pub(super) fn extent(&self) -> [usize; N] {
        std::array::from_fn(|i| (self.kernel_size[i] - 1).saturating_mul(self.dilation_rate[i]) + 1)
    }

    /// How many windows there are along each axis.
    pub(super) fn places(&self, input: [usize; N]) -> Result<[usize; N], String> {
        let window = self.extent();
        let count = |i: usize| match self.padding {
            Padding::Same | Padding::Causal => Some(input[i].div_ceil(self.strides[i])),
            Padding::Valid => Some(input[i].checked_sub(window[i])? / self.strides[i] + 1),
        };
        let counts: Vec<usize> = (0..N).filter_map(count).collect();
        <[usize; N]>::try_from(counts).map_err(|_| {
            format!(
                "a window of {} does not fit into {}; remove a pool or use larger images",
                tuple(&window),
                tuple(&input)
            )
        })
    }

    /// The padding before and after each axis (TensorFlow's rule: the odd one goes to the end).
    pub(super) fn pads_of(&self, input: [usize; N]) -> [(usize, usize); N] {
        let window = self.extent();
        std::array::from_fn(|i| {
            let count = input[i].div_ceil(self.strides[i]);
            let total = ((count - 1) * self.strides[i] + window[i]).saturating_sub(input[i]);
            match self.padding {
                Padding::Valid => (0, 0),
                Padding::Same => (total / 2, total - total / 2),
                Padding::Causal => (window[i] - 1, 0),
            }
        })
    }
}

fn padding(fields: &mut Fields<'_>, may_be_causal: bool) -> Result<Padding, ModelError> {
    match fields.get("padding").map(serde_json::Value::as_str) {
        None | Some(Some("valid")) => Ok(Padding::Valid),
        Some(Some("same")) => Ok(Padding::Same),
        Some(Some("causal")) if may_be_causal => Ok(Padding::Causal),
        Some(_) if may_be_causal => Err(fields.refuse("padding", "use valid, same or causal")),
        Some(_) => Err(fields.refuse("padding", "use valid or same")),
    }
}
