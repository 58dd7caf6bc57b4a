//! Memory on a device and page-locked host memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::cuda::{Context, Owned, OwnedStream, Stream};
use super::library::LibraryError;
use crate::nccl::element::ElementType;

/// Elements in the memory of a device; the view of a [`DeviceMemory`] or of anybody's memory.
///
/// # Order
///
/// An operation begins when the work that was put [before it](Self::after) into the stream of the
/// buffer is done, and it is done when the call returns: nothing has to wait for it. Without a
/// stream, what writes or reads the buffer must be done before the call.
#[derive(Debug)]
pub struct DeviceBuffer<'a> {
    span: Span,
    after: Option<Stream>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> DeviceBuffer<'a> {
    /// Names elements by the address of the first one (a `CUdeviceptr`).
    ///
    /// # Safety
    /// - `address` leads to `count` elements of type `element`, aligned for it, in the memory of
    ///   the device of the communicator that it is used with (or in memory that this device can
    ///   access).
    /// - Until an operation on it has returned, nothing else writes them, nor reads them where the
    ///   operation writes, but work in the stream given to [`after`](Self::after).
    /// - The memory is not freed while the operation runs. When NCCL could not be made to end it
    ///   (see [`is_stuck`](crate::nccl::NcclCommunicator::is_stuck)), that is: never.
    pub unsafe fn from_raw(address: u64, element: ElementType, count: usize) -> Self {
        DeviceBuffer {
            span: Span {
                address,
                element,
                count,
                _keep: None,
            },
            after: None,
            memory: PhantomData,
        }
    }

    /// Operations begin after what was put into `stream` before the call.
    #[must_use]
    pub fn after(mut self, stream: Stream) -> Self {
        self.after = Some(stream);
        self
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.span.count
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.span.count == 0
    }

    /// The type of the elements.
    pub fn element(&self) -> ElementType {
        self.span.element
    }

    /// Bytes of all elements.
    pub fn size_bytes(&self) -> usize {
        self.span.size_bytes()
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn stream(&self) -> Option<Stream> {
        self.after
    }
}

/// Elements in device memory that an operation works on.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    address: u64,
    pub(crate) element: ElementType,
    pub(crate) count: usize,
    /// Memory of this library: kept alive while the operation runs, freed with the last view of it.
    _keep: Option<Arc<Owned<u64>>>,
}

impl Span {
    pub(crate) fn size_bytes(&self) -> usize {
        self.count * self.element.size_bytes()
    }

    /// The elements of a range.
    ///
    /// # Panics
    /// When the range is not inside.
    pub(crate) fn slice(&self, range: Range<usize>) -> Span {
        assert!(range.start <= range.end && range.end <= self.count);
        let start = range.start * self.element.size_bytes();
        Span {
            address: self.address + start as u64,
            count: range.len(),
            ..self.clone()
        }
    }

    /// The same bytes as elements of another type.
    ///
    /// # Panics
    /// When the bytes are not whole elements, or the first one is not aligned.
    pub(crate) fn cast(&self, element: ElementType) -> Span {
        let each = element.size_bytes();
        assert!(self.size_bytes().is_multiple_of(each) && self.address.is_multiple_of(each as u64));
        Span {
            element,
            count: self.size_bytes() / each,
            ..self.clone()
        }
    }

    /// The address as NCCL takes it.
    pub(super) fn pointer(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    /// Copies from the beginning of page-locked memory, in a stream.
    pub(crate) fn upload(
        &self,
        from: &PinnedMemory,
        stream: &OwnedStream,
    ) -> Result<(), LibraryError> {
        let cuda = &from.memory.context.cuda;
        let bytes = self.size_bytes().min(from.bytes);
        // SAFETY: both are at least that long; the maker of the span promised that. The
        // caller keeps `from` until the stream has come to a later mark.
        let code = unsafe {
            let copy = cuda.functions.cuMemcpyHtoDAsync_v2;
            copy(self.address, from.memory.raw, bytes, stream.0.raw)
        };
        cuda.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies to the beginning of page-locked memory, in a stream.
    pub(crate) fn download(
        &self,
        to: &mut PinnedMemory,
        stream: &OwnedStream,
    ) -> Result<(), LibraryError> {
        let cuda = &to.memory.context.cuda;
        let bytes = self.size_bytes().min(to.bytes);
        // SAFETY: as in `upload`.
        let code = unsafe {
            let copy = cuda.functions.cuMemcpyDtoHAsync_v2;
            copy(to.memory.raw, self.address, bytes, stream.0.raw)
        };
        cuda.check("cuMemcpyDtoHAsync", code)
    }
}

/// Memory on the device of a communicator; see
/// [`NcclCommunicator::allocate`](crate::nccl::NcclCommunicator::allocate).
///
/// Freeing it waits for the device (that is how `cuMemFree` works): drop it when no other thread is
/// in an operation on the same device.
#[derive(Debug)]
pub struct DeviceMemory(Span);

impl DeviceMemory {
    /// Takes memory, which holds anything. The context must be current.
    pub(crate) fn new(
        context: &Arc<Context>,
        element: ElementType,
        count: usize,
    ) -> Result<Self, LibraryError> {
        let functions = &context.cuda.functions;
        let (take, free) = (functions.cuMemAlloc_v2, functions.cuMemFree_v2);
        let bytes = count.saturating_mul(element.size_bytes()).max(1);
        // SAFETY: any number of bytes above 0; every view of the memory shares its ownership.
        let memory = unsafe { Owned::create(context, "cuMemAlloc", take, bytes, free) }?;
        Ok(DeviceMemory(Span {
            address: memory.raw,
            element,
            count,
            _keep: Some(Arc::new(memory)),
        }))
    }

    /// All elements.
    pub fn buffer(&mut self) -> DeviceBuffer<'_> {
        self.slice(0..self.0.count)
    }

    /// The elements of a range.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn slice(&mut self, range: Range<usize>) -> DeviceBuffer<'_> {
        DeviceBuffer {
            span: self.0.slice(range),
            after: None,
            memory: PhantomData,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// The type of the elements.
    pub fn element(&self) -> ElementType {
        self.0.element
    }

    /// The address of the first element, for kernels of the caller.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    pub(crate) fn span(&self) -> &Span {
        &self.0
    }
}

/// Page-locked host memory: the device copies from and to it by itself.
pub(crate) struct PinnedMemory {
    memory: Owned<*mut c_void>,
    bytes: usize,
}

// SAFETY: owns its memory; the driver lets any thread use it.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// Takes memory and fills it with zeros. The context must be current.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, LibraryError> {
        let functions = &context.cuda.functions;
        let (take, free) = (functions.cuMemAllocHost_v2, functions.cuMemFreeHost);
        let bytes = bytes.max(1);
        // SAFETY: any number of bytes above 0; only the owner leads to the memory.
        let memory = unsafe { Owned::create(context, "cuMemAllocHost", take, bytes, free) }?;
        // SAFETY: that much was just allocated, and no other code has the pointer.
        unsafe { memory.raw.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { memory, bytes })
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory of that length, owned by this value.
        unsafe { std::slice::from_raw_parts(self.memory.raw.cast::<u8>(), self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by the caller alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.raw.cast::<u8>(), self.bytes) }
    }
}
