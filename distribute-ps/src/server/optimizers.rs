//! Optimizers from a name and a configuration, and their use on raw bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::optim::{Adam, AdamW, Coefficient, Optimizer, Sgd};
use serde_json::Value;

use crate::error::{PsError, Result};
use crate::server::kernels::Kernel;
use crate::server::wide;
use crate::variable::OptimizerSpec;

type Build = dyn Fn(&Value) -> Result<Built> + Send + Sync;

/// An optimizer, and how it is applied in place where that is known.
#[derive(Debug, Clone)]
pub(super) struct Built {
    pub(super) optimizer: Arc<dyn Optimizer>,
    pub(super) kernel: Option<Kernel>,
}

impl Built {
    fn new(optimizer: impl Optimizer + 'static, kernel: Kernel) -> Self {
        Self {
            optimizer: Arc::new(optimizer),
            kernel: Some(kernel),
        }
    }
}

/// The optimizers that a server knows.
#[derive(Clone)]
pub(crate) struct Optimizers(BTreeMap<String, Arc<Build>>);

impl Default for Optimizers {
    fn default() -> Self {
        let mut known = Self(BTreeMap::new());
        known.add("sgd", |config| {
            let sgd = Sgd::new(number(config, "learning_rate")?);
            let nesterov = config.get("nesterov").and_then(Value::as_bool);
            let (momentum, nesterov) = (number(config, "momentum")?, nesterov.unwrap_or(false));
            let kernel = Kernel::Sgd { momentum, nesterov };
            Ok(Built::new(
                sgd.momentum(momentum).nesterov(nesterov),
                kernel,
            ))
        });
        known.add("adam", |config| {
            let adam = Adam::new(number(config, "learning_rate")?);
            let (beta_1, beta_2) = (number(config, "beta_1")?, number(config, "beta_2")?);
            let epsilon = number(config, "epsilon")?;
            let kernel = Kernel::Adam {
                beta_1,
                beta_2,
                epsilon,
                decays: false,
            };
            Ok(Built::new(
                adam.betas(beta_1, beta_2).epsilon(epsilon),
                kernel,
            ))
        });
        known.add("adamw", |config| {
            let adamw = AdamW::new(number(config, "learning_rate")?);
            let (beta_1, beta_2) = (number(config, "beta_1")?, number(config, "beta_2")?);
            let epsilon = number(config, "epsilon")?;
            let kernel = Kernel::Adam {
                beta_1,
                beta_2,
                epsilon,
                decays: true,
            };
            let adamw = adamw.betas(beta_1, beta_2).epsilon(epsilon);
            Ok(Built::new(
                adamw.weight_decay(number(config, "weight_decay")?),
                kernel,
            ))
        });
        known
    }
}

fn number(config: &Value, key: &str) -> Result<f64> {
    config.get(key).and_then(Value::as_f64).ok_or_else(|| {
        PsError::invalid(format!(
            "the optimizer's configuration {config} has no number `{key}`"
        ))
    })
}

impl Optimizers {
    pub(crate) fn insert(
        &mut self,
        name: &str,
        build: impl Fn(&Value) -> Result<Arc<dyn Optimizer>> + Send + Sync + 'static,
    ) {
        self.add(name, move |config| {
            let (optimizer, kernel) = (build(config)?, None);
            Ok(Built { optimizer, kernel })
        });
    }

    fn add(&mut self, name: &str, build: impl Fn(&Value) -> Result<Built> + Send + Sync + 'static) {
        self.0.insert(name.to_string(), Arc::new(build));
    }

    /// Builds the optimizer of a variable.
    pub(super) fn build(&self, spec: &OptimizerSpec) -> Result<Built> {
        match self.0.get(&spec.name) {
            Some(build) => build(&spec.config),
            None => Err(PsError::invalid(format!(
                "the server knows no optimizer `{}`, only {}; teach it with \
                 `ServerOptions::optimizer`",
                spec.name,
                self.0.keys().cloned().collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

/// The slots of an optimizer that every server knows.
pub(crate) fn slots_of(spec: &OptimizerSpec) -> Option<&'static [&'static str]> {
    let built = Optimizers::default().build(spec).ok()?;
    Some(built.optimizer.slots())
}

impl fmt::Debug for Optimizers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One application of an optimizer, with the numbers of its step.
pub(super) struct Rule<'a> {
    built: &'a Built,
    coefficients: Vec<f64>,
    device: Device,
    dtype: DType,
}

impl<'a> Rule<'a> {
    /// For update `step` (from 1) of a shard of this type.
    pub(super) fn new(
        built: &'a Built,
        learning_rate: Option<f64>,
        step: u64,
        dtype: DType,
    ) -> Self {
        let rate = learning_rate.unwrap_or_else(|| built.optimizer.learning_rate());
        Self {
            built,
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
        let (updated, updated_slots) = self.built.optimizer.update(
            &coefficients.collect::<Vec<_>>(),
            self.tensor(parameter),
            self.tensor(gradient),
            slots.iter().map(|slot| self.tensor(slot)).collect(),
        )?;
        put(updated, parameter)?;
        let updated = updated_slots.into_iter().zip(slots);
        updated.map(|(updated, slot)| put(updated, slot)).collect()
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
