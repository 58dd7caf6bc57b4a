//! `ZeroPadding1D`.

use super::row::layer_of_rows;
use super::zero_padding_2d::ZeroPadding2D;
use super::*;

/// `keras.layers.ZeroPadding1D`: steps of zeros before and after a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ZeroPadding1D {
    /// The padding of an image of one row.
    pub row: ZeroPadding2D,
}

layer_of_rows!(ZeroPadding1D, |fields: &mut Fields<'_>| {
    let [steps] = sides(fields, "padding", 1)?;
    Ok(ZeroPadding2D {
        padding: [(0, 0), steps],
    })
});
