//! Gradients summed over the replicas.

use std::ops::Range;

use burn::tensor::{Tensor, TensorData};
use distribute_collectives::ReduceOp;

use super::{Gradients, Residence};
use crate::workers::Wish;
use crate::{Error, ReplicaContext, Result, WorkerGroup, trace};

impl Gradients {
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
        if let Some(trace) = ctx.trace() {
            return trace::all_reduce_gradients(trace, op, self.captured_mut());
        }
        if ctx.reduces_on_device() {
            return self.all_reduce_on_device(ctx, op);
        }
        self.reduce_with(ctx, |buffers| ctx.all_reduce_data(op, buffers))
    }

    /// The gradients that are tensors of a captured step.
    pub(crate) fn captured_mut(&mut self) -> impl Iterator<Item = &mut trace::CapturedTensor> {
        let entries = self.entries.iter_mut();
        entries.filter_map(|entry| match &mut entry.gradient {
            Some(Residence::Captured(tensor)) => Some(tensor),
            _ => None,
        })
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
        let workers = ctx.workers();
        let mut buffers = self.take_buffers(ctx.local_id(), workers.as_ref())?;
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
        let count = self.entries.len();
        // Asked for once: the context is in use while the packs travel.
        let workers = ctx.workers();
        let buffers = self.take_buffers(ctx.local_id(), workers.as_ref())?;
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
    fn take_buffers(
        &mut self,
        local_id: usize,
        workers: Option<&WorkerGroup>,
    ) -> Result<Vec<TensorData>> {
        let flags = self.own_flags(local_id, workers);
        let mut buffers = Vec::with_capacity(self.entries.len() + 1);
        for entry in &mut self.entries {
            let shape = entry.shape();
            buffers.push(match entry.gradient.take() {
                Some(gradient) => gradient.into_host(&shape)?,
                None => TensorData::full_dtype(shape, 0.0, entry.spec.dtype),
            });
        }
        buffers.push(flags);
        Ok(buffers)
    }

    /// Which parameters have a gradient here, and this worker's wishes.
    fn own_flags(&self, local_id: usize, workers: Option<&WorkerGroup>) -> TensorData {
        let flag = |is_present: bool| if is_present { 1.0_f32 } else { 0.0 };
        let mut flags: Vec<f32> = self.present().map(flag).collect();
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
            entry.gradient = (*flag > 0.0).then_some(Residence::Host(data));
        }
    }

    /// Reduces the gradients over all replicas in the memory of their devices.
    ///
    /// First the replicas tell each other through the host which gradients they have, so that a
    /// replica that does not come is found before the devices begin.
    fn all_reduce_on_device(&mut self, ctx: &ReplicaContext, op: ReduceOp) -> Result<()> {
        self.refuse_rows("a reduction over replicas")?;
        let workers = ctx.workers();
        let flags = self.own_flags(ctx.local_id(), workers.as_ref());
        let mut buffer = [flags];
        ctx.all_reduce_data(ReduceOp::Sum, &mut buffer)?;
        let [flags] = buffer;
        let flags = self.take_flags(workers.as_ref(), Some(flags))?;
        let device = ctx.device().clone().without_autodiff();
        let mut tensors = Vec::with_capacity(self.entries.len());
        for (entry, flag) in self.entries.iter_mut().zip(&flags) {
            if *flag <= 0.0 {
                continue;
            }
            let (shape, dtype) = (entry.shape(), entry.spec.dtype);
            tensors.push(match entry.gradient.take() {
                Some(gradient) => gradient.into_flat(&device)?,
                None => Tensor::zeros([shape.num_elements()], (&device, dtype)),
            });
        }
        let mut reduced = ctx.all_reduce_tensors(op, tensors)?.into_iter();
        for (entry, flag) in self.entries.iter_mut().zip(&flags) {
            if *flag > 0.0 {
                entry.gradient = reduced.next().map(Residence::device);
            }
        }
        Ok(())
    }
}
