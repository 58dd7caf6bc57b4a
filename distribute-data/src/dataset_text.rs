//! Texts as sequences of token ids.

use std::collections::HashMap;

use burn::tensor::Int;
use distribute_core::{Device, Error, Result, Tensor, TensorData};

use crate::Dataset;
use crate::dataset_arrays::{classes, expect_classes};
use distribute_readers::Examples;

/// The id that fills up short texts.
pub const PADDING: i64 = 0;
/// The id of every word that is not in the vocabulary.
pub const UNKNOWN: i64 = 1;

/// Words and their ids, the most frequent ones first (Keras: `TextVectorization`).
///
/// Texts are put in lower case, ASCII punctuation is removed and words are what white space
/// separates. Id 0 fills up, 1 is any unknown word, 2 is the most frequent word; of equally
/// frequent words the alphabetically first one has the smaller id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    ids: HashMap<String, i64>,
    words: Vec<String>,
}

impl Vocabulary {
    /// The words of the training examples, at most `max_tokens` ids in all.
    ///
    /// # Errors
    /// If the examples are not texts, or `max_tokens` leaves no room for a word (less than 3).
    pub fn build(examples: &Examples, max_tokens: usize) -> Result<Self> {
        if max_tokens < 3 {
            return Err(Error::invalid(format!(
                "a vocabulary of {max_tokens} tokens has no room for a word; pass at least 3"
            )));
        }
        let all: Vec<usize> = (0..examples.len()).collect();
        let mut counts: HashMap<String, usize> = HashMap::new();
        for text in examples.texts(&all)? {
            for word in words(text) {
                *counts.entry(word).or_default() += 1;
            }
        }
        let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
        counts.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        counts.truncate(max_tokens - 2);
        Ok(Self::from_words(counts.into_iter().map(|(word, _)| word)))
    }

    /// A vocabulary of these words, from id 2 on: the way back from a stored one. Words that come
    /// twice keep their first id.
    pub fn from_words(words: impl IntoIterator<Item = String>) -> Self {
        let mut vocabulary = Self {
            ids: HashMap::new(),
            words: Vec::new(),
        };
        for word in words {
            if !vocabulary.ids.contains_key(&word) {
                let id = vocabulary.size() as i64;
                vocabulary.ids.insert(word.clone(), id);
                vocabulary.words.push(word);
            }
        }
        vocabulary
    }

    /// The words in the order of their ids, the first one having id 2.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The number of ids, the two special ones included: the size of an embedding.
    pub fn size(&self) -> usize {
        self.words.len() + 2
    }

    /// The ids of the words of a text, at most `length` of them, filled up to `length`.
    pub fn encode(&self, text: &str, length: usize) -> Vec<i64> {
        let id = |word: String| self.ids.get(&word).copied().unwrap_or(UNKNOWN);
        let mut ids: Vec<i64> = words(text).map(id).take(length).collect();
        ids.resize(length, PADDING);
        ids
    }
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let clean = |word: &str| -> String {
        let kept = word.chars().filter(|c| !c.is_ascii_punctuation());
        kept.flat_map(char::to_lowercase).collect()
    };
    text.split_whitespace()
        .map(clean)
        .filter(|word| !word.is_empty())
}

/// Texts and their classes: a batch is token ids `[n, sequence_length]` and `[n]`.
///
/// The length is fixed, so that all batches of a training have one shape; longer texts are cut,
/// shorter ones filled up with 0.
#[derive(Debug, Clone)]
pub struct TextDataset {
    examples: Examples,
    vocabulary: Vocabulary,
    sequence_length: usize,
}

impl TextDataset {
    /// A dataset of these texts. Use the training examples' vocabulary for test examples too.
    ///
    /// # Errors
    /// If the examples are not texts with classes, or the length is 0.
    pub fn new(examples: Examples, vocabulary: Vocabulary, sequence_length: usize) -> Result<Self> {
        expect_classes(&examples)?;
        if !examples.is_text() {
            return Err(Error::invalid(format!(
                "{}: numbers and not texts; use a `TabularDataset`",
                examples.name()
            )));
        }
        if sequence_length == 0 {
            return Err(Error::invalid(
                "the sequence length is 0; pass the number of words to keep of each text",
            ));
        }
        Ok(Self {
            examples,
            vocabulary,
            sequence_length,
        })
    }

    /// The texts.
    pub fn examples(&self) -> &Examples {
        &self.examples
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }
}

impl Dataset for TextDataset {
    type Batch = (Tensor<2, Int>, Tensor<1, Int>);

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        let texts = self.examples.texts(indices)?;
        let encode = |text| self.vocabulary.encode(text, self.sequence_length);
        let ids: Vec<i64> = texts.into_iter().flat_map(encode).collect();
        let shape = [indices.len(), self.sequence_length];
        Ok((
            Tensor::from_data(TensorData::new(ids, shape), device),
            classes(&self.examples, indices, device)?,
        ))
    }
}
