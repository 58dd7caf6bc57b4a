//! A text as numbers, cut into windows.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{Error, Result};
use distribute_data::Dataset;

// Source and rights: data/alice-SOURCE.txt.
const ALICE: &str = include_str!("data/alice.txt");

/// A text whose tokens are its characters, numbered in the order of Unicode.
///
/// ```
/// use distribute_models::Text;
///
/// let alice = Text::alice()?;
/// let tokens = alice.encode("Alice")?;
/// assert_eq!(alice.decode(&tokens), "Alice");
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Text {
    alphabet: Vec<char>,
    tokens: Arc<[i64]>,
}

impl Text {
    /// *Alice's Adventures in Wonderland* by Lewis Carroll (1865), which is in the public domain:
    /// 148,265 characters, built into the library.
    ///
    /// # Errors
    /// None with the embedded text intact.
    pub fn alice() -> Result<Self> {
        Self::new(ALICE)
    }

    /// A text of your own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is empty.
    pub fn new(text: &str) -> Result<Self> {
        let mut alphabet: Vec<char> = text.chars().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        if alphabet.is_empty() {
            return Err(Error::invalid("Text: the text is empty"));
        }
        let mut text_of = Self {
            alphabet,
            tokens: Arc::default(),
        };
        text_of.tokens = text_of.encode(text)?.into();
        Ok(text_of)
    }

    /// The number of different characters: the vocabulary of a model.
    pub fn vocabulary(&self) -> usize {
        self.alphabet.len()
    }

    /// All tokens of the text.
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// The tokens of other words in the same characters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a character that the text does not have.
    pub fn encode(&self, words: &str) -> Result<Vec<i64>> {
        let token = |character: char| match self.alphabet.binary_search(&character) {
            Ok(token) => Ok(token as i64),
            Err(_) => Err(Error::invalid(format!(
                "Text: the character {character:?} is not in the text, whose characters are {:?}",
                self.alphabet.iter().collect::<String>()
            ))),
        };
        words.chars().map(token).collect()
    }

    /// The characters of tokens; other numbers are left out.
    pub fn decode(&self, tokens: &[i64]) -> String {
        let character = |token: &i64| self.alphabet.get(usize::try_from(*token).ok()?);
        tokens.iter().filter_map(character).collect()
    }

    /// Windows of `length` tokens of the first nine tenths of the text, and of the rest of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length is 0, or no window fits into the rest.
    pub fn train_test(&self, length: usize) -> Result<(Windows, Windows)> {
        let cut = self.tokens.len() * 9 / 10;
        let windows = |from: usize, to: usize| Windows::new(self, from, to, length);
        Ok((windows(0, cut)?, windows(cut, self.tokens.len())?))
    }
}

/// A text in windows that follow each other: a batch is tokens `[n, length]`, and `[n, length]`
/// with the token after each.
#[derive(Debug, Clone)]
pub struct Windows {
    tokens: Arc<[i64]>,
    begin: usize,
    count: usize,
    length: usize,
}

impl Windows {
    fn new(text: &Text, from: usize, to: usize, length: usize) -> Result<Self> {
        // The last token of a window is followed by one more.
        let count = (to - from).saturating_sub(1).checked_div(length);
        match count {
            Some(count) if count > 0 => Ok(Self {
                tokens: Arc::clone(&text.tokens),
                begin: from,
                count,
                length,
            }),
            _ => Err(Error::invalid(format!(
                "Text: windows of {length} tokens and the one after them must fit into the {} \
                 tokens from {from} on, and have 1 or more",
                to - from
            ))),
        }
    }

    /// The tokens of a window, `by` further on.
    fn window(&self, index: usize, by: usize) -> &[i64] {
        let begin = self.begin + index * self.length + by;
        &self.tokens[begin..begin + self.length]
    }
}

impl Dataset for Windows {
    type Batch = (Tensor<2, Int>, Tensor<2, Int>);

    fn len(&self) -> usize {
        self.count
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        if let Some(index) = indices.iter().find(|index| **index >= self.count) {
            return Err(Error::invalid(format!(
                "Text: there are {} windows, there is none with the number {index}",
                self.count
            )));
        }
        let [tokens, next] = [0, 1].map(|by| {
            let tokens = indices
                .iter()
                .flat_map(|index| self.window(*index, by))
                .copied()
                .collect();
            let data = TensorData::new::<i64, _>(tokens, [indices.len(), self.length]);
            Tensor::from_data(data, device)
        });
        Ok((tokens, next))
    }
}
