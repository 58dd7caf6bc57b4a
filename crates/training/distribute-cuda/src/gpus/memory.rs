//! Where tensors of burn's CUDA backend have their elements.

use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl_cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use distribute_core::collectives::nccl::{DeviceBuffer, ElementType};
use distribute_core::{Error, Result, TensorMemory};

use super::unfused::Unfused;

type Server = <CudaRuntime as Runtime>::Server;

/// The memory of one GPU. With burn's `fusion`, pending operations of a tensor are computed first.
#[derive(Debug, Clone, Copy)]
pub(super) struct CudaMemory;

impl TensorMemory for CudaMemory {
    fn with_buffers(
        &mut self,
        tensors: Vec<Tensor<1>>,
        work: &mut dyn FnMut(&mut [DeviceBuffer<'_>]) -> Result<()>,
    ) -> Result<Vec<Tensor<1>>> {
        let Some(device) = tensors.first().map(Tensor::device) else {
            work(&mut [])?;
            return Ok(tensors);
        };
        let elsewhere =
            |error| Error::invalid(format!("a gradient that is not on a GPU: {error:?}"));
        let mut owned: Vec<CubeTensor> = Vec::with_capacity(tensors.len());
        let mut makers = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let tensor = tensor.try_into_primitive::<Cube>().map_err(elsewhere)?;
            let (tensor, maker) = Cube::resolve(tensor);
            makers.push(maker);
            // Another tensor may hold the same elements: burn copies on write, NCCL does not.
            let is_own = tensor.can_mut() && tensor.is_contiguous();
            owned.push(if is_own { tensor } else { tensor.copy() });
        }
        // With a lease, this thread's burn stream waits for the streams of other threads that have
        // made the elements, so all leases come before the wait for this stream.
        let mut leases = Vec::with_capacity(owned.len());
        for tensor in &owned {
            let lease = tensor.client.get_resource::<Server>(tensor.handle.clone());
            leases.push(lease.map_err(Error::internal)?);
        }
        // burn's streams are its own: what they do with the elements must be done before NCCL's
        // stream begins. NCCL's part is done when `work` returns.
        device.sync().map_err(Error::internal)?;
        let mut buffers = Vec::with_capacity(owned.len());
        for (tensor, lease) in owned.iter().zip(&leases) {
            let (element, count) = (element(tensor.dtype)?, tensor.meta.shape().num_elements());
            let found = lease.resource();
            if count as u64 * element.size_bytes() as u64 > found.size {
                return Err(Error::invalid("a gradient is longer than its memory"));
            }
            // SAFETY: the address is that of the tensor's elements on the device of this replica,
            // there are that many, and the lease keeps them in place until after `work`. The device
            // has finished with them, this thread is the only one that uses the tensors, and no
            // other tensor shares their elements.
            buffers.push(unsafe { DeviceBuffer::from_raw(found.ptr, element, count) });
        }
        let outcome = work(&mut buffers);
        drop(buffers);
        if outcome.is_err() {
            // An operation that could not be ended may still use the memory.
            leases.into_iter().for_each(std::mem::forget);
            outcome?;
            return Ok(Vec::new());
        }
        drop(leases);
        owned
            .into_iter()
            .zip(makers)
            .map(|(tensor, maker)| Cube::wrap(tensor, maker).map(Tensor::from_primitive::<Cube>))
            .collect()
    }
}

fn element(dtype: DType) -> Result<ElementType> {
    Ok(match dtype {
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::BF16,
        other => {
            return Err(Error::DType {
                op: "all_reduce on a GPU",
                dtype: other.name().to_string(),
            });
        }
    })
}
