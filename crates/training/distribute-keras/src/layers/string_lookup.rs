//! `StringLookup`.

use super::*;
use crate::texts::lookup::Lookup;
use crate::texts::{Encode, ReadsTexts};

/// `keras.layers.StringLookup`: the numbers of texts in a vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct StringLookup {
    /// The vocabulary.
    pub lookup: Lookup,
}

impl KerasLayer for StringLookup {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("invert", false, "set it to false: a model gives numbers")?;
        // It matters for numbers alone.
        fields.neutral(&["oov_method", "vocabulary_dtype"]);
        let mask = fields.get("mask_token").and_then(Json::as_str);
        let oov = fields.get("oov_token").and_then(Json::as_str);
        let numbers = oov_indices(fields)?;
        let lookup = Lookup::parse(fields, mask.map(str::to_string), oov, numbers)?;
        Ok(Self { lookup })
    }

    fn reads_texts(&self) -> Option<&dyn ReadsTexts> {
        Some(self)
    }

    fn idf_weights(&self) -> Option<&[f64]> {
        self.lookup.mode.idf_weights()
    }
}

/// The option `num_oov_indices`.
pub(super) fn oov_indices(fields: &mut Fields<'_>) -> Result<usize, ModelError> {
    let found = fields.get("num_oov_indices").map_or(Some(1), pad);
    found.ok_or_else(|| fields.refuse("num_oov_indices", "use a whole number from 0 on"))
}

impl ReadsTexts for StringLookup {
    fn dims(&self, texts: usize) -> Result<Vec<Option<usize>>, String> {
        Ok(self.lookup.dims(Some(texts)))
    }

    fn encoder(&self) -> Encode<'_> {
        let table = self.lookup.table();
        Box::new(move |texts| table.encode(texts.iter().copied()))
    }
}
