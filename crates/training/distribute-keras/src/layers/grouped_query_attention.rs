//! `GroupQueryAttention`.

use super::heads::AttentionWeights;
use super::multi_head_attention::attended;
use super::*;

/// `keras.layers.GroupQueryAttention` (Ainslie et al., 2023): several heads of queries share a head
/// of keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedQueryAttention {
    /// The length of a head.
    pub head_dim: usize,
    /// The number of heads of queries.
    pub num_query_heads: usize,
    /// The number of heads of keys and values, of which the other number is a multiple.
    pub num_key_value_heads: usize,
    /// The fraction of the attention that is set to zero in training.
    pub dropout: f64,
    /// Whether the four projections have biases.
    pub use_bias: bool,
    /// How the kernels start.
    pub kernel_initializer: Initializer,
    /// How the biases start.
    pub bias_initializer: Initializer,
    /// The loss on the four kernels.
    pub kernel_regularizer: Option<Regularizer>,
}

impl KerasLayer for GroupedQueryAttention {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        no_seed(fields);
        fields.must_be("use_gate", false, "set it to false")?;
        // Another way to compute the same.
        fields.neutral(&["flash_attention"]);
        let dropout = optional_rate(fields, "dropout")?;
        let num_query_heads = count(fields, "num_query_heads")?;
        let num_key_value_heads = count(fields, "num_key_value_heads")?;
        if !num_query_heads.is_multiple_of(num_key_value_heads) {
            return Err(fields.refuse("num_key_value_heads", "use a divisor of num_query_heads"));
        }
        Ok(Self {
            head_dim: count(fields, "head_dim")?,
            num_query_heads,
            num_key_value_heads,
            dropout,
            use_bias: fields.flag("use_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }

    fn inputs(&self) -> &'static [&'static str] {
        &["query", "value", "key"]
    }

    fn argument(&self, key: &str, value: &Json, arguments: &mut Arguments) -> bool {
        heads::argument(key, value, arguments)
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let value = inputs.get(1).copied();
        match (inputs.first(), value, inputs.get(2).copied().or(value)) {
            (
                Some(Shape::Sequence(steps, features)),
                Some(Shape::Sequence(values, _)),
                Some(Shape::Sequence(keys, _)),
            ) if values == keys && inputs.len() <= 3 => Ok(Shape::Sequence(*steps, *features)),
            _ => {
                let shapes: Vec<String> = inputs.iter().map(Shape::to_string).collect();
                Err(format!(
                    "needs a query, a value and a key or none, as sequences (steps, features), \
                     gets {}",
                    shapes.join(" and ")
                ))
            }
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [query, value, key] = attended(inputs).map(Shape::features);
        let (queries, keys) = (self.num_query_heads, self.num_key_value_heads);
        let (head, kernel) = (self.head_dim, self.kernel_initializer);
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("query/kernel", &[query, queries, head], kernel),
            weight("query/bias", &[queries, head], bias),
            weight("key/kernel", &[key, keys, head], kernel),
            weight("key/bias", &[keys, head], bias),
            weight("value/kernel", &[value, keys, head], kernel),
            weight("value/bias", &[keys, head], bias),
            weight("attention_output/kernel", &[queries, head, query], kernel),
            weight("attention_output/bias", &[query], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        Some(BuiltLayer::GroupedAttention(AttentionWeights::new(
            weights,
            [self.num_query_heads, self.num_key_value_heads],
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
