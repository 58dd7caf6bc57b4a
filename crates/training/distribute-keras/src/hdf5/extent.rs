//! How many values there are.

use super::Result;
use super::cursor::Cursor;

/// The most axes that HDF5 knows.
pub(super) const MAX_RANK: usize = 32;

/// How many values there are on each axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) axes: Vec<usize>,
    /// Whether there is no value at all, not even one.
    empty: bool,
}

impl Extent {
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let mut body = Cursor::new(body);
        let (version, rank, _flags) = (body.u8()?, usize::from(body.u8()?), body.u8()?);
        let kind = body.u8()?;
        body.skip(if version == 1 { 4 } else { 0 })?;
        if !(1..=2).contains(&version) || rank > MAX_RANK {
            return Err(format!("it has {rank} axes, in version {version}"));
        }
        let axes = (0..rank).map(|_| body.size(8));
        Ok(Self {
            axes: axes.collect::<Result<_>>()?,
            empty: version == 2 && kind == 2,
        })
    }

    /// The number of values.
    pub(super) fn elements(&self) -> Result<usize> {
        if self.empty {
            return Ok(0);
        }
        product(&self.axes)
    }
}

/// The product of sizes.
pub(super) fn product(sizes: &[usize]) -> Result<usize> {
    let product = sizes.iter().try_fold(1usize, |all, size| {
        // A zero makes everything zero, however large the others are.
        all.checked_mul(*size)
    });
    match product {
        _ if sizes.contains(&0) => Ok(0),
        Some(product) => Ok(product),
        None => Err("it has more values than any memory".to_string()),
    }
}
