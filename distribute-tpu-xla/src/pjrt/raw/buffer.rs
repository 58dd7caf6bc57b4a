//! Arrays on a device.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::api::{call, lent, log_destroy, non_null};
use super::bindings::*;
use super::client::{Client, ClientHandle};
use super::device::Device;
use super::event::Event;
use crate::pjrt::element::{Element, ElementType};
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
}

// SAFETY: the C API lets any thread use and destroy a buffer.
unsafe impl Send for Buffer {}
// SAFETY: the C API lets any number of threads use a buffer at the same time.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes the buffer that `function` returned.
    ///
    /// # Safety
    ///
    /// `raw` is null or a buffer of this client that nothing else destroys.
    pub(super) unsafe fn take(
        client: &Arc<ClientHandle>,
        function: &'static str,
        raw: *mut PJRT_Buffer,
    ) -> Result<Self> {
        let raw = non_null(function, raw)?;
        client.live_buffers.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            client: Arc::clone(client),
            raw,
        })
    }

    pub(super) fn from_host(
        client: &Arc<ClientHandle>,
        element_type: ElementType,
        bytes: &[u8],
        dims: &[usize],
        device: &Device,
    ) -> Result<Self> {
        check_size(element_type, bytes.len(), dims)?;
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
            let buffer = Self::take(client, function, args.buffer);
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

    /// The client whose device it is on.
    pub fn client(&self) -> Client {
        Client::from_handle(&self.client)
    }

    /// What it holds.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn element_type(&self) -> Result<ElementType> {
        let mut args = PJRT_Buffer_ElementType_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        unsafe { call!(&self.client.api, PJRT_Buffer_ElementType, args)? };
        Ok(ElementType::from_number(args.type_))
    }

    /// Its shape.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn dims(&self) -> Result<Vec<usize>> {
        let mut args = PJRT_Buffer_Dimensions_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive, and its dimensions never change.
        let dims = unsafe {
            call!(&self.client.api, PJRT_Buffer_Dimensions, args)?;
            lent(args.dims, args.num_dims)
        };
        Ok(dims
            .iter()
            .map(|dim| usize::try_from(*dim).unwrap_or(0))
            .collect())
    }

    /// The device it is on.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn device(&self) -> Result<Device> {
        let mut args = PJRT_Buffer_Device_Args {
            buffer: self.raw,
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        unsafe { call!(&self.client.api, PJRT_Buffer_Device, args)? };
        let index = self.client.index_of("PJRT_Buffer_Device", args.device)?;
        Ok(Device::new(&self.client, index))
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
            Self::take(&self.client, "PJRT_Buffer_CopyToDevice", args.dst_buffer)
        }
    }

    /// Copies it to the host, row by row. Blocks until its contents are there and copied.
    ///
    /// # Errors
    ///
    /// If it holds another type than `T`, why the program that was to compute it failed, and the
    /// plugin's.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let (holds, dims) = (self.element_type()?, self.dims()?);
        if holds != T::TYPE {
            let wanted = T::TYPE;
            return Err(invalid(format!(
                "the buffer holds {holds}, it cannot be read as {wanted}"
            )));
        }
        let length = host_bytes(T::TYPE, &dims)? / size_of::<T>();
        T::filled(length, |bytes| self.read_into(bytes, &dims))
    }

    /// The same as bytes in the host's order.
    ///
    /// # Errors
    ///
    /// As [`to_vec`](Self::to_vec), and for element types that have no form on the host.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let dims = self.dims()?;
        let mut bytes = vec![0; host_bytes(self.element_type()?, &dims)?];
        self.read_into(&mut bytes, &dims)?;
        Ok(bytes)
    }

    /// Fills `bytes`, which has the size of the whole array.
    fn read_into(&self, bytes: &mut [u8], dims: &[usize]) -> Result<()> {
        let minor_to_major: Vec<i64> = (0..dims.len() as i64).rev().collect();
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
        // which we wait here, says that the plugin is done with it.
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
        match (self.element_type(), self.dims()) {
            (Ok(element_type), Ok(dims)) => write!(f, "Buffer({element_type}, {dims:?})"),
            _ => f.write_str("Buffer"),
        }
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

/// Bytes of a whole array on the host.
fn host_bytes(element_type: ElementType, dims: &[usize]) -> Result<usize> {
    let Some(bytes) = element_type.bytes() else {
        return Err(invalid(format!(
            "{element_type} has no form on the host: cast it to another"
        )));
    };
    let product = dims
        .iter()
        .try_fold(bytes, |product, dim| product.checked_mul(*dim));
    let product = product.filter(|product| i64::try_from(*product).is_ok());
    product.ok_or_else(|| invalid(format!("{dims:?} are more elements than fit into memory")))
}

fn check_size(element_type: ElementType, bytes: usize, dims: &[usize]) -> Result<()> {
    let needed = host_bytes(element_type, dims)?;
    if dims.iter().any(|dim| i64::try_from(*dim).is_err()) {
        return Err(invalid(format!(
            "{dims:?} are more elements than the C API can count"
        )));
    }
    if bytes != needed {
        return Err(invalid(format!(
            "{bytes} bytes were given for an array {dims:?} of {element_type}, which has {needed}"
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
