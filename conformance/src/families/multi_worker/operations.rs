//! The operations, as one worker does them with all the others.

use burn::tensor::{Tensor, TensorData};
use distribute_core::checkpoint::{Checkpoint, CheckpointManager, Metadata, load_latest};
use distribute_core::{
    Error, MultiWorkerMirroredStrategy, PerReplica, ReduceOp, Replicated, Sgd, Strategy,
    StrategyExt, TrainState, VariableAggregation, VariableOptions, VariableSynchronization,
    current_strategy,
};
use distribute_data::split::replica_range;
use distribute_data::{AverageLoss, average_loss, scale_regularization_loss};
use serde_json::{Value, json};

use crate::compare::{Tolerance, equal};
use crate::error_kind::ErrorKind;
use crate::families::support::models::{Linear, Model};
use crate::families::support::{aggregation, reduce_op, synchronization, take_rows};
use crate::json::Fields;
use crate::outcome::{Checked, Deviation, Failure, Outcome, passed};
use crate::tensors::{scalar, tensor};

/// One worker's part of a case.
pub(super) struct Task<'a> {
    pub(super) strategy: &'a MultiWorkerMirroredStrategy,
    /// What TensorFlow's worker saw.
    pub(super) expect: &'a Value,
    pub(super) tolerance: Tolerance,
}

impl Task<'_> {
    /// `op` is a name with its parameters behind it: `reduce_SUM_s3_ax0`.
    pub(super) fn check(&self, op: &str) -> Checked {
        match op {
            "properties" => self.properties(),
            "all_reduce_nested" => self.all_reduce_nested(),
            "local_results" => self.local_results(),
            "merge_call" => self.merge_call(),
            "scaled_loss" => self.scaled_loss(),
            "scaled_regularization" => self.scaled_regularization(),
            "variable_initial_value" => self.initial_value(),
            "train_linear_sgd" => self.train(),
            "checkpoint_write" => self.checkpoint(),
            "cross_replica_barrier_done" | "before" => self.ones(),
            "all_reduce_shape_mismatch" => self.fails(1 + self.strategy.replicas()[0].id),
            "after_peer_exit" => self.fails(1),
            op if op.starts_with("all_reduce_timeout") => self.fails(1),
            op if op.starts_with("variable_assign_add_") => self.assign_add(op),
            op if op.starts_with("reduce_nondist_") => self.reduce_plain(op),
            op if op.starts_with("all_reduce_") => self.all_reduce(op),
            op if op.starts_with("reduce_") => self.reduce(op),
            op if op.starts_with("all_gather_") => self.all_gather(op),
            op if op.starts_with("gather_") => self.gather(op),
            other => Err(Failure::schema(format!("unknown operation `{other}`"))),
        }
    }

    /// This worker's part of the values of all replicas.
    fn values(&self) -> Result<PerReplica<TensorData>, Failure> {
        let all = self.expect.list("values")?;
        self.own(&all.iter().map(tensor).collect::<Result<Vec<_>, _>>()?)
    }

    fn own<T: Clone>(&self, all: &[T]) -> Result<PerReplica<T>, Failure> {
        let missing = || Failure::schema("fewer values than replicas");
        let own = self.strategy.replicas().iter();
        let own = own.map(|replica| all.get(replica.id).cloned().ok_or_else(missing));
        Ok(PerReplica::new(own.collect::<Result<Vec<_>, _>>()?))
    }

    fn same(&self, key: &str, found: &TensorData) -> Checked {
        passed(self.tolerance.same(self.expect.field(key)?, found))
    }

    fn same_list(&self, key: &str, found: &[TensorData]) -> Checked {
        passed(self.tolerance.same_list(self.expect.field(key)?, found))
    }

    fn properties(&self) -> Checked {
        let cluster = self
            .strategy
            .cluster()
            .ok_or_else(|| Failure::got("no cluster"))?;
        let mut sizes = serde_json::Map::new();
        for job in cluster.spec().jobs() {
            sizes.insert(job.to_string(), json!(cluster.spec().task_count(job)));
        }
        let chief = self.strategy.is_chief();
        let found = json!({
            "num_replicas_in_sync": self.strategy.num_replicas_in_sync(),
            "should_checkpoint": chief,
            "should_save_summary": chief,
            "task_type": cluster.task_type().as_str(),
            "task_id": cluster.task_id(),
            "cluster_spec": sizes,
            "rank": cluster.rank(),
            "local_replicas": self.strategy.replicas().len(),
        });
        for (key, found) in found.as_object().into_iter().flatten() {
            equal(self.expect.field(key)?, found).map_err(|failure| failure.at(key))?;
        }
        // TensorFlow writes job and task into the names of devices; here there is one per replica.
        let devices = self.expect.list("worker_devices")?.len();
        passed(equal(
            &json!(devices),
            &json!(self.strategy.replicas().len()),
        ))
    }

    fn reduce(&self, op: &str) -> Checked {
        let reduction = reduction(op)?;
        let values = self.values()?;
        let found = match axis(op) {
            None => self.strategy.reduce(reduction, values)?,
            Some(axis) => self.strategy.reduce_axis(reduction, values, &[axis])?,
        };
        self.same("result", &found)
    }

    fn reduce_plain(&self, op: &str) -> Checked {
        let value = tensor(self.expect.field("value")?)?;
        let found = self.strategy.reduce(reduction(op)?, Replicated(value))?;
        self.same("result", &found)
    }

    fn all_reduce(&self, op: &str) -> Checked {
        let reduction = reduction(op)?;
        let found = self.strategy.run(self.values()?, |ctx, value| {
            ctx.all_reduce(reduction, value)
        })?;
        self.same_list("result", found.values())
    }

    /// A structure `{"a": t, "b": [t, t]}`.
    fn all_reduce_nested(&self) -> Checked {
        let leaves = |value: &Value| -> Result<Vec<TensorData>, Failure> {
            let rest = value.list("b")?.iter();
            std::iter::once(value.field("a")?)
                .chain(rest)
                .map(tensor)
                .collect()
        };
        let all = self.expect.list("values")?.iter().map(leaves);
        let own = self.own(&all.collect::<Result<Vec<_>, _>>()?)?;
        let found = self
            .strategy
            .run(own, |ctx, value| ctx.all_reduce(ReduceOp::Sum, value))?;
        let result = self.expect.field("result")?;
        let columns = std::iter::once(result.field("a")?).chain(result.list("b")?);
        for (leaf, column) in columns.enumerate() {
            let found: Vec<_> = found
                .values()
                .iter()
                .map(|value| value[leaf].clone())
                .collect();
            self.tolerance.same_list(column, &found)?;
        }
        Ok(Outcome::Passed)
    }

    fn gather(&self, op: &str) -> Checked {
        let axis = axis(op).ok_or_else(|| Failure::schema("no axis"))?;
        let found = self.strategy.gather(self.values()?, axis)?;
        self.same("result", &found)
    }

    fn all_gather(&self, op: &str) -> Checked {
        let axis = axis(op).ok_or_else(|| Failure::schema("no axis"))?;
        let gathered = |values| {
            self.strategy
                .run(values, |ctx, value| ctx.all_gather(value, axis))
        };
        if self.expect.get("error").is_none() {
            return self.same_list("result", gathered(self.values()?)?.values());
        }
        // TensorFlow fails in a traced step with one replica per worker. The case has no values.
        let replicas = self.strategy.num_replicas_in_sync();
        let made: Vec<TensorData> = (0..replicas)
            .map(|replica| made_up(op, replica))
            .collect::<Result<_, _>>()?;
        let found = gathered(self.own(&made)?)?;
        let device = distribute_core::Device::flex();
        let axis = usize::try_from(axis).map_err(|_| Failure::schema("a negative axis"))?;
        let expected = match made[0].rank() {
            1 => concatenated::<1>(made, axis, &device),
            _ => concatenated::<2>(made, axis, &device),
        };
        for found in found.values() {
            equal(
                &json!(expected.shape().to_vec()),
                &json!(found.shape().to_vec()),
            )?;
            equal(
                &json!(expected.iter::<f64>().collect::<Vec<_>>()),
                &json!(found.iter::<f64>().collect::<Vec<_>>()),
            )?;
        }
        Ok(Outcome::Deviation(Deviation::TracedGather))
    }

    /// A number per replica: ten times its id.
    fn local_results(&self) -> Checked {
        let value = |id| scalar_i32(10 * id);
        let values = self.strategy.values_from(value);
        self.same_list("result", &self.strategy.local_results(values))
    }

    /// A number per replica, one more than its id, summed over all.
    fn merge_call(&self) -> Checked {
        let count = self.strategy.replicas().len();
        let found = self.strategy.run((), |ctx, ()| {
            ctx.merge_call(ctx.replica_id() as f32 + 1.0, |values| {
                let sum = current_strategy().reduce(ReduceOp::Sum, values)?;
                Ok(PerReplica::new(vec![sum; count]))
            })
        })?;
        self.same_list("result", &scalars(found))
    }

    /// Two examples per replica whose average over the global batch is what the case says.
    fn scaled_loss(&self) -> Checked {
        let local = self.expect.list("local")?;
        let mut losses = Vec::new();
        for value in local {
            let value = tensor(value)?.iter::<f64>().next().unwrap_or(f64::NAN);
            losses.push(value * 2.0 * self.strategy.num_replicas_in_sync() as f64);
        }
        let found = self.strategy.run(PerReplica::new(losses), |ctx, sum| {
            let parts = [0.25 * sum as f32, 0.75 * sum as f32];
            let losses = Tensor::<1>::from_floats(parts, ctx.device());
            let loss = average_loss(ctx, losses)?;
            Ok(loss.into_scalar::<f32>())
        })?;
        self.same_list("local", &scalars(found.clone()))?;
        let sum = self.strategy.reduce(ReduceOp::Sum, found)?;
        self.same("sum", &scalar(sum))
    }

    /// A term of 6, scaled down to each replica's share.
    fn scaled_regularization(&self) -> Checked {
        let found = self.strategy.run((), |ctx, ()| {
            let whole = Tensor::<1>::from_floats([6.0], ctx.device());
            Ok(scale_regularization_loss(ctx, whole)?.into_scalar::<f32>())
        })?;
        passed(self.tolerance.same_list(self.expect, &scalars(found)))
    }

    /// Each worker passes `100 * rank + 1`.
    fn initial_value(&self) -> Checked {
        let rank = self.strategy.workers().map_or(0, |workers| workers.index());
        let initial = scalar(100.0 * rank as f32 + 1.0);
        let variable = self
            .strategy
            .variable(initial, VariableOptions::default())?;
        self.same_list("result", &variable.local_values()?)
    }

    /// `[1, 2]`, to which replica `i` adds `(i + 1) * [10, 20]`.
    fn assign_add(&self, op: &str) -> Checked {
        let (synchronization, aggregation) = variable_options(op)?;
        let options = VariableOptions {
            synchronization,
            aggregation,
            ..VariableOptions::default()
        };
        let initial = TensorData::new(vec![1.0_f32, 2.0], [2]);
        let variable = self.strategy.variable(initial, options)?;
        let added = self.strategy.run((), |ctx, ()| {
            let factor = ctx.replica_id() as f32 + 1.0;
            let value = TensorData::new(vec![10.0 * factor, 20.0 * factor], [2]);
            variable.assign_add(ctx, value)
        });
        let on_write = synchronization == VariableSynchronization::OnWrite;
        if on_write && aggregation == VariableAggregation::None {
            // TensorFlow lets the copies drift apart.
            return match added.map_err(|error| ErrorKind::of(&error)) {
                Err(ErrorKind::NoAggregation) => Ok(Outcome::Deviation(Deviation::NoDrift)),
                other => Err(Failure::new("an error of its own", format!("{other:?}"))),
            };
        }
        added?;
        if on_write && aggregation == VariableAggregation::OnlyFirstReplica {
            // TensorFlow takes the first replica of each worker: their copies drift apart.
            let expected = TensorData::new(vec![11.0_f32, 22.0], [2]);
            for value in variable.local_values()? {
                equal(
                    &json!(format!("{expected:?}")),
                    &json!(format!("{value:?}")),
                )?;
            }
            return Ok(Outcome::Deviation(Deviation::FirstReplica));
        }
        self.same_list("local", &variable.local_values()?)?;
        match (
            variable.read(self.strategy),
            self.expect.get("read_cross_replica_error"),
        ) {
            (Ok(found), None) => self.same("read_cross_replica", &found),
            (Err(error), Some(expected)) => {
                let (class, message) = (expected.text("class")?, expected.text("message")?);
                let kinds = ErrorKind::expected(class, message);
                if kinds.contains(&ErrorKind::of(&error)) {
                    Ok(Outcome::Passed)
                } else {
                    Err(Failure::new(class, error))
                }
            }
            (found, _) => Err(Failure::got(format!("{found:?}"))),
        }
    }

    /// Steps of gradient descent on all rows of a linear model.
    fn train(&self) -> Checked {
        let expect = self.expect;
        let rate = expect.float("learning_rate")?;
        let (x, y) = (tensor(expect.field("x")?)?, tensor(expect.field("y")?)?);
        let rows: Vec<usize> = (0..x.shape()[0]).collect();
        let replicas = self.strategy.num_replicas_in_sync();
        let mut state = self.strategy.try_scope(|device| {
            let model = Linear::with_weights(&expect["init"], device)?;
            Ok(TrainState::new(model, Sgd::new(rate)))
        })?;
        for wanted in expect.list("losses")? {
            let own = self.strategy.replicas().iter().map(|replica| {
                let part = &rows[replica_range(rows.len(), replicas, replica.id)];
                let (x, y) = (take_rows(&x, part)?, take_rows(&y, part)?);
                Ok(Linear::batch(x, y, &replica.device))
            });
            let batches = PerReplica::new(own.collect::<Result<Vec<_>, Failure>>()?);
            let losses = self
                .strategy
                .run((&mut state, batches), |ctx, (state, batch)| {
                    let losses = state.model.losses(batch);
                    let loss = AverageLoss::new()
                        .global_batch_size(rows.len())
                        .of(ctx, losses)?;
                    let gradients = ctx.gradient(&loss, &state.model)?;
                    state.apply_gradients(ctx, gradients)?;
                    Ok(loss.into_scalar::<f32>())
                })?;
            let loss = self.strategy.reduce(ReduceOp::Sum, losses)?;
            self.tolerance.same(wanted, &scalar(loss))?;
        }
        for state in state.values()? {
            let tensors = state.to_tensors()?;
            for name in ["w", "b"] {
                let missing = || Failure::got(format!("no weight {name}"));
                let found = tensors.get(&format!("model/{name}")).ok_or_else(missing)?;
                self.same(name, found)?;
            }
        }
        Ok(Outcome::Passed)
    }

    /// A mirrored value and a sum over the replicas, written by the chief and read by all.
    fn checkpoint(&self) -> Checked {
        let strategy = self.strategy;
        let initial = TensorData::new(vec![1.0_f32, 2.0], [2]);
        let value = strategy.variable(initial, VariableOptions::default())?;
        let count = strategy.variable(scalar(0.0), VariableOptions::on_read_sum())?;
        strategy.run((), |ctx, ()| {
            count.assign_add(ctx, ctx.replica_id() as f32 + 1.0)
        })?;
        // All take part: reading the sum needs every worker.
        let tensors = [("v", value.read(strategy)?), ("c", count.read(strategy)?)];
        let folder = strategy.is_chief().then(tempfile::tempdir).transpose()?;
        let path = folder.as_ref().map_or(String::new(), |folder| {
            folder.path().to_string_lossy().into_owned()
        });
        let workers = strategy
            .workers()
            .ok_or_else(|| Failure::got("no workers"))?;
        let path = workers.gather_text(&path)?.swap_remove(0);
        if strategy.is_chief() {
            let mut checkpoint = Checkpoint::new(Metadata::new(1));
            for (name, data) in tensors {
                checkpoint.tensors.insert(name.to_string(), data);
            }
            CheckpointManager::open(&path)?.save(&checkpoint)?;
        }
        workers.barrier()?;
        let read = load_latest(&path)?.found;
        let (_, read) = read.ok_or_else(|| Failure::got("no checkpoint"))?;
        workers.barrier()?;
        for name in ["v", "c"] {
            let missing = || Failure::got(format!("no {name}"));
            self.same(name, read.tensors.get(name).ok_or_else(missing)?)?;
        }
        equal(self.expect.field("is_chief")?, &json!(strategy.is_chief()))?;
        // TensorFlow's other workers write a copy that they throw away.
        Ok(if strategy.is_chief() {
            Outcome::Passed
        } else {
            Outcome::Deviation(Deviation::ChiefWrites)
        })
    }

    /// A one per replica, summed.
    fn ones(&self) -> Checked {
        if let Some(workers) = self.strategy.workers() {
            workers.barrier()?;
        }
        let ones = self.strategy.values_from(|_| 1.0_f32);
        let sum = self.strategy.reduce(ReduceOp::Sum, ones)?;
        passed(self.tolerance.same_number(self.expect, f64::from(sum)))
    }

    /// A sum that cannot come about; which error it is depends on time, in TensorFlow too.
    fn fails(&self, size: usize) -> Checked {
        let found = self.strategy.run((), |ctx, ()| {
            ctx.all_reduce(ReduceOp::Sum, vec![1.0_f32; size])
        });
        let wanted = self.expect.field("error")?.text("class")?;
        match found.map_err(|error| error.root_cause().clone()) {
            Err(Error::Collective(_) | Error::Shape { .. } | Error::InvalidArgument { .. }) => {
                Ok(Outcome::Passed)
            }
            other => Err(Failure::new(wanted, format!("{other:?}"))),
        }
    }
}

/// `SUM` or `MEAN` in the name.
fn reduction(op: &str) -> Result<ReduceOp, Failure> {
    let found = op.split('_').find_map(|part| reduce_op(&json!(part)));
    found.ok_or_else(|| Failure::schema(format!("no reduction in `{op}`")))
}

/// `ax0` at the end of the name; none for `axNone`.
fn axis(op: &str) -> Option<i64> {
    op.rsplit('_').next()?.strip_prefix("ax")?.parse().ok()
}

/// `ON_READ_SUM` at the end of the name.
fn variable_options(op: &str) -> Result<(VariableSynchronization, VariableAggregation), Failure> {
    let text = op.trim_start_matches("variable_assign_add_");
    // The first has one underscore in its name.
    let (end, _) = text
        .match_indices('_')
        .nth(1)
        .ok_or_else(|| Failure::schema(format!("no options in `{op}`")))?;
    Ok((
        synchronization(&text[..end])?,
        aggregation(&text[end + 1..])?,
    ))
}

/// A value of the shape in the name, `s2x3`, or with a row less on later replicas for `uneven`.
fn made_up(op: &str, replica: usize) -> Result<TensorData, Failure> {
    let shape = match op.split('_').find(|part| part.starts_with('s')) {
        _ if op.contains("uneven") => vec![if replica == 0 { 2 } else { 1 }, 2],
        Some(part) => part[1..]
            .split('x')
            .map(str::parse)
            .collect::<Result<Vec<usize>, _>>()
            .map_err(|_| Failure::schema(format!("no shape in `{op}`")))?,
        None => return Err(Failure::schema(format!("no shape in `{op}`"))),
    };
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (100 * replica + i) as f32).collect();
    Ok(TensorData::new(values, shape))
}

fn concatenated<const D: usize>(
    values: Vec<TensorData>,
    axis: usize,
    device: &distribute_core::Device,
) -> TensorData {
    let tensors = values
        .into_iter()
        .map(|data| Tensor::<D>::from_data(data, device));
    Tensor::cat(tensors.collect(), axis).into_data()
}

fn scalars(values: PerReplica<f32>) -> Vec<TensorData> {
    values.into_values().into_iter().map(scalar).collect()
}

fn scalar_i32(value: usize) -> TensorData {
    let value = i32::try_from(value).unwrap_or(i32::MAX);
    TensorData::new(vec![value], burn::tensor::Shape::new([]))
}
