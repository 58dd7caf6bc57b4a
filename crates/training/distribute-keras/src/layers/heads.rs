//! Attention with several heads, and what all attentions have in common.

use burn::tensor::{Bool, activation};
use distribute_core::dropout;

use super::dense::DenseWeights;
use super::layout::matrix;
use super::nd::Nd;
use super::*;

/// Takes an argument of the call of an attention; whether it is one.
pub(super) fn argument(key: &str, value: &Json, arguments: &mut Arguments) -> bool {
    match (key, value) {
        ("use_causal_mask", Json::Bool(true)) => arguments.causal = true,
        ("return_attention_scores", Json::Bool(false)) => {}
        _ => return false,
    }
    true
}

/// Refuses a mask that is not of the steps of the query and the value, for every head or all.
pub(super) fn check_mask(heads: usize, inputs: &[Shape], mask: Shape) -> Result<(), String> {
    let steps = |at: usize| match inputs.get(at) {
        Some(Shape::Sequence(steps, _)) => *steps,
        _ => 0,
    };
    let wanted = [heads, steps(0), steps(1)];
    let dims = mask.dims();
    let mut pairs = dims.iter().rev().zip(wanted.iter().rev());
    let fits = pairs.all(|(one, all)| one == all || *one == 1);
    if fits && (2..=3).contains(&dims.len()) {
        return Ok(());
    }
    let [_, query, value] = wanted;
    Err(format!(
        "needs an attention_mask of the shape ({query}, {value}), gets {mask}"
    ))
}

/// Attention (Vaswani et al., 2017): every step of the query reads the steps of the value,
/// weighted by how well their keys fit it.
///
/// The kernels of query, key and value are `[features, heads * width]`, the output's kernel is
/// `[heads * width, features]`: Keras' kernels with the axes of heads and widths as one.
#[derive(Module, Debug)]
pub(crate) struct AttentionWeights {
    query: DenseWeights,
    key: DenseWeights,
    value: DenseWeights,
    output: DenseWeights,
    /// Of queries, and of keys and values, of which several queries may share one.
    #[module(skip)]
    heads: [usize; 2],
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
    /// The four projections; `bias` and `regularizer` are the options of all of them.
    pub(super) fn new(
        weights: &mut Weights<'_>,
        heads: [usize; 2],
        dropout: f64,
        bias: bool,
        regularizer: Option<Regularizer>,
    ) -> Self {
        // The kernel of the output has two axes of inputs, the others one.
        let mut projection = |inputs| {
            let kernel = matrix(weights.next(), inputs);
            DenseWeights {
                kernel: weights.trained(kernel),
                bias: weights.optional(bias),
                activation: Activation::Linear,
                regularizer,
            }
        };
        Self {
            query: projection(1),
            key: projection(1),
            value: projection(1),
            output: projection(2),
            heads,
            dropout,
        }
    }

    /// `inputs` are the query, the value, and the key if it is not the value.
    fn attend(&self, mut inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let given = inputs.pop_if(|_| pass.arguments.with_mask);
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
        let [queries, keys] = self.heads;
        let query = split(self.query.product(query), queries);
        let width = query.dims()[3];
        let query = query.mul_scalar(1.0 / (width as f64).sqrt());
        let key = self.repeated(split(self.key.product(key), keys));
        let value = self.repeated(split(self.value.product(value), keys));
        let scores = query.matmul(key.swap_dims(2, 3));
        let scores = if pass.arguments.causal {
            without_later(scores)
        } else {
            scores
        };
        let scores = without_hidden(scores, hidden);
        let scores = match given {
            Some(mask) => without_masked(scores, mask.flow),
            None => scores,
        };
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

    /// Every head once for each of the heads of queries that share it.
    fn repeated(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, heads, steps, width] = x.dims();
        let times = self.heads[0] / self.heads[1].max(1);
        if times == 1 {
            return x;
        }
        let each = x
            .unsqueeze_dim::<5>(2)
            .expand([batch, heads, times, steps, width]);
        each.reshape([batch, heads * times, steps, width])
    }
}

/// `[batch, heads, steps, width]`.
fn split(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, steps, all] = x.dims();
    let x = x.reshape([batch, steps, heads, all / heads]);
    x.swap_dims(1, 2)
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

/// The scores `[batch, heads, steps, read]`, with the scores of padding far below the others.
pub(super) fn without_hidden(scores: Tensor<4>, hidden: Option<Tensor<3, Bool>>) -> Tensor<4> {
    match hidden {
        Some(hidden) => {
            let dims = scores.dims();
            scores.mask_fill(hidden.unsqueeze_dim::<4>(1).expand(dims), HIDDEN)
        }
        None => scores,
    }
}

/// The scores `[batch, heads, steps, read]`, with those where a mask is 0 far below the others. It
/// is `[batch, steps, read]`, or has an axis of heads too.
fn without_masked(scores: Tensor<4>, mask: Flow) -> Tensor<4> {
    let mask = match Nd::of(mask) {
        Nd::R3(mask) => mask.unsqueeze_dim::<4>(1),
        Nd::R4(mask) => mask,
        // A plan never puts another mask here.
        _ => return scores,
    };
    let dims = scores.dims();
    scores.mask_fill(mask.detach().equal_elem(0.0).expand(dims), HIDDEN)
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
