//! `GroupQueryAttention`.

use burn::tensor::activation;
use distribute_core::dropout;

use super::dense::DenseWeights;
use super::layout::matrix;
use super::multi_head_attention::{hidden, without_hidden, without_later};
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
        let dropout = match fields.get("dropout") {
            Some(_) => rate(fields, "dropout")?,
            None => 0.0,
        };
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
        match (key, value) {
            ("use_causal_mask", Json::Bool(true)) => arguments.causal = true,
            ("return_attention_scores", Json::Bool(false)) => {}
            _ => return false,
        }
        true
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
        let width = |index: usize| inputs.get(index).map(|shape| shape.features());
        let query = width(0).unwrap_or(1);
        let value = width(1).unwrap_or(query);
        let key = width(2).unwrap_or(value);
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
        Some(BuiltLayer::GroupedAttention(GroupedAttentionWeights {
            query: projection(1),
            key: projection(1),
            value: projection(1),
            output: projection(2),
            heads: [self.num_query_heads, self.num_key_value_heads],
            width: self.head_dim,
            dropout: self.dropout,
        }))
    }

    /// The mask of the query.
    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}

/// The four projections: kernels with the axes of heads and widths as one.
#[derive(Module, Debug)]
pub(crate) struct GroupedAttentionWeights {
    query: DenseWeights,
    key: DenseWeights,
    value: DenseWeights,
    output: DenseWeights,
    /// Of queries, and of keys and values.
    #[module(skip)]
    heads: [usize; 2],
    #[module(skip)]
    width: usize,
    #[module(skip)]
    dropout: f64,
}

impl Built for GroupedAttentionWeights {
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        let mut inputs = inputs.into_iter();
        let (Some(query), Some(value)) = (inputs.next(), inputs.next()) else {
            return Ok(None);
        };
        let key = inputs.next().unwrap_or_else(|| value.clone());
        let (mask, hidden) = (query.mask.clone(), hidden(&query, &value, &key));
        let (Flow::Sequence(query), Flow::Sequence(key), Flow::Sequence(value)) =
            (query.flow, key.flow, value.flow)
        else {
            // A plan never puts an attention on other shapes.
            return Ok(None);
        };
        let [queries, keys] = self.heads;
        let query = self.split(self.query.product(query), queries);
        let key = self.repeated(self.split(self.key.product(key), keys));
        let value = self.repeated(self.split(self.value.product(value), keys));
        let scale = 1.0 / (self.width as f64).sqrt();
        let scores = query.mul_scalar(scale).matmul(key.swap_dims(2, 3));
        let scores = if pass.arguments.causal {
            without_later(scores)
        } else {
            scores
        };
        let mut read = activation::softmax(without_hidden(scores, hidden), 3);
        if let Some(rng) = pass.training().filter(|_| self.dropout > 0.0) {
            read = dropout(read, self.dropout, rng);
        }
        let read = read.matmul(value).swap_dims(1, 2);
        let [batch, steps, heads, width] = read.dims();
        let read = read.reshape([batch, steps, heads * width]);
        Ok(Some(Value {
            flow: Flow::Sequence(self.output.product(read)),
            mask,
        }))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        let projections = [&self.query, &self.key, &self.value, &self.output];
        projections.map(Built::losses).concat()
    }
}

impl GroupedAttentionWeights {
    /// `[batch, heads, steps, width]`.
    fn split(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        let [batch, steps, _] = x.dims();
        x.reshape([batch, steps, heads, self.width]).swap_dims(1, 2)
    }

    /// Every head once for each of the heads of queries that share it.
    fn repeated(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, heads, steps, width] = x.dims();
        let times = self.heads[0] / self.heads[1].max(1);
        let each = x
            .unsqueeze_dim::<5>(2)
            .expand([batch, heads, times, steps, width]);
        each.reshape([batch, heads * times, steps, width])
    }
}
