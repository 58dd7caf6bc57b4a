//! Gradients of one replica, in the order of the model's parameters.

mod buffers;
mod clip;
mod elements;
mod for_burn;
mod leaves;
mod loss_scale;
mod owner;
mod residence;
mod rows;
mod tape;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};

use crate::parameters::{self, FloatTensor};
use crate::trace::TensorSpec;
use crate::{Error, Result};

pub(crate) use buffers::Flags;
pub use clip::Clip;
pub use loss_scale::LossScale;
use residence::Number;
pub(crate) use residence::{Residence, with_shape};
pub(crate) use rows::Watched;
pub use rows::{RemoteRows, RemoteVersion, RowGradients};
pub(crate) use tape::Tape;
pub use tape::{Collect, Models};

/// The gradients of a model's trainable parameters, in visit order (the order in which the
/// module declares its fields). The order, not burn's random parameter id, is what replicas and
/// workers agree on.
///
/// The buffers are the ones that burn's backward pass produced: on the flex backend they are
/// reduced over the replicas in place and handed to the optimizer without a copy. On a GPU they
/// stay in its memory in the same way; what looks at their values ([`get`](Self::get),
/// [`iter_mut`](Self::iter_mut)) copies them to host memory.
///
/// A step can return them. In a compiled step that is the only way to see them: while it is
/// captured they have no values yet.
#[derive(Debug, Clone)]
pub struct Gradients {
    entries: Vec<Entry>,
    /// Of rows of tables on parameter servers, once for each table.
    rows: Vec<RowGradients>,
}

/// The gradient of one parameter.
#[derive(Debug, Clone)]
struct Entry {
    id: ParamId,
    spec: TensorSpec,
    /// None if the loss did not depend on the parameter.
    gradient: Option<Residence>,
}

impl Gradients {
    /// The gradients that burn holds for a model's trainable parameters, the way back of
    /// [`into_params`](Self::into_params); without a copy on the flex backend if nothing else
    /// holds the tensors.
    ///
    /// # Errors
    /// If the device cannot hand a gradient out.
    pub fn from_params<M: Module>(mut params: GradientsParams, model: &M) -> Result<Self> {
        let mut gradients = Self::collect(model, |id, tensor| {
            let gradient = tensor.take_param(id, &mut params);
            Ok(gradient.map(|it| Residence::device(it, tensor.spec().shape.into())))
        })?;
        gradients.settle(false)?;
        Ok(gradients)
    }

    fn collect<M: Module>(
        model: &M,
        mut take: impl FnMut(ParamId, &dyn FloatTensor) -> Result<Option<Residence>>,
    ) -> Result<Self> {
        let mut entries = Vec::new();
        parameters::visit_trained(model, |id, _, tensor| {
            entries.push(Entry {
                id,
                spec: tensor.spec(),
                gradient: take(id, tensor)?,
            });
            Ok(())
        })?;
        let rows = Vec::new();
        Ok(Self { entries, rows })
    }

    /// Takes gradients in host memory out of burn's tensors, unless it `keeps` them there.
    fn settle(&mut self, keeps: bool) -> Result<()> {
        for entry in &mut self.entries {
            let gradient = entry.gradient.take();
            entry.gradient = gradient.map(|it| it.settled(keeps)).transpose()?;
        }
        Ok(())
    }

    /// The number of trainable parameters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the model has no trainable parameter.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The gradient of the parameter at `index` in visit order; `None` if the loss did not
    /// depend on it. One on a GPU is copied to host memory the first time.
    ///
    /// # Errors
    /// If the device cannot hand it out, and in a step that is compiled
    /// ([`Error::HostRead`]).
    pub fn get(&self, index: usize) -> Result<Option<&TensorData>> {
        let entry = self.entries.get(index);
        let gradient = entry.and_then(|entry| entry.gradient.as_ref());
        gradient.map(Residence::host).transpose()
    }

    /// All gradients in visit order, for changing them in place. Those on a GPU are copied to
    /// host memory and stay there; gradients of rows of tables are
    /// [`row_gradients_mut`](Self::row_gradients_mut).
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn iter_mut(&mut self) -> Result<impl Iterator<Item = Option<&mut TensorData>>> {
        for entry in &mut self.entries {
            if let Some(gradient) = entry.gradient.take() {
                entry.gradient = Some(Residence::Host(gradient.into_host()?));
            }
        }
        let entries = self.entries.iter_mut();
        Ok(entries.map(|entry| match &mut entry.gradient {
            Some(Residence::Host(data)) => Some(data),
            _ => None,
        }))
    }

    /// All gradients in visit order, and the gradients of rows of tables.
    pub(crate) fn into_values(self) -> Result<(Vec<Option<TensorData>>, Vec<RowGradients>)> {
        let dense = self
            .entries
            .into_iter()
            .map(|entry| entry.gradient.map(Residence::into_host).transpose());
        Ok((dense.collect::<Result<_>>()?, self.rows))
    }

    /// Moves one gradient out.
    pub(crate) fn take(&mut self, index: usize) -> Option<Residence> {
        self.entries.get_mut(index)?.gradient.take()
    }

    /// Moves one gradient out, flattened, as a tensor on `device`; what is there or in host memory
    /// stays in its memory.
    pub(crate) fn take_flat(&mut self, index: usize, device: &Device) -> Result<Option<Tensor<1>>> {
        let gradient = self.take(index);
        gradient.map(|found| found.into_flat(device)).transpose()
    }

    /// No gradients, of this model.
    pub(crate) fn none<M: Module>(model: &M) -> Result<Self> {
        Self::collect(model, |_, _| Ok(None))
    }

    /// Gradients of this model with these values in host memory.
    ///
    /// # Errors
    /// If they are not of this model.
    pub(crate) fn of_values<M: Module>(model: &M, values: Vec<Option<TensorData>>) -> Result<Self> {
        let mut gradients = Self::none(model)?;
        let fits = |(entry, value): (&Entry, &Option<TensorData>)| match value {
            Some(value) => TensorSpec::of(value) == entry.spec,
            None => true,
        };
        let mut pairs = gradients.entries.iter().zip(&values);
        if gradients.entries.len() != values.len() || !pairs.all(fits) {
            return Err(Error::invalid("the gradients are of another model"));
        }
        for (entry, value) in gradients.entries.iter_mut().zip(values) {
            entry.gradient = value.map(Residence::Host);
        }
        Ok(gradients)
    }

    /// The same parameters, all without a gradient.
    pub(crate) fn without_values(&self) -> Self {
        self.with(|_| None)
    }

    /// The same parameters, with zeros where there is a gradient.
    pub(crate) fn zeros(&self) -> Self {
        self.with(|entry| {
            let TensorSpec { shape, dtype } = &entry.spec;
            let zeros = TensorData::full_dtype(shape.clone(), 0.0, *dtype);
            entry.gradient.as_ref().map(|_| Residence::Host(zeros))
        })
    }

    fn with(&self, gradient: impl Fn(&Entry) -> Option<Residence>) -> Self {
        let entries = self.entries.iter().map(|entry| Entry {
            id: entry.id,
            spec: entry.spec.clone(),
            gradient: gradient(entry),
        });
        Self {
            entries: entries.collect(),
            rows: Vec::new(),
        }
    }

    /// Adds another step's gradients, for accumulation over micro-batches: on the devices or in the
    /// captured step if both are there, else in host memory.
    ///
    /// # Errors
    /// If they are not of the same model.
    pub fn accumulate(&mut self, other: Gradients) -> Result<()> {
        self.check_same_model(&other)?;
        for rows in other.rows {
            self.add_rows(rows)?;
        }
        for (mine, theirs) in self.entries.iter_mut().zip(other.entries) {
            mine.gradient = match (mine.gradient.take(), theirs.gradient) {
                (Some(sum), Some(other)) => Some(sum.add(other)?),
                (mine, theirs) => mine.or(theirs),
            };
        }
        Ok(())
    }

    /// The square root of the sum of all squared elements, summed in f64 in parameter order, then
    /// the gradients of rows of tables (TensorFlow: `tf.linalg.global_norm`). A row that was looked
    /// up several times counts with its summed gradient, as in a dense table.
    ///
    /// # Errors
    /// In a captured step: the norm has no value on the host then.
    pub fn global_norm(&self) -> Result<f64> {
        on_host(self.norm()?)
    }

    fn norm(&self) -> Result<Number> {
        residence::norm(self.dense(), self.row_values())
    }

    /// The gradients that there are.
    fn dense(&self) -> impl Iterator<Item = &Residence> + Clone {
        let entries = self.entries.iter();
        entries.filter_map(|entry| entry.gradient.as_ref())
    }

    fn row_values(&self) -> impl Iterator<Item = &TensorData> {
        self.rows.iter().map(|rows| &rows.values)
    }
}

fn on_host(number: Number) -> Result<f64> {
    match number {
        Number::Host(number) => Ok(number),
        Number::Captured(_) => Err(Error::host_read("the global norm")),
    }
}
