//! What an optimizer of burn keeps, in checkpoints: `optimizer_record/<leaf>/<path>`.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::TensorData;

use super::TrainState;
use super::update::visit_named;
use crate::checkpoint::CheckpointError;
use crate::optim::{BurnRecord, RecordLeaves};
use crate::{Error, Result};

const PREFIX: &str = "optimizer_record/";

impl<M: Module + 'static> TrainState<M> {
    /// The dimensions of the trained parameters, in visit order.
    pub(super) fn shapes(&self) -> Result<Vec<Vec<usize>>> {
        let mut shapes = Vec::with_capacity(self.names.len());
        visit_named(&self.model, &self.names, |tensor| {
            shapes.push(tensor.spec().shape);
            Ok(())
        })?;
        Ok(shapes)
    }

    pub(super) fn records_to_tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        let mut tensors = BTreeMap::new();
        let Some(burn) = self.optimizer.burn() else {
            return Ok(tensors);
        };
        for ((name, record), shape) in self.names.iter().zip(&self.records).zip(self.shapes()?) {
            let Some(record) = record else { continue };
            for (leaf, data) in burn.save(&shape, record)? {
                tensors.insert(format!("{PREFIX}{leaf}/{name}"), data);
            }
        }
        Ok(tensors)
    }

    /// Those of a checkpoint; without any they begin anew.
    ///
    /// # Errors
    /// If that of a parameter is not whole, or there is one and the optimizer is none of burn's.
    pub(super) fn records_of_tensors(
        &self,
        tensors: &BTreeMap<String, TensorData>,
    ) -> Result<Vec<Option<BurnRecord>>> {
        let mut leaves: BTreeMap<&str, RecordLeaves> = BTreeMap::new();
        for (name, data) in tensors {
            let parts = name.strip_prefix(PREFIX).and_then(|it| it.split_once('/'));
            if let Some((leaf, path)) = parts {
                let of_path = leaves.entry(path).or_default();
                of_path.insert(leaf.to_string(), data.clone());
            }
        }
        let Some(burn) = self.optimizer.burn() else {
            let mut names = self.names.iter();
            let Some(name) = names.find(|name| leaves.contains_key(name.as_str())) else {
                return Ok(vec![None; self.names.len()]);
            };
            let error = CheckpointError::WrongOptimizer {
                saved_by: "one of burn's optimizers".to_string(),
                found: format!("{PREFIX}..{name}"),
                optimizer: self.optimizer.name().to_string(),
                expected: self.optimizer.slots().join(", "),
            };
            return Err(error.into());
        };
        let device = self.model.devices().into_iter().next().unwrap_or_default();
        let device = device.without_autodiff();
        let each = self.names.iter().zip(self.shapes()?).map(|(name, shape)| {
            let Some(leaves) = leaves.remove(name.as_str()) else {
                return Ok(None);
            };
            let record = burn.load(&shape, leaves, &device)?.ok_or_else(|| {
                Error::invalid(format!(
                    "what the checkpoint has of the optimizer {} for the parameter `{name}` is not \
                     whole, or of another optimizer",
                    self.optimizer.name()
                ))
            })?;
            Ok(Some(record))
        });
        each.collect()
    }
}
