//! `MultiHeadAttention`.

use serde_json::json;

use super::heads::AttentionWeights;
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
        let dropout = optional_rate(fields, "dropout")?;
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
        &["query", "value", "key", "attention_mask"]
    }

    fn check_mask(&self, inputs: &[Shape], mask: Shape) -> Result<(), String> {
        heads::check_mask(self.num_heads, inputs, mask)
    }

    fn argument(&self, key: &str, value: &Json, arguments: &mut Arguments) -> bool {
        heads::argument(key, value, arguments)
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
        Some(BuiltLayer::Attention(AttentionWeights::new(
            weights,
            [self.num_heads; 2],
            self.dropout,
            self.use_bias,
            self.kernel_regularizer,
        )))
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
pub(super) fn attended(inputs: &[Shape]) -> [Shape; 3] {
    let query = inputs.first().copied().unwrap_or(Shape::Flat(1));
    let value = inputs.get(1).copied().unwrap_or(query);
    [query, value, inputs.get(2).copied().unwrap_or(value)]
}
