//! Texts as inputs of a model.

use crate::texts::Encode;
use crate::{ModelError, ModelSpec};

/// An input of texts (Keras: `Input(.., dtype="string")`), and the layer that reads it.
pub struct TextInput<'a> {
    model: &'a str,
    layer: &'a str,
    /// How many texts an example has.
    texts: usize,
    width: Option<usize>,
    encode: Encode<'a>,
}

impl ModelSpec {
    /// The text input of this number; nothing for an input of numbers.
    ///
    /// # Errors
    /// [`ModelError::Graph`] if not exactly one layer that reads texts reads it.
    pub fn text_input(&self, input: usize) -> Result<Option<TextInput<'_>>, ModelError> {
        let Some((index, texts)) = self.text_reader(input)? else {
            return Ok(None);
        };
        let layer = &self.layers[index];
        let Some(reader) = layer.spec.layer().reads_texts() else {
            return Ok(None);
        };
        let width = self.text_dims(index, texts)?;
        Ok(Some(TextInput {
            model: &self.name,
            layer: &layer.name,
            texts,
            width: width.into_iter().product(),
            encode: reader.encoder(),
        }))
    }

    /// The layer that reads a text input, and how many texts an example has.
    pub(crate) fn text_reader(&self, input: usize) -> Result<Option<(usize, usize)>, ModelError> {
        let Some(given) = self.inputs.get(input).filter(|given| given.is_text) else {
            return Ok(None);
        };
        let declared = given.shape.iter().flatten();
        let texts = declared.fold(1, |all: usize, n| all.saturating_mul(n.unwrap_or(1)));
        let calls = self
            .calls
            .iter()
            .filter(|call| call.inputs.contains(&input));
        let mut readers: Vec<usize> = calls.map(|call| call.layer).collect();
        readers.dedup();
        let can_read = |layer: &usize| {
            let layer = self.layers.get(*layer);
            layer.is_some_and(|layer| layer.spec.layer().reads_texts().is_some())
        };
        let is_output = self.outputs.iter().any(|output| output.value == input);
        match readers.as_slice() {
            [one] if can_read(one) && !is_output => Ok(Some((*one, texts))),
            _ => Err(ModelError::Graph {
                origin: self.name.clone(),
                layer: given.name.clone(),
                what: "an input of texts must be read by one layer, a TextVectorization, a \
                       StringLookup or a Hashing, and by nothing else"
                    .to_string(),
            }),
        }
    }

    /// The extents of what a layer makes of an example's texts.
    pub(crate) fn text_dims(
        &self,
        layer: usize,
        texts: usize,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        let layer = &self.layers[layer];
        let reader = layer.spec.layer().reads_texts();
        let dims = reader.map(|reader| reader.dims(texts));
        dims.unwrap_or(Ok(Vec::new()))
            .map_err(|what| ModelError::Graph {
                origin: self.name.clone(),
                layer: layer.name.clone(),
                what,
            })
    }
}

impl TextInput<'_> {
    /// How many texts an example has.
    pub fn texts(&self) -> usize {
        self.texts
    }

    /// How many numbers the texts of an example become; nothing for as many as they have words, so
    /// that the rows of a batch are filled up with zeros.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// The numbers that the texts of one example become.
    ///
    /// # Errors
    /// [`ModelError::Graph`] for another number of texts than the input has, and for a text that
    /// is not in a vocabulary without a number for others.
    pub fn encode(&self, texts: &[&str]) -> Result<Vec<f32>, ModelError> {
        let encoded = if texts.len() == self.texts {
            (self.encode)(texts)
        } else {
            let found = texts.len();
            Err(format!(
                "needs {} texts of an example, gets {found}",
                self.texts
            ))
        };
        encoded.map_err(|what| ModelError::Graph {
            origin: self.model.to_string(),
            layer: self.layer.to_string(),
            what,
        })
    }
}

impl std::fmt::Debug for TextInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextInput")
            .field("layer", &self.layer)
            .field("texts", &self.texts)
            .field("width", &self.width)
            .finish_non_exhaustive()
    }
}
