//! `SeparableConv1D`.

use super::row::layer_of_rows;
use super::separable_conv_2d::SeparableConv2D;
use super::*;

/// `keras.layers.SeparableConv1D`: a convolution of every feature by itself, then one
/// that mixes them.
#[derive(Debug, Clone, PartialEq)]
pub struct SeparableConv1D {
    /// The convolutions of an image of one row.
    pub row: SeparableConv2D,
}

layer_of_rows!(SeparableConv1D, |fields: &mut Fields<'_>| {
    let windows = Windows::of_row(fields)?;
    SeparableConv2D::of(windows, fields)
});
