//! What becomes of the losses of a replica's examples.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Tensor;
use distribute_core::loss::{LossDivisor, notes_of_running_step};
use distribute_core::{Error, Result, current_strategy, has_strategy};

/// What a loss object makes of the losses of a replica's examples
/// (Keras: `tf.keras.losses.Reduction`).
///
/// What `Fit` and `evaluate` report of it is a mean over the examples
/// of all batches, whatever their sizes: of a mean reduction the mean loss of an example, of
/// [`Sum`](Self::Sum) that mean times the examples of a full global batch. Keras reports for a sum
/// the mean of the batches' sums instead, each weighted by its examples, which is the same unless
/// the last batch is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Reduction {
    /// Nothing: one loss per example, for [`average_loss`](super::average_loss).
    /// The choice for training under a strategy.
    #[default]
    None,
    /// The sum of the losses.
    Sum,
    /// The sum of the losses divided by their number. Refused under every strategy but the default
    /// one: it divides by the replica's number of examples and not by the global batch's.
    SumOverBatchSize,
    /// [`SumOverBatchSize`](Self::SumOverBatchSize) by another name, and refused like it.
    Auto,
    /// The mean of the losses divided by the number of replicas, so that the SUM over replicas is
    /// the mean of the replicas' means (Keras 3's `mean`, `mean_with_sample_weight` and
    /// `sum_over_batch_size`). With unequal batches, as at the end of an epoch, an example in a
    /// small batch weighs more than one in a large one.
    MeanOverReplicas,
}

impl Reduction {
    /// Keras' name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sum => "sum",
            Self::SumOverBatchSize => "sum_over_batch_size",
            Self::Auto => "auto",
            Self::MeanOverReplicas => "mean",
        }
    }

    /// The reduction that Keras 3 means by this name: it has no `auto`, and its means are divided
    /// by the number of replicas. [`FromStr`] reads the names of Keras 2.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another name.
    pub fn from_keras3(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "sum" => Ok(Self::Sum),
            "mean" | "mean_with_sample_weight" | "sum_over_batch_size" => {
                Ok(Self::MeanOverReplicas)
            }
            other => Err(Error::invalid(format!(
                "unknown reduction `{other}`; Keras 3 knows none, sum, mean, \
                 mean_with_sample_weight and sum_over_batch_size"
            ))),
        }
    }

    fn apply<T: LossTensor>(self, per_example: T) -> Result<LossValue<T>> {
        match self {
            Self::None => Ok(LossValue::PerExample(per_example)),
            Self::Sum => {
                // A sum over the replicas' sums is the sum of the global batch.
                if let Some(notes) = notes_of_running_step() {
                    notes.loss_is_scaled();
                }
                Ok(LossValue::Reduced(per_example.sum_all()))
            }
            Self::MeanOverReplicas => {
                let replicas = current_strategy().num_replicas_in_sync() as f64;
                let mean = per_example.mean_over(replicas)?;
                Ok(LossValue::Reduced(mean.div_scalar(replicas)))
            }
            Self::Auto | Self::SumOverBatchSize => {
                if has_strategy() {
                    return Err(self.refused());
                }
                Ok(LossValue::Reduced(per_example.mean_over(1.0)?))
            }
        }
    }

    fn refused(self) -> Error {
        let strategy = current_strategy();
        Error::invalid(format!(
            "the loss reduction {} cannot be used under the {} strategy: it divides by the \
             examples of one replica, but gradients are summed over the replicas, so the result \
             would be too large; use Reduction::None and average_loss with the global \
             batch size, or Reduction::Sum and divide yourself",
            self.name(),
            strategy.name()
        ))
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = Error;

    /// Reads one of Keras 2's names.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "sum" => Ok(Self::Sum),
            "sum_over_batch_size" => Ok(Self::SumOverBatchSize),
            "auto" => Ok(Self::Auto),
            other => Err(Error::invalid(format!(
                "unknown reduction `{other}`; expected auto, none, sum or sum_over_batch_size"
            ))),
        }
    }
}

/// What a loss object returns.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "T is a tensor too")]
pub enum LossValue<T> {
    /// One loss per example.
    PerExample(T),
    /// One number.
    Reduced(Tensor<1>),
}

impl<T> LossValue<T> {
    /// The losses of the examples.
    ///
    /// # Errors
    /// If the reduction made one number of them.
    pub fn per_example(self) -> Result<T> {
        match self {
            Self::PerExample(losses) => Ok(losses),
            Self::Reduced(_) => Err(Error::invalid(
                "the loss is reduced to one number; use Reduction::None for one per example",
            )),
        }
    }

    /// The one number.
    ///
    /// # Errors
    /// If there was no reduction.
    pub fn reduced(self) -> Result<Tensor<1>> {
        match self {
            Self::Reduced(loss) => Ok(loss),
            Self::PerExample(_) => Err(Error::invalid(
                "the loss is one per example; scale it with average_loss",
            )),
        }
    }
}

/// Tensors of any rank, to be reduced to one number.
trait LossTensor {
    fn sum_all(self) -> Tensor<1>;
    /// The mean, which is going to be divided by the number of replicas.
    fn mean_over(self, replicas: f64) -> Result<Tensor<1>>;
}

impl<const D: usize> LossTensor for Tensor<D> {
    fn sum_all(self) -> Tensor<1> {
        self.sum()
    }

    /// 0 and not NaN for no examples.
    fn mean_over(self, replicas: f64) -> Result<Tensor<1>> {
        let examples = self.dims().first().copied().unwrap_or(0);
        if let Some(notes) = notes_of_running_step() {
            notes.check_per_example("a mean of losses", examples)?;
            notes.divided_by(LossDivisor::OwnBatch(examples as f64 * replicas));
        }
        let count = self.shape().num_elements().max(1) as f64;
        Ok(self.sum().div_scalar(count))
    }
}

pub(super) fn reduce<const L: usize>(
    per_example: Tensor<L>,
    reduction: Reduction,
) -> Result<LossValue<Tensor<L>>> {
    reduction.apply(per_example)
}
