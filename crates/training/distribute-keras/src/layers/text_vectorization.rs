//! `TextVectorization`.

use super::*;
use crate::texts::lookup::{Lookup, LookupMode};
use crate::texts::{Encode, ReadsTexts};

/// `keras.layers.TextVectorization`: the numbers of a text's words in a vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct TextVectorization {
    /// Whether capital letters of ASCII become small ones.
    pub lower: bool,
    /// Whether the punctuation of ASCII is left out.
    pub strip_punctuation: bool,
    /// Where a text is split.
    pub split: Split,
    /// The lengths of the runs of words that are looked up, in their order; single words without.
    pub ngrams: Vec<usize>,
    /// How many numbers a text becomes; without, as many as it has words.
    pub output_sequence_length: Option<usize>,
    /// The vocabulary.
    pub lookup: Lookup,
}

/// Where a text is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Split {
    /// Nowhere: it is one word.
    Nowhere,
    /// At white space.
    Whitespace,
    /// Between all characters.
    Character,
}

/// The longest row, and the longest run of words.
const MOST: usize = 1 << 20;

impl KerasLayer for TextVectorization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("ragged", false, "set it to false")?;
        let standard = option(fields, "standardize", "lower_and_strip_punctuation");
        let (lower, strip_punctuation) = match standard {
            Some(Some("lower_and_strip_punctuation")) => (true, true),
            Some(Some("lower")) => (true, false),
            Some(Some("strip_punctuation")) => (false, true),
            Some(None) => (false, false),
            _ => {
                let remedy = "use lower_and_strip_punctuation, lower, strip_punctuation or None; \
                              the file does not have the code of a function";
                return Err(fields.refuse("standardize", remedy));
            }
        };
        let split = match option(fields, "split", "whitespace") {
            Some(Some("whitespace")) => Split::Whitespace,
            Some(Some("character")) => Split::Character,
            Some(None) => Split::Nowhere,
            _ => {
                let remedy = "use whitespace, character or None; the file does not have the code \
                              of a function";
                return Err(fields.refuse("split", remedy));
            }
        };
        let lookup = Lookup::parse(fields, Some(String::new()), Some("[UNK]"), 1)?;
        let output_sequence_length = optional_count(fields, "output_sequence_length")?;
        if lookup.mode == LookupMode::OneHot && split != Split::Nowhere {
            let remedy = "use int, multi_hot, count or tf_idf: texts have other numbers of words";
            return Err(fields.refuse("output_mode", remedy));
        }
        if output_sequence_length.is_some_and(|length| length > MOST) {
            return Err(fields.refuse("output_sequence_length", "use a smaller number"));
        }
        Ok(Self {
            lower,
            strip_punctuation,
            split,
            ngrams: ngrams(fields)?,
            output_sequence_length,
            lookup,
        })
    }

    fn reads_texts(&self) -> Option<&dyn ReadsTexts> {
        Some(self)
    }

    fn idf_weights(&self) -> Option<&[f64]> {
        self.lookup.mode.idf_weights()
    }
}

/// A text in an option that has a default, or nothing for null; nothing at all for what is neither.
fn option<'a>(
    fields: &mut Fields<'a>,
    key: &'static str,
    default: &'static str,
) -> Option<Option<&'a str>> {
    match fields.get(key) {
        None if !fields.has(key) => Some(Some(default)),
        None => Some(None),
        Some(value) => value.as_str().map(Some),
    }
}

/// The option `ngrams`: all lengths up to a number, or a list of lengths.
fn ngrams(fields: &mut Fields<'_>) -> Result<Vec<usize>, ModelError> {
    let found = match fields.get("ngrams") {
        None => Some(Vec::new()),
        Some(Json::Array(lengths)) if !lengths.is_empty() => lengths.iter().map(size).collect(),
        Some(most) => size(most)
            .filter(|most| *most <= 64)
            .map(|most| (1..=most).collect()),
    };
    found.ok_or_else(|| fields.refuse("ngrams", "use a whole number, or a list of some"))
}

impl ReadsTexts for TextVectorization {
    fn dims(&self, texts: usize) -> Result<Vec<Option<usize>>, String> {
        if self.split != Split::Nowhere && texts != 1 {
            return Err(format!(
                "splits one text of an example, the input has {texts}"
            ));
        }
        let words = self.words_of(texts);
        Ok(self.lookup.dims(words))
    }

    fn encoder(&self) -> Encode<'_> {
        let table = self.lookup.table();
        Box::new(move |texts| {
            let standard = texts.iter().map(|text| self.standard(text));
            let standard: Vec<String> = standard.collect();
            let words: Vec<&str> = standard.iter().flat_map(|text| self.words(text)).collect();
            let runs = self.runs(&words);
            let mut row = table.encode(runs.iter().map(String::as_str))?;
            if let (LookupMode::Int, Some(length)) =
                (&self.lookup.mode, self.output_sequence_length)
            {
                row.resize(length, 0.0);
            }
            Ok(row)
        })
    }
}

impl TextVectorization {
    /// How many words this many texts have, if it is the same for all.
    fn words_of(&self, texts: usize) -> Option<usize> {
        let numbers = self.lookup.mode == LookupMode::Int;
        match self.split {
            _ if numbers && self.output_sequence_length.is_some() => self.output_sequence_length,
            Split::Nowhere if self.ngrams.is_empty() => Some(texts),
            Split::Nowhere => {
                let runs = self
                    .ngrams
                    .iter()
                    .map(|run| (texts + 1).saturating_sub(*run));
                Some(runs.sum())
            }
            _ => None,
        }
    }

    fn standard(&self, text: &str) -> String {
        let kept = text
            .chars()
            .filter(|c| !(self.strip_punctuation && c.is_ascii_punctuation()));
        kept.map(|c| {
            if self.lower {
                c.to_ascii_lowercase()
            } else {
                c
            }
        })
        .collect()
    }

    fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        match self.split {
            Split::Nowhere => vec![text],
            // TensorFlow knows the white space of ASCII, of which Rust leaves one out.
            Split::Whitespace => {
                let parts = text.split(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
                parts.filter(|word| !word.is_empty()).collect()
            }
            Split::Character => {
                let begin = text.char_indices();
                begin.map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
            }
        }
    }

    /// Runs of words with spaces between them.
    fn runs(&self, words: &[&str]) -> Vec<String> {
        if self.ngrams.is_empty() {
            return words.iter().map(ToString::to_string).collect();
        }
        let lengths = self.ngrams.iter();
        lengths
            .flat_map(|length| words.windows(*length).map(|run| run.join(" ")))
            .collect()
    }
}
