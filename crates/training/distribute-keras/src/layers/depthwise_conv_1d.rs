//! `DepthwiseConv1D`.

use super::depthwise_conv_2d::DepthwiseConv2D;
use super::row::layer_of_rows;
use super::*;

/// `keras.layers.DepthwiseConv1D`: a convolution of every feature by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthwiseConv1D {
    /// The convolution of an image of one row.
    pub row: DepthwiseConv2D,
}

layer_of_rows!(DepthwiseConv1D, |fields: &mut Fields<'_>| {
    let windows = Windows::of_row(fields)?;
    DepthwiseConv2D::of(windows, fields)
});
