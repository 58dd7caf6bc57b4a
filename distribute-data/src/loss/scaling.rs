//! From per-example losses to the loss of one replica.

use burn::tensor::{Bool, DType, Float, Int, Tensor};
use distribute_core::loss::{LossDivisor, check_per_example, divided_by};
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
/// reshape to `[n, 1, 1]`.
#[derive(Debug, Clone)]
pub struct SampleWeight {
    weights: Weights,
}

#[derive(Debug, Clone)]
enum Weights {
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
/// The SUM of all elements, weighted, divided by `global_batch_size`; without one, by the
/// replica's own number of examples (the first axis alone) times the number of replicas. Pass the
/// constant global batch size in training: the short last batch then weighs as much per example
/// as any other, whatever the number of replicas. A divisor of 0 gives 0, so an empty batch has
/// the loss 0 and gradients of 0. Weights do not change the divisor.
///
/// It needs a [`ReplicaContext`], so a call outside of a step does not compile:
///
/// ```compile_fail
/// use distribute_core::{MirroredStrategy, Strategy, Tensor};
/// use distribute_data::compute_average_loss;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
/// let per_example = Tensor::<1>::ones([4], &strategy.replicas()[0].device);
/// compute_average_loss(&strategy, per_example, None, None).unwrap();
/// ```
///
/// Nor does a loss without axes (one number, already reduced):
///
/// ```compile_fail
/// use distribute_core::{ReplicaContext, Result, Tensor};
/// use distribute_data::compute_average_loss;
///
/// fn reduced_already(ctx: &ReplicaContext, loss: Tensor<0>) -> Result<Tensor<1>> {
///     compute_average_loss(ctx, loss, None, None)
/// }
/// let _step: fn(&ReplicaContext, Tensor<0>) -> Result<Tensor<1>> = reduced_already;
/// ```
///
/// Inside a step, with one loss per example:
///
/// ```
/// use distribute_core::{MirroredStrategy, PerReplica, ReduceOp, StrategyExt, Tensor};
/// use distribute_data::compute_average_loss;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let values = PerReplica::new(vec![[2.0, 3.0], [4.0, 5.0]]);
/// let losses = strategy.run((values,), |ctx, (values,)| {
///     let per_example = Tensor::<1>::from_floats(values, ctx.device());
///     compute_average_loss(ctx, per_example, None, None)
/// })?;
/// let loss = strategy.reduce(ReduceOp::Sum, losses)?; // 1.25 + 2.25
/// assert_eq!(loss.into_scalar::<f32>(), 3.5);
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// The first axis must be that of the examples: a loss of another number of elements than the batch
/// that `run` has handed to the replica has rows is refused. burn's `mean()` and `sum()` give one
/// element, which would count as one example.
///
/// [`Objective`](distribute_fit::Objective) hears what the loss was divided by.
///
/// # Errors
/// [`Error::Shape`] if the weights do not fit; [`Error::InvalidArgument`] for a loss that is not
/// one per example of the batch. A loss without axes does not compile.
pub fn compute_average_loss<const D: usize, K: LossKind>(
    ctx: &ReplicaContext,
    per_example_loss: Tensor<D, K>,
    sample_weight: Option<SampleWeight>,
    global_batch_size: Option<usize>,
) -> Result<Tensor<1>> {
    let sum = WeightedSum::new(per_example_loss, sample_weight)?;
    let divisor = match global_batch_size {
        Some(size) => LossDivisor::Constant(size as f64),
        None => LossDivisor::OwnBatch(sum.examples as f64 * ctx.num_replicas_in_sync() as f64),
    };
    Ok(sum.divided(divisor))
}

/// [`compute_average_loss`] with the global batch size, which then needs no replica context.
///
/// # Errors
/// As [`compute_average_loss`].
pub fn average_loss_over<const D: usize, K: LossKind>(
    per_example_loss: Tensor<D, K>,
    sample_weight: Option<SampleWeight>,
    global_batch_size: usize,
) -> Result<Tensor<1>> {
    let sum = WeightedSum::new(per_example_loss, sample_weight)?;
    Ok(sum.divided(LossDivisor::Constant(global_batch_size as f64)))
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
    fn divided(self, divisor: LossDivisor) -> Tensor<1> {
        divided_by(divisor);
        divide_no_nan(self.sum, divisor.value())
    }

    fn new<const D: usize, K: LossKind>(
        losses: Tensor<D, K>,
        weights: Option<SampleWeight>,
    ) -> Result<Self> {
        const {
            assert!(
                D > 0,
                "the loss has no axis for the examples: pass one per example"
            );
        }
        let shape = losses.dims();
        check_per_example("compute_average_loss", shape[0])?;
        let losses = K::into_float(losses);
        match weights.map(|sample_weight| sample_weight.weights) {
            None => Ok(Self {
                sum: losses.sum(),
                examples: shape[0],
            }),
            Some(Weights::Number(weight)) => Ok(Self {
                sum: losses.mul_scalar(weight).sum(),
                examples: shape[0],
            }),
            Some(Weights::Values(weights, weights_shape)) => {
                let weights_shape = fit_rank(&shape, weights_shape)?;
                check_broadcast(&shape, &weights_shape)?;
                let weights = weights.cast(losses.dtype());
                if weights_shape.len() <= D {
                    return Ok(Self::broadcast::<D>(losses, weights, &weights_shape));
                }
                let rank = weights_shape.len();
                let flat = losses.reshape([shape.iter().product::<usize>()]);
                Self::broadcast_up(flat, &shape, weights, &weights_shape).ok_or_else(|| {
                    Error::invalid(format!("compute_average_loss: weights of rank {rank}"))
                })
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
        op: "compute_average_loss: sample weights that fit the losses",
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
