//! Gradients in the memory of a device: they stay there, from the backward pass to the update.

use std::sync::OnceLock;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use distribute_collectives::ReduceOp;

use super::Gradients;
use crate::{Error, ReplicaContext, Result};

/// One gradient on a device.
#[derive(Debug, Clone)]
pub(super) struct OnDevice {
    /// Flattened.
    pub(super) tensor: Tensor<1>,
    /// The copy on the host, once somebody has asked for it.
    host: OnceLock<Option<TensorData>>,
}

impl OnDevice {
    pub(super) fn new(tensor: Tensor<1>) -> Self {
        Self {
            tensor,
            host: OnceLock::new(),
        }
    }

    /// The copy on the host; `None` if the device fails, which is logged.
    pub(super) fn host(&self, shape: &Shape) -> Option<&TensorData> {
        let copy = || match fetch(self.tensor.clone(), shape) {
            Ok(data) => Some(data),
            Err(error) => {
                tracing::error!("a gradient cannot be read from its device: {error}");
                None
            }
        };
        self.host.get_or_init(copy).as_ref()
    }
}

/// Copies a flattened tensor to the host. Waits for the device.
fn fetch(tensor: Tensor<1>, shape: &Shape) -> Result<TensorData> {
    let data = tensor.try_into_data().map_err(Error::step)?;
    let (bytes, _, dtype) = data.into_parts();
    TensorData::try_from_bytes(bytes, shape.clone(), dtype).map_err(Error::step)
}

/// Whether tensors there are not in the memory of the host already.
pub(super) fn is_apart(device: &Device) -> bool {
    *device != Device::flex()
}

/// Tells whether the weights of a model on a GPU were computed at all: reads an element of each.
///
/// A kernel that failed (no memory, not compiled) leaves its results without values, and so do the
/// kernels after it; burn tells that when one is read. Sums are the exception: in cubecl 0.11.3
/// `Tensor::sum` of what was never computed reads as 0, so a loss alone does not show it.
pub(crate) fn check_weights<M: Module>(model: &M) -> Result<()> {
    let mut check = CheckWeights(Ok(()));
    model.visit(&mut check);
    check.0
}

struct CheckWeights(Result<()>);

impl ModuleVisitor for CheckWeights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let count = value.shape().num_elements();
        if self.0.is_ok() && count > 0 && value.is_require_grad() && is_apart(&value.device()) {
            let first = value.inner().reshape([count]).narrow(0, 0, 1);
            self.0 = first.try_into_data().map(drop).map_err(Error::step);
        }
    }
}

impl Gradients {
    /// Whether a gradient is in the memory of a device.
    fn is_on_device(&self) -> bool {
        self.entries.iter().any(|entry| entry.device.is_some())
    }

    /// Copies gradients that are on a device to the host. Waits for the device.
    pub(crate) fn bring_to_host(&mut self) -> Result<()> {
        for entry in &mut self.entries {
            if let Some(found) = entry.device.take() {
                entry.data = Some(fetch(found.tensor, &entry.shape)?);
            }
        }
        Ok(())
    }

    /// As [`bring_to_host`](Self::bring_to_host) where no error can be returned: it is told by the
    /// next call that can.
    pub(super) fn try_to_bring_to_host(&mut self) {
        if let Err(error) = self.bring_to_host() {
            self.failure.get_or_insert(error);
        }
    }

    /// The failure of an earlier call that could not return it.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Reduces the gradients over all replicas in the memory of their devices.
    ///
    /// First the replicas tell each other through the host which gradients they have, so that a
    /// replica that does not come is found before the devices begin.
    pub(super) fn all_reduce_on_device(
        &mut self,
        ctx: &ReplicaContext,
        op: ReduceOp,
    ) -> Result<()> {
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
            let options = (&device, entry.dtype);
            let count = entry.shape.num_elements();
            tensors.push(match (entry.device.take(), entry.data.take()) {
                (Some(found), _) => found.tensor,
                (None, Some(data)) => {
                    let (bytes, _, dtype) = data.into_parts();
                    let data = TensorData::try_from_bytes(bytes, [count], dtype);
                    Tensor::from_data(data.map_err(Error::step)?, options)
                }
                (None, None) => Tensor::zeros([count], options),
            });
        }
        let mut reduced = ctx.all_reduce_tensors(op, tensors)?.into_iter();
        for (entry, flag) in self.entries.iter_mut().zip(&flags) {
            if *flag > 0.0 {
                entry.device = reduced.next().map(OnDevice::new);
            }
        }
        Ok(())
    }

    /// Adds the gradients of another step where both are, on the device or the host.
    pub(super) fn meet(&mut self, other: &mut Gradients) -> Result<()> {
        let stays = self.entries.iter().zip(&other.entries).all(|(a, b)| {
            let on_host = a.data.is_some() || b.data.is_some();
            !on_host
        });
        if !stays && (self.is_on_device() || other.is_on_device()) {
            self.bring_to_host()?;
            other.bring_to_host()?;
        }
        Ok(())
    }

    /// The sum of the squared elements of the gradients on the device, with one copy to the host.
    pub(super) fn device_sum_of_squares(&self) -> Result<f64> {
        let found = self
            .entries
            .iter()
            .filter_map(|entry| entry.device.as_ref());
        let sums = found.map(|found| {
            // Squares of 16 bits are soon infinite, and their sums inexact.
            let wide = match found.tensor.dtype() {
                DType::F16 | DType::BF16 => found.tensor.clone().cast(DType::F32),
                _ => found.tensor.clone(),
            };
            wide.powi_scalar(2).sum()
        });
        let sums: Vec<Tensor<1>> = sums.collect();
        if sums.is_empty() {
            return Ok(0.0);
        }
        let sums = Tensor::cat(sums, 0).try_into_data().map_err(Error::step)?;
        Ok(sums.iter::<f64>().sum())
    }
}
