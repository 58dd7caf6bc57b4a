//! `run` under a strategy that compiles steps.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::tensor::TensorData;
use burn_capture::{CapturedGraph, TensorId};
use burn_ir::OperationIr;

use super::call::{Call, Capture, Changes, LeafValue};
use super::digest::digest;
use super::{Item, StepArgs, twice};
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::trace::{
    Argument, CapturedStep, CapturedTensor, Check, DeviceTensor, Draws, Due, Given, HostSide,
    Input, InputRole, NewTensor, ResultLeaf, Source, StateChange, StepInput, StepKey, StepOutput,
    StepProgram, TensorSpec, Trace, Tracer, is_random, is_touch, messages,
};
use crate::{Error, Leaf, Nest, PerReplica, ReplicaContext, Result, Strategy, scope};

/// Runs a step as a compiled program, which is captured and compiled when there is none yet.
pub(crate) fn run<S, A, R, F>(
    strategy: &S,
    tracer: &dyn Tracer,
    mut args: A,
    step: &F,
) -> Result<PerReplica<R>>
where
    S: Strategy + ?Sized,
    A: StepArgs,
    R: Nest + Send + 'static,
    F: for<'x> Fn(&ReplicaContext, Item<'x, A>) -> Result<R>,
{
    let id: StrategyId = strategy.id();
    let replicas = strategy.replicas().len();
    let mut call = Call::new(&id, replicas, tracer, StepKey::of::<F>());
    let prepared = args
        .enter(&mut call)
        .and_then(|()| find(strategy, tracer, &mut args, &call, step));
    let program = match strategy.workers() {
        None => prepared?,
        // The replicas of other processes would wait for those of this one. A program that fails
        // needs no such word: they run it too.
        Some(workers) => workers.or_abort(prepared)?,
    };
    execute(&program, &call, &mut args)
}

/// The program of a call: the one that there is, if it still is what the step computes, or a new
/// one.
fn find<S, A, R, F>(
    strategy: &S,
    tracer: &dyn Tracer,
    args: &mut A,
    call: &Call<'_>,
    step: &F,
) -> Result<Arc<StepProgram>>
where
    S: Strategy + ?Sized,
    A: StepArgs,
    R: Nest + Send + 'static,
    F: for<'x> Fn(&ReplicaContext, Item<'x, A>) -> Result<R>,
{
    let generation = tracer.device().generation();
    let Some(found) = tracer.find(&call.key) else {
        tracer.admit(&call.key)?;
        let keeps = call.can_repeat;
        let (captured, program) = capture(strategy, tracer, args, call, step, keeps)?;
        if keeps {
            let again = capture(strategy, tracer, args, call, step, false)?;
            twice::compare((&captured, &program), (&again.0, &again.1))?;
        }
        return finish(tracer, call.key.clone(), captured, program);
    };
    let addresses = found.host_side().addresses();
    let has_workers = strategy.workers().is_some();
    let due = match found.check.call(generation, has_workers) {
        Some(due) if tracer.checks_steps() || addresses.is_none() => due,
        None if addresses.is_none() => Due::default(),
        _ => return Ok(found),
    };
    let started = Instant::now();
    let (captured, program) = capture(strategy, tracer, args, call, step, false)?;
    found.check.done(started, generation);
    let variant = call.key.variant(program.digest);
    let program = if program.digest == found.digest {
        let changed = addresses.is_some() && program.host_side().addresses() != addresses;
        if changed && !due.is_new_generation {
            changed_step("a metric or a variable", due)?;
            found.check.always();
        }
        if found.results() != program.results() {
            changed_step("a number that the step returns", due)?;
            found.check.always();
        }
        *lock(&found.host) = program.host_side();
        *lock(&found.results) = program.results();
        return Ok(found);
    } else {
        changed_step("a number, a tensor or a choice between operations", due)?;
        program
    };
    found.check.always();
    if let Some(known) = tracer.find(&variant) {
        *lock(&known.host) = program.host_side();
        *lock(&known.results) = program.results();
        return Ok(known);
    }
    tracer.admit(&call.key)?;
    tracing::warn!(
        "the step captures a value that changes from call to call: it is compiled once more, and \
         captured in every call from now on; pass the value to `run` as an argument"
    );
    finish(tracer, variant, captured, program)
}

/// Refuses a change that calls before this one may have missed.
fn changed_step(what: &'static str, due: Due) -> Result<()> {
    match due.unchecked {
        0 => Ok(()),
        calls => Err(Error::StepChanged { what, calls }),
    }
}

/// Compiles and keeps a step.
fn finish(
    tracer: &dyn Tracer,
    key: StepKey,
    captured: CapturedStep,
    mut program: StepProgram,
) -> Result<Arc<StepProgram>> {
    program.executable = Some(tracer.compile(captured)?);
    let program = Arc::new(program);
    tracer.keep(key, Arc::clone(&program));
    Ok(program)
}

/// Runs a program and puts its results where they belong.
fn execute<A: StepArgs, R: Nest + 'static>(
    program: &StepProgram,
    call: &Call<'_>,
    args: &mut A,
) -> Result<PerReplica<R>> {
    let arguments = arguments(program, call)?;
    let executable = program.executable.as_ref();
    let missing = || Error::invalid("a program that was not compiled");
    let outputs = match executable.ok_or_else(missing)?.execute(arguments) {
        Ok(outputs) => outputs,
        Err(error) => {
            // The memory of the state may have been given to the program.
            args.leave(&mut Changes::lost(program.states.len(), &error.to_string()))?;
            return Err(error);
        }
    };
    args.leave(&mut Changes::new(&program.states, &call.leaves, &outputs))?;
    let host = program.host_side();
    for replica in 0..call.replicas {
        for effect in &host.effects {
            let values = effect.leaves.iter();
            let values = values.map(|leaf| value_of(leaf, call, &outputs, replica));
            (effect.apply)(replica, values.collect::<Result<_>>()?)?;
        }
    }
    let results = (0..call.replicas).map(|replica| result(program, call, &outputs, replica));
    Ok(PerReplica::new(results.collect::<Result<Vec<R>>>()?))
}

/// The arguments in the program's order.
fn arguments(program: &StepProgram, call: &Call<'_>) -> Result<Vec<Argument>> {
    let host = program.host_side();
    let mut updates: HashMap<(usize, u64, Option<u64>), Vec<f64>> = HashMap::new();
    let mut argument = |source: &Source| match *source {
        Source::Leaf(index) => match call.leaves.get(index) {
            Some(LeafValue::Device { tensor, .. }) => Some(Argument::Device(Arc::clone(tensor))),
            Some(LeafValue::PerReplica(parts)) => Some(Argument::PerReplica(Arc::clone(parts))),
            Some(LeafValue::Same(data)) => Some(Argument::Same(data.clone())),
            None => None,
        },
        Source::Variable(index) => {
            let values = host.variables.get(index)?.values(call.replicas)?;
            Some(Argument::PerReplica(Arc::new(values)))
        }
        Source::Coefficient {
            host,
            update,
            index,
            learning_rate,
        } => {
            let key = (host, update, learning_rate.map(f64::to_bits));
            let source = call.coefficients.get(host)?;
            let numbers = updates.entry(key);
            let numbers = numbers.or_insert_with(|| source.of_update(update, learning_rate));
            let value = *numbers.get(index)?;
            let value = value as f32;
            Some(Argument::Same(TensorData::new(vec![value], [1])))
        }
        Source::RandomKey => Some(Argument::Same(random_key(call, program))),
    };
    let arguments: Option<Vec<_>> = program.arguments.iter().map(&mut argument).collect();
    arguments.ok_or_else(crate::nest::different_structure)
}

/// A key for the random numbers of one call: of the step's own seed and the numbers of updates so
/// far of all training states, so that a run that is resumed goes on with the same numbers. Calls
/// that follow each other without an update are counted as well.
fn random_key(call: &Call<'_>, program: &StepProgram) -> TensorData {
    let positions = call.coefficients.iter().map(|numbers| numbers.position());
    let positions: Vec<u64> = positions.collect();
    let repeated = program.draws.repeated(&positions);
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let numbers = std::iter::once(program.seed).chain(positions);
    for number in numbers.chain((repeated > 0).then_some(repeated)) {
        for byte in number.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let halves = vec![hash as u32 as i32, (hash >> 32) as u32 as i32];
    TensorData::new(halves, [2])
}

/// One replica's result.
fn result<R: Nest + 'static>(
    program: &StepProgram,
    call: &Call<'_>,
    outputs: &[Arc<dyn DeviceTensor>],
    replica: usize,
) -> Result<R> {
    let skeleton = lock(&program.skeleton);
    let skeleton = skeleton.downcast_ref::<R>().and_then(Nest::skeleton);
    let mut result = skeleton.ok_or_else(unknown_structure::<R>)?;
    let leaves = program.results();
    let leaves = leaves.iter();
    let leaves = leaves.map(|leaf| value_of(leaf, call, outputs, replica));
    result.put_leaves(leaves.collect::<Result<Vec<_>>>()?)?;
    Ok(result)
}

/// One replica's value of a result.
fn value_of(
    leaf: &ResultLeaf,
    call: &Call<'_>,
    outputs: &[Arc<dyn DeviceTensor>],
    replica: usize,
) -> Result<TensorData> {
    match leaf {
        ResultLeaf::Constant(data) => Ok(data.clone()),
        ResultLeaf::Output(index) => {
            let output = outputs.get(*index);
            output
                .ok_or_else(crate::nest::different_structure)?
                .read(replica)
        }
        ResultLeaf::Leaf(index) => match call.leaves.get(*index) {
            Some(LeafValue::Device { tensor, .. }) => tensor.read(replica),
            Some(LeafValue::PerReplica(parts)) => Ok(parts[replica].clone()),
            Some(LeafValue::Same(data)) => Ok(data.clone()),
            None => Err(crate::nest::different_structure()),
        },
    }
}

fn unknown_structure<R>() -> Error {
    let instead = "return tensors and numbers in tuples, vectors, maps and structs with \
                   `#[derive(Nest)]`, or implement `Nest::skeleton` for it";
    Error::not_compilable(std::any::type_name::<R>(), instead)
}

/// What the closure has left behind.
struct Recorded<R> {
    capture: Capture,
    result: R,
}

/// Captures a step, which may be done once more if it `keeps` the arguments.
fn capture<S, A, R, F>(
    strategy: &S,
    tracer: &dyn Tracer,
    args: &mut A,
    call: &Call<'_>,
    step: &F,
    keeps: bool,
) -> Result<(CapturedStep, StepProgram)>
where
    S: Strategy + ?Sized,
    A: StepArgs,
    R: Nest + Send + 'static,
    F: for<'x> Fn(&ReplicaContext, Item<'x, A>) -> Result<R>,
{
    let device = tracer.device().lock();
    let mut outcome = Err(Error::invalid("the step was not captured"));
    let graph = device.capture_scope(|capture_scope| {
        let replicas = strategy.num_replicas_in_sync();
        let trace = Arc::new(Trace::new(*device, replicas));
        let mut capture = Capture::new(Arc::clone(&trace), call.specs.clone(), keeps);
        let body = || {
            let captured = args.capture(&mut capture)?;
            record::<S, A, R, F>(strategy, capture, captured, step)
        };
        outcome = catch_unwind(AssertUnwindSafe(body))
            .unwrap_or_else(|payload| Err(messages::of_panic(panic_message(&*payload))));
        // Without a graph nothing is declared.
        let boundary = outcome.as_mut().map(|recorded| recorded.boundary());
        let (inputs, outputs) = boundary.unwrap_or_default();
        capture_scope.complete(inputs, outputs)
    });
    let recorded = outcome?;
    let graph = graph.map_err(|error| Error::Capture {
        message: error.to_string(),
    })?;
    let generation = tracer.device().generation();
    recorded.finish(graph, strategy.num_replicas_in_sync(), generation, call)
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "(a panic without a message)".to_string())
}

/// Runs the closure on captured arguments.
fn record<S, A, R, F>(
    strategy: &S,
    mut capture: Capture,
    mut captured: A::Captured,
    step: &F,
) -> Result<Plan>
where
    S: Strategy + ?Sized,
    A: StepArgs,
    R: Nest + Send + 'static,
    F: for<'x> Fn(&ReplicaContext, Item<'x, A>) -> Result<R>,
{
    let trace = Arc::clone(&capture.trace);
    let ctx = ReplicaContext::captured(&strategy.replicas()[0], &trace, strategy.workers());
    let result = {
        let _entered = scope::enter_capture(strategy.handle(), Arc::clone(&trace));
        scope::with_step(|notes| notes.batch.clone_from(&capture.batch_facts));
        step(&ctx, A::captured_item(&mut captured)?).map_err(translated)?
    };
    if trace.replica_id_used() && trace.num_replicas() > 1 {
        let instead = "one program serves all replicas; `ctx.replica_id_tensor()` is the number \
                       as a tensor";
        return Err(Error::not_compilable("`ctx.replica_id()`", instead));
    }
    trace.refuse_draws_on_host()?;
    if trace.step_was_read() {
        tracing::warn!(
            "the step reads the number of updates while it is captured: the compiled program \
             keeps the number of this call"
        );
    }
    A::collect(&mut captured, &mut capture)?;
    Plan::new(Recorded { capture, result })
}

/// An error of the step or of a tensor that it reads, which may be burn's own for a read on the
/// host.
fn translated(error: Error) -> Error {
    match &error {
        Error::Step(source) | Error::Internal { source } => {
            match messages::of_message(&format!("{source:?}")) {
                Some(read) => read,
                None => error,
            }
        }
        _ => error,
    }
}

/// What a program computes, by the tensors' numbers in the graph.
struct Plan {
    /// Keeps the tensors alive until the graph is complete.
    capture: Capture,
    outputs: Vec<CapturedTensor>,
    states: Vec<StateChange>,
    results: Vec<ResultLeaf>,
    host: HostSide,
    skeleton: Box<dyn Any + Send>,
}

impl Plan {
    fn new<R: Nest + Send + 'static>(recorded: Recorded<R>) -> Result<Self> {
        let Recorded {
            capture,
            mut result,
        } = recorded;
        let leaves: HashMap<TensorId, usize> = capture
            .leaves
            .iter()
            .enumerate()
            .map(|(index, leaf)| (leaf.id(), index))
            .collect();
        let mut outputs = Outputs {
            leaves,
            tensors: Vec::new(),
        };
        let states = capture.states.iter().map(|change| StateChange {
            hosts: change.hosts.clone(),
            tensors: change
                .tensors
                .iter()
                .map(|tensor| outputs.add(tensor))
                .collect(),
        });
        let states = states.collect();
        let skeleton = skeleton_of(&result)?;
        let mut results = Vec::new();
        result.walk(&mut |leaf| {
            results.push(outputs.result(leaf)?);
            Ok(())
        })?;
        let effects = capture.trace.deferred().into_iter().map(|deferred| {
            let leaves = deferred.given.iter().map(|given| outputs.given(given));
            deferred.effect(leaves.collect())
        });
        let host = HostSide {
            effects: effects.collect(),
            variables: capture.trace.variables(),
        };
        Ok(Self {
            capture,
            host,
            skeleton: Box::new(skeleton),
            outputs: outputs.tensors,
            states,
            results,
        })
    }

    /// The graph's inputs and outputs.
    fn boundary(&mut self) -> (Vec<TensorId>, Vec<TensorId>) {
        let inputs = self.capture.trace.touch_inputs();
        let outputs = self.outputs.iter().map(CapturedTensor::id).collect();
        (inputs, outputs)
    }

    fn finish(
        self,
        mut graph: CapturedGraph,
        num_replicas: usize,
        generation: u64,
        call: &Call<'_>,
    ) -> Result<(CapturedStep, StepProgram)> {
        graph
            .graph
            .operations
            .retain(|operation| !is_touch(operation));
        let operations = &graph.graph.operations;
        let random = operations.iter().any(is_random);
        let outputs = self.outputs.iter().map(CapturedTensor::id);
        let used = used(operations, outputs.collect());
        let inputs: Vec<Input> = self.capture.trace.inputs();
        let inputs = inputs.into_iter();
        let is_used = |input: &Input| match input.source {
            Source::RandomKey => random,
            _ => used.contains(&input.tensor.id()),
        };
        let inputs: Vec<_> = inputs.filter(is_used).collect();
        let mut keys = inputs
            .iter()
            .filter(|input| input.source == Source::RandomKey);
        let random_key = keys.next().map(|input| input.tensor.id());
        if let Some(id) = random_key {
            // No operation of the graph reads the key, so this alone says what it is.
            graph
                .values
                .insert(id, TensorData::new(vec![0_i32; 2], [2]));
        }
        graph.graph.inputs = inputs.iter().map(|input| input.tensor.id()).collect();
        let effects = self.host.effects.iter().flat_map(|effect| &effect.leaves);
        let read: Vec<&ResultLeaf> = self.results.iter().chain(effects).collect();
        let donated = donations(&self.states, &inputs, &read, call, &self.outputs);
        let step = CapturedStep {
            graph,
            inputs: inputs
                .iter()
                .map(|input| step_input(input, call, &self.capture))
                .collect(),
            outputs: step_outputs(&self.outputs, &donated),
            random_key,
            num_replicas,
        };
        let mut program = StepProgram {
            digest: 0,
            check: Check::new(generation),
            host: Mutex::new(Arc::new(self.host)),
            executable: None,
            arguments: inputs.iter().map(|input| input.source).collect(),
            states: self.states,
            results: Mutex::new(Arc::new(self.results)),
            draws: Draws::default(),
            skeleton: Mutex::new(self.skeleton),
            seed: self.capture.trace.mixed_seed(),
        };
        program.digest = digest(&step, &program);
        Ok((step, program))
    }
}

/// The outputs and all tensors that they are computed from.
fn used(operations: &[OperationIr], outputs: HashSet<TensorId>) -> HashSet<TensorId> {
    let mut used = outputs;
    for operation in operations.iter().rev() {
        if operation.outputs().any(|tensor| used.contains(&tensor.id)) {
            used.extend(operation.inputs().map(|tensor| tensor.id));
        }
    }
    used
}

fn step_input(input: &Input, call: &Call<'_>, capture: &Capture) -> StepInput {
    let role = match input.source {
        Source::Leaf(index) => match call.leaves.get(index) {
            Some(LeafValue::Device { .. }) => InputRole::State,
            _ => InputRole::Batch,
        },
        _ => InputRole::Host,
    };
    StepInput {
        id: input.tensor.id(),
        spec: input.tensor.spec(),
        role,
        name: capture
            .names
            .get(&input.tensor.id())
            .cloned()
            .unwrap_or_default(),
    }
}

fn step_outputs(outputs: &[CapturedTensor], donated: &HashMap<usize, usize>) -> Vec<StepOutput> {
    let outputs = outputs
        .iter()
        .enumerate()
        .map(|(index, output)| StepOutput {
            id: output.id(),
            spec: output.spec(),
            donated_from: donated.get(&index).copied(),
        });
    outputs.collect()
}

/// Which input each output takes the memory of: the old value of the same tensor of a state, if
/// nobody needs that value afterwards.
fn donations(
    states: &[StateChange],
    inputs: &[Input],
    results: &[&ResultLeaf],
    call: &Call<'_>,
    outputs: &[CapturedTensor],
) -> HashMap<usize, usize> {
    let mut needed: HashSet<usize> = HashSet::new();
    for state in states {
        needed.extend(state.tensors.iter().filter_map(|tensor| match tensor {
            NewTensor::Leaf(leaf) => Some(*leaf),
            NewTensor::Output(_) => None,
        }));
    }
    needed.extend(results.iter().filter_map(|result| match result {
        ResultLeaf::Leaf(leaf) => Some(*leaf),
        _ => None,
    }));
    let position = |leaf: usize| {
        inputs
            .iter()
            .position(|input| input.source == Source::Leaf(leaf))
    };
    let mut free: Vec<(usize, &TensorSpec)> = Vec::new();
    for (leaf, (value, spec)) in call.leaves.iter().zip(&call.specs).enumerate() {
        let mutable = matches!(value, LeafValue::Device { mutable: true, .. });
        if let Some(input) = position(leaf).filter(|_| mutable && !needed.contains(&leaf)) {
            free.push((input, spec));
        }
    }
    let mut donated = HashMap::new();
    for tensor in states.iter().flat_map(|state| &state.tensors) {
        let NewTensor::Output(output) = *tensor else {
            continue;
        };
        let Some(spec) = outputs.get(output).map(CapturedTensor::spec) else {
            continue;
        };
        if donated.contains_key(&output) {
            continue;
        }
        // The states' tensors come in the order of the leaves, so the first that fits is its own.
        if let Some(index) = free.iter().position(|(_, candidate)| **candidate == spec) {
            donated.insert(output, free.remove(index).0);
        }
    }
    donated
}

/// Collects the tensors that the program computes, each once.
struct Outputs {
    leaves: HashMap<TensorId, usize>,
    tensors: Vec<CapturedTensor>,
}

impl Outputs {
    fn add(&mut self, tensor: &CapturedTensor) -> NewTensor {
        let id = tensor.id();
        if let Some(leaf) = self.leaves.get(&id) {
            return NewTensor::Leaf(*leaf);
        }
        let known = self.tensors.iter().position(|known| known.id() == id);
        NewTensor::Output(known.unwrap_or_else(|| {
            self.tensors.push(tensor.clone());
            self.tensors.len() - 1
        }))
    }

    fn result(&mut self, leaf: &mut dyn Leaf) -> Result<ResultLeaf> {
        let captured = match leaf.traced() {
            Some(tensor) => match tensor.captured() {
                Some(captured) => captured,
                None => return Ok(ResultLeaf::Constant(tensor.data()?)),
            },
            None => return Ok(ResultLeaf::Constant(leaf.take()?)),
        };
        Ok(self.captured(&captured))
    }

    fn captured(&mut self, tensor: &CapturedTensor) -> ResultLeaf {
        match self.add(tensor) {
            NewTensor::Leaf(index) => ResultLeaf::Leaf(index),
            NewTensor::Output(index) => ResultLeaf::Output(index),
        }
    }

    fn given(&mut self, given: &Given) -> ResultLeaf {
        match given {
            Given::Captured(tensor) => self.captured(tensor),
            Given::Host(data) => ResultLeaf::Constant(data.clone()),
        }
    }
}

/// A value of the result's structure that later results are built from.
fn skeleton_of<R: Nest>(result: &R) -> Result<R> {
    let skeleton = result.skeleton().ok_or_else(unknown_structure::<R>)?;
    let (mut found, mut known) = (Vec::new(), Vec::new());
    result.fingerprint(&mut found);
    skeleton.fingerprint(&mut known);
    if found == known {
        Ok(skeleton)
    } else {
        Err(unknown_structure::<R>())
    }
}
