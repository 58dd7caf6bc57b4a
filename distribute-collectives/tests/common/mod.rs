//! Shared by the tests: ranks on threads, hard limits, element types by name, a transport that can
//! be watched.
#![allow(dead_code, reason = "each test program uses its own part")]

#[path = "../../src/testing.rs"]
mod testing;

use distribute_collectives::{
    AbortHandle, Algorithm, CollectiveError, Communicator, Element, GroupOptions,
    InProcessCommunicator, InProcessTransport, OperationHeader, Result, Transport, in_process,
};
#[cfg(feature = "grpc")]
use distribute_collectives::{ProcessTransport, loopback};
use half::{bf16, f16};
pub use testing::*;

/// All algorithms.
pub const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Direct,
    Algorithm::Ring,
    Algorithm::HalvingDoubling,
    Algorithm::DirectExchange,
    Algorithm::Hierarchical { ranks_per_host: 2 },
];

/// Runs `f` for every rank of a new group, each on its own thread.
pub fn on_ranks<R: Send>(
    world_size: usize,
    options: GroupOptions,
    f: impl Fn(InProcessCommunicator) -> R + Sync,
) -> Vec<R> {
    on_threads(in_process(world_size, options).expect("valid options"), f)
}

/// What carries the bytes between the ranks of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    Threads,
    #[cfg(feature = "shm")]
    SharedMemory,
    #[cfg(feature = "grpc")]
    Grpc,
}

impl Carrier {
    /// What `auto` means for buffers that are not tiny.
    pub fn first_choice(self) -> Algorithm {
        match self {
            Carrier::Threads => Algorithm::Direct,
            #[cfg(feature = "shm")]
            Carrier::SharedMemory => Algorithm::Direct,
            #[cfg(feature = "grpc")]
            Carrier::Grpc => Algorithm::Auto,
        }
    }

    pub fn group(self, world_size: usize, options: GroupOptions) -> Vec<Box<dyn Communicator>> {
        fn boxed<C: Communicator + 'static>(group: Vec<C>) -> Vec<Box<dyn Communicator>> {
            let boxed = |endpoint| Box::new(endpoint) as Box<dyn Communicator>;
            group.into_iter().map(boxed).collect()
        }
        #[cfg(feature = "grpc")]
        let over = |transport, options| loopback(world_size, options, transport).expect("a group");
        match self {
            Carrier::Threads => boxed(in_process(world_size, options).expect("valid options")),
            #[cfg(feature = "shm")]
            Carrier::SharedMemory => boxed(over(ProcessTransport::SharedMemory, options)),
            #[cfg(feature = "grpc")]
            Carrier::Grpc => boxed(over(ProcessTransport::Grpc, options)),
        }
    }
}

/// Runs `f` for every rank of a new group, each on its own thread.
pub fn on_ranks_over<R: Send>(
    carrier: Carrier,
    world_size: usize,
    options: GroupOptions,
    f: impl Fn(Box<dyn Communicator>) -> R + Sync,
) -> Vec<R> {
    on_threads(carrier.group(world_size, options), f)
}

/// An element type whose values tests can make from `f64` and compare bit by bit.
pub trait TestElement: Element + PartialEq + std::fmt::Debug {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

macro_rules! test_element {
    ($($type:ty: $from:expr, $to:expr;)*) => {$(
        impl TestElement for $type {
            fn from_f64(value: f64) -> Self {
                $from(value)
            }

            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    )*};
}
test_element! {
    f32: |v| v as f32, f64::from;
    f64: |v| v, |v| v;
    // Not by their own `from_f64`: it drops bits that decide where a value rounds to.
    f16: |v| f16::from_f32(v as f32), f16::to_f64;
    bf16: |v| bf16::from_f32(v as f32), bf16::to_f64;
    i32: |v| v as i32, f64::from;
    i64: |v| v as i64, |v| v as f64;
    u8: |v| v as i64 as u8, f64::from;
}

/// The bits of a slice, for comparisons that tell NaNs and zeros apart.
pub fn bits<T: Element>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

impl Random {
    /// From -1 to 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

/// An in-process transport that calls a function with the size of each segment before it sends it.
pub struct BeforeSend<F> {
    pub inner: InProcessTransport,
    pub call: F,
}

impl<F: FnMut(usize) + Send> Transport for BeforeSend<F> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world_size(&self) -> usize {
        self.inner.world_size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn segment_bytes(&self) -> usize {
        self.inner.segment_bytes()
    }

    fn segment_bytes_for(&self, bytes: usize) -> usize {
        self.inner.segment_bytes_for(bytes)
    }
    fn sequence(&self) -> u64 {
        self.inner.sequence()
    }
    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.inner.begin(header)
    }
    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        self.inner.end(header, result)
    }
    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        (self.call)(bytes);
        self.inner.send_with(to, bytes, fill)
    }
    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        self.inner.receive_with(from, bytes, consume)
    }
    fn fail(&mut self, error: CollectiveError) {
        self.inner.fail(error);
    }
    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }
}
