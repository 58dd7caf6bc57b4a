//! `MaxPooling1D`.

use super::max_pooling_2d::MaxPooling2D;
use super::row::layer_of_rows;
use super::*;

/// `keras.layers.MaxPooling1D`.
#[derive(Debug, Clone, PartialEq)]
pub struct MaxPooling1D {
    /// The pool of an image of one row.
    pub row: MaxPooling2D,
}

layer_of_rows!(MaxPooling1D, |fields: &mut Fields<'_>| {
    Windows::of_row_pool(fields).map(MaxPooling2D::of)
});
