//! The loss scale of training in 16 bits: gradients that would be too small for their type are
//! computed as larger ones, and divided again before the update.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};

use super::residence::{DIVIDED, MULTIPLIED, Number};
use super::{Gradients, residence};
use crate::checkpoint::Section;
use crate::{Error, Result};

/// What a loss is multiplied by, so that small gradients do not become zero in 16 bits
/// (Micikevicius et al., 2017; Keras: `LossScaleOptimizer`). The gradients are divided by it before
/// they are clipped and applied. Given to
/// [`TrainState::with_loss_scale`](crate::TrainState::with_loss_scale).
///
/// A [`dynamic`](Self::dynamic) scale finds its size by itself: it doubles after
/// [`growth_steps`](Self::growth_steps) updates in a row, and halves when a gradient is infinite or
/// NaN. Such an update is skipped. It is needed with `f16` only: `bf16` has the range of `f32`.
///
/// All replicas decide alike, because they look at the gradients after these were summed over the
/// replicas of all workers: one that is not finite on any replica makes the sum not finite, and a
/// sum can overflow by itself. (Keras 3 looks at the first replica's only, before the sum.)
///
/// ```
/// use distribute_core::LossScale;
///
/// let scale = LossScale::dynamic().initial(1024.0)?.growth_steps(500)?;
/// assert_eq!(scale.scale(), 1024.0);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct LossScale {
    scale: f64,
    dynamics: Option<Dynamics>,
}

/// What moves a dynamic scale, and how far it has come.
#[derive(Debug, Clone, PartialEq)]
struct Dynamics {
    initial: f64,
    minimum: f64,
    maximum: f64,
    growth_steps: u64,
    /// Updates since the scale was changed or one was skipped.
    good_steps: u64,
    skipped_steps: u64,
}

/// The names of its numbers in a checkpoint.
const SCALE: &str = "dynamic_scale";
const GOOD_STEPS: &str = "step_counter";
const SKIPPED_STEPS: &str = "skipped_steps";

/// The largest power of two that `f32` has, 2^127.
const LARGEST: f64 = (1_u128 << 127) as f64;

impl Default for LossScale {
    /// A scale of 1, which changes nothing.
    fn default() -> Self {
        Self {
            scale: 1.0,
            dynamics: None,
        }
    }
}

impl LossScale {
    /// A scale that follows the gradients, with Keras' numbers: it starts at 2^15, and doubles
    /// after 2,000 updates in a row. It stays between 1 and 2^127, as in Keras 2; Keras 3 has no
    /// bounds.
    pub fn dynamic() -> Self {
        let initial = 32_768.0;
        Self {
            scale: initial,
            dynamics: Some(Dynamics {
                initial,
                minimum: 1.0,
                maximum: LARGEST,
                growth_steps: 2_000,
                good_steps: 0,
                skipped_steps: 0,
            }),
        }
    }

    /// A scale that never changes (Keras 2: `dynamic=False`). Nothing is skipped: gradients that
    /// are not finite are applied.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no positive number, or none of `f32`.
    pub fn fixed(scale: f64) -> Result<Self> {
        Ok(Self {
            scale: positive("a loss scale", scale)?,
            dynamics: None,
        })
    }

    /// Sets where a dynamic scale starts (Keras: `initial_scale`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no positive number or out of the
    /// [bounds](Self::bounds), and for a fixed scale.
    pub fn initial(mut self, scale: f64) -> Result<Self> {
        positive("the initial loss scale", scale)?;
        let dynamics = self.dynamics_mut("initial")?;
        if !(dynamics.minimum..=dynamics.maximum).contains(&scale) {
            return Err(Error::invalid(format!(
                "the initial loss scale {scale} is not between its bounds {} and {}; set the \
                 bounds first",
                dynamics.minimum, dynamics.maximum
            )));
        }
        dynamics.initial = scale;
        self.scale = scale;
        Ok(self)
    }

    /// Sets after how many updates in a row a dynamic scale doubles (Keras:
    /// `dynamic_growth_steps`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0, and for a fixed scale.
    pub fn growth_steps(mut self, updates: u64) -> Result<Self> {
        if updates == 0 {
            return Err(Error::invalid(
                "a loss scale can grow after every update (1) or more rarely, got 0",
            ));
        }
        self.dynamics_mut("growth_steps")?.growth_steps = updates;
        Ok(self)
    }

    /// Sets the bounds of a dynamic scale, and starts it between them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what are no positive numbers, or in the wrong order, and for
    /// a fixed scale.
    pub fn bounds(mut self, minimum: f64, maximum: f64) -> Result<Self> {
        positive("the smallest loss scale", minimum)?;
        positive("the largest loss scale", maximum)?;
        if minimum > maximum {
            return Err(Error::invalid(format!(
                "the smallest loss scale {minimum} is larger than the largest {maximum}; give \
                 the smaller one first"
            )));
        }
        let scale = self.scale.clamp(minimum, maximum);
        let dynamics = self.dynamics_mut("bounds")?;
        (dynamics.minimum, dynamics.maximum) = (minimum, maximum);
        dynamics.initial = scale;
        self.scale = scale;
        Ok(self)
    }

    /// What the next loss is multiplied by (Keras: `dynamic_scale`).
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Whether it changes by itself.
    pub fn is_dynamic(&self) -> bool {
        self.dynamics.is_some()
    }

    /// The updates since a dynamic scale was changed, or since one was skipped (Keras:
    /// `step_counter`).
    pub fn good_steps(&self) -> u64 {
        self.dynamics.as_ref().map_or(0, |it| it.good_steps)
    }

    /// The updates that were skipped so far.
    pub fn skipped_steps(&self) -> u64 {
        self.dynamics.as_ref().map_or(0, |it| it.skipped_steps)
    }

    fn dynamics_mut(&mut self, option: &str) -> Result<&mut Dynamics> {
        self.dynamics.as_mut().ok_or_else(|| {
            Error::invalid(format!(
                "`{option}` is of a dynamic loss scale and this one is fixed; begin with \
                 `LossScale::dynamic()`"
            ))
        })
    }
}

/// What a training state does with it.
impl LossScale {
    /// Whether losses and gradients stay as they are.
    pub(crate) fn is_one(&self) -> bool {
        *self == Self::default()
    }

    /// Divides summed gradients. Returns whether an update with them may be made: all are finite,
    /// or nothing asks.
    pub(crate) fn unscale(&self, gradients: &mut Gradients) -> Result<bool> {
        if self.scale != 1.0 {
            gradients.change(&DIVIDED, &Number::Host(self.scale))?;
        }
        Ok(!self.is_dynamic() || gradients.are_finite()?)
    }

    /// An update was made.
    pub(crate) fn count_update(&mut self) {
        let Some(dynamics) = &mut self.dynamics else {
            return;
        };
        dynamics.good_steps += 1;
        if dynamics.good_steps >= dynamics.growth_steps {
            dynamics.good_steps = 0;
            self.scale = (self.scale * 2.0).min(dynamics.maximum);
        }
    }

    /// An update was skipped.
    pub(crate) fn count_skipped(&mut self) {
        let Some(dynamics) = &mut self.dynamics else {
            return;
        };
        dynamics.good_steps = 0;
        dynamics.skipped_steps += 1;
        self.scale = (self.scale / 2.0).max(dynamics.minimum);
    }

    /// These as one, for a loss that several states share: all of them with the smallest scale and
    /// its count, so that they double and halve together from now on.
    ///
    /// # Errors
    /// If some are dynamic and others are not, or if fixed ones differ.
    pub(crate) fn agree(scales: &mut [Self]) -> Result<()> {
        let numbers = scales.iter().map(|it| (it.scale, it.good_steps()));
        let smallest = numbers.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let Some((scale, count)) = smallest else {
            return Ok(());
        };
        let dynamic = scales.iter().filter(|it| it.is_dynamic()).count();
        if dynamic == 0 && scales.iter().any(|it| it.scale != scale) {
            return Err(Error::invalid(
                "scale_loss: states that share a loss have different fixed loss scales; give all \
                 of them the same one",
            ));
        }
        if dynamic != 0 && dynamic != scales.len() {
            return Err(Error::invalid(
                "scale_loss: of states that share a loss some have a dynamic loss scale and others \
                 have none; give all of them one (`with_loss_scale(LossScale::dynamic())`)",
            ));
        }
        for own in scales {
            own.scale = scale;
            if let Some(dynamics) = &mut own.dynamics {
                dynamics.good_steps = count;
            }
        }
        Ok(())
    }

    /// Its numbers for a checkpoint: none of a fixed one.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&'static str, TensorData)> {
        let numbers = self.dynamics.as_ref().map(|dynamics| {
            let count = |steps: u64| TensorData::from([steps as i64]);
            [
                (SCALE, TensorData::from([self.scale])),
                (GOOD_STEPS, count(dynamics.good_steps)),
                (SKIPPED_STEPS, count(dynamics.skipped_steps)),
            ]
        });
        numbers.into_iter().flatten()
    }

    /// This one as it was in a checkpoint; as in the beginning if that has no loss scale. A fixed
    /// one stays.
    ///
    /// # Errors
    /// If the numbers are none of a loss scale.
    pub(crate) fn of_tensors(&self, tensors: &BTreeMap<String, TensorData>) -> Result<Self> {
        let mut restored = self.clone();
        let Some(dynamics) = &mut restored.dynamics else {
            return Ok(restored);
        };
        let unreadable = |name: &str, why: &str| {
            Error::invalid(format!(
                "`{}` of the checkpoint {why}: it is damaged, or was written by another program",
                Section::LossScale.name(name)
            ))
        };
        let number = |name: &str| {
            let Some(data) = tensors.get(&Section::LossScale.name(name)) else {
                return Ok(None);
            };
            let mut values = data.iter::<f64>();
            match (values.next(), values.next()) {
                (Some(value), None) => Ok(Some(value)),
                _ => Err(unreadable(name, "is not one number")),
            }
        };
        let count = |name: &str| match number(name)?.unwrap_or(0.0) {
            count if count >= 0.0 => Ok(count as u64),
            _ => Err(unreadable(name, "is not a number of updates")),
        };
        restored.scale = number(SCALE)?.unwrap_or(dynamics.initial);
        let name = Section::LossScale.name(SCALE);
        positive(&format!("`{name}` of the checkpoint"), restored.scale)?;
        dynamics.good_steps = count(GOOD_STEPS)?;
        dynamics.skipped_steps = count(SKIPPED_STEPS)?;
        Ok(restored)
    }
}

impl Gradients {
    /// Divides the summed gradients of a captured step by its loss scale, an input of shape `[1]`.
    /// Whether all of them are finite, in a tensor of shape `[1]`: 1, or 0.
    pub(crate) fn unscale_captured(&mut self, scale: Tensor<1>) -> Result<Option<Tensor<1>>> {
        // A compiler may multiply by the inverse, and a device take one below 2^-126 for 0: a
        // larger scale is divided by 4 first, and the gradients with it.
        let is_large = scale.clone().greater_elem(LARGEST / 4.0).float();
        let part = is_large.mul_scalar(-0.75).add_scalar(1.0);
        self.change(&MULTIPLIED, &Number::Captured(part.clone()))?;
        self.change(&DIVIDED, &Number::Captured(scale * part))?;
        Ok(residence::captured_are_finite(self.dense()))
    }

    /// Whether no element is infinite or NaN (TensorFlow: `tf.math.is_finite`). Those on a GPU are
    /// looked at there, with one number copied to the host; waits for it.
    ///
    /// # Errors
    /// In a captured step, where gradients have no values ([`Error::HostRead`]).
    pub fn are_finite(&self) -> Result<bool> {
        residence::are_finite(self.dense(), self.row_values())
    }
}

/// A positive number of `f32`.
fn positive(what: &str, number: f64) -> Result<f64> {
    if number >= f64::from(f32::MIN_POSITIVE) && number <= f64::from(f32::MAX) {
        Ok(number)
    } else {
        Err(Error::invalid(format!(
            "{what} must be a positive number of f32, got {number}"
        )))
    }
}
