//! A model while its step is captured.

use std::collections::VecDeque;

use burn::module::{Flag, Module, Param};
use burn::tensor::{Device, TensorData};

use super::{CapturedTensor, TensorSpec};
use crate::local_batch_norm::{is_own_statistic, is_synchronized_statistic};
use crate::parameters::{self, Parameter, Walk};
use crate::{Leaf, Result};

/// Walks a module's tensors in visit order, to put tensors of a capture in if it says where the
/// constants go.
pub(crate) fn walk_module<M: Module>(
    module: &mut M,
    capture: Option<&Device>,
    mut visit: impl FnMut(&str, &mut dyn Leaf) -> Result<()>,
) -> Result<()> {
    let hand = |parameter: Parameter<'_>| {
        let is_own = is_own_statistic(&parameter);
        if !is_own && !is_synchronized_statistic(&parameter) {
            return visit(parameter.path, parameter.tensor);
        }
        let leaf = parameter.tensor;
        visit(parameter.path, &mut Statistic { leaf, is_own })
    };
    *module = match capture {
        None => {
            settle(module)?;
            parameters::map(module.clone(), hand)?
        }
        Some(device) => {
            let mut tracking = Tracking::default();
            parameters::visit(module, Remember(&mut tracking))?;
            // Constants of the module move to the capture device, which takes none with autodiff.
            let moved = parameters::map(module.valid(), hand)?;
            let moved = moved.fork(&device.clone().without_autodiff());
            parameters::map(moved, tracking)?
        }
    };
    Ok(())
}

/// Brings the running statistics of a captured module up to date: burn keeps what a forward pass
/// has left where `train` and `valid` alone fetch it, and `train` takes captured tensors that have
/// autodiff already. Clones share running statistics, so the module has them afterwards.
fn settle<M: Module>(module: &M) -> Result<()> {
    let mut has_any = false;
    parameters::visit(module, |parameter: Parameter<'_>| {
        has_any |= is_own_statistic(&parameter) && parameter.tensor.captured().is_some();
        Ok(())
    })?;
    if has_any {
        let tracked = parameters::map(module.clone(), |parameter: Parameter<'_>| {
            track(parameter, (true, false));
            Ok(())
        })?;
        drop(tracked.train());
    }
    Ok(())
}

/// A running statistic.
struct Statistic<'a> {
    leaf: &'a mut dyn Leaf,
    /// Whether each replica has its own.
    is_own: bool,
}

impl Leaf for Statistic<'_> {
    fn spec(&self) -> TensorSpec {
        self.leaf.spec()
    }

    fn data(&self) -> Result<TensorData> {
        self.leaf.data()
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        self.leaf.put(data)
    }

    fn set_data(&mut self, data: TensorData) -> Result<()> {
        self.leaf.set_data(data)
    }

    fn is_running_statistic(&self) -> bool {
        self.is_own
    }

    fn is_statistic(&self) -> bool {
        true
    }

    fn captured(&self) -> Option<CapturedTensor> {
        self.leaf.captured()
    }

    fn tracking(&self) -> (bool, bool) {
        self.leaf.tracking()
    }

    fn bind(&mut self, tensor: CapturedTensor, tracking: (bool, bool)) {
        self.leaf.bind(tensor, tracking);
    }
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
            track(parameter, tracking);
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

/// Gives a captured parameter the autodiff that the host's has.
fn track(parameter: Parameter<'_>, tracking: (bool, bool)) {
    if let Some(captured) = parameter.tensor.captured() {
        parameter.tensor.bind(captured, tracking);
    }
}

struct Remember<'a>(&'a mut Tracking);

impl Walk for Remember<'_> {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        let (has_autodiff, keeps_gradient) = parameter.tensor.tracking();
        // A float that keeps no gradient is a constant of the step; burn moves running statistics
        // to the device of the input, which it refuses for captured tensors with autodiff.
        let is_constant = parameter.tensor.spec().dtype.is_float() && !keeps_gradient;
        let tracking = (has_autodiff && !is_constant, keeps_gradient);
        self.0.tensors.push_back(tracking);
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
        track(parameter, (false, false));
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.valid()
    }
}
