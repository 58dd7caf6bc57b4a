//! `run` under a strategy that compiles steps.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::burn_internals::capture::{CapturedGraph, TensorId};
use crate::burn_internals::ir::OperationIr;
use burn::tensor::TensorData;

use super::call::{Call, Capture, Changes, Outcome};
use super::digest::digest;
use super::{StepArgs, StepFn, twice};
use crate::burn_internals::{of_message, of_panic};
use crate::nest::different_structure;
use crate::strategy::StrategyId;
use crate::sync::{lock, panic_message};
use crate::trace::{
    Argument, CapturedStep, CapturedTensor, Check, DeviceTensor, Draws, DueCheck, Effect, Guard,
    HostSide, Input, InputRole, LeafValue, NewProgram, ResultLeaf, Source, StateChange, StepInput,
    StepKey, StepOutput, StepProgram, Trace, Tracer, is_random, is_touch,
};
use crate::{Error, Nest, NestPath, PerReplica, ReplicaContext, Result, Strategy, scope};

/// Runs a step as a compiled program, which is captured and compiled when there is none yet.
pub(crate) fn run<'a, S, A, R>(
    strategy: &S,
    tracer: &dyn Tracer,
    mut args: A,
    key: StepKey,
    step: &'a StepFn<'a, A, R>,
) -> Result<PerReplica<R>>
where
    S: Strategy + ?Sized,
    A: StepArgs + 'a,
    R: Nest + Send + 'static,
{
    let id: StrategyId = strategy.id();
    let workers = strategy.workers();
    let mut call = Call {
        strategy: &id,
        replicas: strategy.replicas().len(),
        tracer,
        key,
        leaves: Vec::new(),
        coefficients: Vec::new(),
        can_repeat: true,
    };
    let prepared = args.bind(&mut call).and_then(|()| {
        let mut capturing = Capturing {
            call: &call,
            num_replicas: strategy.num_replicas_in_sync(),
            has_workers: workers.is_some(),
            record: &mut |capture| record(strategy, &mut args, step, capture),
        };
        capturing.program()
    });
    let (program, host) = match workers {
        None => prepared?,
        // The replicas of other processes would wait for the replicas of this one. A program that
        // fails needs no such word: they run it too.
        Some(workers) => workers.or_abort(prepared)?,
    };
    let arguments = arguments(&program, &host, &call)?;
    let outcome = execute(&program, &call, arguments);
    let mut changes = Changes {
        states: program.states.iter().enumerate(),
        leaves: &call.leaves,
        outcome: outcome.as_ref(),
    };
    args.leave(&mut changes)?;
    let leaves = returned(&host, &call, outcome?)?.into_iter();
    let results = leaves.map(|leaves| {
        let skeleton = lock(&program.skeleton);
        let skeleton = skeleton.downcast_ref::<R>().and_then(Nest::skeleton);
        let mut result = skeleton.ok_or_else(unknown_structure::<R>)?;
        result.put_leaves(leaves)?;
        Ok(result)
    });
    Ok(PerReplica::new(results.collect::<Result<_>>()?))
}

/// Runs the closure on captured arguments.
fn record<'a, S, A, R>(
    strategy: &S,
    args: &mut A,
    step: &'a StepFn<'a, A, R>,
    mut capture: Capture,
) -> Result<Plan>
where
    S: Strategy + ?Sized,
    A: StepArgs + 'a,
    R: Nest + Send + 'static,
{
    let mut lent = None;
    let item = args.capture(&mut lent, &mut capture)?;
    let trace = Arc::clone(&capture.trace);
    let ctx = ReplicaContext::captured(&strategy.replicas()[0], &trace, strategy.workers());
    ctx.notes().begin(&capture.batch_facts);
    let result = {
        let _entered = scope::enter_step(strategy.handle(), &ctx);
        let ended = catch_unwind(AssertUnwindSafe(|| step(&ctx, item)));
        ctx.check_noted().map_err(translated)?;
        match ended {
            Ok(result) => result.map_err(translated)?,
            Err(payload) => resume_unwind(payload),
        }
    };
    trace.check()?;
    lent.map_or(Ok(()), |lent| A::collect(lent, &mut capture))?;
    let guard = capture.guard()?;
    Plan::new(capture, guard, Returned::of(result)?)
}

/// A call whose step can be captured. Compiled once, not for the types of every step.
struct Capturing<'a> {
    call: &'a Call<'a>,
    num_replicas: usize,
    has_workers: bool,
    /// Runs the closure on captured arguments.
    record: &'a mut dyn FnMut(Capture) -> Result<Plan>,
}

/// A program, and what this call changes, reads and returns on the host: its closure may hand
/// values to other metrics than that of a call of another thread.
type Ready = (Arc<StepProgram>, Arc<HostSide>);

impl Capturing<'_> {
    /// The program of the call: the existing one, if the step still computes the same, or a new
    /// one.
    fn program(&mut self) -> Result<Ready> {
        let Call { tracer, key, .. } = self.call;
        let outside_uses = tracer.device().outside_uses();
        let Some(found) = tracer.find(key) else {
            tracer.admit(key)?;
            let keeps = self.call.can_repeat;
            let captured = self.capture(keeps)?;
            if keeps {
                twice::compare(&captured, &self.capture(false)?)?;
            }
            return self.compile(key.clone(), captured);
        };
        let (host, is_own) = found.newest_host_side();
        let addresses = host.addresses();
        // With workers a call captures on all of them or on none, and their threads differ.
        let is_others = |there: &Vec<usize>| !(is_own || self.has_workers || there.is_empty());
        let must = addresses.as_ref().is_none_or(is_others);
        let due = match found.check.call(outside_uses, self.has_workers) {
            Some(due) if tracer.checks_steps() || must => due,
            None if must => DueCheck::default(),
            _ => return Ok((found, host)),
        };
        let started = Instant::now();
        let captured = self.capture(false)?;
        found.check.done(started, outside_uses);
        if captured.program.digest != found.digest {
            return self.variant(&found, due, captured);
        }
        let newer = captured.program.host_side();
        let changed = addresses.is_some() && newer.addresses() != addresses;
        if changed && !due.is_used_outside {
            // A capture of another thread says nothing about earlier calls of this thread.
            let unchecked = if is_own { due.unchecked } else { 0 };
            let due = DueCheck { unchecked, ..due };
            found.check.changed("a metric or a variable", due)?;
        }
        if host.results != newer.results {
            found.check.changed("a number that the step returns", due)?;
        }
        found.adopt(&newer);
        Ok((found, newer))
    }

    /// The program of a step that computes something else than the program of its key.
    fn variant(&self, found: &StepProgram, due: DueCheck, captured: NewProgram) -> Result<Ready> {
        let Call { tracer, key, .. } = self.call;
        let what = "a number, a tensor or a choice between operations";
        found.check.changed(what, due)?;
        let variant = key.variant(captured.program.digest);
        if let Some(known) = tracer.find(&variant) {
            let host = captured.program.host_side();
            known.adopt(&host);
            return Ok((known, host));
        }
        tracer.admit(key)?;
        tracing::warn!(
            "the step captures a value that changes from call to call: it is compiled once more, \
             and captured in every call from now on; pass the value to `run` as an argument"
        );
        self.compile(variant, captured)
    }

    /// Compiles and keeps a step.
    fn compile(&self, key: StepKey, captured: NewProgram) -> Result<Ready> {
        let (tracer, mut program) = (self.call.tracer, captured.program);
        program.executable = Some(tracer.compile(captured.step)?);
        let host = program.host_side();
        let program = Arc::new(program);
        tracer.keep(key, Arc::clone(&program));
        Ok((program, host))
    }

    /// Captures a step, which may be done once more if it `keeps` the arguments.
    fn capture(&mut self, keeps: bool) -> Result<NewProgram> {
        let call = self.call;
        let tracing = call.tracer.device();
        let device = tracing.lock();
        let mut outcome = Err(Error::invalid("the step was not captured"));
        let graph = device.capture_scope(|capture_scope| {
            let trace = Arc::new(Trace::new(*device, self.num_replicas));
            let capture = Capture::new(trace, call, keeps);
            outcome = catch_unwind(AssertUnwindSafe(|| (self.record)(capture)))
                .unwrap_or_else(|payload| Err(of_panic(panic_message(&*payload))));
            // Without a graph nothing is declared.
            let boundary = outcome.as_ref().map(Plan::boundary);
            let (inputs, outputs) = boundary.unwrap_or_default();
            capture_scope.complete(inputs, outputs)
        });
        let plan = outcome?;
        let graph = graph.map_err(|error| Error::Capture {
            message: error.to_string(),
        })?;
        Ok(plan.finish(graph, self.num_replicas, tracing.outside_uses(), call))
    }
}

fn execute(program: &StepProgram, call: &Call<'_>, arguments: Vec<Argument>) -> Result<Outcome> {
    let executable = program.executable.as_ref();
    let missing = || Error::invalid("a program that was not compiled");
    let outputs = executable.ok_or_else(missing)?.execute(arguments)?;
    Ok(Outcome {
        refused: not_finite(program, call, &outputs)?,
        skipped: skipped(program, call, &outputs)?,
        outputs,
    })
}

/// The leaves of what the step returns, of each replica; metrics and variables get theirs.
fn returned(host: &HostSide, call: &Call<'_>, outcome: Outcome) -> Result<Vec<Vec<TensorData>>> {
    if let Some(error) = outcome.refused {
        return Err(error);
    }
    let outputs = outcome.outputs;
    let values = |leaves: &[ResultLeaf], replica: usize| -> Result<Vec<TensorData>> {
        let values = leaves.iter();
        let values = values.map(|leaf| value_of(leaf, call, &outputs, replica));
        values.collect()
    };
    for replica in 0..call.replicas {
        for effect in &host.effects {
            (effect.apply)(replica, values(&effect.leaves, replica)?)?;
        }
    }
    let results = (0..call.replicas).map(|replica| values(&host.results, replica));
    results.collect()
}

/// Waits for what the program says of running statistics, if the states have any: the error if one
/// is not finite on any replica, the same in all processes.
fn not_finite(
    program: &StepProgram,
    call: &Call<'_>,
    outputs: &[Arc<dyn DeviceTensor>],
) -> Result<Option<Error>> {
    let Some(guard) = &program.guard else {
        return Ok(None);
    };
    let found = value_of(&guard.found, call, outputs, 0)?;
    let first = guard.first(found.iter::<f32>());
    Ok(first.map(|(replica, watched)| {
        let numbers = watched
            .training_state
            .and_then(|state| call.coefficients.get(state));
        Error::StatisticsNotFinite {
            path: watched.path.clone(),
            replica,
            updates: numbers.map_or(0, |numbers| numbers.step),
        }
    }))
}

/// Waits for what the program says of updates that can be skipped, if there are any: for every
/// change whether its training states have skipped theirs.
fn skipped(
    program: &StepProgram,
    call: &Call<'_>,
    outputs: &[Arc<dyn DeviceTensor>],
) -> Result<Vec<Vec<bool>>> {
    let is_skipped = |flag: &Option<ResultLeaf>| match flag {
        None => Ok(false),
        Some(flag) => {
            let flag = value_of(flag, call, outputs, 0)?;
            Ok(flag.iter::<f32>().any(|applies| applies == 0.0))
        }
    };
    let of_change = |state: &StateChange| state.applies.iter().map(is_skipped).collect();
    program.states.iter().map(of_change).collect()
}

/// The arguments in the program's order.
fn arguments(program: &StepProgram, host: &HostSide, call: &Call<'_>) -> Result<Vec<Argument>> {
    let mut updates: HashMap<(usize, u64, Option<u64>), Vec<f64>> = HashMap::new();
    let number = |number: f64| Argument::Same(TensorData::new(vec![number as f32], [1]));
    let mut argument = |source: &Source| match *source {
        Source::Leaf(index) => call.leaves.get(index).map(|leaf| leaf.value.clone()),
        Source::Variable(index) => {
            let values = host.variables.get(index)?.values(call.replicas)?;
            Some(Argument::PerReplica(Arc::new(values)))
        }
        Source::Coefficient {
            training_state,
            update,
            index,
            learning_rate,
        } => {
            let key = (training_state, update, learning_rate.map(f64::to_bits));
            let source = call.coefficients.get(training_state)?;
            let numbers = updates.entry(key);
            let numbers = numbers.or_insert_with(|| source.of_update(update, learning_rate));
            numbers.get(index).copied().map(number)
        }
        Source::LossScale(training_state) => {
            let source = call.coefficients.get(training_state)?;
            Some(number(source.loss_scale))
        }
        Source::RandomKey => Some(Argument::Same(random_key(call, program))),
    };
    let arguments: Option<Vec<_>> = program.arguments.iter().map(&mut argument).collect();
    arguments.ok_or_else(different_structure)
}

/// A key for the random numbers of one call: of the step's own seed and the numbers of updates so
/// far of all training states, so that a run that is resumed goes on with the same numbers. Calls
/// that follow each other without an update are counted as well.
fn random_key(call: &Call<'_>, program: &StepProgram) -> TensorData {
    let states = call.coefficients.iter();
    let positions: Vec<u64> = states.map(|numbers| numbers.position).collect();
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
            let output = outputs.get(*index).ok_or_else(different_structure)?;
            output.read(replica)
        }
        ResultLeaf::Leaf(index) => {
            let leaf = call.leaves.get(*index).ok_or_else(different_structure)?;
            match &leaf.value {
                Argument::Device(tensor) => tensor.read(replica),
                Argument::PerReplica(parts) => Ok(parts[replica].clone()),
                Argument::Same(data) => Ok(data.clone()),
            }
        }
    }
}

fn unknown_structure<R>() -> Error {
    let instead = "return tensors and numbers in tuples, vectors, maps and structs with \
                   `#[derive(Nest)]`, or implement `Nest::skeleton` for it";
    Error::not_compilable(std::any::type_name::<R>(), instead)
}

/// An error of the step or of a tensor that it reads, which may be burn's own for a read on the
/// host.
fn translated(error: Error) -> Error {
    let read = match error.root_cause() {
        Error::Step(source) | Error::Internal { source } => of_message(&format!("{source:?}")),
        _ => None,
    };
    read.unwrap_or(error)
}

/// What a captured step returns.
struct Returned {
    /// A value of its structure, of the step's own type.
    skeleton: Box<dyn Any + Send>,
    leaves: Vec<LeafValue>,
}

impl Returned {
    fn of<R: Nest + Send + 'static>(mut result: R) -> Result<Self> {
        let skeleton = Box::new(skeleton_of(&result)?);
        let mut leaves = Vec::new();
        result.walk(&NestPath::ROOT, &mut |path, leaf| {
            leaves.push(LeafValue::of(leaf).map_err(|error| error.at(path))?);
            Ok(())
        })?;
        Ok(Self { skeleton, leaves })
    }
}

/// What a program computes, by the tensors' numbers in the graph.
struct Plan {
    /// Keeps the tensors alive until the graph is complete.
    capture: Capture,
    outputs: Vec<CapturedTensor>,
    /// The program before the fields that depend on the graph are filled in.
    program: StepProgram,
}

impl Plan {
    fn new(
        capture: Capture,
        guard: Option<Guard<CapturedTensor>>,
        returned: Returned,
    ) -> Result<Self> {
        let leaves = capture.leaves.iter().enumerate();
        let mut outputs = Outputs {
            leaves: leaves.map(|(index, leaf)| (leaf.id(), index)).collect(),
            tensors: Vec::new(),
        };
        let states = capture.states.iter().map(|change| StateChange {
            numbers: change.numbers.clone(),
            applies: change
                .applies
                .iter()
                .map(|flag| flag.as_ref().map(|flag| outputs.add(flag)))
                .collect(),
            tensors: change.tensors.iter().map(|new| outputs.add(new)).collect(),
            before: change.before.iter().map(|old| outputs.add(old)).collect(),
        });
        let states = states.collect();
        let guard = guard.map(|guard| Guard {
            watched: guard.watched,
            found: outputs.add(&guard.found),
        });
        let results = returned.leaves.iter().map(|it| outputs.given(it));
        let results = results.collect();
        let deferred = capture.trace.deferred().into_iter();
        let effects = deferred.map(|effect| Effect {
            leaves: effect.leaves.iter().map(|it| outputs.given(it)).collect(),
            target: effect.target,
            apply: effect.apply,
        });
        let host = HostSide {
            results,
            effects: effects.collect(),
            variables: capture.trace.variables(),
        };
        let program = StepProgram {
            digest: 0,
            check: Check::default(),
            host: Mutex::new((thread::current().id(), Arc::new(host))),
            executable: None,
            arguments: Vec::new(),
            states,
            guard,
            draws: Draws::default(),
            skeleton: Mutex::new(returned.skeleton),
            seed: capture.trace.mixed_seed(),
        };
        Ok(Self {
            capture,
            outputs: outputs.tensors,
            program,
        })
    }

    /// The graph's inputs and outputs.
    fn boundary(&self) -> (Vec<TensorId>, Vec<TensorId>) {
        let inputs = self.capture.trace.touch_inputs();
        let outputs = self.outputs.iter().map(CapturedTensor::id).collect();
        (inputs, outputs)
    }

    fn finish(
        self,
        mut graph: CapturedGraph,
        num_replicas: usize,
        outside_uses: u64,
        call: &Call<'_>,
    ) -> NewProgram {
        let operations = &mut graph.graph.operations;
        operations.retain(|operation| !is_touch(operation));
        let random = operations.iter().any(is_random);
        let outputs = self.outputs.iter().map(CapturedTensor::id);
        let used = used(operations, outputs.collect());
        let mut inputs = self.capture.trace.inputs();
        inputs.retain(|input| match input.source {
            Source::RandomKey => random,
            _ => used.contains(&input.tensor.id()),
        });
        let mut keys = inputs.iter();
        let random_key = keys.find(|input| input.source == Source::RandomKey);
        let random_key = random_key.map(|input| input.tensor.id());
        if let Some(id) = random_key {
            // No operation of the graph reads the key, so this alone says what it is.
            let zeros = TensorData::new(vec![0_i32; 2], [2]);
            graph.values.insert(id, zeros);
        }
        graph.graph.inputs = inputs.iter().map(|input| input.tensor.id()).collect();
        let donated = self.donations(&inputs, call);
        let outputs = self.outputs.iter().enumerate();
        let step = CapturedStep {
            graph,
            inputs: inputs
                .iter()
                .map(|input| step_input(input, call, &self.capture))
                .collect(),
            outputs: outputs
                .map(|(index, output)| StepOutput {
                    id: output.id(),
                    spec: output.spec(),
                    donated_from: donated.get(&index).copied(),
                })
                .collect(),
            random_key,
            num_replicas,
        };
        let mut program = self.program;
        program.check = Check::new(outside_uses);
        program.arguments = inputs.iter().map(|input| input.source).collect();
        program.digest = digest(&step, &program);
        NewProgram { step, program }
    }

    /// Which input each output takes the memory of: the old value of the same tensor of a state, if
    /// that value is not needed afterwards.
    fn donations(&self, inputs: &[Input], call: &Call<'_>) -> HashMap<usize, usize> {
        let states = &self.program.states;
        let host = self.program.host_side();
        let new = || states.iter().flat_map(|state| &state.tensors);
        let before = states.iter().flat_map(|state| &state.before);
        let effects = host.effects.iter().flat_map(|effect| &effect.leaves);
        let kept = new().chain(before).chain(&host.results).chain(effects);
        let needed = kept.filter_map(|leaf| match leaf {
            ResultLeaf::Leaf(index) => Some(*index),
            _ => None,
        });
        let needed: HashSet<usize> = needed.collect();
        let is_free = |(_, input): &(usize, &Input)| match input.source {
            Source::Leaf(index) => call.leaves[index].mutable && !needed.contains(&index),
            _ => false,
        };
        let mut free: Vec<_> = inputs.iter().enumerate().filter(is_free).collect();
        let mut donated = HashMap::new();
        for new in new() {
            let ResultLeaf::Output(output) = *new else {
                continue;
            };
            if donated.contains_key(&output) {
                continue;
            }
            let spec = self.outputs[output].spec();
            // The states' tensors come in the order of the inputs, so the first that fits is its
            // own.
            let mut inputs = free.iter();
            if let Some(own) = inputs.position(|(_, input)| input.tensor.spec() == spec) {
                donated.insert(output, free.remove(own).0);
            }
        }
        donated
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
        Source::Leaf(index) => match call.leaves.get(index).map(|leaf| &leaf.value) {
            Some(Argument::Device(_)) => InputRole::State,
            _ => InputRole::Batch,
        },
        _ => InputRole::Host,
    };
    let id = input.tensor.id();
    StepInput {
        id,
        spec: input.tensor.spec(),
        role,
        name: capture.names.get(&id).cloned().unwrap_or_default(),
    }
}

/// Collects the tensors that the program computes, each once.
struct Outputs {
    leaves: HashMap<TensorId, usize>,
    tensors: Vec<CapturedTensor>,
}

impl Outputs {
    fn add(&mut self, tensor: &CapturedTensor) -> ResultLeaf {
        let id = tensor.id();
        if let Some(leaf) = self.leaves.get(&id) {
            return ResultLeaf::Leaf(*leaf);
        }
        let known = self.tensors.iter().position(|known| known.id() == id);
        ResultLeaf::Output(known.unwrap_or_else(|| {
            self.tensors.push(tensor.clone());
            self.tensors.len() - 1
        }))
    }

    fn given(&mut self, given: &LeafValue) -> ResultLeaf {
        match given {
            LeafValue::Captured(tensor) => self.add(tensor),
            LeafValue::Host(data) => ResultLeaf::Constant(data.clone()),
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
