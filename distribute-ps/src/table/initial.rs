//! The initial values of a table.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{PsError, Result};

type OfRows = dyn Fn(Range<usize>) -> Result<Vec<f32>> + Send + Sync;

/// What the rows of a table are at first. They are made on the coordinator, shard by shard.
///
/// Random rows depend on the seed and their number alone, so they are the same with any number of
/// servers and shards.
#[derive(Clone)]
#[non_exhaustive]
pub enum TableInitializer {
    /// Every element is this number.
    Constant(f32),
    /// Uniformly distributed from `low` to `high`.
    Uniform {
        /// The lowest value.
        low: f32,
        /// The highest value; itself not included.
        high: f32,
        /// Where the random numbers begin.
        seed: u64,
    },
    /// Normally distributed around 0.
    Normal {
        /// The standard deviation.
        deviation: f32,
        /// Where the random numbers begin.
        seed: u64,
    },
    /// The values of a range of rows, one row after the other: for example from a file.
    /// [`TableInitializer::rows`] makes it.
    Rows(Arc<OfRows>),
}

impl Default for TableInitializer {
    /// The default of `keras.layers.Embedding`: uniform from -0.05 to 0.05. The seed is 0.
    fn default() -> Self {
        Self::Uniform {
            low: -0.05,
            high: 0.05,
            seed: 0,
        }
    }
}

impl TableInitializer {
    /// Uniformly distributed from `low` to `high`, by this seed.
    pub fn uniform(low: f32, high: f32, seed: u64) -> Self {
        Self::Uniform { low, high, seed }
    }

    /// Normally distributed around 0 with this standard deviation, by this seed.
    pub fn normal(deviation: f32, seed: u64) -> Self {
        Self::Normal { deviation, seed }
    }

    /// The values that a function gives for a range of rows: `range.len()` times the table's width
    /// numbers, one row after the other. It is called once per shard.
    pub fn rows(values: impl Fn(Range<usize>) -> Result<Vec<f32>> + Send + Sync + 'static) -> Self {
        Self::Rows(Arc::new(values))
    }

    pub(super) fn check(&self, table: &str) -> Result<()> {
        let wrong = match self {
            Self::Uniform { low, high, .. } => {
                let is_range = low.is_finite() && high.is_finite() && low <= high;
                (!is_range).then(|| format!("uniform from {low} to {high}"))
            }
            Self::Normal { deviation, .. } => {
                let is_width = deviation.is_finite() && *deviation >= 0.0;
                (!is_width).then(|| format!("normal with deviation {deviation}"))
            }
            Self::Constant(_) | Self::Rows(_) => None,
        };
        match wrong {
            None => Ok(()),
            Some(wrong) => Err(PsError::invalid(format!(
                "table `{table}`: its initial values cannot be {wrong}"
            ))),
        }
    }

    /// The values of a range of rows.
    pub(super) fn values(&self, table: &str, rows: Range<usize>, width: usize) -> Result<Vec<f32>> {
        let count = rows.len() * width;
        let values = match self {
            Self::Constant(value) => vec![*value; count],
            Self::Uniform { low, high, seed } => random(*seed, rows.clone(), width, |random| {
                low + random.random::<f32>() * (high - low)
            }),
            Self::Normal { deviation, seed } => random(*seed, rows.clone(), width, |random| {
                // Box and Muller; 1 - u is never 0.
                let (u, angle) = (random.random::<f32>(), random.random::<f32>());
                let radius = (-2.0 * (1.0 - u).ln()).sqrt();
                deviation * radius * (std::f32::consts::TAU * angle).cos()
            }),
            Self::Rows(values) => values(rows.clone())?,
        };
        if values.len() == count {
            Ok(values)
        } else {
            Err(PsError::invalid(format!(
                "table `{table}`: its initializer gave {} numbers for rows {rows:?} of width \
                 {width}, which are {count}",
                values.len()
            )))
        }
    }
}

/// Each row has a stream of its own.
fn random(
    seed: u64,
    rows: Range<usize>,
    width: usize,
    mut next: impl FnMut(&mut ChaCha8Rng) -> f32,
) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows.len() * width);
    let start = ChaCha8Rng::seed_from_u64(seed);
    for row in rows {
        let mut stream = start.clone();
        stream.set_stream(row as u64);
        values.extend((0..width).map(|_| next(&mut stream)));
    }
    values
}

impl fmt::Debug for TableInitializer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(value) => write!(f, "Constant({value})"),
            Self::Uniform { low, high, seed } => write!(f, "Uniform({low}..{high}, seed {seed})"),
            Self::Normal { deviation, seed } => write!(f, "Normal({deviation}, seed {seed})"),
            Self::Rows(_) => f.write_str("Rows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_rows_do_not_depend_on_how_the_table_is_cut() {
        let uniform = TableInitializer::Uniform {
            low: -2.0,
            high: 3.0,
            seed: 9,
        };
        let normal = TableInitializer::Normal {
            deviation: 0.5,
            seed: 9,
        };
        for initializer in [&uniform, &normal] {
            let values = |rows| initializer.values("t", rows, 3).unwrap();
            let whole = values(0..1000);
            let parts = [values(0..1), values(1..700), values(700..1000)].concat();
            assert_eq!(parts, whole);
            let mut distinct: Vec<u32> = whole.iter().map(|value| value.to_bits()).collect();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() > 2_900, "{}", distinct.len());
        }
        let values = uniform.values("t", 0..10_000, 1).unwrap();
        assert!(values.iter().all(|value| (-2.0..3.0).contains(value)));
        let mean = values.iter().sum::<f32>() / 1e4;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        let values = normal.values("t", 0..10_000, 1).unwrap();
        let mean = values.iter().sum::<f32>() / 1e4;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 0.25).abs() < 0.01, "{variance}");
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let uniform = |low, high| TableInitializer::Uniform { low, high, seed: 0 };
        assert!(uniform(1.0, -1.0).check("t").is_err());
        assert!(uniform(f32::NAN, 1.0).check("t").is_err());
        let deviation = f32::INFINITY;
        assert!(
            TableInitializer::Normal { deviation, seed: 0 }
                .check("t")
                .is_err()
        );
        let few = TableInitializer::rows(|rows| Ok(vec![0.0; rows.len()]));
        let error = few.values("words", 4..9, 3).unwrap_err().to_string();
        assert!(error.contains("`words`") && error.contains("15"), "{error}");
    }
}
