//! A model while its step is captured.

use std::collections::VecDeque;

use burn::module::{Flag, Module, Param};
use burn::tensor::{Device, GradientCheckpointingStrategy};

use crate::Result;
use crate::local_batch_norm::is_own_statistic;
use crate::nest::Tracking;
use crate::parameters::{self, Parameter, Walk};

/// Walks a module's tensors in visit order, to put tensors of a capture in if it says where the
/// constants go.
pub(crate) fn walk_module<M: Module>(
    module: &mut M,
    capture: Option<&Device>,
    visit: impl Walk,
) -> Result<()> {
    *module = match capture {
        None => {
            settle(module)?;
            parameters::map(module.clone(), visit)?
        }
        Some(device) => {
            let mut tracked = Remembered::default();
            parameters::visit(module, Remember(&mut tracked))?;
            // Constants of the module move to the capture device, which takes none with autodiff.
            let moved = parameters::map(module.valid(), visit)?;
            let moved = moved.fork(&device.clone().without_autodiff());
            parameters::map(moved, tracked)?
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
            track(
                parameter,
                Tracking {
                    autodiff: Some(GradientCheckpointingStrategy::Disabled),
                    keeps_gradient: false,
                },
            );
            Ok(())
        })?;
        drop(tracked.train());
    }
    Ok(())
}

/// Whether each tensor has autodiff and keeps its gradient, and which parts of the module train
/// (dropout), which [`Module::valid`] forgets. As a walk it gives captured parameters the autodiff
/// that the host's have.
#[derive(Default)]
struct Remembered {
    tensors: VecDeque<Tracking>,
    training: VecDeque<bool>,
}

impl Walk for Remembered {
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
fn track(parameter: Parameter<'_>, tracking: Tracking) {
    if let Some(captured) = parameter.tensor.captured() {
        parameter.tensor.bind(captured, tracking);
    }
}

struct Remember<'a>(&'a mut Remembered);

impl Walk for Remember<'_> {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        let mut tracking = parameter.tensor.tracking();
        // A float that keeps no gradient is a constant of the step; burn moves running statistics
        // to the device of the input, which it refuses for captured tensors with autodiff.
        if parameter.tensor.spec().dtype.is_float() && !tracking.keeps_gradient {
            tracking.autodiff = None;
        }
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
/// A model cannot cause one.
pub fn valid<M: Module>(model: &M) -> Result<M> {
    parameters::map(model.clone(), Plain)
}

struct Plain;

impl Walk for Plain {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        track(parameter, Tracking::default());
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.valid()
    }
}
