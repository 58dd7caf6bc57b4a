//! `UpSampling1D`.

use super::row::layer_of_rows;
use super::up_sampling_2d::UpSampling2D;
use super::*;

/// `keras.layers.UpSampling1D`: every step several times.
#[derive(Debug, Clone, PartialEq)]
pub struct UpSampling1D {
    /// The same of an image of one row.
    pub row: UpSampling2D,
}

layer_of_rows!(UpSampling1D, |fields: &mut Fields<'_>| {
    Ok(UpSampling2D {
        size: [1, optional_count(fields, "size")?.unwrap_or(2)],
        bilinear: false,
    })
});
