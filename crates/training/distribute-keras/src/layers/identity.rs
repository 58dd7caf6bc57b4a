//! `Identity`.

use super::*;

/// `keras.layers.Identity`: what it receives.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity;

impl KerasLayer for Identity {
    fn parse(_: &str, _: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self)
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
}
