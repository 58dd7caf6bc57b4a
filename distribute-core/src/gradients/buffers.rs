//! Gradients on their way over the replicas, as buffers in host memory.
//!
//! A parameter that has a gradient on some replicas only counts as zero on the others; one that has
//! none on any replica stays without. For that the replicas also sum one flag per parameter, in a
//! buffer behind the gradients, and in the same buffer what their workers signal.

use std::ops::Range;

use burn::tensor::{Device, Shape, Tensor, TensorData};

use super::{Entry, Gradients, Residence};
use crate::trace::{self, CapturedTensor};
use crate::{Error, Result};

/// The reduced flags: one per parameter, then the signals.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    of_parameters: Vec<f32>,
    signals: Vec<f32>,
}

impl Flags {
    /// The signals, once.
    pub(crate) fn take_signals(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.signals)
    }
}

impl Gradients {
    /// Moves the buffers out that the replicas reduce: all gradients, zeros for missing ones, and
    /// the flags.
    pub(crate) fn take_buffers(&mut self, signals: &[f32]) -> Result<Vec<TensorData>> {
        self.refuse_rows("a reduction over replicas")?;
        let flags = self.flags(signals);
        let mut buffers = Vec::with_capacity(self.entries.len() + 1);
        for entry in &mut self.entries {
            buffers.push(match entry.gradient.take() {
                Some(gradient) => gradient.into_host()?,
                None => TensorData::full_dtype(&entry.spec, 0.0, entry.spec.dtype),
            });
        }
        buffers.push(flags);
        Ok(buffers)
    }

    /// Which parameters have a gradient here, and the signals.
    pub(crate) fn flags(&self, signals: &[f32]) -> TensorData {
        let flag = |is_present: bool| if is_present { 1.0_f32 } else { 0.0 };
        let mut flags: Vec<f32> = self.present().map(flag).collect();
        flags.extend(signals);
        let count = flags.len();
        TensorData::new(flags, [count])
    }

    /// Reads the reduced buffer of flags.
    pub(crate) fn read_flags(&self, buffer: &TensorData) -> Result<Flags> {
        let flags = buffer.as_slice::<f32>().map_err(Error::internal)?;
        let (of_parameters, signals) = flags.split_at(self.entries.len().min(flags.len()));
        Ok(Flags {
            of_parameters: of_parameters.to_vec(),
            signals: signals.to_vec(),
        })
    }

    /// Puts a range of reduced buffers back; the first range has the flags at its end. Returns the
    /// parameters of the range.
    pub(crate) fn put_buffers(
        &mut self,
        range: Range<usize>,
        mut buffers: Vec<TensorData>,
        flags: &mut Flags,
    ) -> Result<Range<usize>> {
        let count = self.entries.len();
        if range.end > count
            && let Some(buffer) = buffers.pop()
        {
            *flags = self.read_flags(&buffer)?;
        }
        let range = range.start..range.end.min(count);
        let entries = self.entries.iter_mut().zip(&flags.of_parameters);
        for ((entry, flag), data) in entries.skip(range.start).zip(buffers) {
            entry.gradient = (*flag > 0.0).then_some(Residence::Host(data));
        }
        Ok(range)
    }

    /// Moves the gradients out, flattened, as tensors on `device`: those with a flag, zeros for
    /// missing ones.
    pub(crate) fn take_tensors(
        &mut self,
        flags: &Flags,
        device: &Device,
    ) -> Result<Vec<Tensor<1>>> {
        let tensors = self
            .flagged(flags)
            .map(|entry| match entry.gradient.take() {
                Some(gradient) => gradient.into_flat(device),
                None => {
                    let count = Shape::from(&entry.spec).num_elements();
                    Ok(Tensor::zeros([count], (device, entry.spec.dtype)))
                }
            });
        tensors.collect()
    }

    /// Puts the reduced tensors back.
    pub(crate) fn put_tensors(&mut self, tensors: Vec<Tensor<1>>, flags: &Flags) {
        for (entry, tensor) in self.flagged(flags).zip(tensors) {
            entry.gradient = Some(Residence::device(tensor, (&entry.spec).into()));
        }
    }

    /// Those that a replica has a gradient of.
    fn flagged(&mut self, flags: &Flags) -> impl Iterator<Item = &mut Entry> {
        let flagged = self
            .entries
            .iter_mut()
            .zip(&flags.of_parameters)
            .filter(|(_, flag)| **flag > 0.0);
        flagged.map(|(entry, _)| entry)
    }

    /// The gradients, which are tensors of a captured step.
    ///
    /// # Errors
    /// If one is not.
    pub(crate) fn captured_mut(&mut self) -> Result<Vec<&mut CapturedTensor>> {
        let entries = self.entries.iter_mut();
        let captured = entries.filter_map(|entry| match &mut entry.gradient {
            Some(Residence::Captured(tensor)) => Some(Ok(tensor)),
            Some(_) => Some(Err(trace::not_captured())),
            None => None,
        });
        captured.collect()
    }
}
