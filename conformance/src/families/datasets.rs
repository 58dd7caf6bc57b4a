//! `datasets.json`: how datasets are cut over replicas and workers.

use std::sync::{Mutex, PoisonError};

use distribute_core::{Device, Error, InputContext, Strategy};
use distribute_data::split::batch_sizes_for_worker;
use distribute_data::{Batching, DataError, Dataset, FnDataset, ReplicationMode, StrategyDataExt};
use serde_json::{Value, json};

use super::support::expected;
use super::support::sharded::{OneWorker, Sharded, policy};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::error_kind::same_error;
use crate::expression::evaluate;
use crate::json::{Fields, count, counts_in};
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule, passed};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "experimental_distribute_dataset" => distribute_dataset(case, env),
        "distribute_datasets_from_function" => from_function(case, env),
        "batch_sizes_for_worker" => batch_sizes(case),
        "auto_shard" => shard(case, env),
        "InputContext.get_per_replica_batch_size" => per_replica_batch_size(case),
        "InputContext()" => input_context(case),
        op if op.starts_with("next()") => past_the_end(case, env),
        op if op.starts_with("get_next_as_optional") => optional(case, env),
        // Python's len(), options of TensorFlow's buffers, static shapes of its graphs.
        "len and element_spec" | "InputOptions()" | "compute_batch_size" => {
            Ok(Outcome::NotApplicable(Rule::Internals))
        }
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// An example: a number, or a row of them.
type Row = Vec<i64>;

/// `range(n)` and what follows it: `.batch(b)`, `.map(f)`, `.repeat(k)`, `.prefetch(k)`.
struct Pipeline {
    examples: Vec<Row>,
    batch: Option<usize>,
    drop_remainder: bool,
    epochs: usize,
    prefetch: Option<usize>,
}

impl Pipeline {
    fn range(elements: usize) -> Self {
        let numbers = (0..).take(elements);
        Self {
            examples: numbers.map(|number| vec![number]).collect(),
            batch: None,
            drop_remainder: false,
            epochs: 1,
            prefetch: None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut calls = text.split(").").map(|call| call.trim_end_matches(')'));
        let elements = calls.next()?.strip_prefix("range(")?.parse().ok()?;
        let mut pipeline = Self::range(elements);
        for call in calls {
            let (name, argument) = call.split_once('(')?;
            match name.trim() {
                "batch" => {
                    let (size, drop) = argument.split_once(',').unwrap_or((argument, ""));
                    pipeline.batch(size.trim().parse().ok()?, drop.contains("drop_remainder"));
                }
                "repeat" => pipeline.repeat(argument.parse().ok()?),
                "prefetch" => pipeline.prefetch = Some(argument.parse().ok()?),
                "map" => pipeline.map(argument)?,
                _ => return None,
            }
        }
        Some(pipeline)
    }

    fn batch(&mut self, size: usize, drop_remainder: bool) {
        if let Some(inner) = self.batch.replace(size) {
            let full = |batch: &&[Row]| !self.drop_remainder || batch.len() == inner;
            let batches = self.examples.chunks(inner).filter(full);
            self.examples = batches.map(<[Row]>::concat).collect();
        }
        self.drop_remainder = drop_remainder;
    }

    fn repeat(&mut self, times: usize) {
        if self.batch.is_some() {
            self.epochs *= times;
        } else {
            let count = self.examples.len() * times;
            self.examples = self.examples.iter().cycle().take(count).cloned().collect();
        }
    }

    fn map(&mut self, formula: &str) -> Option<()> {
        for number in self.examples.iter_mut().flatten() {
            let x = *number as f64;
            *number = evaluate(formula, &|name| (name == "x").then_some(x))? as i64;
        }
        Some(())
    }

    /// `steps[step][replica]` under a strategy.
    fn steps(self, strategy: &dyn Strategy) -> Result<Value, Failure> {
        let batching = Batching::global(self.batch.unwrap_or(1))
            .drop_remainder(self.drop_remainder)
            .allow_empty(true);
        let batching = match self.prefetch {
            Some(batches) => batching.prefetch(batches),
            None => batching,
        };
        let (examples, count) = (self.examples.clone(), self.examples.len());
        let make = move |indices: &[usize], _: &Device| {
            let rows = indices.iter().map(|index| examples[*index].clone());
            Ok(rows.collect::<Vec<Row>>())
        };
        all_steps(strategy, FnDataset::new(count, make), batching, self.epochs)
    }
}

fn all_steps<D: Dataset<Batch = Vec<Row>>>(
    strategy: &dyn Strategy,
    dataset: D,
    batching: Batching,
    epochs: usize,
) -> Result<Value, Failure> {
    let distributed = strategy.distribute_dataset(dataset, batching)?;
    let mut found = Vec::new();
    for epoch in 0..epochs {
        for step in distributed.epoch(epoch) {
            let parts = step?.into_values().into_iter();
            found.push(parts.map(|rows| rows.concat()).collect::<Vec<Row>>());
        }
    }
    Ok(json!(found))
}

fn distribute_dataset(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let text = inputs.text("dataset")?;
    if inputs.get("elements").is_some() {
        return split(case, strategy);
    }
    if text.contains("padded_batch(") {
        return padded(case, strategy);
    }
    if text.starts_with("features=") {
        return pairs(case, strategy);
    }
    let unknown = || Failure::schema(format!("dataset `{text}`"));
    let pipeline = Pipeline::parse(text).ok_or_else(unknown)?;
    if pipeline.batch.is_none() && !case.expects_value() {
        // `distribute_dataset` asks for the batch size.
        return Ok(Outcome::NotApplicable(Rule::CompileError));
    }
    passed(equal(
        expected(case)?.field("steps")?,
        &pipeline.steps(strategy)?,
    ))
}

/// `range(elements).batch(batch)`, with a policy where the case has one.
fn split(case: &Case, strategy: &dyn Strategy) -> Checked {
    let inputs = &case.inputs;
    let (elements, batch) = (inputs.count("elements")?, inputs.count("batch")?);
    let drop = match inputs["drop_remainder"].as_bool() {
        Some(true) => ", drop_remainder",
        _ => "",
    };
    let text = format!("range({elements}).batch({batch}{drop})");
    let unknown = || Failure::schema(format!("dataset `{text}`"));
    let source = Sharded::parse(&text, || None).ok_or_else(unknown)?;
    let policy = policy(inputs["policy"].as_str().unwrap_or("AUTO"))?;
    match source.steps(strategy, policy) {
        Ok(steps) => passed(equal(expected(case)?.field("steps")?, &json!(steps))),
        Err(error) => same_shard_error(case, &error),
    }
}

/// `range(a, b) -> fill([x], x), padded_batch(n)`: rows of x values, filled up to the longest of
/// the global batch.
fn padded(case: &Case, strategy: &dyn Strategy) -> Checked {
    let text = case.inputs.text("dataset")?;
    let [from, to, batch] = counts_in(text)[..] else {
        return Err(Failure::schema(format!("dataset `{text}`")));
    };
    let lengths: Vec<usize> = (from..to).collect();
    let longest: Vec<usize> = lengths
        .chunks(batch)
        .flat_map(|chunk| vec![chunk.iter().copied().max().unwrap_or(0); chunk.len()])
        .collect();
    let count = lengths.len();
    let make = move |indices: &[usize], _: &Device| {
        let row = |index: &usize| {
            let mut row = vec![lengths[*index]; lengths[*index]];
            row.resize(longest[*index], 0);
            row
        };
        Ok(indices.iter().map(row).collect::<Vec<_>>())
    };
    let dataset = FnDataset::new(count, make);
    let distributed = strategy.distribute_dataset(dataset, Batching::global(batch))?;
    let mut shapes = Vec::new();
    for step in distributed.epoch(0) {
        let step = step?.into_values();
        let columns = step.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let shape = |rows: &Vec<Vec<usize>>| [rows.len(), columns];
        shapes.push(step.iter().map(shape).collect::<Vec<_>>());
    }
    passed(equal(expected(case)?.field("shapes")?, &json!(shapes)))
}

/// `features=arange(n) as [rows, width], labels=factor*arange(rows), batch b`.
fn pairs(case: &Case, strategy: &dyn Strategy) -> Checked {
    let text = case.inputs.text("dataset")?;
    let [_, rows, width, factor, _, batch] = counts_in(text)[..] else {
        return Err(Failure::schema(format!("dataset `{text}`")));
    };
    let make = move |indices: &[usize], _: &Device| {
        let rows = indices.iter();
        let features = rows
            .clone()
            .map(|row| (row * width..(row + 1) * width).collect());
        let labels = rows.map(|row| row * factor);
        Ok((
            features.collect::<Vec<Vec<_>>>(),
            labels.collect::<Vec<_>>(),
        ))
    };
    let dataset = FnDataset::new(rows, make);
    let distributed = strategy.distribute_dataset(dataset, Batching::global(batch))?;
    let mut found = Vec::new();
    for step in distributed.epoch(0) {
        let (x, y) = step?.unzip();
        let x = x.into_values().into_iter().map(|rows| {
            let x = rows.concat();
            let floats: Vec<f64> = x.iter().map(|x| *x as f64).collect();
            json!({"dtype": "float32", "shape": [x.len() / width, width], "data": floats})
        });
        let y = y.into_values().into_iter();
        let y = y.map(|y| json!({"dtype": "int32", "shape": [y.len()], "data": y}));
        found.push(json!({"x": x.collect::<Vec<_>>(), "y": y.collect::<Vec<_>>()}));
    }
    passed(equal(expected(case)?.field("steps")?, &Value::Array(found)))
}

/// What stands in the parentheses after `name`, which may hold parentheses itself.
fn argument<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = &text[text.find(name)? + name.len()..];
    let mut depth = 1;
    let end = rest.find(|c: char| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    Some(&rest[..end?])
}

/// The batches that a case's input function makes in a context:
/// `range(n)[.shard(num_input_pipelines, input_pipeline_id)].batch(b)` with formulas of the
/// per-replica batch size `b` and the number of `replicas`.
fn batches_in(text: &str, context: &InputContext, per_replica: Option<usize>) -> Option<Vec<Row>> {
    let names = |name: &str| match name {
        "b" => per_replica.map(|size| size as f64),
        "replicas" => Some(context.num_replicas_in_sync as f64),
        _ => None,
    };
    let number = |formula: &str| {
        let value = evaluate(formula, &names)?;
        (0..=1_000_000_usize).find(|count| *count as f64 == value)
    };
    let elements = number(argument(text, "range(")?)?;
    let size = number(argument(text, ".batch(")?).filter(|size| *size > 0)?;
    let (skip, step) = if text.contains(".shard(") {
        (context.input_pipeline_id, context.num_input_pipelines)
    } else {
        (0, 1)
    };
    let own: Row = (0..).take(elements).skip(skip).step_by(step).collect();
    Some(own.chunks(size).map(<[i64]>::to_vec).collect())
}

fn from_function(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let text = case.inputs.text("dataset")?;
    let global_batch = count(&case.inputs["global_batch"]);
    let contexts = Mutex::new(Vec::new());
    let function = |context: InputContext| {
        let per_replica = match global_batch {
            Some(global) => Some(context.per_replica_batch_size(global)?),
            None => None,
        };
        let mut contexts = contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.push((context, per_replica));
        let batches = batches_in(text, &context, per_replica);
        let batches = batches.ok_or_else(|| Error::invalid(format!("dataset `{text}`")))?;
        Ok(batches.into_iter().map(|batch| {
            let count = batch.len();
            Ok(distribute_core::TensorData::new(batch, [count]))
        }))
    };
    let mode = match case.inputs["mode"].as_str() {
        Some("PER_REPLICA") => ReplicationMode::PerReplica,
        _ => ReplicationMode::PerWorker,
    };
    let distributed = strategy.distribute_datasets_from_function(&function);
    let epoch = match distributed.replication_mode(mode).epoch() {
        Ok(epoch) => epoch,
        Err(error) => return same_error(case, &error),
    };
    let mut found = Vec::new();
    for step in epoch {
        let values = step?.map(|batch| batch.iter::<i64>().collect::<Row>());
        found.push(values.into_values());
    }
    let expected = expected(case)?;
    equal(expected.field("steps")?, &json!(found))?;
    let contexts = contexts.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = expected.list("contexts")?;
    equal(&wanted.len().into(), &contexts.len().into())?;
    for (wanted, (context, per_replica)) in wanted.iter().zip(contexts.iter()) {
        same_context(wanted, context, *per_replica)?;
    }
    Ok(Outcome::Passed)
}

/// A context is written as a dictionary, or as a list of three numbers.
fn same_context(
    wanted: &Value,
    context: &InputContext,
    per_replica: Option<usize>,
) -> Result<(), Failure> {
    let fields = [
        ("num_input_pipelines", Some(context.num_input_pipelines)),
        ("input_pipeline_id", Some(context.input_pipeline_id)),
        ("num_replicas_in_sync", Some(context.num_replicas_in_sync)),
        ("per_replica_batch_size", per_replica),
    ];
    for (index, (name, found)) in fields.into_iter().enumerate() {
        if let Some(wanted) = wanted.get(name).or_else(|| wanted.get(index)) {
            equal(wanted, &json!(found)).map_err(|failure| failure.at(name))?;
        }
    }
    Ok(())
}

fn batch_sizes(case: &Case) -> Checked {
    let inputs = &case.inputs;
    let sizes = batch_sizes_for_worker(
        inputs.count("global_batch_size")?,
        inputs.count("num_workers")?,
        inputs.count("num_replicas_per_worker")?,
        inputs.count("worker_index")?,
    );
    match sizes {
        Ok(sizes) => passed(equal(expected(case)?.field("batch_sizes")?, &json!(sizes))),
        Err(error) => same_error(case, &error),
    }
}

/// Some descriptions do not say how many records a file holds; the records that any worker saw
/// of the same dataset do.
fn records_per_file(text: &str, env: &Env<'_>) -> Option<usize> {
    let same = |case: &&Case| case.inputs["dataset"] == text;
    let seen = env.file.cases.iter().filter(same).filter_map(Case::value);
    let batches = seen
        .filter_map(|value| value["batches"].as_array())
        .flatten();
    let records = batches.filter_map(Value::as_array).flatten();
    let number = |record: &Value| record.as_str()?.rsplit_once('_')?.1.parse::<usize>().ok();
    records.filter_map(number).max().map(|last| last + 1)
}

/// What `distribute_dataset` gives the replicas of one worker, one batch after the other; after
/// them come the empty ones that it gets while other workers still have some.
fn shard(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let (index, workers) = (inputs.count("worker_index")?, inputs.count("num_workers")?);
    let strategy = OneWorker::new(index, workers, inputs.count("replicas_per_worker")?)?;
    let text = inputs.text("dataset")?;
    let unknown = || Failure::schema(format!("dataset `{text}`"));
    let source = Sharded::parse(text, || records_per_file(text, env)).ok_or_else(unknown)?;
    let has_no_file = source.files().is_some_and(|files| files <= index);
    let steps = match source.steps(&strategy, policy(inputs.text("policy")?)?) {
        Ok(steps) => steps,
        Err(error) => {
            let sees_nothing = case.value().is_some_and(|it| it["batches"] == json!([]));
            return match data_error(&error) {
                Some(DataError::TooFewFiles { .. }) if has_no_file && sees_nothing => {
                    Ok(Outcome::Deviation(Deviation::TooFewFiles))
                }
                _ => same_shard_error(case, &error),
            };
        }
    };
    let wanted = expected(case)?.field("batches")?;
    let count = wanted.as_array().map_or(0, Vec::len);
    let mut batches = steps.concat();
    let padding = batches.split_off(count.min(batches.len()));
    equal(wanted, &json!(batches))?;
    match padding.iter().flatten().next() {
        Some(more) => Err(Failure::got(format!("{more} in a batch more"))),
        None => Ok(Outcome::Passed),
    }
}

fn data_error(error: &Error) -> Option<&DataError> {
    match error.root_cause() {
        Error::Input(source) => source.downcast_ref(),
        _ => None,
    }
}

fn same_shard_error(case: &Case, error: &Error) -> Checked {
    let class = match data_error(error) {
        Some(DataError::Unshardable) => "NotFoundError",
        Some(DataError::TooFewFiles { .. }) => "InvalidArgumentError",
        Some(DataError::HintIgnored) => "FailedPreconditionError",
        _ => "another error",
    };
    if case.error_class() == Some(class) {
        return Ok(Outcome::Passed);
    }
    Err(Failure::got(format!("an error: {error}")))
}

fn per_replica_batch_size(case: &Case) -> Checked {
    let context = InputContext {
        num_replicas_in_sync: case.inputs.count("num_replicas_in_sync")?,
        ..Default::default()
    };
    match context.per_replica_batch_size(case.inputs.count("global_batch_size")?) {
        Ok(size) => passed(equal(
            expected(case)?.field("per_replica_batch_size")?,
            &json!(size),
        )),
        Err(error) => same_error(case, &error),
    }
}

fn input_context(case: &Case) -> Checked {
    passed(same_context(
        expected(case)?,
        &InputContext::default(),
        None,
    ))
}

/// An iterator that has ended stays so.
fn past_the_end(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = env.strategy(case)?;
    let make = |indices: &[usize], _: &Device| Ok(indices.to_vec());
    let dataset = FnDataset::new(3, make);
    let distributed = strategy.distribute_dataset(dataset, Batching::global(2))?;
    let mut epoch = distributed.epoch(0);
    let steps = epoch.by_ref().count();
    let is_over = steps == 2 && epoch.next().is_none() && epoch.next().is_none();
    match (case.error_class(), is_over) {
        (Some("StopIteration"), true) => Ok(Outcome::Passed),
        _ => Err(Failure::got(format!("{steps} steps, over: {is_over}"))),
    }
}

fn optional(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = env.strategy(case)?;
    let text = case.inputs.text("dataset")?;
    let unknown = || Failure::schema(format!("dataset `{text}`"));
    let pipeline = Pipeline::parse(text).ok_or_else(unknown)?;
    let steps = pipeline.steps(&*strategy)?;
    let wanted = expected(case)?;
    let count = wanted.as_array().map_or(0, Vec::len);
    let found: Vec<Value> = (0..count)
        .map(|step| {
            let value = steps.get(step);
            json!({"has_value": value.is_some(), "value": value})
        })
        .collect();
    passed(equal(wanted, &json!(found)))
}
