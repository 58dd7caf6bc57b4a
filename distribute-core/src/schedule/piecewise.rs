//! Rates that stay for some updates each.

use serde::{Deserialize, Serialize};

use super::Known;
use crate::{Error, Result};

/// `keras.optimizers.schedules.PiecewiseConstantDecay`.
///
/// `values[0]` up to and with the step `boundaries[0]`, `values[1]` up to and with `boundaries[1]`,
/// and so on. Boundaries are cut to whole steps.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PiecewiseConstantDecay {
    boundaries: Vec<f64>,
    values: Vec<f64>,
}

impl PiecewiseConstantDecay {
    /// One rate more than there are boundaries, which rise.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of values, and boundaries that do not rise.
    pub fn new(boundaries: Vec<f64>, values: Vec<f64>) -> Result<Self> {
        Self { boundaries, values }.checked()
    }
}

impl Known for PiecewiseConstantDecay {
    const NAME: &'static str = "PiecewiseConstantDecay";

    fn check(&self) -> Result<()> {
        let (boundaries, values) = (self.boundaries.len(), self.values.len());
        if boundaries + 1 != values {
            return Err(Error::invalid(format!(
                "PiecewiseConstantDecay: {boundaries} boundaries need {} values, got {values}",
                boundaries + 1
            )));
        }
        if self.boundaries.is_sorted() {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "PiecewiseConstantDecay: the boundaries {:?} do not rise",
                self.boundaries
            )))
        }
    }

    fn after(&self, step: u64) -> f64 {
        let is_over = |boundary: &f64| (step as f64) > boundary.trunc();
        let over = self.boundaries.partition_point(is_over);
        self.values.get(over).copied().unwrap_or_default()
    }
}
