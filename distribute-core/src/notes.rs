//! What is known of a step of one replica beside its arguments, and what it notes: [`StepNotes`].

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use burn::module::{Module, ParamId};

use crate::parameters::{self, Parameter};
use crate::random::RandomStream;
use crate::sync::lock;
use crate::trace::Fingerprint;
use crate::{Error, Nest, Result};

/// What the sum of a replica's losses was divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LossDivisor {
    /// A number that is the same for all batches and replicas, such as the global batch size.
    Constant(f64),
    /// What follows from the batch of the replica: its examples, times the number of replicas.
    OwnBatch(f64),
}

impl LossDivisor {
    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Self::Constant(value) | Self::OwnBatch(value) => value,
        }
    }
}

/// What is known of the arguments that a step is handed, of its batch above all.
#[derive(Debug, Default, Clone)]
pub struct BatchFacts {
    /// The extents of the first axes of its tensors.
    pub(crate) rows: Vec<usize>,
    /// The sizes of the global batches that it is a part of.
    pub(crate) global_batch_sizes: Vec<usize>,
    /// The examples of all replicas of this process, if each replica's are known.
    pub(crate) examples_here: Option<usize>,
    /// What a training state beside it draws random numbers by.
    pub(crate) random: Option<RandomStream>,
}

impl BatchFacts {
    /// Whether there is a batch, and it has no examples.
    pub(crate) fn is_empty(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|rows| *rows == 0)
    }

    /// The examples of the part: the one number of rows that its tensors have. Tensors of one row
    /// count only where all have one, and a part without rows has no examples.
    pub(crate) fn examples(&self) -> Option<usize> {
        let larger: Vec<_> = self.rows.iter().filter(|rows| **rows > 1).collect();
        match (&larger[..], self.rows.contains(&0)) {
            ([], true) => Some(0),
            ([], false) => self.rows.first().copied(),
            ([one], false) => Some(**one),
            _ => None,
        }
    }

    /// Notes in each replica's facts how many examples all of them have.
    pub(crate) fn count_here(batches: &mut [Self]) {
        let sum = batches.iter().map(Self::examples).sum::<Option<usize>>();
        for batch in batches {
            batch.examples_here = sum;
        }
    }

    /// Adds what is known of a per-replica value and of one replica's part of it.
    pub(crate) fn add(&mut self, part: &impl Nest, global_batch_size: Option<usize>) {
        part.fingerprint(self);
        if let Some(size) = global_batch_size
            && !self.global_batch_sizes.contains(&size)
        {
            self.global_batch_sizes.push(size);
        }
    }
}

impl Fingerprint for BatchFacts {
    fn fixed(&mut self, _: fmt::Arguments<'_>) {}

    fn rows(&mut self, rows: usize) {
        if !self.rows.contains(&rows) {
            self.rows.push(rows);
        }
    }
}

/// What a step of one replica knows of its batch, and what it notes of its losses. Its
/// [`ReplicaContext`](crate::ReplicaContext) has them.
///
/// A loss carries its divisor: what is averaged over batches, as `Fit` does, must be weighted by
/// what it was divided by, which the loss itself does not show. `average_loss` of the crate
/// `distribute-data` and its relatives note it here; a loss function of your own may.
#[derive(Debug, Default)]
pub struct StepNotes {
    batch: Mutex<BatchFacts>,
    divisors: Mutex<Vec<LossDivisor>>,
    is_loss_scaled: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// A failure in a step that the call could not return.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// A parameter of the layer that has failed, while its path is not known.
    layer: Option<ParamId>,
}

impl StepNotes {
    /// The notes of a step that begins with this batch.
    pub(crate) fn begin(&self, batch: &BatchFacts) {
        lock(&self.batch).clone_from(batch);
        lock(&self.divisors).clear();
        self.is_loss_scaled.store(false, Ordering::Relaxed);
        *lock(&self.failure) = None;
    }

    /// What is known of the step's batch.
    pub(crate) fn batch_facts(&self) -> BatchFacts {
        lock(&self.batch).clone()
    }

    /// Notes a failure that a call cannot return, such as the forward pass of a layer, of which
    /// this is a parameter; the first one counts. The step fails with it: at its next call of the
    /// context, and in any case at its end.
    pub(crate) fn fail(&self, error: Error, layer: Option<ParamId>) {
        lock(&self.failure).get_or_insert(Failure { error, layer });
    }

    /// The failure that was noted, if there is one.
    pub(crate) fn failure(&self) -> Option<Error> {
        let failure = lock(&self.failure);
        failure.as_ref().map(|failure| failure.error.clone())
    }

    /// Names the layer that has failed by its path in the model, if it is one of this model's.
    pub(crate) fn name_failure<M: Module>(&self, model: &M) {
        let mut failure = lock(&self.failure);
        let Some(Failure { error, layer }) = &mut *failure else {
            return;
        };
        let Some(id) = *layer else { return };
        let mut found = None;
        let walked = parameters::visit(model, |parameter: Parameter<'_>| {
            if parameter.id == id {
                let path = parameter.path.rsplit_once('.');
                found = path.map(|(path, _)| path.to_string());
            }
            Ok(())
        });
        debug_assert!(walked.is_ok(), "nothing here fails");
        if let Some(path) = found {
            let source = Arc::new(error.clone());
            *error = Error::Leaf { path, source };
            *layer = None;
        }
    }

    /// Notes that a loss of the step was scaled, so that the sum over the replicas is the loss of
    /// the global batch: what a loss function of your own says if it is handed the notes and notes
    /// no divisor. In a step it is
    /// [`ReplicaContext::loss_is_scaled`](crate::ReplicaContext::loss_is_scaled).
    pub fn loss_is_scaled(&self) {
        self.is_loss_scaled.store(true, Ordering::Relaxed);
    }

    /// Whether a loss of the step was scaled.
    pub fn is_loss_scaled(&self) -> bool {
        self.is_loss_scaled.load(Ordering::Relaxed)
    }

    /// The examples of the replica's part of the batch, and of all replicas of this process.
    pub(crate) fn examples(&self) -> Option<(usize, Option<usize>)> {
        let batch = lock(&self.batch);
        Some((batch.examples()?, batch.examples_here))
    }

    /// Whether the step was handed a batch, and it has no examples.
    pub(crate) fn has_no_examples(&self) -> bool {
        lock(&self.batch).is_empty()
    }

    /// Notes that a loss of the step was divided by this number.
    ///
    /// What the loop is told by itself, as `Objective::averaged_over` does, takes precedence.
    pub fn divided_by(&self, divisor: LossDivisor) {
        self.loss_is_scaled();
        let mut divisors = lock(&self.divisors);
        if !divisors.contains(&divisor) {
            divisors.push(divisor);
        }
    }

    /// What the losses of the step were divided by since the last call; `None` if no function has
    /// noted it. For what averages losses over batches.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they were divided by different numbers.
    pub fn take_divisor(&self) -> Result<Option<f64>> {
        match std::mem::take(&mut *lock(&self.divisors))[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.value())),
            [first, second, ..] => Err(Error::invalid(format!(
                "the objective averages losses over different numbers ({first:?} and {second:?}), so \
                 the mean over the examples cannot be told from their sum: pass the same \
                 `global_batch_size` for all of them, or say with `Objective::averaged_over` what the \
                 loss was divided by"
            ))),
        }
    }

    /// The examples of a full global batch, if the step was handed a part of one that knows
    /// ([`PerReplica::of_global_batch`](crate::PerReplica::of_global_batch)).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it was handed parts of batches of different sizes.
    pub fn global_batch_size(&self) -> Result<Option<usize>> {
        match lock(&self.batch).global_batch_sizes[..] {
            [] => Ok(None),
            [size] => Ok(Some(size)),
            [first, second, ..] => Err(Error::invalid(format!(
                "the step was handed batches of different global batch sizes ({first} and {second}), so \
                 none of them is what a loss is divided by: say it with \
                 `AverageLoss::new().global_batch_size(n)`"
            ))),
        }
    }

    /// Refuses losses that cannot be one per example: `found` of them, where the tensors of the
    /// batch that [`run`](crate::StrategyExt::run) has handed to the replica have other numbers of
    /// rows. Tensors of one row count only where all have one.
    ///
    /// Nothing is refused in a step that was handed no per-replica tensors.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which says both numbers.
    pub fn check_per_example(&self, op: &str, found: usize) -> Result<()> {
        let mut rows = lock(&self.batch).rows.clone();
        // A tensor of one element beside tensors of several examples is a setting, not a batch.
        if rows.iter().any(|rows| *rows > 1) {
            rows.retain(|rows| *rows > 1);
        }
        if rows.is_empty() || rows.contains(&found) {
            return Ok(());
        }
        let listed: Vec<_> = rows.iter().map(ToString::to_string).collect();
        let advice = match losses_of_one(found, &rows) {
            Some((examples, each)) => format!(
                "losses of tokens or pixels keep the axis of the examples, as `reshape([{examples}, \
                 {each}])` gives it back"
            ),
            None => {
                "pass one loss per example, which is not reduced yet (no `mean()` or `sum()` over \
                     the examples; average other axes with `mean_dim`)"
                    .to_string()
            }
        };
        Err(Error::invalid(format!(
            "{op}: the loss has {found} elements along its first axis, but the replica's batch has {} \
             examples: {advice}",
            listed.join(" or ")
        )))
    }
}

/// The examples and how many losses each has, if `found` losses are several of each in one row.
fn losses_of_one(found: usize, rows: &[usize]) -> Option<(usize, usize)> {
    let examples = *rows.iter().max()?;
    let whole = examples > 0 && found > examples && found.is_multiple_of(examples);
    whole.then(|| (examples, found / examples))
}
