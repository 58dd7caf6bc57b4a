//! Starts operations now and waits for them later, so that a program computes meanwhile.
//!
//! [`Overlapped`] gives a communicator to one worker thread, which runs the started operations one
//! after the other, in the order of their start; all ranks must start them in the same order.
//! Buffers are moved in and come back from [`Pending::wait`]; nothing is copied.
//!
//! ```
//! use distribute_collectives::overlap::Overlapped;
//! use distribute_collectives::{GroupOptions, ReduceOp, in_process};
//!
//! let endpoint = in_process(1, GroupOptions::default())?.remove(0);
//! let mut overlapped = Overlapped::new(endpoint, 4)?;
//! let pending = overlapped.start_all_reduce(ReduceOp::Sum, vec![vec![1.0_f32, 2.0].into()]);
//! // ... compute the gradients of the next layer here ...
//! let reduced: Vec<f32> = pending.wait()?.remove(0).try_into()?;
//! assert_eq!(reduced, [1.0, 2.0]);
//! # Ok::<(), distribute_collectives::CollectiveError>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use half::{bf16, f16};

use crate::buffer::{Buffer, DType, Element};
use crate::communicator::{AbortHandle, Communicator, CommunicatorExt, Description, Gathered};
use crate::error::{CollectiveError, Result};
use crate::header::OperationKind;
use crate::reduce::ReduceOp;

/// Elements that an operation owns while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnedBuffer {
    /// `f32` elements.
    F32(Vec<f32>),
    /// `f64` elements.
    F64(Vec<f64>),
    /// `f16` elements.
    F16(Vec<f16>),
    /// `bf16` elements.
    BF16(Vec<bf16>),
    /// `i32` elements.
    I32(Vec<i32>),
    /// `i64` elements.
    I64(Vec<i64>),
    /// `u8` elements.
    U8(Vec<u8>),
}

impl OwnedBuffer {
    /// A view for an operation.
    pub fn as_buffer(&mut self) -> Buffer<'_> {
        match self {
            OwnedBuffer::F32(values) => values.into(),
            OwnedBuffer::F64(values) => values.into(),
            OwnedBuffer::F16(values) => values.into(),
            OwnedBuffer::BF16(values) => values.into(),
            OwnedBuffer::I32(values) => values.into(),
            OwnedBuffer::I64(values) => values.into(),
            OwnedBuffer::U8(values) => values.into(),
        }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            OwnedBuffer::F32(_) => DType::F32,
            OwnedBuffer::F64(_) => DType::F64,
            OwnedBuffer::F16(_) => DType::F16,
            OwnedBuffer::BF16(_) => DType::BF16,
            OwnedBuffer::I32(_) => DType::I32,
            OwnedBuffer::I64(_) => DType::I64,
            OwnedBuffer::U8(_) => DType::U8,
        }
    }
}

macro_rules! owned {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl From<Vec<$type>> for OwnedBuffer {
            fn from(values: Vec<$type>) -> Self {
                OwnedBuffer::$variant(values)
            }
        }

        impl TryFrom<OwnedBuffer> for Vec<$type> {
            type Error = CollectiveError;

            fn try_from(buffer: OwnedBuffer) -> Result<Self> {
                match buffer {
                    OwnedBuffer::$variant(values) => Ok(values),
                    other => Err(wrong_type(other.dtype(), <$type>::DTYPE)),
                }
            }
        }
    )*};
}
owned! {
    f32 => F32,
    f64 => F64,
    f16 => F16,
    bf16 => BF16,
    i32 => I32,
    i64 => I64,
    u8 => U8,
}

fn wrong_type(found: DType, wanted: DType) -> CollectiveError {
    let what = format!("the buffer has elements of {found}, not of {wanted}");
    CollectiveError::InvalidOption { what }
}

/// An operation that was started; see [`Overlapped`].
///
/// Dropping it does not end the operation: the other ranks count on it.
#[must_use = "the buffers and the error of the operation come from `wait`"]
pub struct Pending<T> {
    kind: OperationKind,
    rank: usize,
    result: mpsc::Receiver<Result<T>>,
}

impl<T> Pending<T> {
    /// Blocks until the operation has ended and gives its buffers back.
    ///
    /// # Errors
    /// What the operation itself returned. When an earlier one had failed,
    /// [`Poisoned`](CollectiveError::Poisoned) with that first failure.
    pub fn wait(self) -> Result<T> {
        match self.result.recv() {
            Ok(result) => result,
            Err(mpsc::RecvError) => Err(CollectiveError::Aborted {
                rank: self.rank,
                reason: format!("its worker thread panicked after {}", self.kind),
            }),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The communicator and its first fatal error, on the worker thread.
struct Worker<C> {
    communicator: C,
    failure: Option<CollectiveError>,
}

impl<C: Communicator> Worker<C> {
    /// Runs one operation. A panic in it ends the group, as the death of a rank's thread does.
    fn run<T>(&mut self, kind: OperationKind, body: impl FnOnce(&mut C) -> Result<T>) -> Result<T> {
        if let Some(cause) = &self.failure {
            let cause = Box::new(cause.clone());
            return Err(CollectiveError::Poisoned { cause });
        }
        let communicator = &mut self.communicator;
        let result = catch_unwind(AssertUnwindSafe(|| body(communicator)));
        let panicked = result.is_err();
        let result = result.unwrap_or_else(|_| {
            Err(CollectiveError::Aborted {
                rank: self.communicator.rank(),
                reason: format!("its thread panicked in {kind}"),
            })
        });
        if let Err(error) = &result
            && error.is_fatal()
        {
            self.failure = Some(error.root_cause().clone());
        }
        if panicked {
            self.communicator
                .abort(&format!("its thread panicked in {kind}"));
        }
        result
    }
}

type Job<C> = Box<dyn FnOnce(&mut Worker<C>) + Send>;

struct Jobs<C> {
    waiting: VecDeque<Job<C>>,
    closed: bool,
}

/// The started operations that wait for the worker: at most `capacity`.
struct Queue<C> {
    capacity: usize,
    jobs: Mutex<Jobs<C>>,
    changed: Condvar,
}

impl<C> Queue<C> {
    fn lock(&self) -> MutexGuard<'_, Jobs<C>> {
        // The lock is never held across code that can panic half-way through a change.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while the queue is full. The worker takes the next job when the running operation
    /// ends, which its deadline makes sure of.
    fn push(&self, job: Job<C>) {
        let full = |jobs: &mut Jobs<C>| jobs.waiting.len() >= self.capacity;
        let jobs = self.changed.wait_while(self.lock(), full);
        let mut jobs = jobs.unwrap_or_else(PoisonError::into_inner);
        jobs.waiting.push_back(job);
        drop(jobs);
        self.changed.notify_all();
    }

    /// The next job; `None` when there will be no more.
    fn pop(&self) -> Option<Job<C>> {
        let idle = |jobs: &mut Jobs<C>| jobs.waiting.is_empty() && !jobs.closed;
        let jobs = self.changed.wait_while(self.lock(), idle);
        let job = jobs
            .unwrap_or_else(PoisonError::into_inner)
            .waiting
            .pop_front();
        self.changed.notify_all();
        job
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// A communicator whose operations are started now and waited for later.
///
/// Operations run in the order of their start, one at a time. A start blocks while `queue`
/// operations wait already; the deadline of the running operation bounds that.
///
/// Dropping it runs what was started to the end (each operation has its deadline), so that no other
/// rank waits in vain, and joins the worker. While a panic unwinds, it aborts the group instead.
pub struct Overlapped<C: Communicator + 'static> {
    queue: Arc<Queue<C>>,
    worker: Option<JoinHandle<C>>,
    rank: usize,
    world_size: usize,
    description: Description,
    abort: AbortHandle,
}

impl<C: Communicator + 'static> Overlapped<C> {
    /// Gives the communicator to a worker thread; at most `queue` started operations wait for it.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when `queue` is 0,
    /// [`CollectiveError::BackendUnavailable`] when the system gives no thread.
    pub fn new(communicator: C, queue: usize) -> Result<Self> {
        if queue == 0 {
            let what = "the queue of started operations has room for at least 1, got 0";
            return Err(CollectiveError::InvalidOption {
                what: what.to_string(),
            });
        }
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        let (description, abort) = (communicator.describe(), communicator.abort_handle());
        let queue = Arc::new(Queue {
            capacity: queue,
            jobs: Mutex::new(Jobs {
                waiting: VecDeque::with_capacity(queue.min(1024)),
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let jobs = queue.clone();
        let worker = std::thread::Builder::new()
            .name(format!("collectives-{rank}"))
            .spawn(move || work(communicator, &jobs))
            .map_err(|error| {
                let what = "a thread for overlapped operations";
                CollectiveError::unavailable(what, error.to_string())
            })?;
        Ok(Overlapped {
            queue,
            worker: Some(worker),
            rank,
            world_size,
            description,
            abort,
        })
    }

    /// Starts an [`all_reduce`](Communicator::all_reduce).
    pub fn start_all_reduce(
        &mut self,
        op: ReduceOp,
        mut buffers: Vec<OwnedBuffer>,
    ) -> Pending<Vec<OwnedBuffer>> {
        self.start(OperationKind::AllReduce, move |communicator| {
            communicator.all_reduce(op, &mut views(&mut buffers))?;
            Ok(buffers)
        })
    }

    /// Starts a [`reduce_scatter`](Communicator::reduce_scatter); `wait` also returns the range of
    /// this rank's share.
    pub fn start_reduce_scatter(
        &mut self,
        op: ReduceOp,
        mut buffer: OwnedBuffer,
    ) -> Pending<(OwnedBuffer, Range<usize>)> {
        self.start(OperationKind::ReduceScatter, move |communicator| {
            let own = communicator.reduce_scatter(op, buffer.as_buffer())?;
            Ok((buffer, own))
        })
    }

    /// Starts an [`all_gather`](CommunicatorExt::all_gather).
    pub fn start_all_gather<T: Element>(&mut self, input: Vec<T>) -> Pending<Gathered<T>> {
        self.start(OperationKind::AllGather, move |communicator| {
            communicator.all_gather(&input)
        })
    }

    /// Starts a [`broadcast`](Communicator::broadcast).
    pub fn start_broadcast(
        &mut self,
        root: usize,
        mut buffers: Vec<OwnedBuffer>,
    ) -> Pending<Vec<OwnedBuffer>> {
        self.start(OperationKind::Broadcast, move |communicator| {
            communicator.broadcast(root, &mut views(&mut buffers))?;
            Ok(buffers)
        })
    }

    /// Starts a [`reduce`](Communicator::reduce).
    pub fn start_reduce(
        &mut self,
        op: ReduceOp,
        root: usize,
        mut buffers: Vec<OwnedBuffer>,
    ) -> Pending<Vec<OwnedBuffer>> {
        self.start(OperationKind::Reduce, move |communicator| {
            communicator.reduce(op, root, &mut views(&mut buffers))?;
            Ok(buffers)
        })
    }

    /// Starts a [`barrier`](Communicator::barrier): `wait` returns when all ranks have come to it.
    pub fn start_barrier(&mut self) -> Pending<()> {
        self.start(OperationKind::Barrier, Communicator::barrier)
    }

    fn start<T: Send + 'static>(
        &mut self,
        kind: OperationKind,
        body: impl FnOnce(&mut C) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        // One value is sent, so the sender never waits.
        let (sender, result) = mpsc::sync_channel(1);
        self.queue.push(Box::new(move |worker: &mut Worker<C>| {
            // No caller may wait for the result any more; that is no error.
            let _ = sender.send(worker.run(kind, body));
        }));
        Pending {
            kind,
            rank: self.rank,
            result,
        }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// How the communicator works.
    pub fn describe(&self) -> &Description {
        &self.description
    }

    /// A handle that ends the running and all later operations; see [`Communicator::abort`].
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Runs what was started to the end, ends the worker and gives the communicator back.
    ///
    /// # Errors
    /// [`CollectiveError::Aborted`] when the worker itself was lost.
    pub fn into_inner(mut self) -> Result<C> {
        self.finish().ok_or_else(|| CollectiveError::Aborted {
            rank: self.rank,
            reason: "its worker thread panicked outside of an operation".to_string(),
        })
    }

    fn finish(&mut self) -> Option<C> {
        self.queue.close();
        self.worker.take()?.join().ok()
    }
}

impl<C: Communicator + 'static> Drop for Overlapped<C> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.worker.is_some() {
            self.abort
                .abort("its thread panicked with operations under way");
        }
        self.finish();
    }
}

impl<C: Communicator + 'static> fmt::Debug for Overlapped<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlapped")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .finish_non_exhaustive()
    }
}

/// The worker thread.
fn work<C: Communicator>(communicator: C, queue: &Queue<C>) -> C {
    let mut worker = Worker {
        communicator,
        failure: None,
    };
    while let Some(job) = queue.pop() {
        // Whatever happens in one operation, the queue must go on, or a start would never return.
        let _ = catch_unwind(AssertUnwindSafe(|| job(&mut worker)));
    }
    worker.communicator
}

fn views(buffers: &mut [OwnedBuffer]) -> Vec<Buffer<'_>> {
    buffers.iter_mut().map(OwnedBuffer::as_buffer).collect()
}
