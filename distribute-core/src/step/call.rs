//! One call of `run` under a strategy that compiles steps: its arguments on the way in and out.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::burn_internals::capture::TensorId;
use burn::tensor::TensorData;

use crate::error::check_count;
use crate::nest::different_structure;
use crate::notes::BatchFacts;
use crate::replicate::ReplicateExt;
use crate::state_leaf::{StateKind, StateWalk};
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::trace::{
    Argument, CapturedTensor, Coefficients, Counters, DeviceTensor, Fingerprint, Guard, HostState,
    ResultLeaf, Source, StateChange, StepKey, TensorSpec, Trace, Tracer, Watched, captured_leaf,
    choose, equals,
};
use crate::{Error, Leaf, Mirrored, Nest, NestPath, Replicate, Result, host_reduce};

/// One tensor of the arguments.
#[derive(Debug)]
pub(crate) struct CallLeaf {
    pub(crate) spec: TensorSpec,
    pub(crate) value: Argument,
    /// Whether it is of a mirrored value that the step may change.
    pub(crate) mutable: bool,
}

/// The arguments of a call, in the order in which they are walked.
#[derive(Debug)]
pub struct Call<'t> {
    pub(super) strategy: &'t StrategyId,
    pub(crate) replicas: usize,
    pub(crate) tracer: &'t dyn Tracer,
    pub(crate) key: StepKey,
    pub(crate) leaves: Vec<CallLeaf>,
    pub(crate) coefficients: Vec<Coefficients>,
    /// Whether the arguments can be captured twice.
    pub(crate) can_repeat: bool,
}

impl Call<'_> {
    fn leaf(&mut self, spec: TensorSpec, value: Argument, mutable: bool) {
        self.fixed(format_args!("{spec}"));
        self.leaves.push(CallLeaf {
            spec,
            value,
            mutable,
        });
    }

    /// A mirrored value, which the step may change if it is `mutable`. What the devices do not have
    /// yet is copied there.
    pub(crate) fn enter_state<T: Replicate>(
        &mut self,
        state: &Mirrored<T>,
        on_host: Vec<HostState>,
        mutable: bool,
    ) -> Result<()> {
        check_state(state, self.strategy, self.replicas)?;
        let tensors = if mutable {
            state.copies.on_devices(self.tracer)?
        } else {
            state.copies.on_devices_to_read(self.tracer)?
        };
        self.key.state(&state.identity);
        let access = if mutable { "mut" } else { "ref" };
        let programs: Vec<_> = on_host.iter().map(|state| &*state.program).collect();
        self.fixed(format_args!("{access} {}", programs.join(" ")));
        let coefficients = on_host.into_iter().map(|state| state.coefficients);
        self.coefficients.extend(coefficients);
        for tensor in tensors {
            self.leaf(tensor.spec(), Argument::Device(tensor), mutable);
        }
        Ok(())
    }

    /// A value that is the same for all replicas, which loses its tensors.
    pub(crate) fn enter_same<T: Nest>(&mut self, value: &mut T) -> Result<()> {
        let (structure, tensors) = take(value)?;
        self.fixed(format_args!("same {}", structure.join(" ")));
        for data in tensors {
            self.leaf(TensorSpec::of(&data), Argument::Same(data), false);
        }
        Ok(())
    }

    /// The parts of a batch, which lose their values.
    pub(crate) fn enter_batch<T: Nest>(
        &mut self,
        parts: &mut [T],
        global_batch_size: Option<usize>,
    ) -> Result<()> {
        if let Some(size) = global_batch_size {
            // A program divides losses by it.
            self.fixed(format_args!("part of a global batch of {size}"));
        }
        check_count("a per-replica argument", self.replicas, parts.len())?;
        let taken = parts.iter_mut().map(take).collect::<Result<Vec<_>>>()?;
        let (structures, tensors): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let expected = structures
            .first()
            .map_or(String::new(), |all| all.join(" "));
        let differs = structures.iter().position(|found| *found != structures[0]);
        if let Some(replica) = differs {
            return Err(Error::UnevenArguments {
                replica,
                expected,
                found: structures[replica].join(" "),
            });
        }
        self.fixed(format_args!("batch {expected}"));
        let first = parts.first_mut();
        self.can_repeat &= first.is_none_or(|part| copy(part).is_some());
        for column in host_reduce::columns(tensors)? {
            let spec = TensorSpec::of(&column[0]);
            self.leaf(spec, Argument::PerReplica(Arc::new(column)), false);
        }
        Ok(())
    }
}

impl Fingerprint for Call<'_> {
    fn fixed(&mut self, value: fmt::Arguments<'_>) {
        self.key.fixed(value);
    }
}

/// Checks that a mirrored value can be an argument of a step of this strategy.
pub(super) fn check_state<T>(
    state: &Mirrored<T>,
    strategy: &StrategyId,
    replicas: usize,
) -> Result<()> {
    state.check(strategy)?;
    check_count("a mirrored argument", replicas, state.copies.host.len())
}

/// What the training states of a mirrored value have on the host.
pub(super) fn host_states(value: &mut impl Replicate) -> Result<Vec<HostState>> {
    let mut states = Vec::new();
    value.parts(|_, part| {
        states.extend(part.host());
        Ok(())
    })?;
    Ok(states)
}

/// The numbers of a mirrored value's training states.
fn counters(value: &mut impl Replicate) -> Result<Vec<Counters>> {
    let states = host_states(value)?.into_iter();
    Ok(states.map(|state| state.counters).collect())
}

/// Describes the structure of a value: its tensors by `name`, everything else by its value.
fn structure<T: Nest>(
    value: &mut T,
    mut name: impl FnMut(&mut dyn Leaf) -> Result<String>,
) -> Result<Vec<String>> {
    let mut structure = Vec::new();
    value.fingerprint(&mut structure);
    value.walk(&NestPath::ROOT, &mut |path, leaf| {
        if leaf.tensor().is_some() {
            structure.push(name(leaf).map_err(|error| error.at(path))?);
            return Ok(());
        }
        let number = leaf.data()?;
        if number.rank() != 0 {
            let instead = "make a tensor of it before the step";
            let error = Error::not_compilable("host data in a batch", instead);
            return Err(error.at(path));
        }
        structure.push(format!("{:?}{:?}", number.dtype(), number.as_bytes()));
        Ok(())
    })?;
    Ok(structure)
}

/// Moves the tensors out of one replica's part. Everything else stays, and is named together with
/// the tensors' shapes.
fn take<T: Nest>(part: &mut T) -> Result<(Vec<String>, Vec<TensorData>)> {
    let mut tensors = Vec::new();
    let structure = structure(part, |leaf| {
        let data = leaf.take()?;
        let spec = TensorSpec::of(&data).to_string();
        tensors.push(data);
        Ok(spec)
    })?;
    Ok((structure, tensors))
}

/// A value like a part that has lost its tensors, where there can be one.
fn copy<T: Nest>(part: &mut T) -> Option<T> {
    let mut copy = part.skeleton()?;
    // Their shapes are gone.
    let tracking = |leaf: &mut dyn Leaf| {
        let tracking = leaf.tensor().map(|tensor| tensor.tracking());
        Ok(format!("{tracking:?}"))
    };
    let known = structure(part, tracking).ok()?;
    let found = structure(&mut copy, tracking).ok()?;
    (known == found).then_some(copy)
}

/// A mirrored value in a captured step.
#[derive(Debug)]
pub struct CapturedState<T> {
    pub(crate) value: T,
    before: Vec<Counters>,
    /// The tensors of each part.
    inputs: Vec<Vec<CapturedTensor>>,
    /// The number of its first training state.
    training_state: Option<usize>,
}

/// A capture, as the arguments see it.
#[derive(Debug)]
pub struct Capture {
    pub(crate) trace: Arc<Trace>,
    /// The replicas of this process.
    replicas: usize,
    /// The shapes and types of the arguments' tensors.
    specs: Vec<TensorSpec>,
    /// The inputs made so far.
    pub(crate) leaves: Vec<CapturedTensor>,
    /// What the tensors of mirrored values are called.
    pub(crate) names: HashMap<TensorId, String>,
    training_states: usize,
    pub(crate) states: Vec<StateChange<CapturedTensor>>,
    /// The running statistics of the mutable ones, after the step.
    statistics: Vec<(Watched, CapturedTensor)>,
    /// What is known of the batch.
    pub(crate) batch_facts: BatchFacts,
    /// Whether the arguments are captured a second time.
    keeps_arguments: bool,
}

/// What a step is lent of a mirrored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The value itself, to be changed.
    Changed,
    /// In evaluation mode, to be read.
    Evaluated,
    /// In training mode, to be read.
    InTraining,
}

impl Capture {
    pub(crate) fn new(trace: Arc<Trace>, call: &Call<'_>, keeps_arguments: bool) -> Self {
        Self {
            keeps_arguments,
            trace,
            replicas: call.replicas,
            specs: call.leaves.iter().map(|leaf| leaf.spec.clone()).collect(),
            leaves: Vec::new(),
            names: HashMap::new(),
            training_states: 0,
            states: Vec::new(),
            statistics: Vec::new(),
            batch_facts: BatchFacts::default(),
        }
    }

    /// A mirrored value, which the step may change if it is `mutable`.
    pub(crate) fn state<T: Replicate>(
        &mut self,
        state: &Mirrored<T>,
        access: Access,
    ) -> Result<CapturedState<T>> {
        let mutable = access == Access::Changed;
        let mut value = state.copies.first();
        let before = counters(&mut value)?;
        let training_state = (!before.is_empty()).then_some(self.training_states);
        let device = self.trace.device().clone();
        let is_alone = self.replicas == self.trace.num_replicas();
        let mut inputs = Vec::new();
        value.parts(|path, part| {
            if mutable {
                part.check_capture().map_err(|error| error.at(path))?;
            }
            if part.host().is_some() {
                part.enter_capture(Arc::clone(&self.trace), self.training_states);
                self.training_states += 1;
            }
            let mut of_part = Vec::new();
            part.walk_leaves(StateWalk::Captured(&device), &mut |leaf| {
                let label = leaf.label();
                let path = path.field(&label);
                if mutable && leaf.is_own_statistic() && !is_alone {
                    return Err(of_other_processes().at(&path));
                }
                let input = self.next_input()?;
                self.names.insert(input.id(), path.to_string());
                of_part.push(input.clone());
                if let Some(tensor) = leaf.value.tensor() {
                    tensor.bind(input, tensor.tracking());
                }
                Ok(())
            })?;
            inputs.push(of_part);
            match access {
                Access::Evaluated => part.evaluate(true).map_err(|error| error.at(path)),
                Access::Changed | Access::InTraining => Ok(()),
            }
        })?;
        Ok(CapturedState {
            value,
            before,
            inputs,
            training_state,
        })
    }

    pub(crate) fn collect_state<T: Replicate>(
        &mut self,
        mut captured: CapturedState<T>,
    ) -> Result<()> {
        let foreign = || {
            let instead = "compute every new value of the state from the step's arguments, on \
                           `ctx.device()`";
            Error::not_compilable("a tensor of the CPU in a training state", instead)
        };
        let after = counters(&mut captured.value)?;
        let is_empty = self.batch_facts.is_empty();
        let inputs = captured.inputs;
        let training_state = captured.training_state;
        let mut of_parts = inputs.iter();
        let (mut tensors, mut applies) = (Vec::new(), Vec::new());
        captured.value.parts(|path, part| {
            let flag = part.host().map(|state| state.applies);
            let is_made = flag.clone().flatten();
            let is_made = is_made.and_then(|flag| equals(&flag.flat(), 1.0));
            applies.extend(flag);
            let mut old = of_parts.next().into_iter().flatten();
            part.walk_leaves(StateWalk::All, &mut |leaf| {
                let old = old.next();
                // An empty part of a batch, whose mean is NaN, leaves running statistics as they
                // were.
                let kept = old.filter(|_| is_empty && leaf.is_own_statistic());
                let kept = kept.cloned().or_else(|| captured_leaf(leaf.value));
                let mut tensor = kept.ok_or_else(foreign)?;
                if leaf.kind == StateKind::Statistic && !is_empty {
                    let watched = Watched {
                        path: path.field(leaf.path).to_string(),
                        training_state,
                    };
                    self.statistics.push((watched, tensor.clone()));
                    // An update that is skipped takes back what the step has moved them by.
                    if let (Some(is_made), Some(old)) = (&is_made, old) {
                        tensor = choose(is_made, &tensor, old);
                    }
                }
                tensors.push(tensor);
                Ok(())
            })
        })?;
        self.states.push(StateChange {
            numbers: captured.before.into_iter().zip(after).collect(),
            applies,
            tensors,
            before: inputs.concat(),
        });
        Ok(())
    }

    /// Has the program look at the running statistics of all states, if there are any, and take
    /// everything back if one is not finite.
    pub(crate) fn guard(&mut self) -> Result<Option<Guard<CapturedTensor>>> {
        let statistics = std::mem::take(&mut self.statistics);
        let states = self.states.iter_mut();
        if statistics.is_empty() {
            states.for_each(|state| state.before.clear());
            return Ok(None);
        }
        let changes = states.map(|state| (&mut state.before, &mut state.tensors));
        Guard::new(&self.trace, statistics, changes).map(Some)
    }

    /// Replica 0's part of a batch, or one like it if the arguments are captured once more.
    pub(crate) fn own_part<T: Nest>(&self, parts: &mut Vec<T>) -> Result<T> {
        let first = parts.first_mut().ok_or_else(different_structure)?;
        let copy = self.keeps_arguments.then(|| copy(first)).flatten();
        Ok(copy.unwrap_or_else(|| parts.swap_remove(0)))
    }

    /// [`bind`](Self::bind) for a part of a batch.
    pub(crate) fn batch<T: Nest>(
        &mut self,
        part: T,
        global_batch_size: Option<usize>,
    ) -> Result<T> {
        let part = self.bind(part)?;
        self.batch_facts.add(&part, global_batch_size);
        Ok(part)
    }

    /// Puts inputs in place of a value's tensors.
    pub(crate) fn bind<T: Nest>(&mut self, mut value: T) -> Result<T> {
        value.walk(&NestPath::ROOT, &mut |_, leaf| {
            if let Some(tensor) = leaf.tensor() {
                tensor.bind(self.next_input()?, tensor.tracking());
            }
            Ok(())
        })?;
        Ok(value)
    }

    /// Declares the next tensor of the arguments as an input.
    fn next_input(&mut self) -> Result<CapturedTensor> {
        let index = self.leaves.len();
        let spec = self.specs.get(index).ok_or_else(different_structure)?;
        let input = self.trace.input(Source::Leaf(index), spec);
        self.leaves.push(input.clone());
        Ok(input)
    }
}

/// The error for a mean of running statistics over devices of several processes.
fn of_other_processes() -> Error {
    Error::not_compilable(
        "training running statistics of each replica's own in several processes",
        "use a `SyncBatchNorm`, whose statistics are equal on all replicas, or one process",
    )
}

/// What a call has made of the mutable mirrored arguments, in argument order.
#[derive(Debug)]
pub struct Changes<'a> {
    pub(super) states: std::iter::Enumerate<std::slice::Iter<'a, StateChange>>,
    pub(super) leaves: &'a [CallLeaf],
    /// If the program has failed, everything that it could have changed is lost.
    pub(super) outcome: Result<&'a Outcome, &'a Error>,
}

/// What a program has computed; what it has found while it ran is the same in all processes.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) outputs: Vec<Arc<dyn DeviceTensor>>,
    /// Running statistics that are not finite: it has taken all changes back.
    pub(crate) refused: Option<Error>,
    /// For every change whether its training states have skipped their updates.
    pub(crate) skipped: Vec<Vec<bool>>,
}

impl Changes<'_> {
    /// The new tensors of a mirrored value, or why it is lost.
    fn tensors(
        &self,
        outcome: &Outcome,
        new: &[ResultLeaf],
    ) -> Result<Vec<Arc<dyn DeviceTensor>>, String> {
        let tensor = |new: &ResultLeaf| match *new {
            ResultLeaf::Output(index) => outcome.outputs.get(index).cloned(),
            ResultLeaf::Leaf(index) => match &self.leaves.get(index)?.value {
                Argument::Device(tensor) => Some(Arc::clone(tensor)),
                _ => None,
            },
            ResultLeaf::Constant(_) => None,
        };
        let tensors: Option<Vec<_>> = new.iter().map(tensor).collect();
        tensors.ok_or_else(|| "the program left out a tensor of the state".to_string())
    }

    /// Puts the next change into its value.
    pub(crate) fn apply<T: Replicate>(&mut self, state: &mut Mirrored<T>) -> Result<()> {
        let (index, change) = self.states.next().ok_or_else(different_structure)?;
        let (new, numbers) = match self.outcome {
            Ok(outcome) if outcome.refused.is_some() => (&change.before, &[][..]),
            _ => (&change.tensors, &change.numbers[..]),
        };
        let outcome = self.outcome.map_err(ToString::to_string);
        let found = outcome.and_then(|outcome| Ok((outcome, self.tensors(outcome, new)?)));
        let (outcome, tensors) = match found {
            Ok(found) => found,
            Err(cause) => {
                state.copies.lose();
                *lock(&state.poison) = Some(cause);
                return Ok(());
            }
        };
        state.copies.keep_fetched();
        let skipped = outcome.skipped.get(index).into_iter().flatten();
        let mut changes = numbers.iter().zip(skipped).peekable();
        state.copies.host[0].parts(|_, part| {
            let is_state = part.host().is_some();
            match changes.next_if(|_| is_state) {
                Some(((before, after), is_skipped)) => part.replay(before, after, *is_skipped),
                None => Ok(()),
            }
        })?;
        let is_output = |new: &ResultLeaf| matches!(new, ResultLeaf::Output(_));
        let are_computed = new.iter().any(is_output);
        state.copies.put_on_devices(tensors, are_computed);
        Ok(())
    }
}
