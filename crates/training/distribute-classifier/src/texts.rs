//! Texts as numbers: by the words of the training texts for the model `text`, and for a model of
//! Keras by the layer that reads them.

use distribute_keras::{ModelSpec, TextInput};
use distribute_readers::{Array, Examples, Values};
use serde_json::{Value, json};

use crate::error::TaskError;
use crate::numbered::with_numbers;
use crate::vocabulary::Vocabulary;

/// How long a text may be where the model does not say it, in numbers.
const MAX_STEPS: usize = 4096;

/// How texts become numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Texts {
    /// By the most frequent words of the training texts.
    Words(Vocabulary),
    /// By the layer of the model that reads them, in rows of this length.
    OfModel {
        /// The numbers of a text.
        steps: usize,
    },
}

impl Texts {
    /// For these training texts.
    pub(crate) fn of(examples: &Examples, spec: &ModelSpec) -> Result<Self, TaskError> {
        let Some(input) = spec.text_input(0)? else {
            return Ok(Self::Words(Vocabulary::of(examples)?));
        };
        if let Some(steps) = input.width() {
            return Ok(Self::OfModel { steps });
        }
        let mut longest = 1;
        each_row(examples, &input, |row| longest = longest.max(row.len()))?;
        Ok(Self::OfModel {
            steps: longest.min(MAX_STEPS),
        })
    }

    /// The number of tokens for a built-in model, with padding and unknown words.
    pub(crate) fn tokens(&self) -> usize {
        match self {
            Self::Words(vocabulary) => vocabulary.tokens(),
            Self::OfModel { .. } => 1,
        }
    }

    /// Every text as a row of numbers. How many texts were too long for it is a remark.
    pub(crate) fn encode(
        &self,
        examples: &Examples,
        spec: &ModelSpec,
        remarks: &mut Vec<String>,
    ) -> Result<Examples, TaskError> {
        let input = spec.text_input(0)?;
        let steps = match (self, input) {
            (Self::Words(vocabulary), _) => return Ok(vocabulary.encode(examples)?),
            (Self::OfModel { steps }, Some(input)) => (*steps, input),
            // The model was read as texts are.
            (Self::OfModel { .. }, None) => return Ok(examples.clone()),
        };
        let (steps, input) = steps;
        let mut all = Vec::with_capacity(examples.len() * steps);
        let mut cut = 0;
        each_row(examples, &input, |mut row| {
            cut += usize::from(row.len() > steps);
            row.resize(steps, 0.0);
            all.append(&mut row);
        })?;
        if cut > 0 {
            remarks.push(format!(
                "{cut} of {} texts of {} are longer than the longest text of training, or than \
                 {MAX_STEPS} words: what is behind the first {steps} is not read; set \
                 `output_sequence_length` of the layer that reads texts for another length",
                examples.len(),
                examples.name()
            ));
        }
        let numbers = Array::new(vec![examples.len(), steps], Values::F32(all))?;
        Ok(with_numbers(examples, numbers)?)
    }

    /// For a checkpoint.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Words(vocabulary) => vocabulary.to_json(),
            Self::OfModel { steps } => json!({ "of_model": true, "steps": steps }),
        }
    }

    /// From a checkpoint.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        if value["of_model"] != true {
            return Vocabulary::from_json(value).map(Self::Words);
        }
        let steps = usize::try_from(value["steps"].as_u64()?).ok()?;
        Some(Self::OfModel { steps })
    }
}

/// The numbers of every text.
fn each_row(
    examples: &Examples,
    input: &TextInput<'_>,
    mut each: impl FnMut(Vec<f32>),
) -> Result<(), TaskError> {
    let all: Vec<usize> = (0..examples.len()).collect();
    for text in examples.texts(&all)? {
        each(input.encode(&[text])?);
    }
    Ok(())
}
