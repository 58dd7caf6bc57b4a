//! Arrays on a device.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::api::{call, log_destroy, non_null};
use super::bindings::*;
use super::device::Device;
use super::event::Event;
use super::handles::ClientHandle;
use crate::pjrt::element::{ArrayShape, Element, ElementType};
use crate::pjrt::error::{PjrtError, Result};

/// An array on one device.
///
/// It exists from the moment it is returned, also while what computes it still runs: programs
/// can take it at once, and reading it waits. Dropping it frees the device's memory as soon as
/// nothing that runs needs it. A buffer that was donated to a program stays as an empty shell:
/// [`is_deleted`](Self::is_deleted) is true and every use is an error of the plugin's.
pub struct Buffer {
    client: Arc<ClientHandle>,
    raw: *mut PJRT_Buffer,
    /// Place of its device among the client's.
    device: usize,
    shape: Arc<ArrayShape>,
}

// SAFETY: the C API lets any thread use and destroy a buffer.
unsafe impl Send for Buffer {}
// SAFETY: the C API lets any number of threads use a buffer at the same time.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes the buffer that `function` returned, which is on the client's device of this place.
    ///
    /// # Safety
    ///
    /// `raw` is null or a buffer of this client that nothing else destroys.
    pub(super) unsafe fn take(
        client: &Arc<ClientHandle>,
        function: &'static str,
        raw: *mut PJRT_Buffer,
        device: usize,
        shape: Arc<ArrayShape>,
    ) -> Result<Self> {
        let raw = non_null(function, raw)?;
        client.live_buffers.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            client: Arc::clone(client),
            raw,
            device,
            shape,
        })
    }

    pub(super) fn from_host(
        client: &Arc<ClientHandle>,
        element_type: ElementType,
        bytes: &[u8],
        dims: &[usize],
        device: &Device,
    ) -> Result<Self> {
        let shape = Arc::new(ArrayShape {
            element_type,
            dims: dims.to_vec(),
        });
        check_size(&shape, bytes.len())?;
        check_device(client, device)?;
        let dims: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
        let during_call = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
        let mut args = PJRT_Client_BufferFromHostBuffer_Args {
            client: client.raw,
            data: bytes.as_ptr().cast(),
            type_: element_type.number(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: during_call,
            device: device.raw(),
            ..Default::default()
        };
        let function = "PJRT_Client_BufferFromHostBuffer";
        // SAFETY: data and dimensions outlive the call, agree in size (checked above), and the
        // plugin may not look at them afterwards: that is the meaning of `during_call`.
        unsafe {
            call!(&client.api, PJRT_Client_BufferFromHostBuffer, args)?;
            let buffer = Self::take(client, function, args.buffer, device.index(), shape);
            // Ready when the call returns, by the same meaning; waiting costs nothing and holds
            // also for a plugin that is late.
            Event::take(&client.api, function, args.done_with_host_buffer)?.wait()?;
            buffer
        }
    }

    pub(super) fn client_handle(&self) -> &Arc<ClientHandle> {
        &self.client
    }

    pub(super) fn raw(&self) -> *mut PJRT_Buffer {
        self.raw
    }

    /// What it holds, and its shape.
    pub fn shape(&self) -> &ArrayShape {
        &self.shape
    }

    /// What it holds.
    pub fn element_type(&self) -> ElementType {
        self.shape.element_type
    }

    /// The length of the array in each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.shape.dims
    }

    /// The device it is on.
    pub fn device(&self) -> Device {
        Device::new(&self.client, self.device)
    }

    /// Place of its device among the client's.
    pub(super) fn device_index(&self) -> usize {
        self.device
    }

    /// Bytes it takes on the device, with the padding of the device's layout.
    ///
    /// # Errors
    ///
    /// The plugin's, for instance because it was deleted.
    pub fn on_device_bytes(&self) -> Result<usize> {
        let mut args = PJRT_Buffer_OnDeviceSizeInBytes_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        unsafe { call!(&self.client.api, PJRT_Buffer_OnDeviceSizeInBytes, args)? };
        Ok(args.on_device_size_in_bytes)
    }

    /// The address of its memory, as a number: tells whether two buffers share memory. Blocks
    /// until the memory exists.
    ///
    /// # Errors
    ///
    /// The plugin's, for instance because it was deleted.
    pub fn address(&self) -> Result<usize> {
        let mut args = PJRT_Buffer_UnsafePointer_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive; the address is not followed.
        unsafe { call!(&self.client.api, PJRT_Buffer_UnsafePointer, args)? };
        Ok(args.buffer_pointer)
    }

    /// Gives the device's memory back now. Later uses are errors; a second call does nothing.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn delete(&self) -> Result<()> {
        let mut args = PJRT_Buffer_Delete_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive; deleting keeps the handle.
        unsafe { call!(&self.client.api, PJRT_Buffer_Delete, args) }
    }

    /// Whether its memory is gone: deleted, or donated to a program.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn is_deleted(&self) -> Result<bool> {
        let mut args = PJRT_Buffer_IsDeleted_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        unsafe { call!(&self.client.api, PJRT_Buffer_IsDeleted, args)? };
        Ok(args.is_deleted)
    }

    /// An event that happens when its contents are there.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn ready_event(&self) -> Result<Event> {
        let mut args = PJRT_Buffer_ReadyEvent_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive, and the event is ours.
        unsafe {
            call!(&self.client.api, PJRT_Buffer_ReadyEvent, args)?;
            Event::take(&self.client.api, "PJRT_Buffer_ReadyEvent", args.event)
        }
    }

    /// Blocks until its contents are there.
    ///
    /// # Errors
    ///
    /// Why the program that was to compute them failed.
    pub fn wait(&self) -> Result<()> {
        self.ready_event()?.wait()
    }

    /// Blocks until its contents are there, but not longer than `limit`; `false` if they are not by
    /// then.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        self.ready_event()?.wait_timeout(limit)
    }

    /// Copies it to another device of the same client, which need not wait for its contents.
    ///
    /// # Errors
    ///
    /// If the device is not one of this client's, and the plugin's.
    pub fn copy_to_device(&self, device: &Device) -> Result<Self> {
        check_device(&self.client, device)?;
        let mut args = PJRT_Buffer_CopyToDevice_Args {
            buffer: self.raw,
            dst_device: device.raw(),
            ..Default::default()
        };
        // SAFETY: buffer and device are alive and of the same client; the copy is ours.
        unsafe {
            call!(&self.client.api, PJRT_Buffer_CopyToDevice, args)?;
            let (function, shape) = ("PJRT_Buffer_CopyToDevice", Arc::clone(&self.shape));
            Self::take(
                &self.client,
                function,
                args.dst_buffer,
                device.index(),
                shape,
            )
        }
    }

    /// Copies the array to host memory, row by row. Blocks until its contents are there and copied.
    ///
    /// # Errors
    ///
    /// If it holds another type than `T`, why the program that was to compute it failed, and the
    /// plugin's.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let (holds, wanted) = (self.element_type(), T::TYPE);
        if holds != wanted {
            return Err(invalid(format!(
                "the buffer holds {holds}, it cannot be read as {wanted}"
            )));
        }
        let length = self.shape.host_bytes()? / size_of::<T>();
        T::filled(length, |bytes| self.read_into(bytes))
    }

    /// The elements as bytes, in the CPU's byte order.
    ///
    /// # Errors
    ///
    /// As [`to_vec`](Self::to_vec), and for element types that have no form in host memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        u8::filled(self.shape.host_bytes()?, |bytes| self.read_into(bytes))
    }

    /// Fills `bytes`, which has the size of the whole array. After an error that is not the
    /// plugin's the plugin may still write to them: a copy has begun, and nothing says when it
    /// ends.
    fn read_into(&self, bytes: &mut [u8]) -> Result<()> {
        let minor_to_major: Vec<i64> = (0..self.dims().len() as i64).rev().collect();
        let mut layout = row_major(&minor_to_major);
        let mut args = PJRT_Buffer_ToHostBuffer_Args {
            src: self.raw,
            host_layout: &mut layout,
            ..Default::default()
        };
        let function = "PJRT_Buffer_ToHostBuffer";
        // SAFETY: the buffer is alive, and so is the layout; without a destination only a size is
        // asked for.
        unsafe { call!(&self.client.api, PJRT_Buffer_ToHostBuffer, args)? };
        if args.dst_size != bytes.len() {
            return Err(invalid(format!(
                "the plugin needs {} bytes for an array of {} bytes",
                args.dst_size,
                bytes.len()
            )));
        }
        if bytes.is_empty() {
            return self.wait();
        }
        args.dst = bytes.as_mut_ptr().cast();
        args.event = ptr::null_mut();
        // SAFETY: the destination has the size that is given, and is lent until the event, for
        // which we wait here, says that the plugin is done with it. Where there is no such event,
        // this call never frees it.
        unsafe {
            call!(&self.client.api, PJRT_Buffer_ToHostBuffer, args)?;
            Event::take(&self.client.api, function, args.event)?.wait()
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = PJRT_Buffer_Destroy_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: this value owns the buffer.
        log_destroy(unsafe { call!(&self.client.api, PJRT_Buffer_Destroy, args) });
        self.client.live_buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} on device {})", self.shape, self.device().id())
    }
}

/// Without this layout the plugin would copy in the device's own order of dimensions.
fn row_major(minor_to_major: &[i64]) -> PJRT_Buffer_MemoryLayout {
    let tiled = PJRT_Buffer_MemoryLayout_Tiled {
        minor_to_major: minor_to_major.as_ptr(),
        minor_to_major_size: minor_to_major.len(),
        ..Default::default()
    };
    PJRT_Buffer_MemoryLayout {
        type_: PJRT_Buffer_MemoryLayout_Type_Tiled,
        __bindgen_anon_1: PJRT_Buffer_MemoryLayout__bindgen_ty_1 { tiled },
        ..Default::default()
    }
}

fn invalid(what: impl Into<String>) -> PjrtError {
    PjrtError::InvalidArgument(what.into())
}

fn check_size(shape: &ArrayShape, bytes: usize) -> Result<()> {
    let needed = shape.host_bytes()?;
    if bytes != needed {
        return Err(invalid(format!(
            "{shape} has {needed} bytes, but {bytes} were given"
        )));
    }
    Ok(())
}

fn check_device(client: &Arc<ClientHandle>, device: &Device) -> Result<()> {
    if !Arc::ptr_eq(client, device.client()) {
        return Err(invalid(
            "the device belongs to another client: use one of this client's",
        ));
    }
    if !device.is_addressable() {
        let id = device.id();
        return Err(invalid(format!(
            "device {id} belongs to another process, which must use it"
        )));
    }
    Ok(())
}
