//! The calls to the MPI library, with everything that makes them sound.
//!
//! - Every call is made under one lock, so the library need only allow calls from one thread at a
//!   time (`MPI_THREAD_SERIALIZED`). None of them waits for another rank.
//! - Every operation is non-blocking and owns its [`Memory`] until it is complete. One that is
//!   given up (a deadline passed) leaves its memory to the library for ever, which may still write
//!   there.
//! - The bounds of what the library reads and writes are checked here.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;

use super::notice::{NOTICE_BYTES, Notice};
use crate::buffer::{DType, in_words};
use crate::error::{CollectiveError, Result};
use crate::reduce::ReduceOp;
use crate::sync::unpoisoned;

/// The longest pause between two polls.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The tag of notices, which travel on a communicator of their own.
const NOTICE_TAG: i32 = 3;

/// The library between `MPI_Init` and `MPI_Finalize`.
pub(super) struct World {
    universe: Option<Universe>,
    calls: Mutex<()>,
    /// Whether operations were given up: `MPI_Finalize` might wait for them for ever.
    abandoned: AtomicBool,
    /// Carries the notices of all groups: they may arrive when a group has been dropped, and a
    /// message on a communicator that was freed would get into the next one with its number.
    notices: ffi::MPI_Comm,
    inbox: Mutex<Inbox>,
}

// SAFETY: a communicator is a handle that every thread may use; calls are serialised by `calls`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// Notices that have arrived for other groups of this process than the one that looked.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) notices: Vec<(u64, Notice)>,
    alive: BTreeSet<u64>,
    /// Number of the next group. The same on all ranks.
    next: u64,
}

impl Inbox {
    /// Whether a notice may still be of use: its group exists, or will be made here soon.
    pub(super) fn is_expected(&self, instance: u64) -> bool {
        instance >= self.next || self.alive.contains(&instance)
    }
}

impl World {
    pub(super) fn initialize() -> Result<Arc<Self>> {
        let Some((universe, level)) = mpi::initialize_with_threading(Threading::Multiple) else {
            return Err(unavailable(
                "it is initialised already in this process, or was before",
            ));
        };
        if level < Threading::Serialized {
            return Err(unavailable(
                "the library allows calls from its main thread only (MPI_THREAD_FUNNELED)",
            ));
        }
        Ok(Arc::new(World {
            universe: Some(universe),
            calls: Mutex::new(()),
            abandoned: AtomicBool::new(false),
            notices: duplicate_world()?,
            inbox: Mutex::default(),
        }))
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        unpoisoned(self.inbox.lock())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        unpoisoned(self.calls.lock())
    }

    /// The bytes that an operation has received once it is complete, else `None`.
    fn test(&self, request: &mut ffi::MPI_Request) -> Result<Option<usize>> {
        let (mut done, mut bytes): (c_int, c_int) = (0, 0);
        let _guard = self.lock();
        // SAFETY: MPI is initialised as long as `World` lives. The request is null or one that this
        // module began: no other code can call this. The pointers are to locals and to what is
        // borrowed, which outlive the calls.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            check(ffi::MPI_Test(request, &mut done, &mut status))?;
            if done != 0 {
                // Only for receives; the count of other operations means nothing.
                ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes);
            }
        }
        Ok((done != 0).then_some(bytes.max(0) as usize))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.abandoned.load(Ordering::Acquire) {
            std::mem::forget(self.universe.take());
        }
    }
}

fn unavailable(reason: &str) -> CollectiveError {
    CollectiveError::unavailable("MPI", reason)
}

/// What an operation does with its [`Memory`].
#[derive(Clone, Copy)]
pub(super) enum Call {
    /// Every rank gets `outgoing` of all ranks, in rank order.
    AllGather,
    /// Sends `outgoing[rank]` to every rank; the layouts describe the memory.
    AllToAll,
    /// Gives `outgoing` of every rank to all ranks, or to the root only; the layout is that of what
    /// is received.
    Gather { root: Option<usize> },
    /// Copies the root's `outgoing` to the `outgoing` of all ranks.
    Broadcast { root: usize },
    /// Combines elements of `i32` or `i64` of all ranks' `outgoing` into every rank's `incoming`.
    AllReduce(DType, ReduceOp),
    /// Sends `outgoing` as a segment.
    Send { to: usize, tag: i32 },
    /// Sends `outgoing` as a notice.
    Notice { to: usize },
    /// Receives at most this many bytes into `incoming`.
    Receive { from: usize, tag: i32 },
}

impl Call {
    /// Checks that the memory has the bytes that the library reads and writes.
    fn check(self, memory: &Memory, bytes: usize, size: usize) {
        match self {
            Call::AllGather => memory.check(bytes, bytes * size),
            Call::AllToAll => memory.check(memory.sent.total(size), memory.received.total(size)),
            Call::Gather { .. } => memory.check(bytes, memory.received.total(size)),
            Call::AllReduce(dtype, _) => {
                assert!(
                    matches!(dtype, DType::I32 | DType::I64),
                    "other types are combined here"
                );
                memory.check(bytes, bytes);
            }
            Call::Broadcast { .. } | Call::Send { .. } | Call::Notice { .. } => {
                memory.check(bytes, 0);
            }
            Call::Receive { .. } => memory.check(0, bytes),
        }
    }
}

/// A duplicate of the world communicator, so that nothing is mixed up with other users of MPI.
pub(super) struct Comm {
    pub(super) world: Arc<World>,
    raw: ffi::MPI_Comm,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Number of the group. The same number on all ranks; another one for every duplicate.
    pub(super) instance: u64,
}

// SAFETY: a communicator is a handle that every thread may use; calls are serialised by the lock
// of `World`.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Comm {
    /// Blocks until all ranks have called it, for so long; the library is free meanwhile.
    pub(super) fn duplicate(world: &Arc<World>, timeout: Duration) -> Result<Self> {
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        let raw = duplicate(world, timeout)?;
        let guard = world.lock();
        // SAFETY: MPI is initialised as long as `World` lives; the pointers are to locals that
        // outlive the calls.
        unsafe {
            check(ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
            check(ffi::MPI_Comm_rank(raw, &mut rank))?;
            check(ffi::MPI_Comm_size(raw, &mut size))?;
        }
        drop(guard);
        let mut inbox = world.inbox();
        let instance = inbox.next;
        inbox.next += 1;
        inbox.alive.insert(instance);
        drop(inbox);
        Ok(Comm {
            instance,
            world: world.clone(),
            raw,
            rank: rank as usize,
            size: size as usize,
        })
    }

    /// Takes the next notice, from whomever, for whatever group.
    pub(super) fn take_notice(&self) -> Result<Option<[u8; NOTICE_BYTES]>> {
        let (comm, tag) = (self.world.notices, NOTICE_TAG);
        let mut message = [0_u8; NOTICE_BYTES];
        let mut found: c_int = 0;
        let _guard = self.world.lock();
        // SAFETY: all pointers are to locals that outlive the calls; the receive is of at most as
        // many bytes as there are, and does not block since the probe found the message and the
        // lock keeps others from taking it.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let any = ffi::RSMPI_ANY_SOURCE;
            check(ffi::MPI_Iprobe(any, tag, comm, &mut found, &mut status))?;
            if found == 0 {
                return Ok(None);
            }
            check(ffi::MPI_Recv(
                message.as_mut_ptr().cast(),
                NOTICE_BYTES as c_int,
                ffi::RSMPI_UINT8_T,
                status.MPI_SOURCE,
                tag,
                comm,
                &mut status,
            ))?;
        }
        Ok(Some(message))
    }

    /// Starts an operation on the first `bytes` bytes of what this rank sends, or may receive.
    /// [`Call::AllToAll`] does not look at `bytes`: its layouts say it.
    pub(super) fn start(
        self: &Arc<Self>,
        mut memory: Memory,
        bytes: usize,
        call: Call,
    ) -> Result<Pending> {
        call.check(&memory, bytes, self.size);
        let (from, to) = memory.pointers();
        let (sent, received) = (&memory.sent, &memory.received);
        let (counts, starts) = (received.counts.as_ptr(), received.starts.as_ptr());
        let (count, raw) = (bytes as c_int, self.raw);
        let guard = self.world.lock();
        // SAFETY: the bounds and the layouts were checked above, and `Pending` keeps the memory
        // until the operation is complete, or for ever; all of it may be written. It is aligned for
        // 8 bytes, and every bit pattern is a value of the integers that are combined.
        let (code, request) = unsafe {
            let (byte, mut request) = (ffi::RSMPI_UINT8_T, ffi::RSMPI_REQUEST_NULL);
            let done = &raw mut request;
            let code = match call {
                Call::AllGather => {
                    ffi::MPI_Iallgather(from, count, byte, to, count, byte, raw, done)
                }
                Call::AllToAll => {
                    let (sent, at) = (sent.counts.as_ptr(), sent.starts.as_ptr());
                    ffi::MPI_Ialltoallv(from, sent, at, byte, to, counts, starts, byte, raw, done)
                }
                Call::Gather { root: None } => {
                    ffi::MPI_Iallgatherv(from, count, byte, to, counts, starts, byte, raw, done)
                }
                Call::Gather { root: Some(root) } => {
                    let root = root as c_int;
                    ffi::MPI_Igatherv(from, count, byte, to, counts, starts, byte, root, raw, done)
                }
                Call::Broadcast { root } => {
                    ffi::MPI_Ibcast(from, count, byte, root as c_int, raw, done)
                }
                Call::AllReduce(dtype, op) => {
                    let count = (bytes / dtype.size_bytes()) as c_int;
                    let (kind, op) = integers(dtype, op);
                    ffi::MPI_Iallreduce(from, to, count, kind, op, raw, done)
                }
                Call::Send { to, tag } => {
                    ffi::MPI_Isend(from, count, byte, to as c_int, tag, raw, done)
                }
                Call::Notice { to } => {
                    let (to, raw) = (to as c_int, self.world.notices);
                    ffi::MPI_Isend(from, count, byte, to, NOTICE_TAG, raw, done)
                }
                Call::Receive { from, tag } => {
                    ffi::MPI_Irecv(to, count, byte, from as c_int, tag, raw, done)
                }
            };
            (code, request)
        };
        drop(guard);
        let pending = Pending {
            comm: self.clone(),
            request,
            memory: Some(memory),
        };
        check(code)?;
        Ok(pending)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.world.inbox().alive.remove(&self.instance);
        if self.world.abandoned.load(Ordering::Acquire) {
            return;
        }
        let _guard = self.world.lock();
        // SAFETY: every operation on it is complete: each holds a reference until then.
        let _ = unsafe { ffi::MPI_Comm_free(&mut self.raw) };
    }
}

/// Makes a duplicate of the world communicator when all ranks do, within so long; the library is
/// free meanwhile.
fn duplicate(world: &World, timeout: Duration) -> Result<ffi::MPI_Comm> {
    let guard = world.lock();
    // SAFETY: MPI is initialised as long as `World` lives. Where the handle will be written is
    // freed only when the request is complete.
    let (made, mut request) = unsafe {
        let made = Box::into_raw(Box::new(ffi::RSMPI_COMM_NULL));
        let mut request = ffi::RSMPI_REQUEST_NULL;
        check(ffi::MPI_Comm_idup(
            ffi::RSMPI_COMM_WORLD,
            made,
            &mut request,
        ))?;
        (made, request)
    };
    drop(guard);
    let begun = Instant::now();
    let mut polls = 0;
    let abandon = |_: &_| world.abandoned.store(true, Ordering::Release);
    while world.test(&mut request).inspect_err(abandon)?.is_none() {
        if begun.elapsed() >= timeout {
            // The library may still write there.
            world.abandoned.store(true, Ordering::Release);
            return Err(unavailable(&format!(
                "not all ranks have made this group within {timeout:?}: every rank has to call \
                 `communicator`, in the same order"
            )));
        }
        std::thread::sleep(poll_pause(polls));
        polls += 1;
    }
    // SAFETY: the library has written it and is done with it.
    Ok(*unsafe { Box::from_raw(made) })
}

/// How long to wait before MPI, which does not wake waiting threads, is polled again; grows with
/// every poll in vain.
pub(super) fn poll_pause(polls: u32) -> Duration {
    LONGEST_PAUSE.min(Duration::from_micros(20 + u64::from(polls) * 5))
}

/// Blocks until all ranks have called it. MPI must be initialised, and the caller alone in it.
fn duplicate_world() -> Result<ffi::MPI_Comm> {
    // SAFETY: `World` is made after `MPI_Init`, and communicators are made from it; the pointer is
    // to a local that outlives the calls.
    unsafe {
        let mut raw = ffi::RSMPI_COMM_NULL;
        check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut raw))?;
        check(ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
        Ok(raw)
    }
}

/// MPI's type and operation for integers. Sums and products are computed as unsigned integers,
/// which wrap around.
///
/// # Safety
/// MPI must be initialised.
unsafe fn integers(dtype: DType, op: ReduceOp) -> (ffi::MPI_Datatype, ffi::MPI_Op) {
    let is_short = dtype.size_bytes() == size_of::<i32>();
    // SAFETY: reading constants of the library.
    unsafe {
        let (signed, unsigned) = if is_short {
            (ffi::RSMPI_INT32_T, ffi::RSMPI_UINT32_T)
        } else {
            (ffi::RSMPI_INT64_T, ffi::RSMPI_UINT64_T)
        };
        match op {
            ReduceOp::Sum | ReduceOp::Mean => (unsigned, ffi::RSMPI_SUM),
            ReduceOp::Prod => (unsigned, ffi::RSMPI_PROD),
            ReduceOp::Min => (signed, ffi::RSMPI_MIN),
            ReduceOp::Max => (signed, ffi::RSMPI_MAX),
        }
    }
}

/// How many bytes each rank sends or gets, and where they start.
#[derive(Default)]
struct Layout {
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    total: usize,
}

impl Layout {
    /// One part after the other. Returns the number of bytes of all.
    fn set(&mut self, counts: impl Iterator<Item = usize>) -> usize {
        self.counts.clear();
        self.starts.clear();
        self.total = 0;
        for count in counts {
            self.counts.push(count as c_int);
            self.starts.push(self.total as c_int);
            self.total += count;
        }
        assert!(
            self.total <= c_int::MAX as usize,
            "segments are far below 2 GiB"
        );
        self.total
    }

    /// Bytes of all parts, of which there must be one for each rank.
    fn total(&self, size: usize) -> usize {
        assert!(self.counts.len() == size && self.starts.len() == size);
        self.total
    }
}

/// What an operation reads and writes. Words, so that it is aligned for every element type.
#[derive(Default)]
pub(super) struct Memory {
    outgoing: Vec<u64>,
    incoming: Vec<u64>,
    sent: Layout,
    received: Layout,
}

impl Memory {
    /// The first bytes of what is sent; grows as needed.
    pub(super) fn outgoing(&mut self, bytes: usize) -> &mut [u8] {
        in_words(&mut self.outgoing, bytes)
    }

    /// The first bytes of what is received; grows as needed.
    pub(super) fn incoming(&mut self, bytes: usize) -> &mut [u8] {
        in_words(&mut self.incoming, bytes)
    }

    /// Lays out what is sent: this many bytes to each rank.
    pub(super) fn outgoing_parts(&mut self, counts: impl Iterator<Item = usize>) -> &mut [u8] {
        let bytes = self.sent.set(counts);
        self.outgoing(bytes)
    }

    /// Lays out what is received: this many bytes from each rank.
    pub(super) fn incoming_parts(&mut self, counts: impl Iterator<Item = usize>) -> &mut [u8] {
        let bytes = self.received.set(counts);
        self.incoming(bytes)
    }

    /// Copies the first bytes of what was received to what is sent next.
    pub(super) fn own_to_outgoing(&mut self, bytes: usize) {
        let own = &bytemuck::cast_slice::<u64, u8>(&self.incoming)[..bytes];
        in_words(&mut self.outgoing, bytes).copy_from_slice(own);
    }

    fn pointers(&mut self) -> (*mut c_void, *mut c_void) {
        let (outgoing, incoming) = (self.outgoing.as_mut_ptr(), self.incoming.as_mut_ptr());
        (outgoing.cast(), incoming.cast())
    }

    fn check(&self, outgoing: usize, incoming: usize) {
        assert!(outgoing <= size_of_val(&self.outgoing[..]) && outgoing <= c_int::MAX as usize);
        assert!(incoming <= size_of_val(&self.incoming[..]) && incoming <= c_int::MAX as usize);
    }
}

/// An operation under way.
pub(super) struct Pending {
    comm: Arc<Comm>,
    request: ffi::MPI_Request,
    /// Taken when the operation is complete.
    memory: Option<Memory>,
}

// SAFETY: a request is a handle that every thread may use; calls are serialised by the lock of
// `World`.
unsafe impl Send for Pending {}

impl Pending {
    /// The memory once the operation is complete, else `None`. After it was returned, `None`.
    pub(super) fn test(&mut self) -> Result<Option<(Memory, usize)>> {
        let received = self.comm.world.test(&mut self.request)?;
        Ok(received.and_then(|bytes| Some((self.memory.take()?, bytes))))
    }

    /// Whether it is neither complete nor broken.
    pub(super) fn is_under_way(&mut self) -> bool {
        matches!(self.test(), Ok(None)) && self.memory.is_some()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // The library may still read and write it.
            self.comm.world.abandoned.store(true, Ordering::Release);
            std::mem::forget(memory);
        }
    }
}

/// A failure of the library, in its own words.
fn check(code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0_u8; 1024];
    let mut len: c_int = 0;
    // SAFETY: the library writes at most MPI_MAX_ERROR_STRING (256 to 1024) bytes.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut len) };
    let len = (len.max(0) as usize).min(text.len());
    Err(unavailable(&String::from_utf8_lossy(&text[..len])))
}
