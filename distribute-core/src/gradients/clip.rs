//! Clipping of gradients: by the norm of all, by the norm of each, by value.

use super::residence::{Arithmetic, MULTIPLIED, Number, Residence, norm};
use super::{Gradients, elements, on_host};
use crate::Result;
use crate::error::check_positive;

/// How the summed gradients of an update are clipped. The numbers are positive.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Clip {
    /// The norm of all gradients together to at most this (Keras: `global_clipnorm`), see
    /// [`Gradients::clip_by_global_norm`].
    GlobalNorm(f64),
    /// The norm of each parameter's gradient to at most this (Keras: `clipnorm`), see
    /// [`Gradients::clip_by_norm`].
    Norm(f64),
    /// Every element to at most this on either side of zero (Keras: `clipvalue`), see
    /// [`Gradients::clip_by_value`].
    Value(f64),
}

impl Gradients {
    /// Scales all gradients so that their global norm is at most `clip_norm`
    /// (TensorFlow: `tf.clip_by_global_norm`). Returns the norm before.
    ///
    /// If the norm is not finite, because a gradient holds NaN or infinity, all gradients become
    /// NaN, as in TensorFlow and in a compiled step: the weights show at once that the training has
    /// failed (`TerminateOnNan` ends it), and the norm
    /// that is returned says so before the update.
    ///
    /// # Errors
    /// If `clip_norm` is not a positive number, and in a captured step, where the norm has no value
    /// on the host; there the [training state](crate::TrainState::clip_by_global_norm) clips.
    pub fn clip_by_global_norm(&mut self, clip_norm: f64) -> Result<f64> {
        on_host(self.clip_all(clip_norm)?)
    }

    /// Scales each gradient so that its own norm is at most `clip_norm` (TensorFlow:
    /// `tf.clip_by_norm`). One whose norm is not finite becomes NaN.
    ///
    /// # Errors
    /// If `clip_norm` is not a positive number.
    pub fn clip_by_norm(&mut self, clip_norm: f64) -> Result<()> {
        check_positive("clip_by_norm: the norm", clip_norm)?;
        for gradient in self.dense_mut() {
            let norm = norm(std::iter::once(&*gradient), std::iter::empty())?;
            if let Some(factor) = norm.clip_factor(clip_norm) {
                gradient.change(&MULTIPLIED, &factor)?;
            }
        }
        for rows in &mut self.rows {
            let norm = Number::Host(elements::sum_of_squares(&rows.values)?.sqrt());
            if let Some(Number::Host(factor)) = norm.clip_factor(clip_norm) {
                elements::scale(&mut rows.values, factor)?;
            }
        }
        Ok(())
    }

    /// Brings every element to between `-limit` and `limit` (TensorFlow: `tf.clip_by_value`); NaN
    /// stays.
    ///
    /// # Errors
    /// If `limit` is not a positive number.
    pub fn clip_by_value(&mut self, limit: f64) -> Result<()> {
        check_positive("clip_by_value: the limit", limit)?;
        self.dense_mut().try_for_each(|it| it.clamp(limit))?;
        let mut rows = self.rows.iter_mut();
        rows.try_for_each(|rows| elements::clamp(&mut rows.values, limit))
    }

    /// Multiplies all gradients, also in a captured step.
    pub(crate) fn scale(&mut self, factor: f64) -> Result<()> {
        if factor == 1.0 {
            return Ok(());
        }
        self.change(&MULTIPLIED, &Number::Host(factor))
    }

    /// Clips, also in a captured step.
    pub(crate) fn apply_clip(&mut self, clip: Clip) -> Result<()> {
        match clip {
            Clip::GlobalNorm(clip_norm) => self.clip_all(clip_norm).map(drop),
            Clip::Norm(clip_norm) => self.clip_by_norm(clip_norm),
            Clip::Value(limit) => self.clip_by_value(limit),
        }
    }

    fn clip_all(&mut self, clip_norm: f64) -> Result<Number> {
        check_positive("clip_by_global_norm: the norm", clip_norm)?;
        let norm = self.norm()?;
        if let Some(factor) = norm.clip_factor(clip_norm) {
            self.change(&MULTIPLIED, &factor)?;
        }
        Ok(norm)
    }

    /// Changes all gradients by an operation with a number; rows have only host numbers.
    pub(super) fn change(&mut self, by: &Arithmetic, number: &Number) -> Result<()> {
        self.dense_mut().try_for_each(|it| it.change(by, number))?;
        let Number::Host(number) = number else {
            return Ok(());
        };
        let mut rows = self.rows.iter_mut();
        rows.try_for_each(|rows| (by.elements)(&mut rows.values, *number))
    }

    fn dense_mut(&mut self) -> impl Iterator<Item = &mut Residence> {
        let entries = self.entries.iter_mut();
        entries.filter_map(|entry| entry.gradient.as_mut())
    }
}
