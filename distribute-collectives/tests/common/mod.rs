//! Shared by the tests: ranks on threads, hard limits, element types by name.
#![allow(dead_code)]

use std::sync::mpsc;
use std::time::Duration;

use distribute_collectives::{
    Algorithm, Communicator, Element, GroupOptions, InProcessCommunicator, ProcessTransport,
    in_process, loopback,
};
use half::{bf16, f16};

/// Runs `f` on a thread and fails the test when it takes longer than a minute.
pub fn within_limit<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _ = sender.send(f());
    });
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hard limit of 60 s passed: a hang"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => panic!("the test thread ended without a result"),
        },
    }
}

/// Runs `f` for every rank of a new group, each on its own thread.
pub fn on_ranks<R: Send>(
    world_size: usize,
    options: GroupOptions,
    f: impl Fn(InProcessCommunicator) -> R + Sync,
) -> Vec<R> {
    let endpoints = in_process(world_size, options).expect("valid options");
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| scope.spawn(move || f(endpoint)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    })
}

/// What carries the bytes between the ranks of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    Threads,
    SharedMemory,
    Grpc,
}

impl Carrier {
    /// What `auto` means for buffers that are not tiny.
    pub fn first_choice(self) -> Algorithm {
        match self {
            Carrier::Threads | Carrier::SharedMemory => Algorithm::Direct,
            Carrier::Grpc => Algorithm::Auto,
        }
    }

    fn group(self, world_size: usize, options: GroupOptions) -> Vec<Box<dyn Communicator>> {
        fn boxed<C: Communicator + 'static>(endpoint: C) -> Box<dyn Communicator> {
            Box::new(endpoint)
        }
        let transport = match self {
            Carrier::Threads => {
                let group = in_process(world_size, options).expect("valid options");
                return group.into_iter().map(boxed).collect();
            }
            Carrier::SharedMemory => ProcessTransport::SharedMemory,
            Carrier::Grpc => ProcessTransport::Grpc,
        };
        let group = loopback(world_size, options, transport).expect("a group");
        group.into_iter().map(boxed).collect()
    }
}

/// Runs `f` for every rank of a new group, each on its own thread.
pub fn on_ranks_over<R: Send>(
    carrier: Carrier,
    world_size: usize,
    options: GroupOptions,
    f: impl Fn(Box<dyn Communicator>) -> R + Sync,
) -> Vec<R> {
    let endpoints = carrier.group(world_size, options);
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| scope.spawn(move || f(endpoint)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    })
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
    f16: f16::from_f64, f16::to_f64;
    bf16: bf16::from_f64, bf16::to_f64;
    i32: |v| v as i32, f64::from;
    i64: |v| v as i64, |v| v as f64;
    u8: |v| v as i64 as u8, f64::from;
}

/// The bits of a slice, for comparisons that tell NaNs and zeros apart.
pub fn bits<T: Element>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// A small deterministic generator (SplitMix64), so that a case is its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}
