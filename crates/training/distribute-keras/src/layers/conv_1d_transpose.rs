//! `Conv1DTranspose`.

use super::conv_2d_transpose::Conv2DTranspose;
use super::row::layer_of_rows;
use super::*;

/// `keras.layers.Conv1DTranspose`.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv1DTranspose {
    /// The convolution of an image of one row.
    pub row: Conv2DTranspose,
}

layer_of_rows!(Conv1DTranspose, |fields: &mut Fields<'_>| {
    let windows = Windows::of_row(fields)?;
    let output_padding = conv_2d_transpose::paddings(fields)?;
    let output_padding = output_padding.map(|[steps]: [usize; 1]| [0, steps]);
    Conv2DTranspose::of(windows, output_padding, fields)
});
