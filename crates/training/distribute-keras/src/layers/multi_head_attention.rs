//! `MultiHeadAttention`.

use burn::tensor::{Bool, activation};
use distribute_core::dropout;
use serde_json::json;

use super::dense::DenseWeights;
use super::layout::matrix;
use super::*;

/// `keras.layers.MultiHeadAttention`, of a query and a value, or a query, a value and a key.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiHeadAttention {
    /// The number of heads.
    pub num_heads: usize,
    /// The length of a head's queries and keys.
    pub key_dim: usize,
    /// The length of a head's values.
    pub value_dim: usize,
    /// The fraction of the attention that is set to zero in training.
    pub dropout: f64,
    /// Whether the four projections have biases.
    pub use_bias: bool,
    /// The length of the outputs; the length of the queries by default.
    pub output_shape: Option<usize>,
    /// How the kernels start.
    pub kernel_initializer: Initializer,
    /// How the biases start.
    pub bias_initializer: Initializer,
    /// The loss on the four kernels.
    pub kernel_regularizer: Option<Regularizer>,
}

impl KerasLayer for MultiHeadAttention {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        // Keras 2: the shapes of what it receives, which follow from the graph.
        fields.neutral(&["query_shape", "key_shape", "value_shape"]);
        no_seed(fields);
        for key in ["use_gate", "softmax_robust_masking"] {
            fields.must_be(key, false, "set it to false")?;
        }
        // Another way to compute the same.
        fields.neutral(&["flash_attention"]);
        if let Some(axes) = fields.get("attention_axes")
            && *axes != json!([1])
            && *axes != json!(1)
        {
            return Err(fields.refuse("attention_axes", "use the steps alone, axis 1"));
        }
        let key_dim = count(fields, "key_dim")?;
        let value_dim = optional_count(fields, "value_dim")?.unwrap_or(key_dim);
        let output_shape = outputs(fields)?;
        let dropout = match fields.get("dropout") {
            Some(_) => rate(fields, "dropout")?,
            None => 0.0,
        };
        Ok(Self {
            num_heads: count(fields, "num_heads")?,
            key_dim,
            value_dim,
            dropout,
            use_bias: fields.flag("use_bias", true)?,
            output_shape,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }

    fn inputs(&self) -> &'static [&'static str] {
        &["query", "value", "key"]
    }

    fn argument(&self, key: &str, value: &Json, arguments: &mut Arguments) -> bool {
        match (key, value) {
            ("use_causal_mask", Json::Bool(true)) => arguments.causal = true,
            ("return_attention_scores", Json::Bool(false)) => {}
            _ => return false,
        }
        true
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        if !(2..=3).contains(&inputs.len()) {
            return Err(format!(
                "needs a query and a value, and a key or none, gets {} values",
                inputs.len()
            ));
        }
        match attended(inputs) {
            [
                Shape::Sequence(steps, features),
                Shape::Sequence(values, _),
                Shape::Sequence(keys, _),
            ] if values == keys => Ok(Shape::Sequence(
                steps,
                self.output_shape.unwrap_or(features),
            )),
            [query, value, key] => Err(format!(
                "needs sequences (steps, features), as many values as keys, gets {query}, {value} \
                 and {key}"
            )),
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [query, value, key] = attended(inputs).map(Shape::features);
        let outputs = self.output_shape.unwrap_or(query);
        let (heads, kernel) = (self.num_heads, self.kernel_initializer);
        let output = [heads, self.value_dim, outputs];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("query/kernel", &[query, heads, self.key_dim], kernel),
            weight("query/bias", &[heads, self.key_dim], bias),
            weight("key/kernel", &[key, heads, self.key_dim], kernel),
            weight("key/bias", &[heads, self.key_dim], bias),
            weight("value/kernel", &[value, heads, self.value_dim], kernel),
            weight("value/bias", &[heads, self.value_dim], bias),
            weight("attention_output/kernel", &output, kernel),
            weight("attention_output/bias", &[outputs], bias),
        ]
    }

    fn sublayer(&self, _: usize, weight: &str) -> &str {
        match weight.split('/').next() {
            Some("query") => "query_dense",
            Some("key") => "key_dense",
            Some("value") => "value_dense",
            _ => "output_dense",
        }
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        // The kernel of the output has two axes of inputs, the others one.
        let mut projection = |inputs| {
            let kernel = matrix(weights.next(), inputs);
            DenseWeights {
                kernel: weights.trained(kernel),
                bias: weights.optional(self.use_bias),
                activation: Activation::Linear,
                regularizer: self.kernel_regularizer,
            }
        };
        Some(BuiltLayer::Attention(AttentionWeights {
            query: projection(1),
            key: projection(1),
            value: projection(1),
            output: projection(2),
            heads: self.num_heads,
            dropout: self.dropout,
        }))
    }

    /// The mask of the query.
    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}

/// The option `output_shape`: one number, or a list of it.
fn outputs(fields: &mut Fields<'_>) -> Result<Option<usize>, ModelError> {
    match fields.get("output_shape") {
        Some(Json::Array(shape)) if shape.len() != 1 => {
            Err(fields.refuse("output_shape", "use one number"))
        }
        Some(Json::Array(shape)) => match shape[0].as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(outputs) if outputs > 0 => Ok(Some(outputs)),
            _ => Err(fields.refuse("output_shape", "use one number from 1 on")),
        },
        _ => optional_count(fields, "output_shape"),
    }
}

/// The query, the value and the key; the key is the value if there is no other.
fn attended(inputs: &[Shape]) -> [Shape; 3] {
    let query = inputs.first().copied().unwrap_or(Shape::Flat(1));
    let value = inputs.get(1).copied().unwrap_or(query);
    [query, value, inputs.get(2).copied().unwrap_or(value)]
}

/// Attention (Vaswani et al., 2017): every step of the query reads the steps of the value,
/// weighted by how well their keys fit it.
///
/// The kernels of query, key and value are `[features, heads * width]`, that of the output
/// `[heads * width, features]`: Keras' kernels with the axes of heads and widths as one.
#[derive(Module, Debug)]
pub(crate) struct AttentionWeights {
    query: DenseWeights,
    key: DenseWeights,
    value: DenseWeights,
    output: DenseWeights,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f64,
}

/// The score of a step that must not be read.
const HIDDEN: f64 = -1e9;

impl Built for AttentionWeights {
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        Ok(self.attend(inputs, pass))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        let projections = [&self.query, &self.key, &self.value, &self.output];
        projections.map(Built::losses).concat()
    }
}

impl AttentionWeights {
    /// `inputs` are the query, the value, and the key if it is not the value.
    fn attend(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let mut inputs = inputs.into_iter();
        let (query, value) = (inputs.next()?, inputs.next()?);
        let key = inputs.next().unwrap_or_else(|| value.clone());
        let (mask, hidden) = (query.mask.clone(), hidden(&query, &value, &key));
        let (query, key, value) = (query.flow, key.flow, value.flow);
        let (Flow::Sequence(query), Flow::Sequence(key), Flow::Sequence(value)) =
            (query, key, value)
        else {
            // A plan never puts an attention on other shapes.
            return None;
        };
        let query = self.heads_of(&self.query, query);
        let width = query.dims()[3];
        let query = query.mul_scalar(1.0 / (width as f64).sqrt());
        let key = self.heads_of(&self.key, key);
        let value = self.heads_of(&self.value, value);
        let scores = query.matmul(key.swap_dims(2, 3));
        let scores = if pass.arguments.causal {
            without_later(scores)
        } else {
            scores
        };
        let scores = without_hidden(scores, hidden);
        let mut weights = activation::softmax(scores, 3);
        if let Some(rng) = pass.training().filter(|_| self.dropout > 0.0) {
            weights = dropout(weights, self.dropout, rng);
        }
        // [batch, heads, steps, width] back to [batch, steps, heads * width].
        let read = weights.matmul(value).swap_dims(1, 2);
        let [batch, steps, heads, width] = read.dims();
        let read = read.reshape([batch, steps, heads * width]);
        Some(Value {
            flow: Flow::Sequence(self.output.product(read)),
            mask,
        })
    }

    /// `[batch, heads, steps, width]`.
    fn heads_of(&self, projection: &DenseWeights, x: Tensor<3>) -> Tensor<4> {
        let y = projection.product(x);
        let [batch, steps, all] = y.dims();
        let y = y.reshape([batch, steps, self.heads, all / self.heads]);
        y.swap_dims(1, 2)
    }
}

/// Which scores are of padding, `[batch, steps, read]`: as in Keras 3, of a step of the query that
/// is padding too, which then reads all steps alike.
pub(super) fn hidden(query: &Value, value: &Value, key: &Value) -> Option<Tensor<3, Bool>> {
    let padding = |value: &Value, axis| {
        let mask = value.mask.clone()?;
        Some(mask.equal_elem(0.0).unsqueeze_dim::<3>(axis))
    };
    let of_query = padding(query, 2);
    let read = [padding(value, 1), padding(key, 1)].into_iter().flatten();
    let read = read.reduce(Tensor::bool_or);
    match (of_query, read) {
        (Some(query), Some(read)) => {
            let [batch, steps, _] = query.dims();
            let dims = [batch, steps, read.dims()[2]];
            Some(query.expand(dims).bool_or(read.expand(dims)))
        }
        (Some(query), None) => Some(query),
        (None, read) => read,
    }
}

/// The scores `[batch, heads, steps, read]`, with those that are of padding far below the others.
pub(super) fn without_hidden(scores: Tensor<4>, hidden: Option<Tensor<3, Bool>>) -> Tensor<4> {
    match hidden {
        Some(hidden) => {
            let dims = scores.dims();
            scores.mask_fill(hidden.unsqueeze_dim::<4>(1).expand(dims), HIDDEN)
        }
        None => scores,
    }
}

/// The scores `[batch, heads, steps, read]`, with the scores of later steps far below the others.
pub(super) fn without_later(scores: Tensor<4>) -> Tensor<4> {
    let dims = scores.dims();
    let [_, _, steps, read] = dims;
    // burn's mask is true outside of the triangle.
    let earlier = Tensor::<2, Bool>::triu_mask([steps, read], 1, &scores.device());
    let later = earlier.bool_not().reshape([1, 1, steps, read]);
    scores.mask_fill(later.expand(dims), HIDDEN)
}
