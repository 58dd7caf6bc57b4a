//! One call of `run` under a strategy that compiles steps: its arguments on the way in and out.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use burn::tensor::TensorData;
use burn_capture::TensorId;

use crate::error::check_count;
use crate::replicate::ReplicateExt;
use crate::scope::BatchFacts;
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::trace::{
    Bind, CapturedTensor, Coefficients, Collect, DeviceTensor, Fingerprint, NewTensor, OnDevice,
    ReadHosts, ReadOwn, ReadTensors, Replay, Source, StateChange, StepKey, TensorSpec, Trace,
    Tracer,
};
use crate::{Error, Mirrored, Nest, PerReplica, Replicate, Result};

/// The value of one tensor of the arguments.
#[derive(Debug)]
pub(crate) enum LeafValue {
    /// Of a mirrored value; `mutable` if the step may change it.
    Device {
        tensor: Arc<dyn DeviceTensor>,
        mutable: bool,
    },
    /// Of a batch: one part per replica.
    PerReplica(Arc<Vec<TensorData>>),
    /// The same for every replica.
    Same(TensorData),
}

/// The arguments of a call, in the order in which they are walked.
#[derive(Debug)]
pub struct Call<'t> {
    strategy: &'t StrategyId,
    pub(crate) replicas: usize,
    tracer: &'t dyn Tracer,
    pub(crate) key: StepKey,
    pub(crate) leaves: Vec<LeafValue>,
    pub(crate) specs: Vec<TensorSpec>,
    pub(crate) coefficients: Vec<Arc<dyn Coefficients>>,
    /// Whether the arguments can be captured twice.
    pub(crate) can_repeat: bool,
}

impl<'t> Call<'t> {
    pub(crate) fn new(
        strategy: &'t StrategyId,
        replicas: usize,
        tracer: &'t dyn Tracer,
        key: StepKey,
    ) -> Self {
        Self {
            strategy,
            replicas,
            tracer,
            key,
            leaves: Vec::new(),
            specs: Vec::new(),
            coefficients: Vec::new(),
            can_repeat: true,
        }
    }

    fn leaf(&mut self, spec: TensorSpec, value: LeafValue) {
        self.key.tensor(&spec);
        self.specs.push(spec);
        self.leaves.push(value);
    }

    /// A mirrored value that the step may change.
    pub(crate) fn enter_state_mut<T: Replicate>(&mut self, state: &mut Mirrored<T>) -> Result<()> {
        let mut hosts = ReadHosts::default();
        state.values[0].visit_state(&mut hosts)?;
        self.enter_state(state, hosts, true)
    }

    /// A mirrored value that the step reads.
    pub(crate) fn enter_state_ref<T: Replicate>(&mut self, state: &Mirrored<T>) -> Result<()> {
        let mut hosts = ReadHosts::default();
        let mut host = state.values[0].replicate(&state.devices[0]);
        host.visit_state(&mut hosts)?;
        self.enter_state(state, hosts, false)
    }

    /// What the devices do not have yet is copied there.
    fn enter_state<T: Replicate>(
        &mut self,
        state: &Mirrored<T>,
        hosts: ReadHosts,
        mutable: bool,
    ) -> Result<()> {
        state.check(self.strategy)?;
        check_count("a mirrored argument", self.replicas, state.values.len())?;
        let mut on_device = lock(&state.on_device);
        if on_device.is_none() {
            let mut tensors = Vec::new();
            let mut host = state.values[0].replicate(&state.devices[0]);
            host.visit_state(&mut ReadTensors {
                others: own_tensors_of_others(state)?,
                each: &mut |mut data| {
                    let only = if data.len() == 1 { data.pop() } else { None };
                    tensors.push(match only {
                        Some(data) => self.tracer.upload(data)?,
                        None => self.tracer.upload_each(data)?,
                    });
                    Ok(())
                },
            })?;
            *on_device = Some(OnDevice {
                tensors,
                is_newer: false,
            });
        }
        self.key.state(&state.identity);
        let access = if mutable { "mut" } else { "ref" };
        self.fixed(format_args!("{access} {}", hosts.fingerprint.join(" ")));
        self.coefficients.extend(hosts.coefficients);
        for tensor in on_device.iter().flat_map(|state| &state.tensors) {
            let tensor = Arc::clone(tensor);
            self.leaf(tensor.spec(), LeafValue::Device { tensor, mutable });
        }
        Ok(())
    }

    /// A value that is the same for all replicas, which loses its tensors.
    pub(crate) fn enter_same<T: Nest>(&mut self, value: &mut T) -> Result<()> {
        let (structure, tensors) = take(value)?;
        self.fixed(format_args!("same {}", structure.join(" ")));
        for data in tensors {
            self.leaf(TensorSpec::of(&data), LeafValue::Same(data));
        }
        Ok(())
    }

    /// The parts of a batch, which lose their values.
    pub(crate) fn enter_batch<T: Nest>(&mut self, parts: &mut [T]) -> Result<()> {
        check_count("a per-replica argument", self.replicas, parts.len())?;
        let mut columns: Vec<Vec<TensorData>> = Vec::new();
        let mut expected: Option<Vec<String>> = None;
        for (replica, part) in parts.iter_mut().enumerate() {
            let (structure, data) = take(part)?;
            match &expected {
                None => {
                    columns = data.into_iter().map(|leaf| vec![leaf]).collect();
                    expected = Some(structure);
                }
                Some(first) if *first == structure => {
                    let columns = columns.iter_mut().zip(data);
                    columns.for_each(|(column, leaf)| column.push(leaf));
                }
                Some(first) => {
                    return Err(Error::UnevenArguments {
                        replica,
                        expected: first.join(" "),
                        found: structure.join(" "),
                    });
                }
            }
        }
        self.fixed(format_args!(
            "batch {}",
            expected.unwrap_or_default().join(" ")
        ));
        let first = parts.first_mut();
        self.can_repeat &= first.is_none_or(|part| copy(part).is_some());
        for column in columns {
            let spec = TensorSpec::of(&column[0]);
            self.leaf(spec, LeafValue::PerReplica(Arc::new(column)));
        }
        Ok(())
    }
}

impl Fingerprint for Call<'_> {
    fn fixed(&mut self, value: fmt::Arguments<'_>) {
        self.key.fixed(value);
    }
}

/// What each replica but the first has its own of.
fn own_tensors_of_others<T: Replicate>(
    state: &Mirrored<T>,
) -> Result<Vec<std::vec::IntoIter<TensorData>>> {
    let others = state.values.iter().zip(&state.devices).skip(1);
    let read = others.map(|(value, device)| {
        let mut own = ReadOwn::default();
        value.replicate(device).visit_state(&mut own)?;
        Ok(own.tensors.into_iter())
    });
    read.collect()
}

/// Moves the tensors out of one replica's part. Everything else stays, and is named together with
/// the tensors' shapes.
fn take<T: Nest>(part: &mut T) -> Result<(Vec<String>, Vec<TensorData>)> {
    let mut structure = Vec::new();
    part.fingerprint(&mut structure);
    let mut tensors = Vec::new();
    part.walk(&mut |leaf| {
        if leaf.traced().is_some() {
            let data = leaf.take()?;
            structure.push(TensorSpec::of(&data).to_string());
            tensors.push(data);
            return Ok(());
        }
        let number = leaf.take()?;
        if number.rank() != 0 {
            let instead = "make a tensor of it before the step";
            return Err(Error::not_compilable("host data in a batch", instead));
        }
        structure.push(format!("{:?}{:?}", number.dtype(), number.as_bytes()));
        leaf.put(number)
    })?;
    Ok((structure, tensors))
}

/// A value like a part that has lost its tensors, where there can be one.
fn copy<T: Nest>(part: &mut T) -> Option<T> {
    let mut copy = part.skeleton()?;
    if structure(&mut copy)? != structure(part)? {
        return None;
    }
    let mut tracking = Vec::new();
    let walked = part.walk(&mut |leaf| {
        tracking.extend(leaf.traced().map(|tensor| tensor.tracking()));
        Ok(())
    });
    walked.ok()?;
    let mut tracking = tracking.into_iter();
    let walked = copy.walk(&mut |leaf| {
        // A number has no entry in the list.
        if let Some(tensor) = leaf.traced()
            && let Some(tracking) = tracking.next()
        {
            tensor.empty(tracking);
        }
        Ok(())
    });
    walked.ok().filter(|()| tracking.next().is_none())?;
    Some(copy)
}

/// All of a value but its tensors.
fn structure<T: Nest>(value: &mut T) -> Option<Vec<String>> {
    let mut structure = Vec::new();
    value.fingerprint(&mut structure);
    let read = value.walk(&mut |leaf| {
        if leaf.traced().is_none() {
            let number = leaf.take()?;
            structure.push(format!("{:?}{:?}", number.dtype(), number.as_bytes()));
            leaf.put(number)?;
        }
        Ok(())
    });
    read.ok().map(|()| structure)
}

/// A mirrored value in a captured step.
#[derive(Debug)]
pub struct CapturedState<T> {
    pub(crate) value: T,
    before: Vec<Vec<u64>>,
}

/// A capture, as the arguments see it.
#[derive(Debug)]
pub struct Capture {
    pub(crate) trace: Arc<Trace>,
    /// The shapes and types of the arguments' tensors.
    specs: Vec<TensorSpec>,
    /// The inputs made so far.
    pub(crate) leaves: Vec<CapturedTensor>,
    /// What the tensors of mirrored values are called.
    pub(crate) names: HashMap<TensorId, String>,
    hosts: usize,
    pub(crate) states: Vec<CapturedChange>,
    /// What is known of the batch.
    pub(crate) batch_facts: BatchFacts,
    /// Whether they are captured once more.
    keeps_arguments: bool,
}

/// What a captured step has made of one mutable mirrored value.
#[derive(Debug)]
pub(crate) struct CapturedChange {
    pub(crate) hosts: Vec<(Vec<u64>, Vec<u64>)>,
    pub(crate) tensors: Vec<CapturedTensor>,
}

impl Capture {
    pub(crate) fn new(trace: Arc<Trace>, specs: Vec<TensorSpec>, keeps_arguments: bool) -> Self {
        Self {
            keeps_arguments,
            trace,
            specs,
            leaves: Vec::new(),
            names: HashMap::new(),
            hosts: 0,
            states: Vec::new(),
            batch_facts: BatchFacts::default(),
        }
    }

    /// A mirrored value, which the step may change if it is `mutable`.
    pub(crate) fn state<T: Replicate>(
        &mut self,
        state: &Mirrored<T>,
        mutable: bool,
    ) -> Result<CapturedState<T>> {
        let mut value = state.values[0].replicate(&state.devices[0]);
        let mut before = ReadHosts::default();
        value.visit_state(&mut before)?;
        let trace = Arc::clone(&self.trace);
        let mut hosts = self.hosts;
        value.visit_state(&mut Bind {
            trace: &trace,
            hosts: &mut hosts,
            mutable,
            next: &mut |name| {
                let input = next_input(&trace, &self.specs, &mut self.leaves)?;
                self.names.insert(input.id(), name.to_string());
                Ok(input)
            },
        })?;
        self.hosts = hosts;
        Ok(CapturedState {
            value,
            before: before.records,
        })
    }

    pub(crate) fn collect_state<T: Replicate>(
        &mut self,
        captured: &mut CapturedState<T>,
    ) -> Result<()> {
        let mut after = Collect::default();
        captured.value.visit_state(&mut after)?;
        let tensors: Option<Vec<_>> = after.tensors.into_iter().collect();
        let foreign = || {
            let instead = "compute every new value of the state from the step's arguments, on \
                           `ctx.device()`";
            Error::not_compilable("a tensor of the CPU in a training state", instead)
        };
        let before = std::mem::take(&mut captured.before);
        self.states.push(CapturedChange {
            hosts: before.into_iter().zip(after.records).collect(),
            tensors: tensors.ok_or_else(foreign)?,
        });
        Ok(())
    }

    /// Replica 0's part of a batch, with inputs in place of its tensors.
    pub(crate) fn batch<T: Nest>(&mut self, batch: &mut PerReplica<T>) -> Result<T> {
        let size = batch.global_batch_size();
        let parts = &mut batch.values;
        let copy = match (self.keeps_arguments, parts.first_mut()) {
            (_, None) => return Err(crate::nest::different_structure()),
            (true, Some(part)) => copy(part),
            (false, _) => None,
        };
        let mut part = copy.unwrap_or_else(|| parts.swap_remove(0));
        self.bind_batch(&mut part, size)?;
        Ok(part)
    }

    /// [`bind`](Self::bind) for a part of a batch.
    pub(crate) fn bind_batch<T: Nest>(
        &mut self,
        part: &mut T,
        global_batch_size: Option<usize>,
    ) -> Result<()> {
        self.bind(part)?;
        self.batch_facts.add(part, global_batch_size);
        Ok(())
    }

    /// Puts inputs in place of a value's tensors.
    pub(crate) fn bind<T: Nest>(&mut self, value: &mut T) -> Result<()> {
        let trace = Arc::clone(&self.trace);
        value.walk(&mut |leaf| {
            if let Some(tensor) = leaf.traced() {
                let input = next_input(&trace, &self.specs, &mut self.leaves);
                tensor.bind(input?);
            }
            Ok(())
        })
    }
}

/// Declares the next tensor of the arguments as an input.
fn next_input(
    trace: &Trace,
    specs: &[TensorSpec],
    leaves: &mut Vec<CapturedTensor>,
) -> Result<CapturedTensor> {
    let spec = specs
        .get(leaves.len())
        .ok_or_else(crate::nest::different_structure)?;
    let input = trace.input(Source::Leaf(leaves.len()), spec);
    leaves.push(input.clone());
    Ok(input)
}

/// What a call has made of the mutable mirrored arguments, in argument order.
#[derive(Debug)]
pub struct Changes {
    changes: std::vec::IntoIter<Change>,
}

/// What became of one mutable mirrored argument.
#[derive(Debug)]
pub(crate) enum Change {
    /// Its new tensors, and the change of its numbers.
    New {
        tensors: Vec<Arc<dyn DeviceTensor>>,
        hosts: Vec<(Vec<u64>, Vec<u64>)>,
        is_newer: bool,
    },
    /// The program failed after it had taken over the value's memory.
    Lost { cause: String },
}

impl Changes {
    /// The results of a program.
    pub(crate) fn new(
        states: &[StateChange],
        leaves: &[LeafValue],
        outputs: &[Arc<dyn DeviceTensor>],
    ) -> Self {
        let change = |state: &StateChange| {
            let tensor = |new: &NewTensor| match *new {
                NewTensor::Output(index) => outputs.get(index).cloned(),
                NewTensor::Leaf(index) => match leaves.get(index) {
                    Some(LeafValue::Device { tensor, .. }) => Some(Arc::clone(tensor)),
                    _ => None,
                },
            };
            let tensors: Option<Vec<_>> = state.tensors.iter().map(tensor).collect();
            match tensors {
                Some(tensors) => Change::New {
                    tensors,
                    hosts: state.hosts.clone(),
                    is_newer: state.tensors.iter().any(NewTensor::is_output),
                },
                None => Change::Lost {
                    cause: "the program left out a tensor of the state".to_string(),
                },
            }
        };
        let changes: Vec<_> = states.iter().map(change).collect();
        Self {
            changes: changes.into_iter(),
        }
    }

    /// Everything that the program could have changed is lost.
    pub(crate) fn lost(count: usize, cause: &str) -> Self {
        let lost = || Change::Lost {
            cause: cause.to_string(),
        };
        let changes: Vec<_> = (0..count).map(|_| lost()).collect();
        Self {
            changes: changes.into_iter(),
        }
    }

    /// Puts the next change into its value.
    pub(crate) fn apply<T: Replicate>(&mut self, state: &mut Mirrored<T>) -> Result<()> {
        match self.changes.next() {
            None => Err(crate::nest::different_structure()),
            Some(Change::Lost { cause }) => {
                *lock(&state.on_device) = None;
                *lock(&state.poison) = Some(cause);
                Ok(())
            }
            Some(Change::New {
                tensors,
                hosts,
                is_newer,
            }) => {
                state.forget_fetched();
                state.values[0].visit_state(&mut Replay {
                    changes: hosts.iter(),
                })?;
                let mut on_device = lock(&state.on_device);
                let was_newer = on_device.as_ref().is_some_and(|state| state.is_newer);
                *on_device = Some(OnDevice {
                    tensors,
                    is_newer: is_newer || was_newer,
                });
                Ok(())
            }
        }
    }
}
