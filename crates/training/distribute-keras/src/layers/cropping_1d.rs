//! `Cropping1D`.

use super::cropping_2d::Cropping2D;
use super::row::layer_of_rows;
use super::*;

/// `keras.layers.Cropping1D`: takes steps away at the start and the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Cropping1D {
    /// The cropping of an image of one row.
    pub row: Cropping2D,
}

layer_of_rows!(Cropping1D, |fields: &mut Fields<'_>| {
    let [steps] = sides(fields, "cropping", 1)?;
    Ok(Cropping2D {
        cropping: [(0, 0), steps],
    })
});
