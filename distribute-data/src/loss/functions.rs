//! Per-example losses.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use distribute_core::{ReplicaContext, Result};

use super::compute::{EPSILON, compute, sigmoid_crossentropy};
use super::function::LossFunction;
use super::reduction::{LossValue, Reduction, reduce};
use super::scaling::AverageLoss;

/// A tensor of predictions whose last axis a loss takes away: `[n, classes]`, or
/// `[n, height, width, classes]` for labels per pixel. Ranks 2 to 6.
///
/// A trait and not a pair of numbers, so that a wrong rank of labels does not compile and the
/// rank of the result is known.
pub trait LastAxis: Sized + sealed::LastAxis {
    /// The tensor with one axis less.
    type PerExample;

    #[doc(hidden)]
    type Indices;

    #[doc(hidden)]
    fn sparse_categorical(self, labels: Self::Indices) -> Self::PerExample;

    #[doc(hidden)]
    fn categorical(self, labels: Self) -> Self::PerExample;

    #[doc(hidden)]
    fn binary(self, labels: Self) -> Self::PerExample;

    #[doc(hidden)]
    fn squared_error(self, labels: Self) -> Self::PerExample;

    #[doc(hidden)]
    fn function(self, labels: Self, function: &LossFunction) -> Self::PerExample;

    #[doc(hidden)]
    fn reduce(
        per_example: Self::PerExample,
        reduction: Reduction,
    ) -> Result<LossValue<Self::PerExample>>;

    #[doc(hidden)]
    fn average(
        per_example: Self::PerExample,
        ctx: &ReplicaContext,
        weights: Option<Tensor<1>>,
    ) -> Result<Tensor<1>>;

    #[doc(hidden)]
    fn examples(&self) -> usize;
}

/// Labels of the shape of the predictions `T`: floats, integers or booleans.
pub trait Labels<T>: sealed::Labels<T> {
    #[doc(hidden)]
    fn into_float(self) -> T;
}

mod sealed {
    pub trait LastAxis {}
    pub trait Labels<T> {}
}

impl<const D: usize> sealed::Labels<Tensor<D>> for Tensor<D> {}
impl<const D: usize> Labels<Tensor<D>> for Tensor<D> {
    fn into_float(self) -> Tensor<D> {
        self
    }
}

impl<const D: usize> sealed::Labels<Tensor<D>> for Tensor<D, Int> {}
impl<const D: usize> Labels<Tensor<D>> for Tensor<D, Int> {
    fn into_float(self) -> Tensor<D> {
        self.float()
    }
}

impl<const D: usize> sealed::Labels<Tensor<D>> for Tensor<D, Bool> {}
impl<const D: usize> Labels<Tensor<D>> for Tensor<D, Bool> {
    fn into_float(self) -> Tensor<D> {
        self.float()
    }
}

macro_rules! last_axis {
    ($($rank:literal to $less:literal),*) => {$(
        impl sealed::LastAxis for Tensor<$rank> {}

        impl LastAxis for Tensor<$rank> {
            type PerExample = Tensor<$less>;
            type Indices = Tensor<$less, Int>;

            fn sparse_categorical(self, labels: Tensor<$less, Int>) -> Tensor<$less> {
                let last = $rank - 1;
                check_labels(&labels, self.dims()[last]);
                let picked = log_softmax(self, last).gather(last, labels.unsqueeze_dim(last));
                picked.squeeze_dim::<$less>(last).neg()
            }

            fn categorical(self, labels: Self) -> Tensor<$less> {
                same_shape(self.dims(), labels.dims());
                let last = $rank - 1;
                let products = labels.cast(self.dtype()) * log_softmax(self, last);
                products.sum_dim(last).squeeze_dim::<$less>(last).neg()
            }

            fn binary(self, labels: Self) -> Tensor<$less> {
                same_shape(self.dims(), labels.dims());
                let labels = labels.cast(self.dtype());
                mean_last(sigmoid_crossentropy(self, labels))
            }

            fn squared_error(self, labels: Self) -> Tensor<$less> {
                same_shape(self.dims(), labels.dims());
                let error = self.clone() - labels.cast(self.dtype());
                mean_last(error.clone() * error)
            }

            fn function(self, labels: Self, function: &LossFunction) -> Tensor<$less> {
                same_shape(self.dims(), labels.dims());
                compute(function, self, labels).squeeze_dim::<$less>($rank - 1)
            }

            fn reduce(
                per_example: Tensor<$less>,
                reduction: Reduction,
            ) -> Result<LossValue<Tensor<$less>>> {
                reduce(per_example, reduction)
            }

            fn average(
                per_example: Tensor<$less>,
                ctx: &ReplicaContext,
                weights: Option<Tensor<1>>,
            ) -> Result<Tensor<1>> {
                // One weight for each example, whatever axes its losses have.
                let weights = weights.map(|weights| {
                    let mut shape = [1; $less];
                    shape[0] = weights.dims()[0];
                    weights.reshape(shape)
                });
                AverageLoss::new().weights(weights).of(ctx, per_example)
            }

            fn examples(&self) -> usize {
                self.dims()[0]
            }
        }
    )*};
}

last_axis!(2 to 1, 3 to 2, 4 to 3, 5 to 4, 6 to 5);

/// Refuses a label that is no class, where labels are in host memory. Elsewhere nothing
/// waits for them; there it is the device that says what becomes of such a label.
#[track_caller]
fn check_labels<const L: usize>(labels: &Tensor<L, Int>, classes: usize) {
    if labels.device().inner() != Device::flex() {
        return;
    }
    let data = labels.clone().into_data().convert::<i64>();
    let wrong = |label: &i64| !usize::try_from(*label).is_ok_and(|label| label < classes);
    let labels_of_one: usize = labels.dims()[1..].iter().product();
    for (position, label) in data.iter::<i64>().enumerate() {
        assert!(
            !wrong(&label),
            "label {label} of example {} of the batch is out of range: the predictions have \
             {classes} classes, 0 to {}; correct the label or the number of outputs",
            position / labels_of_one.max(1),
            classes.saturating_sub(1)
        );
    }
}

fn mean_last<const D: usize, const L: usize>(values: Tensor<D>) -> Tensor<L> {
    values.mean_dim(D - 1).squeeze_dim(D - 1)
}

impl LossFunction {
    /// The loss of every example: predictions and targets are `[n, ..., k]`, the result is
    /// `[n, ...]`. Targets may be floats, integers or booleans.
    ///
    /// # Panics
    /// If the shapes differ; inside a step the strategy reports it as an error.
    pub fn of<T: LastAxis>(&self, predictions: T, targets: impl Labels<T>) -> T::PerExample {
        predictions.function(targets.into_float(), self)
    }
}

/// The cross-entropy between logits and classes, for every example
/// (Keras: `sparse_categorical_crossentropy(from_logits=True)`).
///
/// `logits` has one axis more than `labels`, the last one, of the size of the number of classes:
/// `[n, classes]` and `[n]`, or `[n, height, width, classes]` and `[n, height, width]`. The result
/// has the shape of `labels`. With labels per pixel remember that
/// [`average_loss`](super::average_loss) divides by the number of examples and
/// not of pixels.
///
/// # Panics
/// If the shapes do not fit, or a label is not below the number of classes: the message names the
/// example, its label and the number of classes. Inside a step the strategy reports it as an error
/// that names the replica. On GPUs and in compiled steps labels are not looked at: check them when
/// they are read, as [`Examples::with_classes`](distribute_readers::Examples::with_classes) does.
pub fn sparse_categorical_crossentropy<T: LastAxis>(
    logits: T,
    labels: T::Indices,
) -> T::PerExample {
    logits.sparse_categorical(labels)
}

/// The cross-entropy between logits and probabilities of the classes, for every example
/// (Keras: `categorical_crossentropy(from_logits=True)`).
///
/// Both are `[n, ..., classes]`; the result has the shape `[n, ...]`. Labels may be integers
/// (one-hot).
///
/// # Panics
/// If the shapes differ; inside a step the strategy reports it as an error.
pub fn categorical_crossentropy<T: LastAxis>(logits: T, labels: impl Labels<T>) -> T::PerExample {
    logits.categorical(labels.into_float())
}

/// The cross-entropy of independent yes-no questions, the mean over the last axis
/// (Keras: `binary_crossentropy(from_logits=True)`).
///
/// Both are `[n, ..., k]`; the result has the shape `[n, ...]`. Accurate for logits of any size.
///
/// # Panics
/// If the shapes differ; inside a step the strategy reports it as an error.
pub fn binary_crossentropy<T: LastAxis>(logits: T, labels: impl Labels<T>) -> T::PerExample {
    logits.binary(labels.into_float())
}

/// The squared difference, the mean over the last axis (Keras: `mean_squared_error`).
///
/// Both are `[n, ..., k]`; the result has the shape `[n, ...]`.
///
/// # Panics
/// If the shapes differ; inside a step the strategy reports it as an error.
pub fn mean_squared_error<T: LastAxis>(predictions: T, targets: impl Labels<T>) -> T::PerExample {
    predictions.squared_error(targets.into_float())
}

/// burn would stretch labels of another shape instead of refusing them.
#[track_caller]
fn same_shape<const D: usize>(predictions: [usize; D], labels: [usize; D]) {
    assert_eq!(
        predictions, labels,
        "predictions and labels differ in shape"
    );
}

/// `factor` times the sum of the squares of `weights` (Keras: `regularizers.L2`), to be scaled
/// with [`scale_regularization_loss`](super::scale_regularization_loss).
pub fn l2<const D: usize>(weights: Tensor<D>, factor: f64) -> Tensor<1> {
    (weights.clone() * weights).sum().mul_scalar(factor)
}

/// Logits for the categorical losses from the probabilities that a model with a softmax layer at
/// its end gives (Keras: `from_logits=False`). A model that gives logits is more accurate.
pub fn logits_of_softmax<const D: usize>(probabilities: Tensor<D>) -> Tensor<D> {
    probabilities.clamp(EPSILON, 1.0 - EPSILON).log()
}

/// Logits for [`binary_crossentropy`] from the probabilities that a model with a sigmoid layer at
/// its end gives (Keras: `from_logits=False`). A model that gives logits is more accurate.
pub fn logits_of_sigmoid<const D: usize>(probabilities: Tensor<D>) -> Tensor<D> {
    let kept = probabilities.clamp(EPSILON, 1.0 - EPSILON);
    kept.clone().log() - kept.neg().log1p()
}
