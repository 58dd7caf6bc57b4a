//! Attention.

use burn::module::Module;
use burn::tensor::{Bool, Tensor, activation};
use distribute_core::dropout;

use super::{Dense, Flow, Pass, Value};

/// Keras' `MultiHeadAttention` (Vaswani et al., 2017): every step of the query reads the steps of
/// the value, weighted by how well their keys fit it.
///
/// The kernels of query, key and value are `[features, heads * width]`, that of the output
/// `[heads * width, features]`: Keras' kernels with the axes of heads and widths as one.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    pub(crate) query: Dense,
    pub(crate) key: Dense,
    pub(crate) value: Dense,
    pub(crate) output: Dense,
    #[module(skip)]
    pub(crate) heads: usize,
    #[module(skip)]
    pub(crate) dropout: f64,
}

/// The score of a step that must not be read.
const HIDDEN: f64 = -1e9;

impl Attention {
    /// All matrices.
    pub(super) fn projections(&self) -> [&Dense; 4] {
        [&self.query, &self.key, &self.value, &self.output]
    }

    /// `inputs` are the query, the value, and the key if it is not the value.
    pub(super) fn forward(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let mut inputs = inputs.into_iter();
        // A plan refuses sequences with padding.
        let (query, value) = (inputs.next()?.flow, inputs.next()?.flow);
        let key = inputs.next().map_or_else(|| value.clone(), |key| key.flow);
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
        let scores = match pass.arguments.causal {
            true => without_later(scores),
            false => scores,
        };
        let mut weights = activation::softmax(scores, 3);
        if let Some(rng) = pass.training().filter(|_| self.dropout > 0.0) {
            weights = dropout(weights, self.dropout, rng);
        }
        // [batch, heads, steps, width] back to [batch, steps, heads * width].
        let read = weights.matmul(value).swap_dims(1, 2);
        let [batch, steps, heads, width] = read.dims();
        let read = read.reshape([batch, steps, heads * width]);
        Some(Value::of(Flow::Sequence(self.output.product(read))))
    }

    /// `[batch, heads, steps, width]`.
    fn heads_of(&self, projection: &Dense, x: Tensor<3>) -> Tensor<4> {
        let y = projection.product(x);
        let [batch, steps, all] = y.dims();
        let y = y.reshape([batch, steps, self.heads, all / self.heads]);
        y.swap_dims(1, 2)
    }
}

/// The scores `[batch, heads, steps, read]`, with those of later steps far below the others.
fn without_later(scores: Tensor<4>) -> Tensor<4> {
    let dims = scores.dims();
    let [_, _, steps, read] = dims;
    // burn's mask is true outside of the triangle.
    let earlier = Tensor::<2, Bool>::triu_mask([steps, read], 1, &scores.device());
    let later = earlier.bool_not().reshape([1, 1, steps, read]);
    scores.mask_fill(later.expand(dims), HIDDEN)
}
