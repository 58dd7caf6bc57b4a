//! A communicator over NVIDIA's NCCL (feature `nccl`), for memory of GPUs.
//!
//! ```no_run
//! use distribute_collectives::nccl::{ElementType, NcclOptions};
//! use distribute_collectives::{GroupOptions, ReduceOp, nccl};
//!
//! let ranks = nccl::in_process(&[0, 1], GroupOptions::default(), NcclOptions::new(0))?;
//! std::thread::scope(|scope| {
//!     for mut rank in ranks {
//!         scope.spawn(move || {
//!             let mut gradient = rank.allocate(ElementType::F32, 1024)?;
//!             rank.upload(&mut gradient, &[1.0_f32; 1024])?;
//!             rank.all_reduce_device(ReduceOp::Mean, &mut [gradient.buffer()])
//!         });
//!     }
//! });
//! # Ok::<(), distribute_collectives::CollectiveError>(())
//! ```
//!
//! # Ranks
//!
//! NCCL is set up beside a group of the same ranks, the *control group*: threads
//! ([`in_process`](crate::in_process)) or processes on any hosts
//! ([`ProcessGroupOptions`](crate::ProcessGroupOptions)). It carries NCCL's unique id, compares the
//! ranks' calls before each operation (so that a difference is a `Mismatch` on all ranks, and a
//! rank that does not come is named), and says who is lost. That costs one small all-gather of the
//! control group per operation. Every rank has a GPU of its own: NCCL refuses two ranks on one.
//!
//! [`NcclCommunicator::new`] fails on all ranks together and gives the group back, so that they can
//! go on without NCCL.
//!
//! # Libraries
//!
//! Building needs neither CUDA nor NCCL. At run time the driver (`libcuda.so.1`, for CUDA 11.0 or
//! newer) and NCCL (`libnccl.so.2`, [2.19](Version::MIN_NCCL) or newer) are looked for where the
//! system's loader looks, or at [`NcclOptions::nccl_library`], or where the environment variables
//! [`DISTRIBUTE_NCCL_LIBRARY`](NCCL_LIBRARY) and [`DISTRIBUTE_CUDA_LIBRARY`](CUDA_LIBRARY) say; of
//! the Python package `nvidia-nccl` it is `site-packages/nvidia/nccl/lib/libnccl.so.2`. What is
//! missing or too old is told with the places that were searched ([`NcclUnavailable`]). Loaded
//! libraries stay loaded. Bindings of our own, not `cudarc`'s: that looks for one library
//! per process by fixed names (never `libnccl.so.2`) and panics where it finds none.
//!
//! # Memory
//!
//! - [`DeviceBuffer`] is memory of the device, of [`NcclCommunicator::allocate`] or by its address
//!   (a framework's tensor); the methods whose names end in `_device` work on it in place. A list
//!   of buffers is one group of NCCL calls, and one operation. They know every type of NCCL,
//!   [`ElementType`].
//! - The operations of [`Communicator`](crate::Communicator) work on buffers in host memory: these
//!   are copied to page-locked memory, to the device, and back, in pieces of
//!   [`NcclOptions::staging_bytes`]. That is for small values and for programs that want one
//!   interface; it is slower than the transports that work on host memory.
//! - An operation that cannot be ended (see below) keeps its memory.
//!
//! # Order of the work
//!
//! All NCCL calls of a communicator are put into one stream of its own, which has no implicit order
//! with any other stream. An operation begins after the work that was put into the
//! [stream of each buffer](DeviceBuffer::after) before the call, and is complete on this rank's
//! device when the call returns.
//!
//! # Results
//!
//! All ranks end with the same bits. The order of a reduction is NCCL's, which depends on the
//! number of ranks, on the links between the GPUs and on the size: `Order::Canonical` is refused,
//! an algorithm by name and a wire type concern the control group only. Half types are rounded at
//! every step. MEAN of buffers in host memory (but for half types) is the sum, divided once; that
//! of device buffers is what `ncclAvg` makes of it. Whether NaN wins in MIN and MAX is up to NCCL.
//!
//! # Failures
//!
//! Every communicator has one thread, which makes all of its NCCL calls. The NCCL communicator does
//! not block (`ncclConfig_t.blocking = 0`): the thread polls its state and the stream, with pauses
//! of up to 200 microseconds. Meanwhile the calling thread looks at the control group every 2
//! milliseconds.
//!
//! - A rank that does not call: the deadline of the control group ends the operation with
//!   `Timeout`, which names the rank; NCCL is aborted.
//! - A lost rank: the operation may go on for the [grace period](NcclOptions::grace) (the rank may
//!   have done its part and left); then it is aborted and ends with `PeerLost`.
//! - An error of NCCL, also one that comes by itself, and NCCL's part taking longer than
//!   [`NcclOptions::timeout`]: `Aborted` on all ranks, with NCCL's words and the first rank that
//!   saw it.
//! - [`abort`](crate::Communicator::abort) of any rank ends the running operation of all.
//!
//! Where the thread does not come back from a library within three grace periods, it is given up
//! and [`is_stuck`](NcclCommunicator::is_stuck) says so: end the process then. No other code calls
//! `ncclCommAbort`: it would free what a thread that was merely slow is about to use.

mod agreement;
mod communicator;
mod control;
mod device;
mod devices;
mod element;
mod host_memory;
mod options;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw;
mod setup;
#[cfg(feature = "grpc")]
mod shared;
mod thread;
mod unavailable;
mod version;

pub use communicator::{NcclCommunicator, NcclRefused};
pub use control::ControlGroup;
pub use devices::{DeviceInfo, Driver, Installation, PeerLink, driver, library, probe};
pub use element::ElementType;
pub use options::{CUDA_LIBRARY, NCCL_LIBRARY, NcclOptions};
pub use raw::{DeviceBuffer, DeviceMemory, Stream};
#[cfg(feature = "grpc")]
pub use shared::SharedGroup;
pub use unavailable::NcclUnavailable;
pub use version::Version;

pub use crate::error::Searched;

use crate::error::Result;
use crate::in_process::InProcessCommunicator;
use crate::options::GroupOptions;

/// Makes a group of threads of this process, rank `i` on GPU `devices[i]`; `options` are the
/// options of all ranks but for the device.
///
/// # Errors
/// As [`in_process`](crate::in_process) and [`NcclCommunicator::new`].
pub fn in_process(
    devices: &[usize],
    group: GroupOptions,
    options: NcclOptions,
) -> Result<Vec<NcclCommunicator<InProcessCommunicator>>> {
    let endpoints = crate::in_process(devices.len(), group)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (endpoints.into_iter().zip(devices))
            .map(|(endpoint, device)| {
                let options = options.clone().device(*device);
                scope.spawn(|| NcclCommunicator::new(endpoint, options))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let result = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(result?)
        });
        joined.collect()
    })
}
