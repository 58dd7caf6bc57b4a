//! `AveragePooling1D`.

use super::average_pooling_2d::AveragePooling2D;
use super::row::layer_of_rows;
use super::*;

/// `keras.layers.AveragePooling1D`.
#[derive(Debug, Clone, PartialEq)]
pub struct AveragePooling1D {
    /// The pool of an image of one row.
    pub row: AveragePooling2D,
}

layer_of_rows!(AveragePooling1D, |fields: &mut Fields<'_>| {
    Windows::of_row_pool(fields).map(AveragePooling2D::of)
});
