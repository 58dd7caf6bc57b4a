//! How large variables are cut into shards along their first axis
//! (TensorFlow: `tf.distribute.experimental.partitioners`).
//!
//! ```
//! use distribute_ps::partitioners::{FixedShardsPartitioner, Partitioner, shard_sizes};
//!
//! let partitioner = FixedShardsPartitioner { num_shards: 3 };
//! let partitions = partitioner.partitions(&[10, 4], 4)?;
//! assert_eq!(partitions, [3, 1]);
//! assert_eq!(shard_sizes(10, partitions[0]), [4, 3, 3]);
//! # Ok::<(), distribute_core::Error>(())
//! ```

use std::fmt::Debug;

use distribute_core::{Error, Result};

/// A rule for the number of shards of a variable.
pub trait Partitioner: Send + Sync + Debug {
    /// The number of parts along every axis; axes other than the first have one.
    ///
    /// `element_bytes` is the size of an element of the variable's type.
    ///
    /// # Errors
    /// [`Error::Axis`] for a scalar, [`Error::InvalidArgument`] where the rule has no answer.
    fn partitions(&self, shape: &[usize], element_bytes: usize) -> Result<Vec<usize>>;
}

/// A fixed number of shards, or one per row if there are fewer rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedShardsPartitioner {
    /// The number of shards.
    pub num_shards: usize,
}

impl Partitioner for FixedShardsPartitioner {
    fn partitions(&self, shape: &[usize], _: usize) -> Result<Vec<usize>> {
        along_first(shape, |rows| Ok(self.num_shards.min(rows)))
    }
}

/// As many shards as can be at least so large, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinSizePartitioner {
    min_shard_bytes: usize,
    max_shards: usize,
}

impl Default for MinSizePartitioner {
    /// TensorFlow's: at least 256 KiB, one shard.
    fn default() -> Self {
        Self {
            min_shard_bytes: 256 << 10,
            max_shards: 1,
        }
    }
}

impl MinSizePartitioner {
    /// Shards of at least `min_shard_bytes` bytes, at most `max_shards` of them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one of the two is 0.
    pub fn new(min_shard_bytes: usize, max_shards: usize) -> Result<Self> {
        positive("min_shard_bytes", min_shard_bytes)?;
        positive("max_shards", max_shards)?;
        Ok(Self {
            min_shard_bytes,
            max_shards,
        })
    }
}

impl Partitioner for MinSizePartitioner {
    fn partitions(&self, shape: &[usize], element_bytes: usize) -> Result<Vec<usize>> {
        let bytes = shape.iter().product::<usize>() * element_bytes;
        let fitting = bytes.div_ceil(self.min_shard_bytes);
        along_first(shape, |rows| {
            Ok(rows.min(self.max_shards).min(fitting).max(1))
        })
    }
}

/// As few shards as can be at most so large, up to a limit that goes before the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxSizePartitioner {
    max_shard_bytes: usize,
    max_shards: Option<usize>,
}

impl MaxSizePartitioner {
    /// Shards of at most `max_shard_bytes` bytes, at most `max_shards` of them; `None` and 0 mean
    /// no limit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the size is 0.
    pub fn new(max_shard_bytes: usize, max_shards: Option<usize>) -> Result<Self> {
        positive("max_shard_bytes", max_shard_bytes)?;
        Ok(Self {
            max_shard_bytes,
            max_shards: max_shards.filter(|count| *count > 0),
        })
    }
}

impl Partitioner for MaxSizePartitioner {
    fn partitions(&self, shape: &[usize], element_bytes: usize) -> Result<Vec<usize>> {
        along_first(shape, |rows| {
            let row_bytes = shape[1..].iter().product::<usize>() * element_bytes;
            if row_bytes == 0 || rows == 0 {
                return Err(Error::invalid(format!(
                    "a variable of shape {shape:?} has no elements: it cannot be cut by size"
                )));
            }
            let rows_per_shard = (self.max_shard_bytes / row_bytes).max(1);
            let shards = rows.div_ceil(rows_per_shard);
            Ok(shards.min(self.max_shards.unwrap_or(shards)))
        })
    }
}

/// The rows of every shard when `rows` are cut into `shards` parts: the first ones have one more.
pub fn shard_sizes(rows: usize, shards: usize) -> Vec<usize> {
    let shards = shards.max(1);
    let (share, larger) = (rows / shards, rows % shards);
    (0..shards)
        .map(|shard| share + usize::from(shard < larger))
        .collect()
}

fn along_first(shape: &[usize], count: impl FnOnce(usize) -> Result<usize>) -> Result<Vec<usize>> {
    let Some(rows) = shape.first() else {
        return Err(Error::Axis {
            op: "partition",
            axis: 0,
            rank: 0,
        });
    };
    let mut partitions = vec![1; shape.len()];
    partitions[0] = count(*rows)?;
    Ok(partitions)
}

fn positive(argument: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::invalid(format!(
            "argument `{argument}` must be positive, got 0"
        )));
    }
    Ok(())
}
