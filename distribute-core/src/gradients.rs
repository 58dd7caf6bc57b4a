//! Gradients of one replica, in the order of the model's parameters.

mod elements;
mod nest;
mod on_device;
mod rows;

use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Gradients as BurnGradients, Shape, Tensor, TensorData};
use distribute_collectives::ReduceOp;

use crate::trace::{CapturedGradients, TraceError};
use crate::workers::Wish;
use crate::{Error, ReplicaContext, Result, WorkerGroup};

use elements::{add, scale, sum_of_squares};
pub(crate) use nest::GradientPlace;
use on_device::OnDevice;
pub(crate) use on_device::check_weights;
pub(crate) use rows::Watched;
pub use rows::{RemoteRows, RowGradients};

/// The gradients of a model's trainable parameters, in visit order (the order in which the
/// module declares its fields). The order, not burn's random parameter id, is what replicas and
/// workers agree on.
///
/// The buffers are the ones that burn's backward pass produced: on the flex backend they are
/// reduced over the replicas in place and handed to the optimizer without a copy. On a GPU they
/// stay in its memory in the same way; what looks at their values ([`get`](Self::get),
/// [`iter_mut`](Self::iter_mut)) copies them to the host.
///
/// A step can return them. In a compiled step that is the only way to see them: while it is
/// captured they have no values yet.
#[derive(Debug, Clone)]
pub struct Gradients {
    entries: Vec<Entry>,
    /// In a captured step, the gradients; those in `entries` are missing then.
    pub(crate) captured: Option<CapturedGradients>,
    /// Of rows of tables on parameter servers, once for each table.
    rows: Vec<RowGradients>,
    /// Of a call that could not return it.
    failure: Option<Error>,
}

/// Where one gradient is.
pub(crate) type Place<'a> = &'a mut Option<TensorData>;

#[derive(Debug, Clone)]
struct Entry {
    id: ParamId,
    shape: Shape,
    dtype: DType,
    /// On the host.
    data: Option<TensorData>,
    /// On a device; never together with `data`.
    device: Option<OnDevice>,
}

impl Entry {
    fn is_present(&self) -> bool {
        self.data.is_some() || self.device.is_some()
    }
}

impl Gradients {
    /// `keeps` leaves the gradients where burn has put them, also in the memory of the host.
    pub(crate) fn compute<M: Module>(
        loss: &Tensor<1>,
        model: &M,
        watched: &[Watched],
        keeps: bool,
    ) -> Result<Self> {
        if loss.shape().num_elements() != 1 {
            return Err(Error::Shape {
                op: "gradient: the loss must be one number (average with `compute_average_loss`)",
                expected: vec![1],
                found: loss.shape().to_vec(),
            });
        }
        if let Some(captured) = CapturedGradients::compute(loss, model) {
            let mut gradients = Self::collect(&mut NoSource, model, false)?;
            gradients.captured = Some(captured?);
            return Ok(gradients);
        }
        if !loss.is_autodiff() {
            return Err(Error::invalid(
                "gradient: the loss is not tracked; build the model on `ctx.device()` or in the \
                 strategy's scope, which have autodiff",
            ));
        }
        let mut found = loss.backward();
        let mut gradients = Self::collect(&mut found, model, keeps)?;
        for watched in watched {
            if let Some(rows) = watched.take(&mut found)? {
                gradients.add_rows(rows)?;
            }
        }
        Ok(gradients)
    }

    /// The gradients that burn holds for a model's trainable parameters, the way back of
    /// [`into_params`](Self::into_params); without a copy on the flex backend if nothing else
    /// holds the tensors.
    ///
    /// # Errors
    /// If the device cannot hand a gradient out.
    pub fn from_params<M: Module>(mut params: GradientsParams, model: &M) -> Result<Self> {
        Self::collect(&mut params, model, false)
    }

    fn collect<M: Module>(from: &mut impl Source, model: &M, keeps: bool) -> Result<Self> {
        let mut collect = Collect {
            from,
            keeps,
            entries: Vec::new(),
            error: None,
        };
        model.visit(&mut collect);
        match collect.error {
            Some(error) => Err(error),
            None => Ok(Self {
                entries: collect.entries,
                captured: None,
                rows: Vec::new(),
                failure: None,
            }),
        }
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
    /// depend on it. One on a GPU is copied to the host the first time.
    pub fn get(&self, index: usize) -> Option<&TensorData> {
        let entry = self.entries.get(index)?;
        let on_device = || entry.device.as_ref()?.host(&entry.shape);
        entry.data.as_ref().or_else(on_device)
    }

    /// All gradients in visit order, for changing them in place. Those on a GPU are copied to the
    /// host and stay there; those of rows of tables are
    /// [`row_gradients_mut`](Self::row_gradients_mut).
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Option<&mut TensorData>> {
        self.try_to_bring_to_host();
        self.entries.iter_mut().map(|entry| entry.data.as_mut())
    }

    /// All gradients in visit order, and those of rows of tables.
    pub(crate) fn into_values(mut self) -> Result<(Vec<Option<TensorData>>, Vec<RowGradients>)> {
        self.bring_to_host()?;
        let dense = self.entries.into_iter().map(|entry| entry.data);
        Ok((dense.collect(), self.rows))
    }

    /// Moves one gradient out, as a tensor on the parameter's device.
    pub(crate) fn take<const D: usize>(
        &mut self,
        index: usize,
        like: &Tensor<D>,
    ) -> Option<Tensor<D>> {
        let entry = self.entries.get_mut(index)?;
        if let Some(found) = entry.device.take() {
            return Some(found.tensor.reshape(like.shape()));
        }
        let data = entry.data.take()?;
        let dtype = data.dtype();
        Some(Tensor::from_data(
            data,
            (&like.device().without_autodiff(), dtype),
        ))
    }

    /// Moves one gradient out, flattened, as a tensor on the parameter's device; its memory stays
    /// the same.
    pub(crate) fn take_flat(
        &mut self,
        index: usize,
        like: &Tensor<1>,
    ) -> Result<Option<Tensor<1>>> {
        let mut entry = self.entries.get_mut(index);
        if let Some(found) = entry.as_mut().and_then(|entry| entry.device.take()) {
            return Ok(Some(found.tensor));
        }
        let Some(data) = entry.and_then(|entry| entry.data.take()) else {
            return Ok(None);
        };
        let (bytes, shape, dtype) = data.into_parts();
        let data = TensorData::try_from_bytes(bytes, [shape.num_elements()], dtype);
        let data = data.map_err(Error::step)?;
        let options = (&like.device().without_autodiff(), dtype);
        Ok(Some(Tensor::from_data(data, options)))
    }

    /// Reduces the gradients over all replicas, in place, as one operation.
    ///
    /// A parameter that has a gradient on some replicas only counts as zero on the others; one
    /// that has none on any replica stays without. For that the replicas also sum one flag per
    /// parameter, and with several workers those that say whether one of them
    /// [wants to stop](crate::WorkerGroup::request_stop) or to save.
    ///
    /// # Errors
    /// If the replicas' models differ, for operations other than SUM and MEAN, and another
    /// replica's failure.
    pub fn all_reduce(&mut self, ctx: &ReplicaContext, op: ReduceOp) -> Result<()> {
        if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
            return Err(Error::invalid(format!(
                "gradients are reduced with SUM or MEAN, not {op}"
            )));
        }
        if let (Some(captured), Some(trace)) = (&mut self.captured, ctx.trace()) {
            return captured.all_reduce(trace, op);
        }
        self.check()?;
        if ctx.reduces_on_device() {
            return self.all_reduce_on_device(ctx, op);
        }
        self.reduce_with(ctx, |buffers| ctx.all_reduce_data(op, buffers))
    }

    /// As [`all_reduce`](Self::all_reduce), but only replica 0 gets the result; on the others the
    /// gradients are used up.
    pub(crate) fn reduce_to_host(&mut self, ctx: &ReplicaContext, op: ReduceOp) -> Result<()> {
        self.reduce_with(ctx, |buffers| ctx.reduce_data_to_host(op, buffers))?;
        if ctx.local_id() != 0 {
            self.entries.clear();
        }
        Ok(())
    }

    fn reduce_with(
        &mut self,
        ctx: &ReplicaContext,
        reduce: impl FnOnce(&mut [TensorData]) -> Result<()>,
    ) -> Result<()> {
        if ctx.num_replicas_in_sync() == 1 {
            return Ok(());
        }
        self.refuse_rows("a reduction over replicas")?;
        self.bring_to_host()?;
        let workers = ctx.workers();
        let mut buffers = self.take_buffers(ctx.local_id(), workers.as_ref());
        reduce(&mut buffers)?;
        let flags = self.take_flags(workers.as_ref(), buffers.pop())?;
        self.put_buffers(0, buffers, &flags);
        Ok(())
    }

    /// Reduces the gradients over all replicas (SUM) pack by pack, last parameters first, and calls
    /// `ready` for each range of parameters whose gradients are complete, while the next pack is
    /// under way.
    pub(crate) fn all_reduce_in_packs(
        &mut self,
        ctx: &ReplicaContext,
        mut ready: impl FnMut(Range<usize>, &mut Self) -> Result<()>,
    ) -> Result<()> {
        self.check()?;
        self.bring_to_host()?;
        let count = self.entries.len();
        // Asked for once: the context is in use while the packs travel.
        let workers = ctx.workers();
        let buffers = self.take_buffers(ctx.local_id(), workers.as_ref());
        let mut flags = Vec::new();
        ctx.all_reduce_in_packs(buffers, &mut |range, mut pack| {
            // The flags stand behind the last gradient, so they come with the first pack.
            if range.end > count {
                flags = self.take_flags(workers.as_ref(), pack.pop())?;
            }
            let range = range.start..range.end.min(count);
            self.put_buffers(range.start, pack, &flags);
            ready(range, self)
        })
    }

    /// The buffers that the replicas reduce: all gradients, zeros for missing ones, and the flags.
    fn take_buffers(&mut self, local_id: usize, workers: Option<&WorkerGroup>) -> Vec<TensorData> {
        let flags = self.own_flags(local_id, workers);
        let mut buffers = Vec::with_capacity(self.entries.len() + 1);
        for entry in &mut self.entries {
            let missing = || TensorData::full_dtype(entry.shape.clone(), 0.0, entry.dtype);
            buffers.push(entry.data.take().unwrap_or_else(missing));
        }
        buffers.push(flags);
        buffers
    }

    /// Which parameters have a gradient here, and this worker's wishes.
    fn own_flags(&self, local_id: usize, workers: Option<&WorkerGroup>) -> TensorData {
        let flag = |entry: &Entry| if entry.is_present() { 1.0_f32 } else { 0.0 };
        let mut flags: Vec<f32> = self.entries.iter().map(flag).collect();
        if let Some(workers) = workers {
            // One replica speaks for its worker.
            let speaks = local_id == 0;
            let signal = |wish| if speaks { workers.signal(wish) } else { 0.0 };
            flags.extend(Wish::ALL.map(signal));
        }
        let count = flags.len();
        TensorData::new(flags, [count])
    }

    /// The reduced flags of the parameters; those of the workers' wishes are passed on.
    fn take_flags(
        &self,
        workers: Option<&WorkerGroup>,
        buffer: Option<TensorData>,
    ) -> Result<Vec<f32>> {
        let flags = buffer.map(|data| data.as_slice::<f32>().map(<[f32]>::to_vec));
        let flags = flags.transpose().map_err(Error::step)?.unwrap_or_default();
        if let Some(workers) = workers {
            let signals = flags.iter().skip(self.entries.len());
            for (wish, signal) in Wish::ALL.into_iter().zip(signals) {
                workers.receive(wish, *signal);
            }
        }
        Ok(flags)
    }

    /// Puts reduced buffers back, from the parameter at `first` on.
    fn put_buffers(&mut self, first: usize, buffers: Vec<TensorData>, flags: &[f32]) {
        let entries = self.entries.iter_mut().zip(flags).skip(first);
        for ((entry, flag), data) in entries.zip(buffers) {
            entry.data = (*flag > 0.0).then_some(data);
        }
    }

    /// No gradients, of this model.
    pub(crate) fn none<M: Module>(model: &M) -> Result<Self> {
        Self::collect(&mut NoSource, model, false)
    }

    /// Gradients of this model with these values on the host.
    ///
    /// # Errors
    /// If they are not of this model.
    pub(crate) fn of_values<M: Module>(model: &M, values: Vec<Option<TensorData>>) -> Result<Self> {
        let mut gradients = Self::none(model)?;
        let fits = |(entry, value): (&Entry, &Option<TensorData>)| match value {
            Some(value) => *value.shape() == entry.shape && value.dtype() == entry.dtype,
            None => true,
        };
        let mut pairs = gradients.entries.iter().zip(&values);
        if gradients.entries.len() != values.len() || !pairs.all(fits) {
            return Err(Error::invalid("the gradients are of another model"));
        }
        for (entry, value) in gradients.entries.iter_mut().zip(values) {
            entry.data = value;
        }
        Ok(gradients)
    }

    /// The gradients' places, for those that are captured or on a device.
    pub(crate) fn places(&mut self) -> impl Iterator<Item = (Vec<usize>, DType, Place<'_>)> {
        self.entries
            .iter_mut()
            .map(|entry| (entry.shape.to_vec(), entry.dtype, &mut entry.data))
    }

    /// The same parameters, all without a gradient.
    pub(crate) fn without_values(&self) -> Self {
        let mut empty = self.clone();
        empty.captured = None;
        empty.rows.clear();
        for entry in &mut empty.entries {
            (entry.data, entry.device) = (None, None);
        }
        empty
    }

    /// Adds another step's gradients, for accumulation over micro-batches.
    ///
    /// # Errors
    /// If they are not of the same model.
    pub fn accumulate(&mut self, mut other: Gradients) -> Result<()> {
        if self.entries.len() != other.entries.len() {
            return Err(Error::invalid(
                "accumulate: the gradients are of different models",
            ));
        }
        if let (Some(mine), Some(theirs)) = (&mut self.captured, other.captured.take()) {
            mine.accumulate(theirs);
            return Ok(());
        }
        other.check()?;
        self.meet(&mut other)?;
        std::mem::take(&mut other.rows)
            .into_iter()
            .try_for_each(|rows| self.add_rows(rows))?;
        for (mine, theirs) in self.entries.iter_mut().zip(other.entries) {
            if mine.shape != theirs.shape {
                return Err(Error::Shape {
                    op: "accumulate",
                    expected: mine.shape.to_vec(),
                    found: theirs.shape.to_vec(),
                });
            }
            mine.device = match (mine.device.take(), theirs.device) {
                (Some(sum), Some(other)) => Some(OnDevice::new(sum.tensor.add(other.tensor))),
                (mine, theirs) => mine.or(theirs),
            };
            match (&mut mine.data, theirs.data) {
                (Some(sum), Some(data)) => add(sum, &data)?,
                (slot @ None, data) => *slot = data,
                (Some(_), None) => {}
            }
        }
        Ok(())
    }

    /// The square root of the sum of all squared elements, summed in f64 in parameter order, then
    /// those of rows of tables (TensorFlow: `tf.linalg.global_norm`). A row that was looked up
    /// several times counts with its summed gradient, as in a dense table.
    ///
    /// # Errors
    /// In a captured step: the norm has no value on the host then.
    pub fn global_norm(&self) -> Result<f64> {
        if self.captured.is_some() {
            return Err(TraceError::host_read("the global norm").into());
        }
        self.check()?;
        let mut sum = self.device_sum_of_squares()?;
        for data in self.entries.iter().filter_map(|entry| entry.data.as_ref()) {
            sum += sum_of_squares(data)?;
        }
        for rows in &self.rows {
            sum += sum_of_squares(&rows.values)?;
        }
        Ok(sum.sqrt())
    }

    /// Scales all gradients so that their global norm is at most `clip_norm`
    /// (TensorFlow: `tf.clip_by_global_norm`). Returns the norm before.
    ///
    /// If the norm is not finite, because a gradient holds NaN or infinity, all gradients become
    /// NaN, as in TensorFlow and in a compiled step: the weights show at once that the training has
    /// failed (`TerminateOnNan` ends it), and the norm
    /// that is returned says so before the update.
    ///
    /// # Errors
    /// If `clip_norm` is not a positive number.
    pub fn clip_by_global_norm(&mut self, clip_norm: f64) -> Result<f64> {
        if !(clip_norm.is_finite() && clip_norm > 0.0) {
            return Err(Error::invalid(format!(
                "clip_by_global_norm: the norm must be a positive number, got {clip_norm}"
            )));
        }
        let norm = self.global_norm()?;
        if norm > clip_norm || !norm.is_finite() {
            let factor = match norm.is_finite() {
                true => clip_norm / norm,
                false => f64::NAN,
            };
            let dense = self.entries.iter_mut();
            let dense = dense.filter_map(|entry| entry.data.as_mut());
            let rows = self.rows.iter_mut().map(|rows| &mut rows.values);
            for data in dense.chain(rows) {
                scale(data, factor)?;
            }
            for entry in &mut self.entries {
                let found = entry.device.take();
                let scaled = found.map(|found| found.tensor.mul_scalar(factor));
                entry.device = scaled.map(OnDevice::new);
            }
        }
        Ok(norm)
    }

    /// The parameters' ids, in visit order.
    pub fn param_ids(&self) -> impl Iterator<Item = ParamId> {
        self.entries.iter().map(|entry| entry.id)
    }
}

/// Where gradients come from: a backward pass, or what burn made of one.
trait Source {
    /// Moves one parameter's gradient out.
    fn take<const D: usize>(&mut self, id: ParamId, value: &Tensor<D>) -> Option<Tensor<D>>;
}

/// Without any gradient.
struct NoSource;

impl Source for NoSource {
    fn take<const D: usize>(&mut self, _: ParamId, _: &Tensor<D>) -> Option<Tensor<D>> {
        None
    }
}

impl Source for BurnGradients {
    fn take<const D: usize>(&mut self, _: ParamId, value: &Tensor<D>) -> Option<Tensor<D>> {
        value.grad_remove(self)
    }
}

impl Source for GradientsParams {
    fn take<const D: usize>(&mut self, id: ParamId, _: &Tensor<D>) -> Option<Tensor<D>> {
        self.remove(id)
    }
}

struct Collect<'a, S> {
    from: &'a mut S,
    keeps: bool,
    entries: Vec<Entry>,
    error: Option<Error>,
}

impl<S: Source> ModuleVisitor for Collect<'_, S> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let gradient = self.from.take(param.id, &value);
        let mut entry = Entry {
            id: param.id,
            shape: value.shape(),
            dtype: value.dtype(),
            data: None,
            device: None,
        };
        if self.keeps || on_device::is_apart(&value.device()) {
            let count = entry.shape.num_elements();
            let flat = gradient.map(|gradient| gradient.reshape([count]));
            entry.device = flat.map(OnDevice::new);
        } else {
            let data = gradient.map(Tensor::try_into_data).transpose();
            entry.data = data.unwrap_or_else(|error| {
                self.error.get_or_insert(Error::step(error));
                None
            });
        }
        self.entries.push(entry);
    }
}
