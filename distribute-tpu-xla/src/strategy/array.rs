//! Tensors in the memory of all replicas' devices.

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{DType, TensorData};
use distribute_core::trace::{DeviceTensor, TensorSpec};
use distribute_core::{Error, Result};

use super::TpuError;
use super::context::ExecutionContext;
use super::step_check::StepChecks;
use crate::pjrt::{Buffer, Client, Device, ElementType, PjrtError};

/// One buffer per replica of this process.
#[derive(Debug)]
pub(crate) struct DeviceArray {
    spec: TensorSpec,
    buffers: Vec<Buffer>,
    /// How long to wait for the values.
    timeout: Option<Duration>,
    /// The step that computes it; read when that step was the same on all processes.
    step: Option<(Arc<StepChecks>, u64)>,
}

impl DeviceArray {
    /// A result of a step.
    pub(crate) fn computed(
        context: &ExecutionContext,
        spec: TensorSpec,
        buffers: Vec<Buffer>,
        step: u64,
    ) -> Self {
        let checks = context.step_checks.clone();
        Self {
            spec,
            buffers,
            timeout: context.timeout,
            step: checks.map(|checks| (checks, step)),
        }
    }

    /// Copies the same value to all devices.
    pub(crate) fn upload(context: &ExecutionContext, data: &TensorData) -> Result<Self, TpuError> {
        let devices = context.devices.iter();
        let copies = devices.map(|device| buffer(&context.client, device, data, data.shape()));
        Ok(Self {
            spec: TensorSpec::of(data),
            buffers: copies.collect::<Result<_, _>>()?,
            timeout: context.timeout,
            step: None,
        })
    }

    /// Copies one value to each device.
    pub(crate) fn upload_each(
        context: &ExecutionContext,
        data: &[TensorData],
    ) -> Result<Self, TpuError> {
        let first = data
            .first()
            .filter(|_| data.len() == context.devices.len())
            .ok_or_else(|| {
                TpuError::Internal(format!(
                    "{} values for {} devices",
                    data.len(),
                    context.devices.len()
                ))
            })?;
        let pairs = context.devices.iter().zip(data);
        let copies =
            pairs.map(|(device, data)| buffer(&context.client, device, data, data.shape()));
        Ok(Self {
            spec: TensorSpec::of(first),
            buffers: copies.collect::<Result<_, _>>()?,
            timeout: context.timeout,
            step: None,
        })
    }

    /// The buffer of one replica.
    pub(crate) fn buffer(&self, replica: usize) -> Option<&Buffer> {
        self.buffers.get(replica)
    }
}

impl DeviceTensor for DeviceArray {
    fn spec(&self) -> TensorSpec {
        self.spec.clone()
    }

    fn read(&self, replica: usize) -> Result<TensorData> {
        let missing = || TpuError::Internal(format!("no buffer of replica {replica}"));
        let buffer = self.buffer(replica).ok_or_else(missing)?;
        if let Some((checks, step)) = &self.step {
            checks.verify(*step)?;
        }
        if let Some(limit) = self.timeout
            && !buffer.wait_timeout(limit).map_err(TpuError::from)?
        {
            return Err(TpuError::Timeout { limit }.into());
        }
        let bytes = buffer.to_bytes().map_err(TpuError::from)?;
        let bytes = burn::tensor::Bytes::from_bytes_vec(bytes);
        let shape = self.spec.shape.clone();
        TensorData::try_from_bytes(bytes, shape, self.spec.dtype).map_err(Error::internal)
    }
}

/// Copies a tensor to one device, as one of the dimensions `dims`.
pub(crate) fn buffer(
    client: &Client,
    device: &Device,
    data: &TensorData,
    dims: &[usize],
) -> Result<Buffer, TpuError> {
    let element = element_type(data.dtype())?;
    Ok(client.buffer_from_bytes(element, data.as_bytes(), dims, device)?)
}

fn element_type(dtype: DType) -> Result<ElementType, TpuError> {
    Ok(match dtype {
        DType::F64 => ElementType::F64,
        DType::F32 | DType::Flex32 => ElementType::F32,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::Bf16,
        DType::I64 => ElementType::S64,
        DType::I32 => ElementType::S32,
        DType::I16 => ElementType::S16,
        DType::I8 => ElementType::S8,
        DType::U64 => ElementType::U64,
        DType::U32 => ElementType::U32,
        DType::U16 => ElementType::U16,
        DType::U8 => ElementType::U8,
        DType::Bool(_) => ElementType::Pred,
        other => {
            return Err(PjrtError::InvalidArgument(format!(
                "a tensor of type {} cannot be sent to a device",
                other.name()
            ))
            .into());
        }
    })
}

/// The array behind a tensor that this strategy has made.
pub(crate) fn array(tensor: &Arc<dyn DeviceTensor>) -> Result<&DeviceArray, TpuError> {
    let any: &dyn std::any::Any = &**tensor;
    let foreign = || TpuError::Internal("a tensor of another strategy".to_string());
    any.downcast_ref::<DeviceArray>().ok_or_else(foreign)
}
