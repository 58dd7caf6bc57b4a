//! Loss, metrics and outputs without gradients.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::TensorData;
use distribute_core::{
    BatchSource, Error, Mirrored, Nest, PerReplica, Result, Strategy, StrategyExt, TrainState,
    concatenate,
};

use super::meter::Meter;
use super::objective::{Forward, Pass, StepSums};
use super::{FitError, Logs, Mode, Objective, StepContext, worker_sync};

/// What [`evaluate`] gives.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// Averages over all examples.
    pub logs: Logs,
    /// The number of examples.
    pub examples: u64,
    /// Time for all of it, with reading the data.
    pub time: Duration,
}

/// Runs the objective over the source's epoch 0 without gradients, on the validation copy of the
/// model (`Module::valid`: dropout is off), and averages over the examples of all batches and
/// replicas. Short and empty batches count by their examples.
///
/// Blocks until all batches are done. A mean of f32 losses, added up in f64 on the host in the
/// order of the batches.
///
/// # Errors
/// The errors of the source and the objective; [`FitError::NoExamples`].
pub fn evaluate<S, M, D, F>(
    strategy: &S,
    state: &Mirrored<TrainState<M>>,
    data: &D,
    objective: F,
) -> Result<Evaluation>
where
    S: Strategy + ?Sized,
    M: Module + Sync + 'static,
    D: BatchSource + ?Sized,
    F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
{
    let started = Instant::now();
    let strategy = strategy.handle();
    let mut meter = Meter::new(&strategy);
    let strategy = &*strategy;
    let mut all = || {
        for (batch, rows) in worker_sync::batches(strategy, data, 0, 0)?.enumerate() {
            let pass = Pass::evaluation(Mode::Evaluate, batch);
            meter.add(sums(strategy, state, pass, rows?, &objective)?)?;
        }
        meter.finish("the data")
    };
    let (logs, examples) = worker_sync::or_abort(strategy, all())?;
    Ok(Evaluation {
        logs,
        examples: examples as u64,
        time: started.elapsed(),
    })
}

/// Runs a forward pass over the source's epoch 0 and concatenates its outputs along their first
/// dimension: batches in order, within a batch replica 0's rows first, which is the order of the
/// source. Every tensor of the output needs one row per example.
///
/// Rows that only fill batches up ([`BatchSource::padding`]) are left out.
///
/// The whole output is held in host memory; the model is its validation copy.
///
/// # Errors
/// The errors of the source and the forward pass; [`Error::Shape`] if the outputs' other dimensions
/// differ; [`FitError::NoExamples`] for a source without batches.
pub fn predict<S, M, D, F, O>(
    strategy: &S,
    state: &Mirrored<TrainState<M>>,
    data: &D,
    forward: F,
) -> Result<O>
where
    S: Strategy + ?Sized,
    M: Module + Sync + 'static,
    D: BatchSource + ?Sized,
    F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<O> + Sync,
    O: Nest + Send + 'static,
{
    let strategy = &*strategy.handle();
    let all = || {
        let order = order_of_replicas(strategy, data)?;
        let mut outputs: Option<O> = None;
        let mut rows: Vec<Vec<TensorData>> = Vec::new();
        for (index, batch) in worker_sync::batches(strategy, data, 0, 0)?.enumerate() {
            let pass = Pass::evaluation(Mode::Predict, index);
            let parts = forward_on(strategy, state, pass, batch?, &forward)?;
            let mut parts = parts.into_values();
            let lists = parts.iter_mut().map(Nest::take_leaves);
            let mut lists = lists.collect::<Result<Vec<_>>>()?;
            let padding = data.padding(index).unwrap_or_default();
            for (outputs, padding) in lists.iter_mut().zip(padding).filter(|(_, rows)| *rows > 0) {
                for output in outputs {
                    *output = without_last_rows(output, padding)?;
                }
            }
            if let Some(workers) = strategy.workers() {
                lists = workers.gather("predict", &lists)?;
            }
            let mut lists: Vec<_> = order.iter().zip(lists).collect();
            lists.sort_by_key(|(part, _)| **part);
            let lists = lists.into_iter().map(|(_, leaves)| leaves).collect();
            rows.push(concatenate(lists, 0)?);
            outputs = outputs.or_else(|| parts.into_iter().next());
        }
        let no_batches = || Error::from(FitError::NoExamples { what: "the data" });
        let mut outputs = outputs.ok_or_else(no_batches)?;
        outputs.put_leaves(concatenate(rows, 0)?)?;
        Ok(outputs)
    };
    worker_sync::or_abort(strategy, all())
}

/// An output without the rows of what only fills its batch up.
fn without_last_rows(output: &TensorData, padding: usize) -> Result<TensorData> {
    let mut shape = output.shape().to_vec();
    let rows = shape.first().copied().unwrap_or(0);
    let Some(kept) = rows.checked_sub(padding).filter(|_| !shape.is_empty()) else {
        return Err(Error::invalid(format!(
            "predict: an output of shape {shape:?} for a batch whose last {padding} rows only fill \
             it up; give one row per example"
        )));
    };
    let bytes = output.as_bytes();
    let bytes = bytes[..bytes.len() / rows.max(1) * kept].to_vec();
    shape[0] = kept;
    Ok(TensorData::from_bytes_vec(bytes, shape, output.dtype()))
}

/// Which part of a global batch each replica of all workers reads, in replica order.
fn order_of_replicas<D: BatchSource + ?Sized>(
    strategy: &dyn Strategy,
    data: &D,
) -> Result<Vec<usize>> {
    let ids = || strategy.replicas().iter().map(|it| it.id).collect();
    let own: Vec<usize> = data.parts().unwrap_or_else(ids);
    let all = worker_sync::all_of(strategy, "the parts of the replicas", own)?;
    Ok(all.into_iter().flatten().collect())
}

/// What a forward pass gives on each replica, on the validation copy of its model.
fn forward_on<M: Module + Sync + 'static, B: Nest + Send, R: Nest + Send + 'static>(
    strategy: &dyn Strategy,
    state: &Mirrored<TrainState<M>>,
    pass: Pass,
    batch: PerReplica<B>,
    forward: &impl Forward<M, B, R>,
) -> Result<PerReplica<R>> {
    // A state that is lent with `&` is in evaluation mode.
    strategy.run((state, batch), |replica, (state, batch)| {
        forward(&StepContext { replica, pass }, &state.model, batch)
    })
}

/// The sums of an objective on each replica, without gradients.
pub(super) fn sums<M: Module + Sync + 'static, B: Nest + Send>(
    strategy: &dyn Strategy,
    state: &Mirrored<TrainState<M>>,
    pass: Pass,
    batch: PerReplica<B>,
    objective: &impl Forward<M, B, Objective>,
) -> Result<PerReplica<StepSums>> {
    let forward = |ctx: &StepContext<'_>, model: &M, batch: B| {
        let given = Objective::of_batch(ctx, model, batch, objective)?;
        Ok(given.into_sums(ctx.global_batch_size()?))
    };
    forward_on(strategy, state, pass, batch, &forward)
}
