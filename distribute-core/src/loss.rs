//! What a function that averages losses says to the step that calls it.
//!
//! A loss carries its divisor: what is averaged over batches, as `Fit` does, must be
//! weighted by what it was divided by, which the loss itself does not show. `average_loss`
//! of the crate `distribute-data` and its relatives call these functions; a loss function of your
//! own may.

use crate::{Error, ReplicaContext, Result, scope};

pub use crate::scope::LossDivisor;

/// Says that a loss of the running step was divided by this number. Outside of a step it does
/// nothing.
///
/// What the loop is told by itself, as `Objective::averaged_over` does, takes precedence.
pub fn divided_by(divisor: LossDivisor) {
    scope::with_step(|notes| {
        if !notes.divisors.contains(&divisor) {
            notes.divisors.push(divisor);
        }
    });
}

/// The examples of a full global batch, if the running step was handed a batch that knows
/// ([`PerReplica::of_global_batch`](crate::PerReplica::of_global_batch)).
///
/// # Errors
/// [`Error::InvalidArgument`] if it was handed parts of batches of different sizes.
pub fn global_batch_size() -> Result<Option<usize>> {
    let sizes = scope::with_step(|notes| notes.batch.global_batch_sizes.clone());
    match sizes.unwrap_or_default()[..] {
        [] => Ok(None),
        [size] => Ok(Some(size)),
        [first, second, ..] => Err(Error::invalid(format!(
            "the step was handed batches of different global batch sizes ({first} and {second}), so \
             none of them is what a loss is divided by: say it with \
             `AverageLoss::new().global_batch_size(n)`"
        ))),
    }
}

/// Refuses losses that cannot be one per example: `found` of them, where the tensors of the batch
/// that [`run`](crate::StrategyExt::run) has handed to the replica have other numbers of rows.
/// Tensors of one row count only where all have one.
///
/// Nothing is refused outside of a step, and in one that was handed no per-replica tensors.
///
/// # Errors
/// [`Error::InvalidArgument`], which says both numbers.
pub fn check_per_example(op: &str, found: usize) -> Result<()> {
    let mut rows = scope::with_step(|notes| notes.batch.rows.clone()).unwrap_or_default();
    // A tensor of one element beside those of several examples is a setting: no batch of one.
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
        None => "pass one loss per example, which is not reduced yet (no `mean()` or `sum()` over \
                 the examples; average other axes with `mean_dim`)"
            .to_string(),
    };
    Err(Error::invalid(format!(
        "{op}: the loss has {found} elements along its first axis, but the replica's batch has {} \
         examples: {advice}",
        listed.join(" or ")
    )))
}

/// The examples and how many losses each has, if `found` losses are several of each in one row.
fn losses_of_one(found: usize, rows: &[usize]) -> Option<(usize, usize)> {
    let examples = *rows.iter().max()?;
    let whole = examples > 0 && found > examples && found.is_multiple_of(examples);
    whole.then(|| (examples, found / examples))
}

/// What the losses of the running step were divided by since the last call; `None` if nobody said,
/// and outside of a step. For what averages losses over batches.
///
/// # Errors
/// [`Error::InvalidArgument`] if they were divided by different numbers.
pub fn take_divisor() -> Result<Option<f64>> {
    let divisors = scope::with_step(|notes| std::mem::take(&mut notes.divisors));
    match divisors.unwrap_or_default()[..] {
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

impl ReplicaContext {
    /// The examples of a full global batch, if the step was handed a part of one that knows: what
    /// losses are divided by. Batches of `distribute-data` know, and those of `Fit`; others are
    /// told by [`PerReplica::of_global_batch`](crate::PerReplica::of_global_batch).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for parts of batches of different sizes.
    pub fn global_batch_size(&self) -> Result<Option<usize>> {
        global_batch_size()
    }
}
