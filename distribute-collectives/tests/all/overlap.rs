//! Operations that are started now and waited for later.

use std::ops::Range;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use distribute_collectives::overlap::{Overlapped, OwnedBuffer};
use distribute_collectives::{
    AbortHandle, Algorithm, Buffer, CollectiveError, Communicator, DType, Description,
    GatherTarget, GroupOptions, InProcessCommunicator, ReduceOp, Result, in_process,
};

use crate::common::{on_ranks, within_limit};

/// A communicator that notes its calls, waits for a permit before each barrier and panics when it
/// is asked for a product.
struct Gated {
    inner: InProcessCommunicator,
    permits: mpsc::Receiver<()>,
    entered: mpsc::Sender<()>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Gated {
    fn note(&self, call: impl Into<String>) {
        self.log.lock().unwrap().push(call.into());
    }
}

impl Communicator for Gated {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world_size(&self) -> usize {
        self.inner.world_size()
    }
    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.note(format!("all_reduce {op}"));
        if op == ReduceOp::Prod {
            std::panic::resume_unwind(Box::new("a product on purpose"));
        }
        self.inner.all_reduce(op, buffers)
    }
    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        self.note("reduce_scatter");
        self.inner.reduce_scatter(op, buffer)
    }
    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.note("all_gather");
        self.inner.all_gather_into(dtype, input, output)
    }
    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.note("broadcast");
        self.inner.broadcast(root, buffers)
    }
    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.inner.reduce(op, root, buffers)
    }
    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        self.inner.send(to, buffer)
    }
    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Result<()> {
        self.inner.recv(from, buffer)
    }
    fn barrier(&mut self) -> Result<()> {
        self.note("barrier");
        let _ = self.entered.send(());
        let _ = self.permits.recv();
        self.inner.barrier()
    }
    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
}

struct Gate {
    permits: mpsc::Sender<()>,
    entered: mpsc::Receiver<()>,
    log: Arc<Mutex<Vec<String>>>,
}

fn gated(inner: InProcessCommunicator, queue: usize) -> (Overlapped<Gated>, Gate) {
    let (permits, receiver) = mpsc::channel();
    let (sender, entered) = mpsc::channel();
    let log = Arc::new(Mutex::new(Vec::new()));
    let communicator = Gated {
        inner,
        permits: receiver,
        entered: sender,
        log: log.clone(),
    };
    let gate = Gate {
        permits,
        entered,
        log,
    };
    (Overlapped::new(communicator, queue).unwrap(), gate)
}

fn one_rank() -> InProcessCommunicator {
    in_process(1, GroupOptions::default()).unwrap().remove(0)
}

fn ones(len: usize) -> Vec<OwnedBuffer> {
    vec![vec![1.0_f32; len].into()]
}

#[test]
fn buffers_come_back_reduced_and_are_not_copied() {
    within_limit(|| {
        let options = GroupOptions::default().algorithm(Algorithm::Ring);
        on_ranks(3, options, |endpoint| {
            let rank = endpoint.rank();
            let mut group = Overlapped::new(endpoint, 8).unwrap();
            let values = vec![rank as f32; 1000];
            let address = values.as_ptr();
            let more: OwnedBuffer = vec![rank as f32 + 1.0; 3].into();
            let sum = group.start_all_reduce(ReduceOp::Sum, vec![values.into(), more]);
            let gathered = group.start_all_gather(vec![rank as i64; rank]);
            let copied = group.start_broadcast(2, vec![vec![rank as u8; 5].into()]);
            let share = group.start_reduce_scatter(ReduceOp::Max, vec![rank as f64; 7].into());
            let root = group.start_reduce(ReduceOp::Sum, 1, vec![vec![1_i32; 2].into()]);
            let barrier = group.start_barrier();

            let mut sum = sum.wait().unwrap();
            assert_eq!(Vec::<f32>::try_from(sum.remove(1)).unwrap(), [6.0; 3]);
            let sum = Vec::<f32>::try_from(sum.remove(0)).unwrap();
            assert_eq!(sum, [3.0; 1000]);
            assert_eq!(sum.as_ptr(), address);
            assert_eq!(gathered.wait().unwrap().values(), [1, 2, 2]);
            assert_eq!(copied.wait().unwrap(), [OwnedBuffer::U8(vec![2; 5])]);
            let (share, own) = share.wait().unwrap();
            assert_eq!(
                Vec::<f64>::try_from(share).unwrap()[own],
                [2.0; 3][..3 - usize::from(rank > 0)]
            );
            let reduced = root.wait().unwrap();
            assert!(rank != 1 || reduced == [OwnedBuffer::I32(vec![3; 2])]);
            barrier.wait().unwrap();
        });
    });
}

#[test]
fn a_start_does_not_wait_for_its_operation() {
    within_limit(|| {
        let (mut group, gate) = gated(one_rank(), 4);
        let barrier = group.start_barrier();
        gate.entered.recv().unwrap();
        // The operation is under way and cannot end; this thread goes on, and starts more.
        let sum = group.start_all_reduce(ReduceOp::Sum, ones(4));
        assert_eq!(*gate.log.lock().unwrap(), ["barrier"]);
        gate.permits.send(()).unwrap();
        barrier.wait().unwrap();
        assert_eq!(sum.wait().unwrap(), ones(4));
    });
}

#[test]
fn operations_run_in_the_order_of_their_start() {
    within_limit(|| {
        let (mut group, gate) = gated(one_rank(), 8);
        let barrier = group.start_barrier();
        let max = group.start_all_reduce(ReduceOp::Max, ones(1));
        let copy = group.start_broadcast(0, ones(1));
        let gather = group.start_all_gather(vec![1_u8]);
        let min = group.start_all_reduce(ReduceOp::Min, ones(1));
        gate.permits.send(()).unwrap();
        // Waiting in another order changes nothing.
        min.wait().unwrap();
        gather.wait().unwrap();
        copy.wait().unwrap();
        max.wait().unwrap();
        barrier.wait().unwrap();
        let expected = [
            "barrier",
            "all_reduce max",
            "broadcast",
            "all_gather",
            "all_reduce min",
        ];
        assert_eq!(*gate.log.lock().unwrap(), expected);
    });
}

#[test]
fn a_full_queue_blocks_the_start() {
    within_limit(|| {
        let (mut group, gate) = gated(one_rank(), 1);
        let running = group.start_barrier();
        gate.entered.recv().unwrap();
        let waiting = group.start_barrier();
        let (sender, started) = mpsc::channel();
        let starter = std::thread::spawn(move || {
            let third = group.start_barrier();
            sender.send(()).unwrap();
            third.wait().unwrap();
        });
        assert!(started.try_recv().is_err());
        gate.permits.send(()).unwrap();
        running.wait().unwrap();
        started.recv().unwrap();
        gate.permits.send(()).unwrap();
        gate.permits.send(()).unwrap();
        waiting.wait().unwrap();
        starter.join().unwrap();
    });
}

#[test]
fn a_drop_runs_what_was_started_and_ends_the_worker() {
    within_limit(|| {
        let (mut group, gate) = gated(one_rank(), 8);
        let barrier = group.start_barrier();
        let sum = group.start_all_reduce(ReduceOp::Sum, ones(3));
        // Nobody waits for this one.
        drop(group.start_all_reduce(ReduceOp::Max, ones(3)));
        gate.entered.recv().unwrap();
        gate.permits.send(()).unwrap();
        drop(group);
        assert_eq!(gate.log.lock().unwrap().len(), 3);
        barrier.wait().unwrap();
        assert_eq!(sum.wait().unwrap(), ones(3));
        // The worker is gone, and its communicator with it.
        assert!(gate.permits.send(()).is_err());
    });
}

#[test]
fn the_communicator_comes_back_usable() {
    within_limit(|| {
        on_ranks(2, GroupOptions::default(), |endpoint| {
            let mut group = Overlapped::new(endpoint, 2).unwrap();
            let pending = group.start_all_reduce(ReduceOp::Sum, ones(2));
            let mut endpoint = group.into_inner().unwrap();
            assert_eq!(pending.wait().unwrap(), [OwnedBuffer::F32(vec![2.0; 2])]);
            endpoint.barrier().unwrap();
        });
    });
}

#[test]
fn an_error_belongs_to_its_operation_and_later_ones_are_poisoned() {
    within_limit(|| {
        on_ranks(2, GroupOptions::default(), |endpoint| {
            let rank = endpoint.rank();
            let mut group = Overlapped::new(endpoint, 4).unwrap();
            let good = group.start_all_reduce(ReduceOp::Sum, ones(2));
            let mixed = vec![vec![1.0_f32].into(), vec![1_i32].into()];
            let wrong_here = group.start_all_reduce(ReduceOp::Sum, mixed);
            let bad = group.start_all_reduce(ReduceOp::Sum, ones(2 + rank));
            let later = group.start_barrier();
            good.wait().unwrap();
            let error = wrong_here.wait().unwrap_err();
            assert!(
                matches!(error, CollectiveError::InvalidArgument { .. }),
                "{error}"
            );
            let cause = bad.wait().unwrap_err();
            assert!(
                matches!(cause, CollectiveError::Mismatch { sequence: 1, .. }),
                "{cause}"
            );
            let poisoned = CollectiveError::Poisoned {
                cause: Box::new(cause),
            };
            assert_eq!(later.wait().unwrap_err(), poisoned);
            let mut endpoint = group.into_inner().unwrap();
            assert_eq!(endpoint.barrier().unwrap_err(), poisoned);
        });
    });
}

#[test]
fn a_panic_in_the_worker_is_an_error_on_all_ranks() {
    within_limit(|| {
        let results = on_ranks(2, GroupOptions::default(), |mut endpoint| {
            if endpoint.rank() == 0 {
                return endpoint.barrier().unwrap_err();
            }
            let (mut group, _gate) = gated(endpoint, 4);
            let product = group.start_all_reduce(ReduceOp::Prod, ones(1));
            let later = group.start_all_reduce(ReduceOp::Sum, ones(1));
            let error = product.wait().unwrap_err();
            let cause = Box::new(error.clone());
            assert_eq!(
                later.wait().unwrap_err(),
                CollectiveError::Poisoned { cause }
            );
            error
        });
        assert_eq!(results[0], results[1]);
        let expected = "rank 1 aborted the group: its thread panicked in all_reduce";
        assert_eq!(results[0].to_string(), expected);
    });
}

#[test]
fn a_thread_that_panics_ends_what_it_started() {
    within_limit(|| {
        let mut endpoints = in_process(2, GroupOptions::default()).unwrap();
        let mut other = endpoints.pop().unwrap();
        let endpoint = endpoints.remove(0);
        let thread = std::thread::spawn(move || {
            let mut group = Overlapped::new(endpoint, 4).unwrap();
            // The other rank never comes; without the abort this would take 30 s.
            let _pending = group.start_barrier();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(thread.join().is_err());
        let error = other.barrier().unwrap_err();
        assert!(
            matches!(error, CollectiveError::Aborted { rank: 0, .. }),
            "{error}"
        );
    });
}

#[test]
fn wrong_uses_are_typed_errors() {
    assert!(matches!(
        Overlapped::new(one_rank(), 0),
        Err(CollectiveError::InvalidOption { .. })
    ));
    let error = Vec::<f32>::try_from(OwnedBuffer::from(vec![1_u8])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the buffer has elements of u8, not of f32"
    );
}
