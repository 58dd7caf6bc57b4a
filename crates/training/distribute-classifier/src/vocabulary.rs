//! Words as numbers, for the model `text`.

use std::collections::{BTreeMap, HashMap};

use distribute_readers::{Array, Examples, ReadError, Values};
use serde_json::{Value, json};

use crate::numbered::with_numbers;

/// Tokens that are not words.
const PADDING: i32 = 0;
const UNKNOWN: i32 = 1;
const FIRST_WORD: i32 = 2;
/// The most frequent words are kept.
const MAX_WORDS: usize = 20_000;
/// Longer texts are cut.
const MAX_STEPS: usize = 256;

/// The words of the training texts and how long a text may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    words: Vec<String>,
    steps: usize,
}

impl Vocabulary {
    /// The most frequent words of these texts, the most frequent first.
    pub fn of(examples: &Examples) -> Result<Self, ReadError> {
        let all: Vec<usize> = (0..examples.len()).collect();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut longest = 1;
        for text in examples.texts(&all)? {
            let mut length = 0;
            for word in words(text) {
                *counts.entry(word).or_default() += 1;
                length += 1;
            }
            longest = longest.max(length);
        }
        let mut ranked: Vec<(String, usize)> = counts.into_iter().collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        ranked.truncate(MAX_WORDS);
        Ok(Self {
            words: ranked.into_iter().map(|(word, _)| word).collect(),
            steps: longest.min(MAX_STEPS),
        })
    }

    /// The number of tokens, with padding and unknown words.
    pub fn tokens(&self) -> usize {
        self.words.len() + FIRST_WORD as usize
    }

    /// Every text as `steps` token numbers.
    pub fn encode(&self, examples: &Examples) -> Result<Examples, ReadError> {
        let numbers: HashMap<&str, i32> = self
            .words
            .iter()
            .map(String::as_str)
            .zip(FIRST_WORD..)
            .collect();
        let all: Vec<usize> = (0..examples.len()).collect();
        let mut tokens = Vec::with_capacity(all.len() * self.steps);
        for text in examples.texts(&all)? {
            let known = words(text).map(|word| *numbers.get(&*word).unwrap_or(&UNKNOWN));
            let padded = known.chain(std::iter::repeat(PADDING)).take(self.steps);
            tokens.extend(padded);
        }
        let tokens = Array::new(vec![all.len(), self.steps], Values::I32(tokens))?;
        with_numbers(examples, tokens)
    }

    /// For a checkpoint.
    pub fn to_json(&self) -> Value {
        json!({ "words": self.words, "steps": self.steps })
    }

    /// From a checkpoint.
    pub fn from_json(value: &Value) -> Option<Self> {
        let words = value["words"].as_array()?.iter();
        let words: Option<Vec<String>> = words
            .map(|word| word.as_str().map(ToString::to_string))
            .collect();
        let steps = usize::try_from(value["steps"].as_u64()?).ok()?;
        let vocabulary = Self {
            words: words?,
            steps,
        };
        (1..=MAX_STEPS).contains(&steps).then_some(vocabulary)
    }
}

/// The words of a text in lower case: letters, digits and apostrophes.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !(c.is_alphanumeric() || c == '\''))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use distribute_readers::{Features, Labels};

    use super::*;

    fn examples() -> Examples {
        let texts = ["A good, GOOD film!", "It's bad", ""];
        let features = Features::Text(texts.map(ToString::to_string).to_vec());
        Examples::new("texts", features, Labels::Classes(vec![1, 0, 0])).unwrap()
    }

    #[test]
    fn words_are_numbered_by_frequency_and_padded() {
        let vocabulary = Vocabulary::of(&examples()).unwrap();
        assert_eq!(vocabulary.words, ["good", "a", "bad", "film", "it's"]);
        assert_eq!(vocabulary.tokens(), 7);
        let encoded = vocabulary.encode(&examples()).unwrap();
        let tokens = encoded.features_f32(&[0, 1, 2]).unwrap();
        assert_eq!(tokens, [3., 2., 2., 5., 6., 4., 0., 0., 0., 0., 0., 0.]);
    }

    #[test]
    fn unknown_words_are_one_token_and_long_texts_are_cut() {
        let vocabulary = Vocabulary::of(&examples()).unwrap();
        let features = Features::Text(vec!["film of films a a a".to_string()]);
        let other = Examples::new("other", features, Labels::Classes(vec![0])).unwrap();
        let tokens = vocabulary.encode(&other).unwrap().features_f32(&[0]);
        assert_eq!(tokens.unwrap(), [5., 1., 1., 3.]);
    }

    #[test]
    fn a_vocabulary_survives_a_checkpoint() {
        let vocabulary = Vocabulary::of(&examples()).unwrap();
        assert_eq!(
            Vocabulary::from_json(&vocabulary.to_json()),
            Some(vocabulary)
        );
        assert_eq!(Vocabulary::from_json(&json!({ "words": 3 })), None);
    }
}
