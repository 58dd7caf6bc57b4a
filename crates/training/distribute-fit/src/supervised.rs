//! Ready objectives: a model's forward pass, a loss and metrics.

use burn::tensor::{Float, Int, Tensor};
use distribute_core::metric::Metric;
use distribute_core::{ReplicaContext, Result};
use distribute_data::loss::{BatchLoss, LossWithAccuracy};

use crate::{Objective, StepContext};

/// Inputs and labels with a loss and metrics, as an objective of [`Fit`](crate::Fit) and
/// [`evaluate`](crate::evaluate) (Keras: `model.compile(loss=.., metrics=["accuracy"])`).
///
/// It takes batches `(inputs, labels)` and batches of [`Weighted`](distribute_data::Weighted)
/// datasets, and divides the loss by the size of the global batch. What else a forward pass needs
/// (dropout, terms of regularization, several inputs) is a closure of your own that gives an
/// [`Objective`].
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use distribute_core::prelude::*;
/// use distribute_data::prelude::*;
/// use distribute_fit::prelude::*;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let train = strategy.distribute_dataset(Digits::open()?.train()?, Batching::global(64))?;
/// let test = strategy.distribute_dataset(Digits::open()?.test()?, Batching::global(64))?;
/// let mut state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(64, 10).init(device), Adam::new(1e-2))
/// })?;
///
/// let forward = |model: &Linear, images: Tensor<4>| model.forward(images.flatten::<2>(1, 3));
/// let objective = Supervised::new(forward, SparseCategoricalCrossentropy::default())
///     .accuracy()
///     .objective();
/// let fit = Fit::new(&strategy).epochs(2);
/// let history = fit.run_with_validation(&mut state, &train, &test, objective)?;
/// assert!(history.last_logs().get("val_accuracy").is_some_and(|accuracy| accuracy > 0.8));
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Supervised<F, L, T = ()> {
    forward: F,
    loss: L,
    metrics: T,
}

impl<F, L> Supervised<F, L> {
    /// The loss of what `forward`, such as `Mlp::forward`, makes of the inputs.
    pub fn new(forward: F, loss: L) -> Self {
        Self {
            forward,
            loss,
            metrics: (),
        }
    }
}

/// A name in the logs, and what is measured.
type Named<M> = (&'static str, M);

impl<F, L, T> Supervised<F, L, T> {
    /// Reports the share of right predictions as `accuracy`, as Keras picks it for the loss: of
    /// classes, of one-hot labels, or of yes-no questions.
    pub fn accuracy(self) -> Supervised<F, L, (T, Named<L::Accuracy>)>
    where
        L: LossWithAccuracy,
    {
        let accuracy = self.loss.accuracy();
        self.metric("accuracy", accuracy)
    }

    /// Reports a [`Metric`] of predictions and labels, such as the metrics of
    /// [`distribute_core::metric`] or a function with a number for every example.
    ///
    /// ```
    /// use distribute_core::prelude::*;
    /// use distribute_data::prelude::*;
    /// use distribute_fit::prelude::*;
    /// # let forward = |_: &(), x: Tensor<2>| x;
    ///
    /// let error = |predicted: &Tensor<2>, wanted: &Tensor<2>| {
    ///     let error = (predicted.clone() - wanted.clone()).abs();
    ///     error.mean_dim(1).squeeze_dim::<1>(1)
    /// };
    /// let ready = Supervised::new(forward, MeanSquaredError::default());
    /// let objective = ready.metric("error", error).objective::<(), (Tensor<2>, Tensor<2>), _>();
    /// ```
    pub fn metric<M>(self, name: &'static str, metric: M) -> Supervised<F, L, (T, Named<M>)> {
        Supervised {
            forward: self.forward,
            loss: self.loss,
            metrics: (self.metrics, (name, metric)),
        }
    }

    /// The objective.
    pub fn objective<M, B, P>(
        self,
    ) -> impl Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Clone + Send + Sync
    where
        B: LabelledBatch,
        P: Clone,
        F: Fn(&M, B::Inputs) -> P + Clone + Send + Sync,
        L: BatchLoss<P, B::Labels> + Clone + Send + Sync,
        T: BatchMetrics<P, B::Labels> + Clone + Send + Sync,
    {
        move |ctx: &StepContext<'_>, model: &M, batch: B| {
            let replica: &ReplicaContext = ctx;
            let (inputs, labels, weights) = batch.into_parts();
            let predicted = (self.forward)(model, inputs);
            let found = (predicted.clone(), labels.clone());
            let loss = &self.loss;
            let average = loss.average(replica, predicted, labels, weights.clone())?;
            let objective = Objective::new(average);
            let examples = loss.examples(&found);
            let objective = match &weights {
                Some(weights) => objective.examples(weights.clone().sum()),
                None => objective.examples(examples),
            };
            self.metrics.add_to(objective, &found, weights.as_ref())
        }
    }
}

/// What a ready objective takes: inputs, labels, and weights of the examples if there are any.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no batch of inputs and labels",
    label = "not `(inputs, labels)` nor `((inputs, labels), weights)`",
    note = "for other batches write the objective as a closure that gives an `Objective`"
)]
pub trait LabelledBatch {
    /// What the model takes.
    type Inputs;
    /// What the loss compares with.
    type Labels: Clone;

    /// The parts.
    fn into_parts(self) -> (Self::Inputs, Self::Labels, Option<Tensor<1>>);
}

macro_rules! labelled {
    ($($kind:ty),*) => {$(
        impl<const D: usize, Y: Clone> LabelledBatch for (Tensor<D, $kind>, Y) {
            type Inputs = Tensor<D, $kind>;
            type Labels = Y;

            fn into_parts(self) -> (Self::Inputs, Y, Option<Tensor<1>>) {
                (self.0, self.1, None)
            }
        }

        impl<const D: usize, Y: Clone> LabelledBatch for ((Tensor<D, $kind>, Y), Tensor<1>) {
            type Inputs = Tensor<D, $kind>;
            type Labels = Y;

            fn into_parts(self) -> (Self::Inputs, Y, Option<Tensor<1>>) {
                let ((inputs, labels), weights) = self;
                (inputs, labels, Some(weights))
            }
        }
    )*};
}

labelled!(Float, Int);

/// The metrics of an objective: none, or one after others.
pub trait BatchMetrics<P, Y> {
    /// The objective with these metrics.
    ///
    /// # Errors
    /// The errors of the metrics.
    fn add_to(
        &self,
        objective: Objective,
        found: &(P, Y),
        weights: Option<&Tensor<1>>,
    ) -> Result<Objective>;
}

impl<P, Y> BatchMetrics<P, Y> for () {
    fn add_to(&self, objective: Objective, _: &(P, Y), _: Option<&Tensor<1>>) -> Result<Objective> {
        Ok(objective)
    }
}

impl<P, Y, A: BatchMetrics<P, Y>, M: Metric<P, Y>> BatchMetrics<P, Y> for (A, Named<M>) {
    fn add_to(
        &self,
        objective: Objective,
        found: &(P, Y),
        weights: Option<&Tensor<1>>,
    ) -> Result<Objective> {
        let (others, (name, metric)) = self;
        let objective = others.add_to(objective, found, weights)?;
        objective.measure(*name, metric, &found.0, &found.1, weights)
    }
}
