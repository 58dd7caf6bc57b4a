//! `Embedding`.

use burn::tensor::module::embedding;

use super::*;

/// `keras.layers.Embedding`: one vector per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// The number of tokens, the padding included.
    pub input_dim: usize,
    /// The length of a vector.
    pub output_dim: usize,
    /// Whether token 0 is padding that a mean leaves out.
    pub mask_zero: bool,
    /// How the vectors start.
    pub embeddings_initializer: Initializer,
    /// The loss on the vectors.
    pub embeddings_regularizer: Option<Regularizer>,
}

impl KerasLayer for Embedding {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        // Keras 2: only a promise about the length of the inputs.
        fields.neutral(&["input_length"]);
        fields.must_be("sparse", false, "set it to false")?;
        let default = Initializer::EMBEDDING_DEFAULT;
        Ok(Self {
            input_dim: count(fields, "input_dim")?,
            output_dim: count(fields, "output_dim")?,
            mask_zero: fields.flag("mask_zero", false)?,
            embeddings_initializer: initializer(fields, "embeddings_initializer", default)?,
            embeddings_regularizer: regularizer(fields, "embeddings_regularizer")?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        match input {
            Shape::Flat(steps) => Ok(Shape::Sequence(steps, self.output_dim)),
            _ => Err(format!("needs token numbers (steps), gets {input}")),
        }
    }

    fn weights(&self, _: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let table = [self.input_dim, self.output_dim];
        vec![weight("embeddings", &table, self.embeddings_initializer)]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let embeddings = weights.next();
        Some(BuiltLayer::Embedding(EmbeddingWeights {
            embeddings: weights.trained(embeddings),
            mask_zero: self.mask_zero,
            regularizer: self.embeddings_regularizer,
        }))
    }

    fn mask(&self, _: &[Option<usize>], call: usize) -> Result<Option<usize>, String> {
        Ok(self.mask_zero.then_some(call))
    }

    fn tokens(&self) -> Option<usize> {
        Some(self.input_dim)
    }
}

/// One vector per token; `[tokens, dimensions]`.
#[derive(Module, Debug)]
pub(crate) struct EmbeddingWeights {
    embeddings: Param<Tensor<2>>,
    #[module(skip)]
    mask_zero: bool,
    #[module(skip)]
    regularizer: Option<Regularizer>,
}

impl Built for EmbeddingWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let Flow::Flat(tokens) = x.flow else {
            // A plan never puts an embedding on another shape.
            return Ok(x);
        };
        let mask = self.mask_zero.then(|| {
            let mask = tokens.clone().not_equal_elem(0.0).float();
            mask.cast(self.embeddings.val().dtype())
        });
        let flow = Flow::Sequence(embedding(self.embeddings.val(), tokens.int()));
        Ok(Value { flow, mask })
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.regularizer, &self.embeddings)]
    }
}
