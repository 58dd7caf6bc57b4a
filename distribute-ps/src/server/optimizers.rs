//! Optimizers from a name and a configuration, and their use on raw bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::optim::{
    Coefficient, Optimizer, ParameterUpdate, SlotStart, from_config, names,
};
use serde_json::Value;

use crate::error::{PsError, Result};
use crate::server::kernels::Kernel;
use crate::server::segments::Segments;
use crate::server::wide;
use crate::variable::OptimizerSpec;

type Build = dyn Fn(&Value) -> Result<Arc<dyn Optimizer>> + Send + Sync;

/// An optimizer, and how it is applied in place where that is known.
#[derive(Debug, Clone)]
pub(super) struct Built {
    pub(super) optimizer: Arc<dyn Optimizer>,
    pub(super) kernel: Option<Kernel>,
}

impl Built {
    /// Whether slots are zero before the first update.
    pub(super) fn starts_at_zero(&self) -> bool {
        let zero = SlotStart::Number(0.0);
        let slots = self.optimizer.slots().iter();
        slots
            .map(|slot| self.optimizer.slot_start(slot))
            .all(|start| start == zero)
    }

    /// The slots of a parameter of this value before its first update.
    pub(super) fn new_slots(
        &self,
        parameter: &Segments,
        bytes: usize,
        dtype: DType,
    ) -> Vec<Segments> {
        let start = |slot: &&'static str| match self.optimizer.slot_start(slot) {
            SlotStart::Number(number) if number != 0.0 => {
                let element = TensorData::full_dtype([1], number, dtype);
                Segments::filled(bytes, element.as_bytes())
            }
            SlotStart::Parameter => parameter.clone(),
            _ => Segments::zeros(bytes),
        };
        self.optimizer.slots().iter().map(start).collect()
    }
}

/// The optimizers that a server knows: `distribute_core`'s, and registered ones.
#[derive(Clone, Default)]
pub(crate) struct Optimizers(BTreeMap<String, Arc<Build>>);

impl Optimizers {
    pub(crate) fn insert(
        &mut self,
        name: &str,
        build: impl Fn(&Value) -> Result<Arc<dyn Optimizer>> + Send + Sync + 'static,
    ) {
        self.0.insert(name.to_string(), Arc::new(build));
    }

    /// Builds the optimizer of a variable.
    pub(super) fn build(&self, spec: &OptimizerSpec) -> Result<Built> {
        if let Some(build) = self.0.get(&spec.name) {
            let (optimizer, kernel) = (build(&spec.config)?, None);
            return Ok(Built { optimizer, kernel });
        }
        if names().any(|name| name == spec.name) {
            return Ok(Built {
                optimizer: from_config(&spec.name, &spec.config)
                    .map_err(|error| PsError::invalid(error.to_string()))?,
                kernel: Kernel::of(spec),
            });
        }
        let mut known: Vec<&str> = names().collect();
        known.extend(self.0.keys().map(String::as_str));
        Err(PsError::invalid(format!(
            "the server knows no optimizer `{}`, only {}; teach it with \
             `ServerOptions::optimizer`",
            spec.name,
            known.join(", ")
        )))
    }
}

/// The slots of an optimizer that every server knows.
pub(crate) fn slots_of(spec: &OptimizerSpec) -> Option<Vec<&'static str>> {
    let built = Optimizers::default().build(spec).ok()?;
    Some(built.optimizer.slots().to_vec())
}

impl fmt::Debug for Optimizers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One application of an optimizer, with the numbers of its step.
pub(super) struct Rule<'a> {
    pub(super) built: &'a Built,
    /// The name of the variable.
    name: &'a str,
    coefficients: Vec<f64>,
    device: Device,
    dtype: DType,
}

impl<'a> Rule<'a> {
    /// For update `step` (from 1) of a shard of this type.
    pub(super) fn new(
        built: &'a Built,
        name: &'a str,
        learning_rate: Option<f64>,
        step: u64,
        dtype: DType,
    ) -> Self {
        let rate = learning_rate.unwrap_or_else(|| built.optimizer.learning_rate());
        Self {
            built,
            name,
            coefficients: built.optimizer.coefficients(rate, step),
            device: Device::flex(),
            dtype,
        }
    }

    fn tensor(&self, bytes: &[u8]) -> Tensor<1> {
        let count = bytes.len() / self.dtype.size();
        let data = TensorData::from_bytes_vec(bytes.to_vec(), [count], self.dtype);
        Tensor::from_data(data, (&self.device, self.dtype))
    }

    /// Updates parameter and slots, of as many elements as there are.
    pub(super) fn apply(
        &self,
        parameter: &mut [u8],
        gradient: &[u8],
        slots: &mut [&mut [u8]],
    ) -> Result<()> {
        let kernel = self.built.kernel.filter(|_| self.dtype == DType::F32);
        let numbers = &self.coefficients;
        if kernel.is_some_and(|it| wide::apply(it, numbers, parameter, gradient, slots)) {
            return Ok(());
        }
        let coefficients = self.coefficients.iter().copied().map(Coefficient::Host);
        let (updated, updated_slots) = self.built.optimizer.update(ParameterUpdate {
            path: self.name,
            coefficients: &coefficients.collect::<Vec<_>>(),
            parameter: self.tensor(parameter),
            gradient: self.tensor(gradient),
            slots: slots.iter().map(|slot| self.tensor(slot)).collect(),
            whole: None,
        })?;
        put(updated, parameter)?;
        let mut updated = updated_slots.into_iter().zip(slots);
        updated.try_for_each(|(updated, slot)| put(updated, slot))
    }
}

/// Puts a result where it belongs.
fn put(tensor: Tensor<1>, target: &mut [u8]) -> Result<()> {
    let wrong = |what: String| PsError::invalid(format!("the optimizer's result: {what}"));
    let data = tensor
        .try_into_data()
        .map_err(|error| wrong(error.to_string()))?;
    let bytes = data.as_bytes();
    if bytes.len() != target.len() {
        let (is, wanted) = (bytes.len(), target.len());
        return Err(wrong(format!("{is} bytes instead of {wanted}")));
    }
    target.copy_from_slice(bytes);
    Ok(())
}
