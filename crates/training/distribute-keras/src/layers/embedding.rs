//! `Embedding`.

use burn::tensor::module::embedding;

use super::nd::Nd;
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
        let dims = [input.dims(), vec![self.output_dim]].concat();
        Shape::of(&dims).ok_or_else(|| format!("needs fewer axes of token numbers than {input}"))
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

impl EmbeddingWeights {
    /// Tokens with any number of axes, behind which the vectors stand.
    fn of_any(&self, tokens: Nd) -> Value {
        let dims = tokens.dims();
        let vectors = embedding(self.embeddings.val(), tokens.into_matrix(0).int());
        let dims = [dims, vec![vectors.dims()[2]]].concat();
        Value::of(Nd::R3(vectors).reshape(&dims).into_flow())
    }
}

impl Built for EmbeddingWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let tokens = match x.flow {
            Flow::Flat(tokens) => tokens,
            other => return Ok(self.of_any(Nd::of(other))),
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
