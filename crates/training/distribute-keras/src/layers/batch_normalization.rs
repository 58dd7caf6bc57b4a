//! `BatchNormalization`.

use burn::module::RunningState;

use super::nd::Nd;
use super::*;
use crate::Weight;

/// `keras.layers.BatchNormalization`.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchNormalization {
    /// The axis of the features, as Keras counts them. With `synchronized` it must be the last one.
    pub axis: i64,
    /// Whether statistics are computed over the batches of all replicas ([`SyncBatchNorm`]).
    pub synchronized: bool,
    /// The weight of the old moving statistics at every step.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
    /// How the shifts start; `None` without `center`.
    pub beta: Option<Initializer>,
    /// How the factors start; `None` without `scale`.
    pub gamma: Option<Initializer>,
    /// How the moving mean starts.
    pub moving_mean_initializer: Initializer,
    /// How the moving variance starts.
    pub moving_variance_initializer: Initializer,
}

impl KerasLayer for BatchNormalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("renorm", false, "set it to false")?;
        // Keras 2: fused is another kernel for the same.
        fields.neutral(&["renorm_momentum", "fused"]);
        let synchronized = fields.flag("synchronized", false)?;
        let (beta, gamma) = shift_and_factor(fields)?;
        let momentum = fields.number("momentum", 0.99)?;
        if !(0.0..=1.0).contains(&momentum) {
            return Err(fields.refuse("momentum", "use a number from 0 to 1"));
        }
        let (axis, epsilon) = (axis(fields)?, epsilon(fields)?);
        let mut starts = |key, default| initializer(fields, key, default);
        Ok(Self {
            axis,
            synchronized,
            momentum,
            epsilon,
            beta,
            gamma,
            moving_mean_initializer: starts("moving_mean_initializer", Initializer::ZEROS)?,
            moving_variance_initializer: starts("moving_variance_initializer", Initializer::ONES)?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        if self.synchronized {
            return input.needs_last(self.axis).map(|()| input);
        }
        match input.axis(self.axis) {
            Some(_) => Ok(input),
            None => Err(format!("`axis` = {} is not an axis of {input}", self.axis)),
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let features = inputs.first().and_then(|input| {
            let axis = input.axis(self.axis)?;
            input.dims().get(axis).copied()
        });
        let shape = [features.unwrap_or(1)];
        vec![
            weight("gamma", &shape, self.gamma),
            weight("beta", &shape, self.beta),
            fixed("moving_mean", &shape, self.moving_mean_initializer),
            fixed("moving_variance", &shape, self.moving_variance_initializer),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let (scale, center) = (self.gamma.is_some(), self.beta.is_some());
        let training = Param::from_bool(true);
        if self.synchronized {
            let (gamma, beta) = (weights.optional(scale), weights.optional(center));
            let (mean, variance) = (weights.next(), weights.next());
            return Some(BuiltLayer::SyncBatchNorm(SyncBatchNorm {
                gamma,
                beta,
                training,
                moving_mean: RunningState::new(weights.tensor(mean)),
                moving_variance: RunningState::new(weights.tensor(variance)),
                momentum: self.momentum,
                epsilon: self.epsilon,
            }));
        }
        let mut given = |is: bool| is.then(|| weights.next());
        let (gamma, beta) = (given(scale), given(center));
        let (mean, variance) = (weights.next(), weights.next());
        weights.features = mean.values.len();
        let or_constant = |given: Option<Weight>, constant| match given {
            Some(weight) => weights.trained(weight),
            None => weights.constants(&[constant]),
        };
        let (gamma, beta) = (or_constant(gamma, 1.0), or_constant(beta, 0.0));
        let norm = LocalBatchNorm {
            gamma,
            beta,
            training,
            running_mean: RunningState::new(weights.tensor(mean)),
            running_var: RunningState::new(weights.tensor(variance)),
            // The weight of the new statistics; Keras' momentum is the weight of the old ones.
            momentum: 1.0 - self.momentum,
            epsilon: self.epsilon,
        };
        Some(match self.axis {
            -1 => BuiltLayer::BatchNorm(norm),
            axis => BuiltLayer::AxisBatchNorm(AxisBatchNorm { norm, axis }),
        })
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        match first_mask(masks) {
            Some(_) => Err(
                "its statistics would count the padding of the sequences; use a \
                 LayerNormalization, or mask_zero=False in the Embedding"
                    .to_string(),
            ),
            None => Ok(None),
        }
    }

    fn is_synchronized(&self) -> bool {
        self.synchronized
    }
}

/// By core's: in `f32` under a mixed policy. Every place of an image or a sequence is an example.
impl Built for LocalBatchNorm {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(Value::of(match x.flow {
            Flow::Image(x) => Flow::Image(local(self, x, pass)?),
            Flow::Volume(x) => Flow::Volume(local(self, x, pass)?),
            Flow::Flat(x) => Flow::Flat(local(self, x, pass)?),
            other => {
                let dims = other.keras_dims();
                Flow::like(&dims, local(self, other.into_rows(), pass)?)
            }
        }))
    }
}

/// A normalization whose features are another axis than the last one.
#[derive(Module, Debug)]
pub(crate) struct AxisBatchNorm {
    norm: LocalBatchNorm,
    #[module(skip)]
    axis: i64,
}

impl Built for AxisBatchNorm {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let x = Nd::of(x.flow);
        let rank = x.dims().len();
        let axis = Shape::of(&x.dims()[1..]).and_then(|shape| shape.axis(self.axis));
        // The plan has found the axis. Swapping it with the last one is its own way back.
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(axis.unwrap_or(rank - 2) + 1, rank - 1);
        let x = x.permute(&order);
        let dims = x.dims();
        let rows = x.reshape(&[dims[..rank - 1].iter().product(), dims[rank - 1]]);
        let Nd::R2(rows) = rows else {
            return Ok(Value::of(rows.into_flow()));
        };
        let normalized = Nd::R2(local(&self.norm, rows, pass)?);
        Ok(Value::of(
            normalized.reshape(&dims).permute(&order).into_flow(),
        ))
    }
}

fn local<const D: usize>(
    layer: &LocalBatchNorm,
    x: Tensor<D>,
    pass: &Pass<'_, '_>,
) -> distribute_core::Result<Tensor<D>> {
    let is_frozen = pass.arguments.inference || !layer.training.is_enabled();
    match &*pass.mode {
        // One value per feature has the variance 0, as in Keras: the output is beta.
        Mode::Training { .. } if !is_frozen => layer.forward(x),
        // On a device with gradients `forward` would train.
        _ => layer.forward_inference(x),
    }
}

/// `synchronized=True`, by core's.
impl Built for SyncBatchNorm {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(Value::of(match x.flow {
            Flow::Image(x) => Flow::Image(synchronized(self, x, pass)?),
            Flow::Volume(x) => Flow::Volume(synchronized(self, x, pass)?),
            Flow::Flat(x) => Flow::Flat(synchronized(self, x, pass)?),
            // The features are its second axis.
            Flow::Sequence(x) => {
                let normalized = synchronized(self, x.swap_dims(1, 2), pass)?;
                Flow::Sequence(normalized.swap_dims(1, 2))
            }
            other => {
                let dims = other.keras_dims();
                Flow::like(&dims, synchronized(self, other.into_rows(), pass)?)
            }
        }))
    }
}

fn synchronized<const D: usize>(
    layer: &SyncBatchNorm,
    x: Tensor<D>,
    pass: &Pass<'_, '_>,
) -> distribute_core::Result<Tensor<D>> {
    let rows = x.dims()[0];
    match (&*pass.mode, pass.arguments.inference) {
        (Mode::Training { weights, .. }, false) => Ok(match weights {
            Some(weights) => layer.forward_weighted(x, per_row(weights.clone(), rows)),
            None => layer.forward(x),
        }),
        _ => layer.forward_inference(x),
    }
}

/// The weights of the examples for as many rows: inside of a `TimeDistributed`, an example is
/// several rows in a row.
fn per_row(weights: Tensor<1>, rows: usize) -> Tensor<1> {
    let [examples] = weights.dims();
    match rows.checked_div(examples) {
        None | Some(0 | 1) => weights,
        Some(each) => {
            let column = weights.reshape([examples, 1]);
            column.expand([examples, each]).reshape([examples * each])
        }
    }
}
