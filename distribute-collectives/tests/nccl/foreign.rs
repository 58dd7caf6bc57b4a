//! Memory and a stream of another library, such as a framework.

use std::ffi::c_void;
use std::path::Path;

use distribute_collectives::ReduceOp;
use distribute_collectives::nccl::{DeviceBuffer, ElementType, Stream};
use libloading::Library;

use super::fake::Fake;
use crate::common::{on_threads, within_limit};

/// The driver, as a framework uses it.
struct Framework {
    library: Library,
}

type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> i32;
type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> i32;
type Push = unsafe extern "C" fn(*mut c_void) -> i32;

impl Framework {
    fn new(path: &Path) -> Self {
        // SAFETY: the fake has no initialisers.
        let library = unsafe { Library::new(path) }.expect("a library");
        Framework { library }
    }

    /// A stream in the context of device 0.
    fn stream(&self) -> *mut c_void {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the functions have these types; the context of the fake's device 0 is 1.
        unsafe {
            let push = self
                .library
                .get::<Push>(b"cuCtxPushCurrent_v2")
                .expect("there");
            assert_eq!(push(std::ptr::without_provenance_mut(1)), 0);
            let create = self
                .library
                .get::<Create>(b"cuStreamCreate")
                .expect("there");
            assert_eq!(create(&raw mut stream, 1), 0);
        }
        stream
    }

    /// Begins to copy; `values` must live until the stream is done.
    fn copy(&self, to: u64, values: &[f32], stream: *mut c_void) {
        // SAFETY: the function has this type, and the caller keeps the values.
        unsafe {
            let copy = self
                .library
                .get::<Copy>(b"cuMemcpyHtoDAsync_v2")
                .expect("there");
            assert_eq!(
                copy(to, values.as_ptr().cast(), size_of_val(values), stream),
                0
            );
        }
    }
}

/// The gradients are still being written when the all-reduce is called.
#[test]
fn an_operation_waits_for_the_stream_of_its_buffers() {
    within_limit(|| {
        let fake = Fake::new("copy_ms=0");
        let framework = Framework::new(&fake.path());
        on_threads(fake.group(2), |mut rank| {
            let memory = rank.allocate(ElementType::F32, 6).expect("memory");
            let stream = framework.stream();
            fake.set("copy_ms=100");
            let values = [1.0, 2.0, 3.0];
            framework.copy(memory.address() + 8, &values, stream);
            // SAFETY: three elements of the memory above, which lives longer, and a stream that is
            // never destroyed.
            let buffer = unsafe {
                let stream = Stream::from_raw(stream);
                DeviceBuffer::from_raw(memory.address() + 8, ElementType::F32, 3).after(stream)
            };
            rank.all_reduce_device(ReduceOp::Sum, &mut [buffer])
                .expect("all_reduce");
            let mut found = [0.0_f32; 6];
            rank.download(&memory, &mut found).expect("download");
            assert_eq!(found[2..5], [2.0, 4.0, 6.0]);
        });
        assert_eq!(fake.stat("misuse"), 0);
    });
}
