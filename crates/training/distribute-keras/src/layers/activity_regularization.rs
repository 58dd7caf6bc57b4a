//! `ActivityRegularization`.

use super::*;

/// `keras.layers.ActivityRegularization`: hands on what it gets, which adds a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivityRegularization {
    /// The loss.
    pub regularizer: Regularizer,
}

impl KerasLayer for ActivityRegularization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let regularizer = Regularizer {
            l1: fields.factor("l1", 0.0)?,
            l2: fields.factor("l2", 0.0)?,
        };
        Ok(Self { regularizer })
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        true
    }

    fn treats_features_alike(&self) -> bool {
        true
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        Some(self.regularizer)
    }
}
