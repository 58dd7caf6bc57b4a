//! Values that all workers take over from the chief, such as a model's initial parameters.

use std::ops::Range;

use burn::tensor::TensorData;
use distribute_collectives::Buffer;
use serde_json::{Value, json};

use super::WorkerGroup;
use crate::trace::TensorSpec;
use crate::{Error, Result};

/// Where a tensor belongs, and what it is.
pub(crate) type Named = (String, TensorSpec);

/// The chief sends its tensors in packs of at least one tensor and at most this many bytes.
const PACK_BYTES: usize = 32 << 20;

/// The tensors that travel together: as many as fit into a pack, or one.
pub(crate) fn packs(tensors: &[Named]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut bytes = 0_usize;
        let rest = tensors[start..].iter();
        let fits = |(_, form): &&Named| {
            bytes = bytes.saturating_add(size_bytes(form));
            bytes <= PACK_BYTES
        };
        let count = rest.take_while(fits).count().max(1);
        let pack = start..tensors.len().min(start + count);
        start = pack.end;
        (!pack.is_empty()).then_some(pack)
    })
}

fn size_bytes(form: &TensorSpec) -> usize {
    form.shape.iter().product::<usize>() * form.dtype.size()
}

impl WorkerGroup {
    /// Refuses, on all workers, if one has tensors of other names, shapes or types than the chief.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// [`Error::DifferentModels`].
    pub(crate) fn check_tensors(&self, own: &[Named]) -> Result<()> {
        let all = self.all_gather_json("the parameters of a model", &own.to_vec())?;
        // Every worker compares all lists, so all of them return the same error.
        for (worker, found) in all.iter().enumerate().skip(1) {
            if let Some(what) = difference(&all[0], found) {
                return Err(Error::DifferentModels { worker, what });
            }
        }
        Ok(())
    }

    /// The chief's values of tensors that all workers have; `None` on the chief, which reads them.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// If the chief cannot read them, and a worker that was lost.
    pub(crate) fn chiefs(
        &self,
        tensors: &[Named],
        read: impl FnOnce() -> Result<Vec<TensorData>>,
    ) -> Result<Option<Vec<TensorData>>> {
        let mut values: Vec<Vec<u8>> = if self.is_chief() {
            let read = self.or_abort(read())?.into_iter();
            read.map(|data| data.into_bytes().to_vec()).collect()
        } else {
            let forms = tensors.iter();
            forms.map(|(_, form)| vec![0; size_bytes(form)]).collect()
        };
        let mut buffers: Vec<Buffer<'_>> = values.iter_mut().map(|it| Buffer::U8(it)).collect();
        self.communicator().broadcast(0, &mut buffers)?;
        if self.is_chief() {
            return Ok(None);
        }
        let received = tensors.iter().zip(values).map(|((_, form), bytes)| {
            TensorData::from_bytes_vec(bytes, form.shape.clone(), form.dtype)
        });
        Ok(Some(received.collect()))
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
        let tensors = [("(a variable)".to_string(), TensorSpec::of(initial))];
        self.check_tensors(&tensors)?;
        let chiefs = self.chiefs(&tensors, || Ok(vec![initial.clone()]))?;
        if let Some(value) = chiefs.and_then(|mut values| values.pop()) {
            *initial = value;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    #[test]
    fn packs_hold_as_many_tensors_as_fit_and_each_once() {
        let tensor = |mebibytes: usize| {
            let shape = vec![mebibytes << 18];
            let dtype = DType::F32;
            (String::new(), TensorSpec { dtype, shape })
        };
        let packed = |sizes: &[usize]| {
            let tensors: Vec<Named> = sizes.iter().map(|size| tensor(*size)).collect();
            packs(&tensors).collect::<Vec<_>>()
        };
        assert_eq!(packed(&[]), Vec::<Range<usize>>::new());
        assert_eq!(packed(&[0, 1, 31, 1]), [0..3, 3..4]);
        assert_eq!(packed(&[40, 1, 40, 32, 0]), [0..1, 1..2, 2..3, 3..5]);
    }
}
