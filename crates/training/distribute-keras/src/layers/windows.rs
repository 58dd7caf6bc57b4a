//! The windows of convolutions and pools.

use burn::tensor::Tensor;

use super::options::{channels_last, pair, required_pair};
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
}

/// The windows of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Rows and columns of the kernel.
    pub kernel_size: [usize; 2],
    /// Steps between windows.
    pub strides: [usize; 2],
    /// What happens at the borders.
    pub padding: Padding,
    /// Steps between the kernel's elements.
    pub dilation_rate: [usize; 2],
}

impl Windows {
    /// The windows of a convolution.
    pub(super) fn of_convolution(fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            kernel_size: required_pair(fields, "kernel_size")?,
            strides: pair(fields, "strides")?.unwrap_or([1, 1]),
            padding: padding(fields)?,
            dilation_rate: pair(fields, "dilation_rate")?.unwrap_or([1, 1]),
        })
    }

    /// The windows of a pool.
    pub(super) fn of_pool(fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let size = required_pair(fields, "pool_size")?;
        let strides = pair(fields, "strides")?.unwrap_or(size);
        Ok(Self::pool(size, strides, padding(fields)?))
    }

    /// Windows without gaps between the elements.
    pub(super) fn pool(kernel_size: [usize; 2], strides: [usize; 2], padding: Padding) -> Self {
        Self {
            kernel_size,
            strides,
            padding,
            dilation_rate: [1, 1],
        }
    }

    /// Rows and columns that one output sees, from the first to the last.
    fn extent(&self) -> [usize; 2] {
        [0, 1].map(|i| (self.kernel_size[i] - 1).saturating_mul(self.dilation_rate[i]) + 1)
    }

    /// An image of this many channels, with a place for each window in the input.
    pub(super) fn output_shape(&self, input: Shape, channels: usize) -> Result<Shape, String> {
        let (height, width, _) = input.needs_image()?;
        let (input, window) = ([height, width], self.extent());
        let count = |i: usize| match self.padding {
            Padding::Same => Some(input[i].div_ceil(self.strides[i])),
            Padding::Valid => Some(input[i].checked_sub(window[i])? / self.strides[i] + 1),
        };
        match (count(0), count(1)) {
            (Some(rows), Some(columns)) => Ok(Shape::Image(rows, columns, channels)),
            _ => Err(format!(
                "a window of {} does not fit into {}; remove a pool or use larger images",
                tuple(&window),
                tuple(&input)
            )),
        }
    }

    /// The padding before and after each axis (TensorFlow's rule: the odd one goes to the end).
    pub(super) fn pads(&self, x: &Tensor<4>) -> [(usize, usize); 2] {
        let [_, _, height, width] = x.dims();
        let (input, window) = ([height, width], self.extent());
        [0, 1].map(|i| match self.padding {
            Padding::Valid => (0, 0),
            Padding::Same => {
                let count = input[i].div_ceil(self.strides[i]);
                let total = ((count - 1) * self.strides[i] + window[i]).saturating_sub(input[i]);
                (total / 2, total - total / 2)
            }
        })
    }
}

fn padding(fields: &mut Fields<'_>) -> Result<Padding, ModelError> {
    match fields.get("padding").map(serde_json::Value::as_str) {
        None | Some(Some("valid")) => Ok(Padding::Valid),
        Some(Some("same")) => Ok(Padding::Same),
        Some(_) => Err(fields.refuse("padding", "use valid or same")),
    }
}
