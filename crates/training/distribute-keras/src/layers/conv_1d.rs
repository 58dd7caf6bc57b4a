//! `Conv1D`.

use super::conv_2d::Conv2D;
use super::row::layer_of_rows;
use super::*;

/// `keras.layers.Conv1D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv1D {
    /// The convolution of an image of one row.
    pub row: Conv2D,
}

layer_of_rows!(Conv1D, |fields: &mut Fields<'_>| {
    let windows = Windows::of_row(fields)?;
    Conv2D::of(windows, fields)
});
