//! Values that all workers take over from the chief, such as a model's initial parameters.

use burn::tensor::TensorData;
use distribute_collectives::Buffer;
use serde_json::{Value, json};

use super::WorkerGroup;
use super::encoding::tensor;
use crate::trace::TensorSpec;
use crate::{Error, Result};

/// Where a tensor belongs, and what it is.
type Named = (String, TensorSpec);

impl WorkerGroup {
    /// Replaces the tensors, which have these names, by the chief's.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// [`Error::DifferentModels`] on all workers if one has other tensors than the chief.
    pub(crate) fn take_from_chief(
        &self,
        names: &[String],
        tensors: &mut [TensorData],
    ) -> Result<()> {
        let forms = tensors.iter().map(TensorSpec::of);
        let own: Vec<Named> = names.iter().cloned().zip(forms).collect();
        let all = self.all_gather_json("the parameters of a model", &own)?;
        // Every worker compares all lists, so all of them return the same error.
        for (worker, found) in all.iter().enumerate().skip(1) {
            if let Some(what) = difference(&all[0], found) {
                return Err(Error::DifferentModels { worker, what });
            }
        }
        let bytes = tensors.iter().flat_map(TensorData::as_bytes);
        let mut bytes: Vec<u8> = bytes.copied().collect();
        self.communicator()
            .broadcast(0, &mut [Buffer::U8(&mut bytes)])?;
        let mut rest = bytes.as_slice();
        for (data, (_, form)) in tensors.iter_mut().zip(&own) {
            let (elements, left) = rest.split_at(data.as_bytes().len());
            *data = tensor(form, elements);
            rest = left;
        }
        Ok(())
    }

    /// Refuses, on all workers, if one has other numbers or texts than the chief. `what` they are
    /// settings of; every value stands behind its name, and all workers name the same.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the first that differs. A worker that was lost, ended the
    /// group or does not come before the deadline.
    pub fn check_equal(&self, what: &str, own: &[(&str, Value)]) -> Result<()> {
        let values: Vec<&Value> = own.iter().map(|(_, value)| value).collect();
        let all = self.all_gather_json(what, &json!(values))?;
        let Some(worker) = all.iter().position(|found| *found != all[0]) else {
            return Ok(());
        };
        let differs = |index: &usize| all[worker][*index] != all[0][*index];
        let index = (0..own.len()).find(differs).unwrap_or(0);
        let shown = |worker: usize| match &all[worker][index] {
            Value::Null => "not set".to_string(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let (name, found, expected) = (own[index].0, shown(worker), shown(0));
        Err(Error::invalid(format!(
            "{what}: {name} is {found} on worker {worker} and {expected} on the chief; run all \
             workers with the same settings"
        )))
    }

    /// Replaces a variable's initial value by the chief's.
    pub(crate) fn take_initial_value(&self, initial: &mut TensorData) -> Result<()> {
        let names = ["(a variable)".to_string()];
        self.take_from_chief(&names, std::slice::from_mut(initial))
    }
}

/// The first difference in words.
fn difference(chief: &[Named], worker: &[Named]) -> Option<String> {
    let text = |form: &TensorSpec| format!("{} {:?}", form.dtype.name(), form.shape);
    for (index, expected) in chief.iter().enumerate() {
        let (name, form) = expected;
        return Some(match worker.get(index) {
            Some(found) if found == expected => continue,
            Some((other, found)) if other == name => format!(
                "the parameter `{name}` is {} there and {} on the chief",
                text(found),
                text(form)
            ),
            Some((other, _)) => {
                format!("its parameter {index} is `{other}`, the chief's is `{name}`")
            }
            None => format!("it has no parameter `{name}`"),
        });
    }
    let (more, _) = worker.get(chief.len())?;
    Some(format!("the chief has no parameter `{more}`"))
}
