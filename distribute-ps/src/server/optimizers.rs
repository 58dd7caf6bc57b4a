//! Optimizers from a name and a configuration, and their use on raw bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::optim::{Adam, AdamW, Coefficient, Optimizer, Sgd};
use serde_json::Value;

use crate::error::{PsError, Result};
use crate::variable::OptimizerSpec;

type Build = dyn Fn(&Value) -> Result<Arc<dyn Optimizer>> + Send + Sync;

/// The optimizers that a server knows.
#[derive(Clone)]
pub(crate) struct Optimizers(BTreeMap<String, Arc<Build>>);

impl Default for Optimizers {
    fn default() -> Self {
        let mut known = Self(BTreeMap::new());
        known.insert("sgd", |config| {
            let sgd = Sgd::new(number(config, "learning_rate")?);
            let nesterov = config.get("nesterov").and_then(Value::as_bool);
            let sgd = sgd.momentum(number(config, "momentum")?);
            Ok(Arc::new(sgd.nesterov(nesterov.unwrap_or(false))))
        });
        known.insert("adam", |config| {
            let adam = Adam::new(number(config, "learning_rate")?);
            let adam = adam.betas(number(config, "beta_1")?, number(config, "beta_2")?);
            Ok(Arc::new(adam.epsilon(number(config, "epsilon")?)))
        });
        known.insert("adamw", |config| {
            let adamw = AdamW::new(number(config, "learning_rate")?);
            let adamw = adamw.betas(number(config, "beta_1")?, number(config, "beta_2")?);
            let adamw = adamw.epsilon(number(config, "epsilon")?);
            Ok(Arc::new(
                adamw.weight_decay(number(config, "weight_decay")?),
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
        self.0.insert(name.to_string(), Arc::new(build));
    }

    /// Builds the optimizer of a variable.
    pub(super) fn build(&self, spec: &OptimizerSpec) -> Result<Arc<dyn Optimizer>> {
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
    Some(built.slots())
}

impl fmt::Debug for Optimizers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One application of an optimizer, with the numbers of its step.
pub(super) struct Rule<'a> {
    optimizer: &'a dyn Optimizer,
    coefficients: Vec<Coefficient>,
    device: Device,
    dtype: DType,
}

impl<'a> Rule<'a> {
    /// For update `step` (from 1) of a shard of this type.
    pub(super) fn new(
        optimizer: &'a dyn Optimizer,
        learning_rate: Option<f64>,
        step: u64,
        dtype: DType,
    ) -> Self {
        let rate = learning_rate.unwrap_or_else(|| optimizer.learning_rate());
        let coefficients = optimizer.coefficients(rate, step);
        Self {
            optimizer,
            coefficients: coefficients.into_iter().map(Coefficient::Host).collect(),
            device: Device::flex(),
            dtype,
        }
    }

    fn tensor(&self, bytes: Vec<u8>) -> Tensor<1> {
        let count = bytes.len() / self.dtype.size();
        let data = TensorData::from_bytes_vec(bytes, [count], self.dtype);
        Tensor::from_data(data, (&self.device, self.dtype))
    }

    /// The updated parameter and slots, of as many elements as there are.
    pub(super) fn apply(
        &self,
        parameter: Vec<u8>,
        gradient: Vec<u8>,
        slots: Vec<Vec<u8>>,
    ) -> Result<(TensorData, Vec<TensorData>)> {
        let slots = slots.into_iter().map(|slot| self.tensor(slot)).collect();
        let (parameter, slots) = self.optimizer.update(
            &self.coefficients,
            self.tensor(parameter),
            self.tensor(gradient),
            slots,
        )?;
        let data = |tensor: Tensor<1>| {
            tensor
                .try_into_data()
                .map_err(|error| PsError::invalid(format!("the optimizer's result: {error}")))
        };
        let slots = slots.into_iter().map(data).collect::<Result<_>>()?;
        Ok((data(parameter)?, slots))
    }
}
