//! Loss, metrics and outputs without gradients.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::TensorData;
use distribute_core::{
    Borrowed, Error, Mirrored, Nest, PerReplica, ReplicaContext, Result, Strategy, StrategyExt,
    TrainState, concatenate, trace,
};

use super::meter::Meter;
use super::objective::{Pass, evaluate_on};
use super::{BatchSource, FitError, Logs, Mode, Objective, StepContext, worker_sync};

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
/// Those of the source and the objective; [`FitError::NoExamples`].
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
    let mut evaluator = Evaluator::new(strategy, state, 0, 0)?;
    let all = || {
        for batch in worker_sync::batches(strategy, data, 0, 0)? {
            evaluator.batch(strategy, state, batch?, &objective)?;
        }
        evaluator.finish(strategy, "the data")
    };
    let (logs, examples) = worker_sync::or_abort(strategy, all())?;
    Ok(Evaluation {
        logs,
        examples,
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
/// Those of the source and the forward pass; [`Error::Shape`] if the outputs' other dimensions
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
    let predicted = predict_all(strategy, state, data, forward);
    worker_sync::or_abort(strategy, predicted)
}

fn predict_all<S, M, D, F, O>(
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
    let models = validation_models(strategy, state)?;
    let order = order_of_replicas(strategy, data)?;
    let mut outputs: Option<O> = None;
    let mut rows: Vec<Vec<TensorData>> = Vec::new();
    for (index, batch) in worker_sync::batches(strategy, data, 0, 0)?.enumerate() {
        let pass = Pass {
            mode: Mode::Predict,
            seed: 0,
            epoch: 0,
            batch: index,
        };
        let forward = |replica: &ReplicaContext, model: &M, batch| {
            forward(&StepContext { replica, pass }, model, batch)
        };
        let parts = run_on_models(strategy, state, models.as_ref(), batch?, forward)?;
        let mut parts = parts.into_values();
        let mut lists = parts
            .iter_mut()
            .map(Nest::take_leaves)
            .collect::<Result<Vec<_>>>()?;
        if let Some(padding) = data.padding(index) {
            leave_padding_out(&mut lists, &padding)?;
        }
        if let Some(workers) = strategy.workers() {
            lists = workers.gather("predict", &lists)?;
        }
        let mut lists: Vec<_> = order.iter().copied().zip(lists).collect();
        lists.sort_by_key(|(part, _)| *part);
        let lists = lists.into_iter().map(|(_, leaves)| leaves).collect();
        rows.push(concatenate(lists, 0)?);
        if outputs.is_none() {
            outputs = parts.into_iter().next();
        }
    }
    let no_batches = || Error::from(FitError::NoExamples { what: "the data" });
    let mut outputs = outputs.ok_or_else(no_batches)?;
    outputs.put_leaves(concatenate(rows, 0)?)?;
    Ok(outputs)
}

/// The outputs of each replica without the rows of what only fills its batch up.
fn leave_padding_out(outputs: &mut [Vec<TensorData>], padding: &[usize]) -> Result<()> {
    for (outputs, padding) in outputs.iter_mut().zip(padding) {
        for output in outputs.iter_mut().filter(|_| *padding > 0) {
            *output = without_last_rows(output, *padding)?;
        }
    }
    Ok(())
}

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
fn order_of_replicas<S, D>(strategy: &S, data: &D) -> Result<Vec<usize>>
where
    S: Strategy + ?Sized,
    D: BatchSource + ?Sized,
{
    let ids = || {
        strategy
            .replicas()
            .iter()
            .map(|replica| replica.id)
            .collect()
    };
    let own: Vec<usize> = data.parts().unwrap_or_else(ids);
    match strategy.workers() {
        None => Ok(own),
        Some(workers) => {
            let all = workers.all_gather_json("the parts of the replicas", &own)?;
            Ok(all.into_iter().flatten().collect())
        }
    }
}

/// Every replica's model without autodiff and training flags; none under a strategy that compiles
/// steps, where the models stay on the devices. Shares the parameters' storage, so
/// drop it before the next update, which would have to copy them.
pub(super) fn validation_models<S: Strategy + ?Sized, M: Module + 'static>(
    strategy: &S,
    state: &Mirrored<TrainState<M>>,
) -> Result<Option<PerReplica<M>>> {
    if strategy.tracer().is_some() {
        return Ok(None);
    }
    let models = state.values()?.iter().map(|state| state.model.valid());
    Ok(Some(PerReplica::new(models.collect())))
}

/// Runs a forward pass on the models for evaluation, or on those of the state if there are none.
pub(super) fn run_on_models<S, M, B, R, F>(
    strategy: &S,
    state: &Mirrored<TrainState<M>>,
    models: Option<&PerReplica<M>>,
    batch: PerReplica<B>,
    forward: F,
) -> Result<PerReplica<R>>
where
    S: Strategy + ?Sized,
    M: Module + Sync + 'static,
    B: Nest + Send,
    R: Nest + Send + 'static,
    F: Fn(&ReplicaContext, &M, B) -> Result<R> + Sync,
{
    match models {
        // The state is passed for its checks: right strategy, not poisoned.
        Some(models) => strategy.run(
            (state, Borrowed(models), batch),
            |replica, (_, model, batch)| forward(replica, model, batch),
        ),
        None => strategy.run((state, batch), |replica, (state, batch)| {
            forward(replica, &trace::valid(&state.model)?, batch)
        }),
    }
}

/// Evaluation batch by batch.
pub(super) struct Evaluator<M> {
    models: Option<PerReplica<M>>,
    meter: Meter,
    pass: Pass,
}

impl<M: Module + Sync + 'static> Evaluator<M> {
    pub(super) fn new<S: Strategy + ?Sized>(
        strategy: &S,
        state: &Mirrored<TrainState<M>>,
        seed: u64,
        epoch: usize,
    ) -> Result<Self> {
        Ok(Self {
            models: validation_models(strategy, state)?,
            meter: Meter::default(),
            pass: Pass {
                mode: Mode::Evaluate,
                seed,
                epoch,
                batch: 0,
            },
        })
    }

    pub(super) fn batch<S, B, F>(
        &mut self,
        strategy: &S,
        state: &Mirrored<TrainState<M>>,
        batch: PerReplica<B>,
        objective: &F,
    ) -> Result<()>
    where
        S: Strategy + ?Sized,
        B: Nest + Send,
        F: Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Sync,
    {
        let pass = self.pass;
        let forward = |replica: &ReplicaContext, model: &M, batch| {
            evaluate_on(replica, pass, (model, batch), objective)
        };
        let sums = run_on_models(strategy, state, self.models.as_ref(), batch, forward)?;
        self.pass.batch += 1;
        self.meter.add(&*strategy.handle(), sums)
    }

    /// The averages and the number of examples.
    pub(super) fn finish<S: Strategy + ?Sized>(
        mut self,
        strategy: &S,
        what: &'static str,
    ) -> Result<(Logs, u64)> {
        let handle = strategy.handle();
        let examples = self.meter.read(&*handle)?.examples() as u64;
        if examples == 0 {
            return Err(FitError::NoExamples { what }.into());
        }
        Ok((self.meter.logs(&*handle)?, examples))
    }
}
