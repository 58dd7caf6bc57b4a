//! A vocabulary: the numbers of its texts, and what becomes of others.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::hash::bucket;
use crate::ModelError;
use crate::fields::Fields;

/// What the numbers of an example's texts become (Keras: `output_mode`).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LookupMode {
    /// The numbers themselves (`int`).
    Int,
    /// A row of zeros and a one for each (`one_hot`).
    OneHot,
    /// One row for all, with ones for the numbers that are there (`multi_hot`).
    MultiHot,
    /// One row for all, with how often each number is there (`count`).
    Count,
    /// `Count`, times a weight for each number (`tf_idf`).
    TfIdf(Vec<f64>),
}

impl LookupMode {
    /// The weights of the numbers, if it has some.
    pub(crate) fn idf_weights(&self) -> Option<&[f64]> {
        match self {
            Self::TfIdf(weights) => Some(weights),
            _ => None,
        }
    }
}

/// A vocabulary of texts (Keras: `StringLookup`).
#[derive(Debug, Clone, PartialEq)]
pub struct Lookup {
    /// The texts, without the mask's text and the one for what is not in the vocabulary.
    pub tokens: Vec<String>,
    /// The text that stands for nothing.
    pub mask_token: Option<String>,
    /// How many numbers there are for texts that are not in the vocabulary; of several a hash
    /// chooses. Without one such texts are an error.
    pub num_oov_indices: usize,
    /// The key of this hash; FarmHash has none.
    pub salt: Option<[u64; 2]>,
    /// What the numbers become.
    pub mode: LookupMode,
    /// The length of a row.
    pub depth: usize,
}

/// What to do about a vocabulary that the file does not have.
pub(crate) const NO_VOCABULARY: &str = "save the adapted model with `model.save(\"model.keras\")`, \
                                        which has the vocabulary; JSON and .h5 have only one that \
                                        was given to the layer";
/// No row may be longer.
const MOST_TOKENS: usize = 1 << 24;

/// The option `output_mode`, which also needs `idf_weights`.
pub(crate) fn mode(fields: &mut Fields<'_>) -> Result<LookupMode, ModelError> {
    fields.must_be("sparse", false, "set it to false")?;
    let weights = fields.get("idf_weights");
    Ok(match fields.get("output_mode").map(Value::as_str) {
        None | Some(Some("int")) => LookupMode::Int,
        Some(Some("one_hot")) => LookupMode::OneHot,
        Some(Some("multi_hot" | "binary")) => LookupMode::MultiHot,
        Some(Some("count")) => LookupMode::Count,
        Some(Some("tf_idf" | "tf-idf")) => {
            let weights = weights.and_then(Value::as_array);
            let weights: Option<Vec<f64>> =
                weights.and_then(|all| all.iter().map(Value::as_f64).collect());
            LookupMode::TfIdf(weights.ok_or_else(|| fields.refuse("idf_weights", NO_VOCABULARY))?)
        }
        Some(_) => {
            let remedy = "use int, one_hot, multi_hot, count or tf_idf";
            return Err(fields.refuse("output_mode", remedy));
        }
    })
}

/// The option `salt`: one number, or two.
pub(crate) fn salt(fields: &mut Fields<'_>) -> Result<Option<[u64; 2]>, ModelError> {
    // TensorFlow takes a negative number for the bits that it has.
    let number = |value: &Value| value.as_u64().or(value.as_i64().map(i64::cast_unsigned));
    let found = match fields.get("salt") {
        None => return Ok(None),
        Some(Value::Array(both)) => match both.as_slice() {
            [first, second] => number(first).zip(number(second)).map(|(a, b)| [a, b]),
            _ => None,
        },
        Some(one) => number(one).map(|one| [one; 2]),
    };
    found
        .map(Some)
        .ok_or_else(|| fields.refuse("salt", "use one whole number, or two"))
}

/// The length of the rows of a vocabulary of `count` tokens, with `special` numbers before them.
/// The weights of its numbers become as many.
pub(crate) fn depth(
    fields: &mut Fields<'_>,
    count: usize,
    special: usize,
    mode: &mut LookupMode,
) -> Result<usize, ModelError> {
    fields.neutral(&["vocabulary_size", "has_input_vocabulary", "encoding"]);
    let most = fields.get("max_tokens").map(Value::as_u64);
    let most = most.map(|most| most.and_then(|most| usize::try_from(most).ok()));
    let most = match most {
        None => None,
        Some(most) => Some(
            most.filter(|most| (special + count..=MOST_TOKENS).contains(most))
                .ok_or_else(|| fields.refuse("max_tokens", "use the size of the vocabulary"))?,
        ),
    };
    let pads = fields.flag("pad_to_max_tokens", false)?;
    let depth = most.filter(|_| pads).unwrap_or(special + count);
    if let LookupMode::TfIdf(weights) = mode {
        if weights.len() == count && special > 0 {
            // Keras takes the mean for what stands before the tokens.
            let mean = weights.iter().sum::<f64>() / count.max(1) as f64;
            weights.splice(0..0, std::iter::repeat_n(mean, special));
        }
        weights.resize(depth.max(weights.len()), 0.0);
        if weights.len() != depth {
            return Err(fields.refuse("idf_weights", "use one for each token of the vocabulary"));
        }
    }
    Ok(depth)
}

impl Lookup {
    /// The options of a vocabulary with this mask.
    pub(crate) fn parse(
        fields: &mut Fields<'_>,
        mask_token: Option<String>,
        oov_token: Option<&str>,
        num_oov_indices: usize,
    ) -> Result<Self, ModelError> {
        fields.must_be("encoding", "utf-8", "use utf-8")?;
        let mut mode = mode(fields)?;
        let listed = fields.get("vocabulary").and_then(Value::as_array);
        let listed: Option<Vec<String>> = listed.and_then(|all| {
            let texts = all.iter().map(|text| Some(text.as_str()?.to_string()));
            texts.collect()
        });
        let mut tokens = listed
            .filter(|all| !all.is_empty())
            .ok_or_else(|| fields.refuse("vocabulary", NO_VOCABULARY))?;
        let masks = usize::from(mask_token.is_some() && mode == LookupMode::Int);
        let special = masks + num_oov_indices;
        let of_mask = mask_token.iter().take(masks).map(String::as_str);
        let of_oov = std::iter::repeat_n(oov_token, num_oov_indices);
        let begin: Vec<Option<&str>> = of_mask.map(Some).chain(of_oov).collect();
        let found: Vec<Option<&str>> = tokens.iter().take(special).map(|t| Some(&**t)).collect();
        if found == begin {
            tokens.drain(..special);
        }
        let distinct: BTreeSet<&String> = tokens.iter().collect();
        if distinct.len() != tokens.len()
            || mask_token.as_ref().is_some_and(|m| distinct.contains(m))
        {
            let remedy = "use each text once, and special ones at the start alone";
            return Err(fields.refuse("vocabulary", remedy));
        }
        let depth = depth(fields, tokens.len(), special, &mut mode)?;
        Ok(Self {
            tokens,
            mask_token,
            num_oov_indices,
            salt: salt(fields)?,
            mode,
            depth,
        })
    }

    fn masks(&self) -> usize {
        usize::from(self.mask_token.is_some() && self.mode == LookupMode::Int)
    }

    /// The extents of what `count` texts become; nothing stands for as many as there are.
    pub(crate) fn dims(&self, count: Option<usize>) -> Vec<Option<usize>> {
        row_dims(&self.mode, self.depth, count)
    }

    /// What finds the numbers of texts.
    pub(crate) fn table(&self) -> Table<'_> {
        let first = self.masks() + self.num_oov_indices;
        Table {
            lookup: self,
            numbers: (first..)
                .zip(&self.tokens)
                .map(|(n, t)| (&**t, n))
                .collect(),
        }
    }
}

/// The extents of what `count` numbers become.
pub(crate) fn row_dims(
    mode: &LookupMode,
    depth: usize,
    count: Option<usize>,
) -> Vec<Option<usize>> {
    match mode {
        LookupMode::Int => vec![count],
        LookupMode::OneHot if count == Some(1) => vec![Some(depth)],
        LookupMode::OneHot => vec![count, Some(depth)],
        _ => vec![Some(depth)],
    }
}

/// What the numbers of an example become; nothing stands for a text that is left out.
pub(crate) fn encoded(mode: &LookupMode, depth: usize, numbers: &[Option<usize>]) -> Vec<f32> {
    let rows = match mode {
        LookupMode::Int => {
            return numbers.iter().map(|n| n.unwrap_or(0) as f32).collect();
        }
        LookupMode::OneHot => numbers.len(),
        _ => 1,
    };
    let mut all = vec![0.0; rows * depth];
    for (index, number) in numbers.iter().enumerate() {
        let row = if rows == 1 { 0 } else { index };
        let place = number.and_then(|number| all.get_mut(row * depth + number));
        if let Some(place) = place {
            *place = match mode {
                LookupMode::Count | LookupMode::TfIdf(_) => *place + 1.0,
                _ => 1.0,
            };
        }
    }
    if let LookupMode::TfIdf(weights) = mode {
        for (count, weight) in all.iter_mut().zip(weights) {
            *count *= *weight as f32;
        }
    }
    all
}

/// Finds the numbers of texts.
pub(crate) struct Table<'a> {
    lookup: &'a Lookup,
    numbers: HashMap<&'a str, usize>,
}

impl Table<'_> {
    /// The number of a text, nothing for the mask, or why it has none.
    fn number(&self, text: &str) -> Result<Option<usize>, String> {
        let Lookup {
            mask_token,
            num_oov_indices,
            salt,
            ..
        } = self.lookup;
        if mask_token.as_deref() == Some(text) {
            return Ok(None);
        }
        if let Some(number) = self.numbers.get(text) {
            return Ok(Some(*number));
        }
        let first = self.lookup.masks();
        match num_oov_indices {
            0 => Err(format!(
                "{text:?} is not in the vocabulary, which has no number for other texts \
                 (num_oov_indices=0)"
            )),
            1 => Ok(Some(first)),
            several => {
                let chosen = bucket(text.as_bytes(), *several as u64, *salt);
                // Below a number of this type.
                Ok(Some(first + chosen as usize))
            }
        }
    }

    /// What the texts of an example become.
    pub(crate) fn encode<'t>(
        &self,
        texts: impl Iterator<Item = &'t str>,
    ) -> Result<Vec<f32>, String> {
        let numbers = texts.map(|text| self.number(text));
        let numbers: Vec<Option<usize>> = numbers.collect::<Result<_, _>>()?;
        Ok(encoded(&self.lookup.mode, self.lookup.depth, &numbers))
    }
}
