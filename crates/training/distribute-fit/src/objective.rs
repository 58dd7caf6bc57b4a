//! What the user's forward pass is told and what it gives back.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use distribute_core::metric::Metric;
use distribute_core::{
    Applied, Error, Gradients, LeafVisitor, Nest, NestPath, Recomputation, ReplicaContext,
    ReplicaRng, Result, TrainState, WrongGradient, setters, trace,
};
use distribute_data::KerasMetric;
use serde::{Deserialize, Serialize};

use super::FitError;
use super::exact::{self, Exact};
use super::named_metric::NamedMetric;

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Mode {
    /// Gradients follow.
    Train,
    /// Loss and metrics only; the model is its validation copy (`Module::valid`).
    Evaluate,
    /// Outputs only; the model is its validation copy.
    Predict,
}

/// The first argument of an objective: the replica's context, and what the pass is for.
///
/// It dereferences to [`ReplicaContext`], so it can be passed wherever one is expected.
#[derive(Debug)]
pub struct StepContext<'a> {
    pub(super) replica: &'a ReplicaContext,
    pub(super) pass: Pass,
}

/// What is the same on all replicas during one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pass {
    pub(super) mode: Mode,
    pub(super) seed: u64,
    pub(super) epoch: usize,
    pub(super) batch: usize,
}

impl Pass {
    /// Batch `batch` of an evaluation outside of [`Fit`](super::Fit).
    pub(super) fn evaluation(mode: Mode, batch: usize) -> Self {
        Self {
            mode,
            seed: 0,
            epoch: 0,
            batch,
        }
    }
}

impl StepContext<'_> {
    /// Whether this pass trains, evaluates or predicts.
    pub fn mode(&self) -> Mode {
        self.pass.mode
    }

    /// Whether gradients follow.
    pub fn is_training(&self) -> bool {
        self.pass.mode == Mode::Train
    }

    /// The epoch, from 0; 0 outside of [`Fit`](super::Fit).
    pub fn epoch(&self) -> usize {
        self.pass.epoch
    }

    /// The global batch within the epoch, from 0.
    pub fn batch(&self) -> usize {
        self.pass.batch
    }

    /// A random stream of this replica's own for this batch, see [`ReplicaContext::rng`]. It
    /// follows from the seed of the run, the epoch and the batch, also after resuming.
    #[track_caller]
    pub fn rng(&self) -> ReplicaRng {
        let stream = ((self.pass.epoch as u64) << 32) ^ self.pass.batch as u64;
        self.replica.rng(self.pass.seed, stream)
    }
}

impl Deref for StepContext<'_> {
    type Target = ReplicaContext;

    fn deref(&self) -> &ReplicaContext {
        self.replica
    }
}

/// A forward pass that a user has written.
pub(super) trait Forward<M, B, R>: Fn(&StepContext<'_>, &M, B) -> Result<R> + Sync {}

impl<M, B, R, F> Forward<M, B, R> for F where F: Fn(&StepContext<'_>, &M, B) -> Result<R> + Sync {}

/// A number that a forward pass gives: on the host, or still on the device.
#[derive(Debug, Clone)]
pub enum Quantity {
    /// Known on the host.
    Host(f64),
    /// One element on the device; read on demand.
    Device(Box<Tensor<1>>),
}

impl From<Tensor<1>> for Quantity {
    fn from(value: Tensor<1>) -> Self {
        Self::Device(Box::new(value))
    }
}

impl From<Tensor<1, Int>> for Quantity {
    fn from(value: Tensor<1, Int>) -> Self {
        value.float().into()
    }
}

macro_rules! host_quantity {
    ($($type:ty),*) => {$(
        impl From<$type> for Quantity {
            fn from(value: $type) -> Self {
                Self::Host(value as f64)
            }
        }
    )*};
}

host_quantity!(f32, f64, u32, u64, usize, i32, i64);

/// What one replica's forward pass gives: its part of the loss, how many examples it saw, and sums
/// for metrics.
///
/// The loss is scaled as for a hand-written step: the sum over the replica's examples divided by
/// the GLOBAL batch size, so that the sum over the replicas is the loss of the global batch.
///
/// A loss carries its divisor: `average_loss`, with a size or without, and its relatives
/// say what they divided by (see [`loss`](distribute_core::loss)), and every replica's loss is
/// multiplied by it before it is averaged over the examples. A loss that was scaled in another way
/// counts as divided by the source's global batch size, unless
/// [`averaged_over`](Self::averaged_over) says what it was divided by. With several replicas it
/// has to be said then that it was scaled ([`ReplicaContext::loss_is_scaled`]): a mean as burn's
/// losses give it would count once per replica. [`ReplicaContext::mean_loss`] scales it.
///
/// On every replica and for every batch, also an empty one, the same metrics must be given in the
/// same order.
#[derive(Debug, Clone)]
#[must_use]
pub struct Objective {
    pub(super) loss: Tensor<1>,
    regularization: Option<Tensor<1>>,
    examples: Option<Quantity>,
    /// What the loss was divided by, if it was given.
    divisor: Option<f64>,
    metrics: Vec<(Cow<'static, str>, Quantity, Quantity)>,
    totals: Vec<(NamedMetric, Tensor<1>)>,
}

impl Objective {
    /// An objective with this replica's part of the scaled loss, a tensor with one element.
    ///
    /// Regularization may be added to the loss already, or be given separately
    /// ([`regularization`](Self::regularization)); gradients are the same. Only given separately
    /// it is reported exactly when the last batch is short, because data loss counts by examples.
    pub fn new(loss: Tensor<1>) -> Self {
        Self {
            loss,
            regularization: None,
            examples: None,
            divisor: None,
            metrics: Vec::new(),
            totals: Vec::new(),
        }
    }

    setters! { self;
        /// How many examples this replica's batch has (0 if it is empty): what the epoch's loss is
        /// averaged over. Without it the rows of the batch's tensors are counted
        /// ([`ReplicaContext::examples`]); where these do not say it, and in a step that is
        /// compiled, the first step is an error. In a batch that is padded up to its full size it
        /// is a tensor: the sum of the examples' weights.
        examples(examples: impl Into<Quantity>) => examples = Some(examples.into());

        /// A term that does not depend on the examples, divided by the number of replicas as
        /// `scale_regularization_loss` does. It is added to the loss.
        regularization(term: Tensor<1>) => regularization = Some(term);

        /// The number that the sum over this replica's examples was divided by, if it is
        /// not given otherwise and is not the source's global batch size. Replicas may say
        /// different numbers.
        averaged_over(examples: usize) => divisor = Some(examples as f64);
    }

    /// What a [`Metric`] makes of the batch, under this name in the logs: the mean of its values
    /// over the examples of all replicas and batches, which may be weighted, `[n]`.
    ///
    /// # Errors
    /// The errors of the metric.
    pub fn measure<P, Y>(
        self,
        name: impl Into<Cow<'static, str>>,
        metric: &impl Metric<P, Y>,
        predicted: &P,
        labels: &Y,
        weights: Option<&Tensor<1>>,
    ) -> Result<Self> {
        let values = metric.values(predicted, labels)?.of_examples();
        Ok(match weights {
            None => {
                let examples = values.dims()[0];
                self.metric(name, values.sum(), examples)
            }
            Some(weights) => {
                let sum = (values * weights.clone()).sum();
                self.metric(name, sum, weights.clone().sum())
            }
        })
    }

    /// The sums of a metric that the forward pass has made itself, over this replica's batch: for
    /// accuracy the correct predictions and the examples. Their quotient over all replicas and
    /// batches is the metric.
    pub fn metric(
        mut self,
        name: impl Into<Cow<'static, str>>,
        sum: impl Into<Quantity>,
        count: impl Into<Quantity>,
    ) -> Self {
        self.metrics.push((name.into(), sum.into(), count.into()));
        self
    }

    /// The [sums](KerasMetric::sums) of one of Keras' metrics over this replica's batch. The metric
    /// of their totals over all replicas and batches is in the logs, after the metrics
    /// of [`measure`](Self::measure) and [`metric`](Self::metric).
    pub fn totals(mut self, metric: KerasMetric, sums: Tensor<1>) -> Self {
        self.totals.push((NamedMetric::from(metric), sums));
        self
    }

    /// [`totals`](Self::totals) under another name in the logs, as Keras names the metrics of a
    /// model with several outputs: `output_accuracy`.
    pub fn totals_as(
        mut self,
        name: impl Into<String>,
        metric: KerasMetric,
        sums: Tensor<1>,
    ) -> Self {
        self.totals.push((NamedMetric::new(name, metric), sums));
        self
    }

    /// Loss and regularization: what gradients are taken of.
    pub fn total(&self) -> Tensor<1> {
        match &self.regularization {
            Some(term) => self.loss.clone() + term.clone(),
            None => self.loss.clone(),
        }
    }

    /// What a forward pass gives for a batch, with what the functions of the loss have noted.
    pub(super) fn of_batch<M, B>(
        ctx: &StepContext<'_>,
        model: &M,
        batch: B,
        forward: &impl Forward<M, B, Self>,
    ) -> Result<Self> {
        let _phase = tracing::trace_span!(target: "distribute::phase", "forward").entered();
        let mut given = forward(ctx, model, batch)?;
        let noted = ctx.notes().take_divisor();
        if given.divisor.is_none() {
            given.divisor = noted?;
        }
        if given.divisor.is_some() {
            ctx.notes().loss_is_scaled();
        }
        if ctx.num_replicas_in_sync() > 1 && !ctx.notes().is_loss_scaled() {
            let replicas = ctx.num_replicas_in_sync();
            return Err(FitError::LossNotScaled { replicas }.into());
        }
        if given.examples.is_none() {
            let examples = ctx.examples().ok_or(FitError::ExamplesUnknown)?;
            given.examples = Some(examples.into());
        }
        Ok(given)
    }

    /// The sums to report, without the graph.
    pub(super) fn into_sums(self, global_batch_size: Option<usize>) -> StepSums {
        let own = self.divisor;
        // All replicas give their loss in one unit: divided by the global batch size, or not at
        // all. Only if neither is known they cannot.
        let common = global_batch_size.map(|size| size as f64);
        let common = common.filter(|size| *size > 0.0);
        let unit = common.or(own.map(|_| 1.0));
        let loss = with_f32(trace::without_autodiff(self.loss));
        let loss = match (own, unit) {
            (Some(own), Some(unit)) if own != unit => loss.mul_scalar(own / unit),
            _ => loss,
        };
        let mut tensors = vec![(0, loss)];
        let mut numbers = vec![0.0];
        let mut add = |quantity| {
            numbers.push(match quantity {
                Quantity::Host(value) => value,
                Quantity::Device(tensor) => {
                    // Its place in the numbers; filled in when the tensors are read.
                    tensors.push((numbers.len(), trace::without_autodiff(*tensor)));
                    0.0
                }
            });
        };
        let none = Quantity::Host(0.0);
        add(self.regularization.map_or(none, Quantity::from));
        add(self.examples.unwrap_or(Quantity::Host(0.0)));
        add(f64::from(own.is_some()).into());
        let mut names = Vec::with_capacity(self.metrics.len());
        for (name, sum, count) in self.metrics {
            names.push(name);
            add(sum);
            add(count);
        }
        let count = numbers.len();
        let numbers = TensorData::new(numbers, [count]);
        let totals = self.totals.into_iter();
        StepSums {
            common,
            names,
            tensors,
            numbers,
            totals: totals
                .map(|(metric, sums)| (metric, trace::without_autodiff(sums)))
                .collect(),
        }
    }
}

/// A loss of fewer bits as f32, so that multiplying and adding it up costs no digits.
fn with_f32(loss: Tensor<1>) -> Tensor<1> {
    match loss.dtype() {
        DType::F64 | DType::F32 => loss,
        _ => loss.cast(FloatDType::F32),
    }
}

/// What one replica does with a batch to train: forward, backward, update.
pub(super) fn train_on<M: Module + 'static, B>(
    replica: &ReplicaContext,
    pass: Pass,
    state: &mut TrainState<M>,
    batch: B,
    objective: &impl Forward<M, B, Objective>,
) -> Result<(Applied, StepSums)> {
    let (given, gradients) = gradients_of(replica, pass, state, batch, objective)?;
    let size = replica.global_batch_size()?;
    let applied = state.apply_gradients(replica, gradients)?;
    Ok((applied, given.into_sums(size)))
}

/// [`train_on`] in a step whose gradients are checked: no replica makes the update if others find
/// them wrong.
pub(super) fn train_checked<M: Module + 'static, B: Nest>(
    replica: &ReplicaContext,
    pass: Pass,
    state: &mut TrainState<M>,
    batch: B,
    objective: &impl Forward<M, B, Objective>,
    check: &Checked<B>,
) -> Result<StepSums> {
    check.plan.begin(replica);
    let (given, gradients) = gradients_of(replica, pass, state, batch, objective)?;
    let size = replica.global_batch_size()?;
    let again = check.batch_of(replica.replica_id());
    let found = check.plan.check(
        replica,
        state,
        &gradients,
        again,
        |replica, state, batch| Ok(gradients_of(replica, pass, state, batch, objective)?.1),
    )?;
    match found {
        Some(wrong) => check.note(wrong),
        None => drop(state.apply_gradients(replica, gradients)?),
    }
    Ok(given.into_sums(size))
}

/// The check of a step, with the batch of the checked replica for those that compute it again.
pub(super) struct Checked<B> {
    plan: Recomputation,
    batches: Mutex<Vec<(usize, B)>>,
    found: Mutex<Option<WrongGradient>>,
}

impl<B> Checked<B> {
    /// `batches` are by the replicas of this process that compute them again.
    pub(super) fn new(plan: Recomputation, batches: Vec<(usize, B)>) -> Self {
        Self {
            plan,
            batches: Mutex::new(batches),
            found: Mutex::default(),
        }
    }

    fn batch_of(&self, replica: usize) -> Option<B> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let own = batches.iter().position(|(id, _)| *id == replica)?;
        Some(batches.swap_remove(own).1)
    }

    fn note(&self, wrong: WrongGradient) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get_or_insert(wrong);
    }

    /// What all replicas have found.
    pub(super) fn into_found(self) -> Option<WrongGradient> {
        self.found
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The forward and the backward pass.
fn gradients_of<M: Module + 'static, B>(
    replica: &ReplicaContext,
    pass: Pass,
    state: &mut TrainState<M>,
    batch: B,
    objective: &impl Forward<M, B, Objective>,
) -> Result<(Objective, Gradients)> {
    let ctx = StepContext { replica, pass };
    let given = Objective::of_batch(&ctx, &state.model, batch, objective)?;
    let loss = state.scale_loss(&given.total());
    let gradients = replica.gradient(&loss, &state.model)?;
    Ok((given, gradients))
}

/// One replica's sums of one batch, still on its device; summed over the replicas as a [`Nest`].
#[derive(Debug, Clone)]
pub(super) struct StepSums {
    /// What all replicas' losses are divided by; by default the number of their examples.
    common: Option<f64>,
    names: Vec<Cow<'static, str>>,
    /// The numbers that are on the device, the loss first, with their places among all.
    tensors: Vec<(usize, Tensor<1>)>,
    /// The loss, the regularization, the examples, whether the loss is multiplied by its divisor,
    /// and two of each metric.
    numbers: TensorData,
    /// The sums of Keras' metrics.
    totals: Vec<(NamedMetric, Tensor<1>)>,
}

/// Name, sum, count.
pub(super) type MetricSums = (Cow<'static, str>, Exact, Exact);

/// Sums over the examples of batches, on the host: what a checkpoint in the middle of an epoch
/// keeps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sums {
    /// Each batch's loss times what it was divided by.
    #[serde(with = "exact")]
    pub(super) loss: f64,
    /// Each batch's regularization times its examples.
    #[serde(with = "exact")]
    pub(super) regularization: f64,
    #[serde(with = "exact")]
    pub(super) examples: f64,
    pub(super) metrics: Vec<MetricSums>,
    /// The sums of Keras' metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) totals: Vec<(NamedMetric, Vec<Exact>)>,
}

impl Sums {
    /// Adds the sums of another batch.
    pub(super) fn add(&mut self, batch: Self) -> Result<()> {
        self.loss += batch.loss;
        self.regularization += batch.regularization;
        self.examples += batch.examples;
        if self.metrics.is_empty() && self.totals.is_empty() {
            self.metrics = batch.metrics;
            self.totals = batch.totals;
            return Ok(());
        }
        let own = self.metrics.iter().map(|(name, ..)| name);
        let kinds = |sums: &Self| -> Vec<(NamedMetric, usize)> {
            let all = sums.totals.iter();
            all.map(|(metric, sums)| (metric.clone(), sums.len()))
                .collect()
        };
        let same_names = own.eq(batch.metrics.iter().map(|(name, ..)| name));
        if !same_names || kinds(self) != kinds(&batch) {
            return Err(Error::invalid(
                "the objective must give the same metrics in the same order for every batch",
            ));
        }
        for ((_, own), (_, other)) in self.totals.iter_mut().zip(batch.totals) {
            for (own, other) in own.iter_mut().zip(other) {
                own.0 += other.0;
            }
        }
        for (own, other) in self.metrics.iter_mut().zip(batch.metrics) {
            own.1.0 += other.1.0;
            own.2.0 += other.2.0;
        }
        Ok(())
    }
}

impl Nest for StepSums {
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        for (place, tensor) in &mut self.tensors {
            visit(&path.item(*place), tensor)?;
        }
        visit(&path.field("numbers"), &mut self.numbers)?;
        let path = path.field("totals");
        for (place, (_, sums)) in self.totals.iter_mut().enumerate() {
            visit(&path.item(place), sums)?;
        }
        Ok(())
    }

    fn skeleton(&self) -> Option<Self> {
        let empty = <Tensor<1> as Nest>::placeholder;
        let tensors = self.tensors.iter().map(|(at, _)| Some((*at, empty()?)));
        Some(Self {
            common: self.common,
            names: self.names.clone(),
            tensors: tensors.collect::<Option<_>>()?,
            numbers: self.numbers.clone(),
            totals: {
                let totals = self.totals.iter();
                totals
                    .map(|(metric, _)| Some((metric.clone(), empty()?)))
                    .collect::<Option<_>>()?
            },
        })
    }
}

impl StepSums {
    /// The places of the numbers that are on the device.
    fn places(&self) -> impl Iterator<Item = usize> {
        self.tensors.iter().map(|(place, _)| *place)
    }

    /// Refuses to add up sums of different metrics.
    pub(super) fn check_same(replicas: &[Self]) -> Result<()> {
        let mut neighbours = replicas.iter().zip(replicas.iter().skip(1));
        let differ = |(own, other): &(&Self, &Self)| {
            let kinds = |sums: &Self| -> Vec<NamedMetric> {
                let totals = sums.totals.iter();
                totals.map(|(metric, _)| metric.clone()).collect()
            };
            own.names != other.names
                || !own.places().eq(other.places())
                || kinds(own) != kinds(other)
        };
        let Some((own, other)) = neighbours.find(differ) else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "the objective gives the metrics {:?} on one replica and {:?} on another, or some of \
             them on the host and some on the device: give the same on every replica, also for an \
             empty batch",
            own.names, other.names
        )))
    }

    /// Reads the sums of a batch from replicas, whose regularization is `share` times as large in
    /// all, and adds them up. Waits for the devices.
    pub(super) fn read(replicas: &[Self], share: f64) -> Result<Sums> {
        Self::check_same(replicas)?;
        let Some((first, others)) = replicas.split_first() else {
            return Err(Error::internal("the sums of no replica"));
        };
        let mut numbers = first.read_numbers()?;
        let mut totals = first.read_totals()?;
        for other in others {
            for (sum, more) in numbers.iter_mut().zip(other.read_numbers()?) {
                *sum += more;
            }
            for ((_, sums), (_, more)) in totals.iter_mut().zip(other.read_totals()?) {
                for (sum, more) in sums.iter_mut().zip(more) {
                    sum.0 += more.0;
                }
            }
        }
        let examples = numbers[2];
        let own_divisors = (numbers[3] > 0.0).then_some(1.0);
        let averaged_over = first.common.or(own_divisors).unwrap_or(examples);
        let metrics = first.names.iter().zip(numbers[4..].chunks_exact(2));
        let metrics = metrics.map(|(name, pair)| (name.clone(), Exact(pair[0]), Exact(pair[1])));
        Ok(Sums {
            loss: numbers[0] * averaged_over,
            regularization: numbers[1] * share * examples,
            examples,
            metrics: metrics.collect(),
            totals,
        })
    }

    fn read_totals(&self) -> Result<Vec<(NamedMetric, Vec<Exact>)>> {
        let totals = self.totals.iter();
        let read = totals.map(|(metric, sums)| {
            let data = sums.clone().try_into_data().map_err(Error::internal)?;
            Ok((metric.clone(), data.iter::<f64>().map(Exact).collect()))
        });
        read.collect()
    }

    fn read_numbers(&self) -> Result<Vec<f64>> {
        let numbers = self.numbers.clone().try_into_vec();
        let mut numbers = numbers.map_err(Error::internal)?;
        for (place, tensor) in &self.tensors {
            let what = match place {
                0 => "the loss",
                1 => "the regularization",
                _ => "a metric",
            };
            numbers[*place] = number(what, tensor.clone())?;
        }
        Ok(numbers)
    }
}

fn number(what: &str, tensor: Tensor<1>) -> Result<f64> {
    let data = tensor.try_into_data().map_err(Error::internal)?;
    let mut values = data.iter::<f64>();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(Error::invalid(format!(
            "{what} must be a tensor with one element, got shape {:?}",
            data.shape().to_vec()
        ))),
    }
}
