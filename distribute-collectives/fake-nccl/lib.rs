//! A CUDA driver and an NCCL in host memory, for tests of `distribute_collectives::nccl` on
//! machines without a GPU.
//!
//! It has the symbols of `libcuda.so.1` and `libnccl.so.2` that the library uses. Device memory
//! is memory of the host, every stream is a thread, and the ranks of a communicator meet in a file
//! that they map, so they can be threads or processes. Like the real one in its non-blocking mode,
//! NCCL here only begins what a call asks for: it goes into the stream some polls later. What a
//! program may not do (use a communicator that is busy or gone, memory that was never taken, a
//! thread without a context) is refused and counted.
//!
//! A test copies the built library into a directory of its own, so that it is loaded apart from
//! the processes of other tests, and puts a file `fake.conf` with settings (`settings.rs`) beside
//! it. What exists is written to the file `stats-PID` there.

mod arithmetic;
mod comm;
mod cuda;
mod memory;
mod nccl;
mod settings;
mod stats;
mod world;
