//! `Hashing`.

use super::*;
use crate::texts::hash::bucket;
use crate::texts::lookup::{LookupMode, encoded, mode, row_dims, salt};
use crate::texts::{Encode, ReadsTexts};

/// `keras.layers.Hashing`: texts by hashes as numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Hashing {
    /// How many numbers there are.
    pub num_bins: usize,
    /// The text that gets number 0, which no other text then gets.
    pub mask_value: Option<String>,
    /// The key of SipHash; FarmHash has none.
    pub salt: Option<[u64; 2]>,
    /// What the numbers become.
    pub mode: LookupMode,
}

impl KerasLayer for Hashing {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let mask_value = match fields.get("mask_value") {
            None => None,
            Some(Json::String(text)) => Some(text.clone()),
            Some(_) => return Err(fields.refuse("mask_value", "use a text")),
        };
        let found = Self {
            num_bins: count(fields, "num_bins")?,
            mask_value,
            salt: salt(fields)?,
            mode: mode(fields)?,
        };
        match found.mode {
            LookupMode::TfIdf(_) => {
                Err(fields.refuse("output_mode", "use int, one_hot, multi_hot or count"))
            }
            _ => Ok(found),
        }
    }

    fn reads_texts(&self) -> Option<&dyn ReadsTexts> {
        Some(self)
    }
}

impl ReadsTexts for Hashing {
    fn dims(&self, texts: usize) -> Result<Vec<Option<usize>>, String> {
        Ok(row_dims(&self.mode, self.num_bins, Some(texts)))
    }

    fn encoder(&self) -> Encode<'_> {
        Box::new(|texts| {
            let numbers: Vec<Option<usize>> =
                texts.iter().map(|text| Some(self.number(text))).collect();
            Ok(encoded(&self.mode, self.num_bins, &numbers))
        })
    }
}

impl Hashing {
    fn number(&self, text: &str) -> usize {
        let masked = self.mask_value.as_ref().filter(|_| self.num_bins > 1);
        let Some(mask) = masked else {
            return bucket(text.as_bytes(), self.num_bins as u64, self.salt) as usize;
        };
        if mask == text {
            return 0;
        }
        1 + bucket(text.as_bytes(), self.num_bins as u64 - 1, self.salt) as usize
    }
}
