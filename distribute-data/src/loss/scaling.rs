//! From per-example losses to the loss of one replica.

use burn::tensor::{Bool, DType, Float, Int, Tensor};
use distribute_core::loss::{LossDivisor, StepNotes, notes_of_running_step};
use distribute_core::{Error, ReplicaContext, Result};

/// The element kinds a loss can have: floats, and integers, which are averaged in `f64`.
pub trait LossKind: burn::tensor::kind::Basic + Sized {
    #[doc(hidden)]
    fn into_float<const D: usize>(tensor: Tensor<D, Self>) -> Tensor<D>;
}

impl LossKind for Float {
    fn into_float<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
        tensor
    }
}

impl LossKind for Int {
    fn into_float<const D: usize>(tensor: Tensor<D, Int>) -> Tensor<D> {
        tensor.float().cast(DType::F64)
    }
}

/// How much each example counts: a number, or a tensor of a shape that fits the losses.
///
/// Made with `.into()` from numbers and from tensors of any rank. The rules are TensorFlow's:
/// weights of the losses' rank are broadcast against them; weights with one axis more lose their
/// last one, which must be 1; weights with one axis less get one, so `[n]` weighs the examples of
/// losses `[n, k]`. With losses of three axes and more `[n]` runs along the *last* axis, a trap:
/// reshape to `[n, 1, 1]`. `None` weighs all examples alike, as 1.
#[derive(Debug, Clone, Default)]
pub struct SampleWeight {
    weights: Weights,
}

#[derive(Debug, Clone, Default)]
enum Weights {
    #[default]
    One,
    Number(f64),
    /// The values in a row, and their shape.
    Values(Box<Tensor<1>>, Vec<usize>),
}

impl From<f64> for SampleWeight {
    fn from(weight: f64) -> Self {
        Self {
            weights: Weights::Number(weight),
        }
    }
}

impl<W: Into<Self>> From<Option<W>> for SampleWeight {
    fn from(weight: Option<W>) -> Self {
        weight.map_or_else(Self::default, Into::into)
    }
}

impl From<f32> for SampleWeight {
    fn from(weight: f32) -> Self {
        Self::from(f64::from(weight))
    }
}

impl<const D: usize> From<Tensor<D>> for SampleWeight {
    fn from(weights: Tensor<D>) -> Self {
        let shape: Vec<usize> = weights.dims().to_vec();
        let count = shape.iter().product::<usize>();
        Self {
            weights: Weights::Values(Box::new(weights.reshape([count])), shape),
        }
    }
}

impl<const D: usize> From<Tensor<D, Int>> for SampleWeight {
    fn from(weights: Tensor<D, Int>) -> Self {
        Self::from(weights.float())
    }
}

impl<const D: usize> From<Tensor<D, Bool>> for SampleWeight {
    fn from(weights: Tensor<D, Bool>) -> Self {
        Self::from(weights.float())
    }
}

/// A replica's share of the average loss over the global batch
/// (TensorFlow: `tf.nn.compute_average_loss`).
///
/// The SUM of all elements divided by the size of the global batch that the step was handed a part
/// of ([`ReplicaContext::global_batch_size`]): a constant, so that the short last batch weighs as
/// much per example as any other, whatever the number of replicas. In a step without a batch that
/// knows its size it is divided as [`AverageLoss::own_batch`] says. [`AverageLoss`] has weights and
/// other divisors.
///
/// ```
/// use distribute_core::prelude::*;
/// use distribute_data::prelude::*;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let digits = Digits::open()?.train()?;
/// let train = strategy.distribute_dataset(digits, Batching::global(64))?;
/// for batch in train.epoch(0).take(1) {
///     let losses = strategy.run(batch?, |ctx, (images, _labels)| {
///         let per_example = images.flatten::<2>(1, 3).mean_dim(1).squeeze_dim::<1>(1);
///         average_loss(ctx, per_example) // the sum divided by 64
///     })?;
///     assert!(strategy.reduce(ReduceOp::Sum, losses)?.into_scalar::<f32>() < 1.0);
/// }
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// It needs a [`ReplicaContext`], so a call outside of a step does not compile:
///
/// ```compile_fail
/// use distribute_core::{MirroredStrategy, Strategy, Tensor};
/// use distribute_data::average_loss;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
/// let per_example = Tensor::<1>::ones([4], &strategy.replicas()[0].device);
/// average_loss(&strategy, per_example).unwrap();
/// ```
///
/// Nor does a loss without axes (one number, already reduced):
///
/// ```compile_fail
/// use distribute_core::{ReplicaContext, Result, Tensor};
/// use distribute_data::average_loss;
///
/// fn reduced_already(ctx: &ReplicaContext, loss: Tensor<0>) -> Result<Tensor<1>> {
///     average_loss(ctx, loss)
/// }
/// let _step: fn(&ReplicaContext, Tensor<0>) -> Result<Tensor<1>> = reduced_already;
/// ```
///
/// The first axis must be that of the examples: a loss of another number of elements than the batch
/// that `run` has handed to the replica has rows is refused. burn's `mean()` and `sum()` give one
/// element, which would count as one example.
///
/// # Errors
/// The errors of [`AverageLoss::of`].
#[doc(alias = "compute_average_loss")]
pub fn average_loss<const D: usize, K: LossKind>(
    ctx: &ReplicaContext,
    per_example_loss: Tensor<D, K>,
) -> Result<Tensor<1>> {
    AverageLoss::new().of(ctx, per_example_loss)
}

/// [`average_loss`] with weights, or with another divisor than the size of the batch's global
/// batch.
///
/// A divisor of 0 gives 0, so an empty batch has the loss 0 and gradients of 0. Weights do not
/// change the divisor. `Objective` hears what the loss was
/// divided by.
///
/// ```
/// use distribute_core::prelude::*;
/// use distribute_data::AverageLoss;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let values = PerReplica::new(vec![[2.0, 3.0], [4.0, 5.0]]);
/// let losses = strategy.run(values, |ctx, values| {
///     let per_example = Tensor::<1>::from_floats(values, ctx.device());
///     AverageLoss::new().weights(0.5).global_batch_size(4).of(ctx, per_example)
/// })?;
/// let loss = strategy.reduce(ReduceOp::Sum, losses)?; // 0.625 + 1.125
/// assert_eq!(loss.into_scalar::<f32>(), 1.75);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
#[doc(alias = "compute_average_loss")]
pub struct AverageLoss {
    weights: SampleWeight,
    divisor: Divisor,
}

#[derive(Debug, Clone, Copy, Default)]
enum Divisor {
    /// What the batch knows, else `OwnBatch`.
    #[default]
    Batch,
    OwnBatch,
    Constant(usize),
}

impl AverageLoss {
    /// What [`average_loss`] does: no weights, and the divisor that the batch knows.
    pub fn new() -> Self {
        Self::default()
    }

    /// How much each example counts: `Weighted` datasets say it
    /// (TensorFlow: `sample_weight`).
    pub fn weights(mut self, weights: impl Into<SampleWeight>) -> Self {
        self.weights = weights.into();
        self
    }

    /// Divides by this number of examples, which must be the same for all batches and replicas
    /// (TensorFlow: `global_batch_size`). `None` is what the batch knows.
    pub fn global_batch_size(mut self, examples: impl Into<Option<usize>>) -> Self {
        self.divisor = examples.into().map_or(Divisor::Batch, Divisor::Constant);
        self
    }

    /// Divides by the replica's own number of examples (the first axis of the losses alone) times
    /// the number of replicas: what TensorFlow does if it is not told a size. The examples of a
    /// short last batch then weigh more than others.
    pub fn own_batch(mut self) -> Self {
        self.divisor = Divisor::OwnBatch;
        self
    }

    /// The average of these losses, this replica's share of it.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weights do not fit; [`Error::InvalidArgument`] for a loss that is
    /// not one per example of the batch, and for a step with batches of different global sizes. A
    /// loss without axes does not compile.
    pub fn of<const D: usize, K: LossKind>(
        self,
        ctx: &ReplicaContext,
        per_example_loss: Tensor<D, K>,
    ) -> Result<Tensor<1>> {
        let known = match self.divisor {
            Divisor::Batch => ctx.global_batch_size()?,
            Divisor::OwnBatch => None,
            Divisor::Constant(size) => Some(size),
        };
        let notes = Some(ctx.notes());
        let sum = WeightedSum::new(per_example_loss, self.weights, notes)?;
        let divisor = match known {
            Some(size) => LossDivisor::Constant(size as f64),
            None => LossDivisor::OwnBatch(sum.examples as f64 * ctx.num_replicas_in_sync() as f64),
        };
        Ok(sum.divided(divisor, notes))
    }

    /// The average over a global batch of this size, where there is no replica context.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn without_context<const D: usize, K: LossKind>(
        self,
        per_example_loss: Tensor<D, K>,
        global_batch_size: usize,
    ) -> Result<Tensor<1>> {
        let notes = notes_of_running_step();
        let notes = notes.as_deref();
        let sum = WeightedSum::new(per_example_loss, self.weights, notes)?;
        Ok(sum.divided(LossDivisor::Constant(global_batch_size as f64), notes))
    }
}

/// A loss that is not per example, such as a penalty on the weights, divided by the number of
/// replicas, on each of which it is the same (TensorFlow: `tf.nn.scale_regularization_loss`).
///
/// All elements are summed; an empty tensor gives 0.
///
/// # Errors
/// None.
pub fn scale_regularization_loss<const D: usize, K: LossKind>(
    ctx: &ReplicaContext,
    regularization_loss: Tensor<D, K>,
) -> Result<Tensor<1>> {
    ctx.loss_is_scaled();
    let sum = K::into_float(regularization_loss).sum();
    Ok(sum.div_scalar(ctx.num_replicas_in_sync() as f64))
}

fn divide_no_nan(sum: Tensor<1>, denominator: f64) -> Tensor<1> {
    if denominator == 0.0 {
        // Not a multiplication: the sum may be infinite. The graph stays, with gradients of 0.
        let everywhere = sum.clone().equal(sum.clone()).bool_or(sum.clone().is_nan());
        return sum.mask_fill(everywhere, 0.0);
    }
    sum.div_scalar(denominator)
}

struct WeightedSum {
    sum: Tensor<1>,
    /// The extent of the weighted losses' first axis.
    examples: usize,
}

impl WeightedSum {
    /// The average, which says what it was divided by.
    fn divided(self, divisor: LossDivisor, notes: Option<&StepNotes>) -> Tensor<1> {
        if let Some(notes) = notes {
            notes.divided_by(divisor);
        }
        divide_no_nan(self.sum, divisor.value())
    }

    fn new<const D: usize, K: LossKind>(
        losses: Tensor<D, K>,
        weights: SampleWeight,
        notes: Option<&StepNotes>,
    ) -> Result<Self> {
        const {
            assert!(
                D > 0,
                "the loss has no axis for the examples: pass one per example"
            );
        }
        let shape = losses.dims();
        if let Some(notes) = notes {
            notes.check_per_example("average_loss", shape[0])?;
        }
        let losses = K::into_float(losses);
        match weights.weights {
            Weights::One => Ok(Self {
                sum: losses.sum(),
                examples: shape[0],
            }),
            Weights::Number(weight) => Ok(Self {
                sum: losses.mul_scalar(weight).sum(),
                examples: shape[0],
            }),
            Weights::Values(weights, weights_shape) => {
                let weights_shape = fit_rank(&shape, weights_shape)?;
                check_broadcast(&shape, &weights_shape)?;
                let weights = weights.cast(losses.dtype());
                if weights_shape.len() <= D {
                    return Ok(Self::broadcast::<D>(losses, weights, &weights_shape));
                }
                let rank = weights_shape.len();
                let flat = losses.reshape([shape.iter().product::<usize>()]);
                Self::broadcast_up(flat, &shape, weights, &weights_shape)
                    .ok_or_else(|| Error::invalid(format!("average_loss: weights of rank {rank}")))
            }
        }
    }

    /// Weights with more axes than the losses, which get axes in front.
    fn broadcast_up(
        losses: Tensor<1>,
        shape: &[usize],
        weights: Tensor<1>,
        weights_shape: &[usize],
    ) -> Option<Self> {
        macro_rules! by_rank {
            ($($rank:literal),*) => {
                match weights_shape.len() {
                    $($rank => {
                        let losses = losses.reshape(padded::<$rank>(shape));
                        Some(Self::broadcast::<$rank>(losses, weights, weights_shape))
                    })*
                    _ => None,
                }
            };
        }
        by_rank!(3, 4, 5, 6, 7, 8)
    }

    fn broadcast<const R: usize>(
        losses: Tensor<R>,
        weights: Tensor<1>,
        weights_shape: &[usize],
    ) -> Self {
        let product = losses * weights.reshape(padded::<R>(weights_shape));
        Self {
            examples: product.dims()[0],
            sum: product.sum(),
        }
    }
}

/// Keras' `squeeze_or_expand_dimensions`.
fn fit_rank(losses: &[usize], mut weights: Vec<usize>) -> Result<Vec<usize>> {
    if weights.len() == losses.len() + 1 {
        if weights.last() != Some(&1) {
            let mut expected = weights.clone();
            expected.pop();
            expected.push(1);
            return Err(misfit(expected, weights));
        }
        weights.pop();
    } else if weights.len() + 1 == losses.len() {
        weights.push(1);
    }
    Ok(weights)
}

fn check_broadcast(losses: &[usize], weights: &[usize]) -> Result<()> {
    let pairs = losses.iter().rev().zip(weights.iter().rev());
    for (&loss, &weight) in pairs {
        if loss != weight && loss != 1 && weight != 1 {
            return Err(misfit(losses.to_vec(), weights.to_vec()));
        }
    }
    Ok(())
}

fn misfit(expected: Vec<usize>, found: Vec<usize>) -> Error {
    Error::Shape {
        op: "average_loss: sample weights that fit the losses",
        expected,
        found,
    }
}

/// A shape with axes of 1 put in front.
fn padded<const R: usize>(shape: &[usize]) -> [usize; R] {
    let mut out = [1; R];
    out[R - shape.len()..].copy_from_slice(shape);
    out
}
