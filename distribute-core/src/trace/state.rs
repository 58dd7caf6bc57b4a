//! Mirrored values as a captured step sees them: tensors on the device, and numbers on the host.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use burn::module::{Flag, Module, Param};
use burn::tensor::{Device, TensorData};

use super::{CapturedTensor, DeviceTensor, Fingerprint, Trace, TracedTensor};
use crate::parameters::{self, Parameter, Walk};
use crate::{Error, Result};

/// Walks a mirrored value: its tensors, and the parts of it that are numbers on the host.
///
/// [`StatePart::visit_state`](crate::StatePart::visit_state) calls these in an order that depends
/// on the value's structure alone.
pub trait StateVisitor {
    /// A training state, before its tensors.
    ///
    /// # Errors
    /// What the visitor does not accept.
    fn host(&mut self, state: &mut dyn HostState) -> Result<()> {
        let _ = state;
        Ok(())
    }

    /// One tensor of the value, with what it is called in messages.
    ///
    /// # Errors
    /// What the visitor does not accept.
    fn tensor(&mut self, name: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        let _ = (name, tensor);
        Ok(())
    }

    /// One tensor of which every replica has its own: the gradients of micro-batches.
    ///
    /// # Errors
    /// What the visitor does not accept.
    fn own_tensor(&mut self, name: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        self.tensor(name, tensor)
    }

    /// Whether tensors are wanted; walking them can be left out otherwise.
    fn wants_tensors(&self) -> bool {
        true
    }

    /// Where a module's constants go, if the visitor puts tensors of a capture in.
    fn capture_device(&self) -> Option<&Device> {
        None
    }
}

/// The numbers of a training state, which stay on the host while its tensors are on the device.
pub trait HostState {
    /// Brings the state into the form that all its steps share (slots that start as zeros).
    ///
    /// # Errors
    /// If its parameters cannot be looked at.
    fn prepare(&mut self) -> Result<()>;

    /// Names what the program depends on: optimizer, clipping, accumulation.
    fn fingerprint(&self, key: &mut dyn Fingerprint);

    /// What computes the numbers that enter an update as tensors.
    fn coefficients(&self) -> Arc<dyn Coefficients>;

    /// Tells the state that it is part of a capture, as its `index`-th training state, and whether
    /// the step may change it.
    ///
    /// # Errors
    /// If it has parts that cannot be captured.
    fn bind(&mut self, trace: Arc<Trace>, index: usize, mutable: bool) -> Result<()>;

    /// The numbers that a step may change.
    fn record(&self) -> Vec<u64>;

    /// Makes the change that a captured step has made between two records.
    fn replay(&mut self, before: &[u64], after: &[u64]);
}

/// Computes the numbers of an update on the host.
pub trait Coefficients: Send + Sync {
    /// Those of the update after `earlier` others, with this learning rate or the state's own.
    fn of_update(&self, earlier: u64, learning_rate: Option<f64>) -> Vec<f64>;

    /// A number that is another one in every step, and the same again in a run that is resumed.
    fn position(&self) -> u64;
}

impl fmt::Debug for dyn Coefficients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Coefficients")
    }
}

/// A mirrored value's tensors on the devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnDevice {
    pub(crate) tensors: Vec<Arc<dyn DeviceTensor>>,
    /// Whether the host's copy is older.
    pub(crate) is_newer: bool,
}

/// Walks a module's tensors in visit order.
pub(crate) fn visit_module<M: Module>(
    module: &mut M,
    visitor: &mut dyn StateVisitor,
) -> Result<()> {
    if !visitor.wants_tensors() {
        return Ok(());
    }
    let capture = visitor.capture_device().cloned();
    let hand = |parameter: Parameter<'_>| visitor.tensor(parameter.path, parameter.tensor);
    *module = match capture {
        None => parameters::map(module.clone(), hand)?,
        Some(device) => {
            let mut tracking = Tracking::default();
            parameters::visit(module, Remember(&mut tracking))?;
            // Constants of the module move to the capture device, which takes none with autodiff.
            let moved = parameters::map(module.valid(), hand)?;
            let moved = moved.fork(&device.without_autodiff());
            parameters::map(moved, tracking)?
        }
    };
    Ok(())
}

/// Whether each tensor has autodiff and keeps its gradient, and which parts of the module train
/// (dropout), which [`Module::valid`] forgets. As a walk it gives captured parameters the autodiff
/// that the host's have.
#[derive(Default)]
struct Tracking {
    tensors: VecDeque<(bool, bool)>,
    training: VecDeque<bool>,
}

impl Walk for Tracking {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        if let Some(tracking) = self.tensors.pop_front() {
            parameter.tensor.track(tracking);
        }
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        match self.training.pop_front() {
            Some(training) => flag.map(|flag| flag.with(training)),
            None => flag,
        }
    }
}

struct Remember<'a>(&'a mut Tracking);

impl Walk for Remember<'_> {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        self.0.tensors.push_back(parameter.tensor.tracking());
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.training.push_back(flag.is_enabled());
        flag
    }
}

/// A captured model without autodiff, as [`Module::valid`] makes it of other models.
///
/// # Errors
/// None that a model can cause.
pub fn valid<M: Module>(model: &M) -> Result<M> {
    parameters::map(model.clone(), Plain)
}

struct Plain;

impl Walk for Plain {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        parameter.tensor.track((false, false));
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.valid()
    }
}

/// Collects what the host knows of a value.
#[derive(Default)]
pub(crate) struct ReadHosts {
    pub(crate) fingerprint: Vec<String>,
    pub(crate) coefficients: Vec<Arc<dyn Coefficients>>,
    pub(crate) records: Vec<Vec<u64>>,
}

impl StateVisitor for ReadHosts {
    fn host(&mut self, state: &mut dyn HostState) -> Result<()> {
        state.fingerprint(&mut self.fingerprint);
        self.coefficients.push(state.coefficients());
        self.records.push(state.record());
        Ok(())
    }

    fn wants_tensors(&self) -> bool {
        false
    }
}

/// Prepares the training states and copies all tensors.
pub(crate) struct ReadTensors<'a> {
    /// Of the other replicas, what they have their own of.
    pub(crate) others: Vec<std::vec::IntoIter<TensorData>>,
    /// Called with one value, or with that of each replica.
    pub(crate) each: &'a mut dyn FnMut(Vec<TensorData>) -> Result<()>,
}

impl StateVisitor for ReadTensors<'_> {
    fn host(&mut self, state: &mut dyn HostState) -> Result<()> {
        state.prepare()
    }

    fn tensor(&mut self, _: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        (self.each)(vec![tensor.data()?])
    }

    fn own_tensor(&mut self, _: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        let mut all = vec![tensor.data()?];
        for other in &mut self.others {
            all.push(other.next().ok_or_else(other_structure)?);
        }
        (self.each)(all)
    }
}

fn other_structure() -> Error {
    Error::invalid("the replicas' copies of a mirrored value differ in structure")
}

/// Copies the tensors that a replica has its own of.
#[derive(Default)]
pub(crate) struct ReadOwn {
    pub(crate) tensors: Vec<TensorData>,
}

impl StateVisitor for ReadOwn {
    fn own_tensor(&mut self, _: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        self.tensors.push(tensor.data()?);
        Ok(())
    }
}

/// Puts the devices' values into a host copy.
pub(crate) struct Fetch<'a> {
    tensors: std::slice::Iter<'a, Arc<dyn DeviceTensor>>,
    replica: usize,
    /// Whether the replicas have tensors of their own.
    pub(crate) has_own: bool,
}

impl<'a> Fetch<'a> {
    /// Of all tensors for the first replica, and for others of those that they have their own of:
    /// the rest is in their copy already.
    pub(crate) fn new(tensors: &'a [Arc<dyn DeviceTensor>], replica: usize) -> Self {
        Self {
            tensors: tensors.iter(),
            replica,
            has_own: false,
        }
    }

    fn next(&mut self) -> Result<&'a Arc<dyn DeviceTensor>> {
        let missing = || Error::invalid("a mirrored value changed its structure on the device");
        self.tensors.next().ok_or_else(missing)
    }
}

impl StateVisitor for Fetch<'_> {
    fn host(&mut self, state: &mut dyn HostState) -> Result<()> {
        state.prepare()
    }

    fn tensor(&mut self, _: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        let source = self.next()?;
        match self.replica {
            0 => tensor.set_data(source.read(0)?),
            _ => Ok(()),
        }
    }

    fn own_tensor(&mut self, _: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        self.has_own = true;
        let source = self.next()?;
        tensor.set_data(source.read(self.replica)?)
    }
}

/// Collects the tensors of a value after a captured step.
#[derive(Default)]
pub(crate) struct Collect {
    pub(crate) records: Vec<Vec<u64>>,
    pub(crate) tensors: Vec<Option<CapturedTensor>>,
}

impl StateVisitor for Collect {
    fn host(&mut self, state: &mut dyn HostState) -> Result<()> {
        self.records.push(state.record());
        Ok(())
    }

    fn tensor(&mut self, _: &str, tensor: &mut dyn TracedTensor) -> Result<()> {
        self.tensors.push(tensor.captured());
        Ok(())
    }
}

/// Makes the host's part of a step's change.
pub(crate) struct Replay<'a> {
    pub(crate) changes: std::slice::Iter<'a, (Vec<u64>, Vec<u64>)>,
}

impl StateVisitor for Replay<'_> {
    fn host(&mut self, state: &mut dyn HostState) -> Result<()> {
        if let Some((before, after)) = self.changes.next() {
            state.replay(before, after);
        }
        Ok(())
    }

    fn wants_tensors(&self) -> bool {
        false
    }
}
