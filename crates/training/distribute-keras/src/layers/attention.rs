//! `Attention` and `AdditiveAttention`.

use burn::tensor::activation;
use distribute_core::dropout;

use super::heads::{hidden, without_hidden, without_later};
use super::*;

/// `keras.layers.Attention` (Luong et al., 2015) and `AdditiveAttention` (Bahdanau et al., 2015),
/// of a query and a value, or a query, a value and a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// How well a key fits a query.
    pub score: Score,
    /// The fraction of the attention that is set to zero in training.
    pub dropout: f64,
}

/// How well a key fits a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Their product, by a trained factor or not.
    Dot {
        /// Whether there is the factor.
        scaled: bool,
    },
    /// The sum of `tanh(query + key)`, by a trained factor (`score_mode="concat"`).
    Concat {
        /// Whether the sum in `tanh` has a trained factor too.
        scaled: bool,
    },
    /// The sum of `tanh(query + key)`, by a trained factor for every feature or not
    /// (`AdditiveAttention`).
    Additive {
        /// Whether there are factors.
        scaled: bool,
    },
}

impl KerasLayer for Attention {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        no_seed(fields);
        let additive = class == "AdditiveAttention";
        let scaled = fields.flag("use_scale", additive)?;
        let score = match fields.get("score_mode").map(Json::as_str) {
            _ if additive => Score::Additive { scaled },
            None | Some(Some("dot")) => Score::Dot { scaled },
            Some(Some("concat")) => Score::Concat { scaled },
            Some(_) => return Err(fields.refuse("score_mode", "use dot or concat")),
        };
        let dropout = optional_rate(fields, "dropout")?;
        Ok(Self { score, dropout })
    }

    fn class(&self) -> Option<&'static str> {
        Some(match self.score {
            Score::Additive { .. } => "AdditiveAttention",
            _ => "Attention",
        })
    }

    fn argument(&self, key: &str, value: &Json, arguments: &mut Arguments) -> bool {
        heads::argument(key, value, arguments)
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let key = |value| inputs.get(2).copied().unwrap_or(value);
        match *inputs {
            [
                Shape::Sequence(steps, width),
                value @ Shape::Sequence(values, features),
                ..,
            ] if inputs.len() <= 3 && key(value) == Shape::Sequence(values, width) => {
                Ok(Shape::Sequence(steps, features))
            }
            _ => {
                let shapes: Vec<String> = inputs.iter().map(Shape::to_string).collect();
                Err(format!(
                    "needs a query and a value, and a key or none, as sequences (steps, features) \
                     of which query and key have as many features, gets {}",
                    shapes.join(" and ")
                ))
            }
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let one = |name| weight(name, &[], Initializer::ONES);
        match self.score {
            Score::Dot { scaled: true } => vec![one("scale")],
            Score::Concat { scaled } => {
                let scale = if scaled { one("scale") } else { None };
                vec![scale, one("concat_score_weight")]
            }
            Score::Additive { scaled: true } => {
                vec![weight(
                    "scale",
                    &[features(inputs)],
                    Initializer::GLOROT_UNIFORM,
                )]
            }
            _ => Vec::new(),
        }
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let (scaled, concat) = match self.score {
            Score::Dot { scaled } | Score::Additive { scaled } => (scaled, false),
            Score::Concat { scaled } => (scaled, true),
        };
        Some(BuiltLayer::DotAttention(AttentionFactors {
            scale: weights.optional(scaled),
            concat: weights.optional(concat),
            spec: self.clone(),
        }))
    }

    /// The mask of the query.
    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}

/// The trained factors.
#[derive(Module, Debug)]
pub(crate) struct AttentionFactors {
    scale: Option<Param<Tensor<1>>>,
    concat: Option<Param<Tensor<1>>>,
    #[module(skip)]
    spec: Attention,
}

impl Built for AttentionFactors {
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        let mut inputs = inputs.into_iter();
        let (Some(query), Some(value)) = (inputs.next(), inputs.next()) else {
            return Ok(None);
        };
        let mask = query.mask;
        // Of a query that is padding nothing is read, and of a key the mask does not count.
        let unmasked = Value::of(query.flow.clone());
        let hidden = hidden(&unmasked, &value, &unmasked);
        let (Flow::Sequence(query), Flow::Sequence(value)) = (query.flow, value.flow) else {
            // A plan never puts an attention on other shapes.
            return Ok(None);
        };
        let key = match inputs.next().map(|key| key.flow) {
            Some(Flow::Sequence(key)) => key,
            _ => value.clone(),
        };
        let mut scores = self.scores(query, key).unsqueeze_dim(1);
        if pass.arguments.causal {
            scores = without_later(scores);
        }
        let scores = without_hidden(scores, hidden).squeeze_dim(1);
        let mut read = activation::softmax(scores, 2);
        if let Some(rng) = pass.training().filter(|_| self.spec.dropout > 0.0) {
            read = dropout(read, self.spec.dropout, rng);
        }
        let read = read.matmul(value);
        let read = match &mask {
            Some(mask) => read * mask.clone().unsqueeze_dim(2),
            None => read,
        };
        Ok(Some(Value {
            flow: Flow::Sequence(read),
            mask,
        }))
    }
}

impl AttentionFactors {
    /// `[batch, queries, keys]`.
    fn scores(&self, query: Tensor<3>, key: Tensor<3>) -> Tensor<3> {
        let scale = self.scale.as_ref().map(Param::val);
        if let Score::Dot { .. } = self.spec.score {
            let scores = query.matmul(key.swap_dims(1, 2));
            return match scale {
                Some(scale) => scores * scale.reshape([1, 1, 1]),
                None => scores,
            };
        }
        // [batch, queries, keys, features]
        let sum = query.unsqueeze_dim::<4>(2) + key.unsqueeze_dim::<4>(1);
        let scaled = |x: Tensor<4>| match &scale {
            Some(scale) => {
                let features = scale.dims()[0];
                x * scale.clone().reshape([1, 1, 1, features])
            }
            None => x,
        };
        let is_concat = matches!(self.spec.score, Score::Concat { .. });
        let fits = if is_concat {
            scaled(sum).tanh()
        } else {
            scaled(sum.tanh())
        };
        let [batch, queries, keys, _] = fits.dims();
        let scores = fits.sum_dim(3).reshape([batch, queries, keys]);
        match &self.concat {
            Some(factor) => scores * factor.val().reshape([1, 1, 1]),
            None => scores,
        }
    }
}
