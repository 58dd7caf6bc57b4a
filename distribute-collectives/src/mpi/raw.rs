//! The calls to the MPI library, with everything that makes them sound.
//!
//! - Every call is made under one lock, so the library need only allow calls from one thread at a
//!   time (`MPI_THREAD_SERIALIZED`). None of them waits for another rank.
//! - Every operation is non-blocking and owns its [`Memory`] until it is complete. One that is
//!   given up (a deadline passed) leaves its memory to the library for ever, which may still write
//!   there.
//! - The bounds of what the library reads and writes are checked here.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;

use super::notice::Notice;
use crate::buffer::{DType, in_words};
use crate::error::{CollectiveError, Result};
use crate::reduce::ReduceOp;
use crate::sync::unpoisoned;

/// The longest pause between two polls.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The tag of notices, which travel on a communicator of their own.
pub(super) const NOTICE_TAG: i32 = 3;

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
        let raw = Duplicate::begin(world)?.wait(world, timeout)?;
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

    /// Takes the next notice, from whomever, for whatever group. They are at most `N` bytes.
    pub(super) fn take_notice<const N: usize>(&self) -> Result<Option<[u8; N]>> {
        let (comm, tag) = (self.world.notices, NOTICE_TAG);
        let mut message = [0_u8; N];
        let mut found: c_int = 0;
        let _guard = self.world.lock();
        // SAFETY: all pointers are to locals that outlive the calls; the receive is of at most
        // `N` bytes into `N` bytes, and does not block since the probe found the message and the
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
                N as c_int,
                ffi::RSMPI_UINT8_T,
                status.MPI_SOURCE,
                tag,
                comm,
                &mut status,
            ))?;
        }
        Ok(Some(message))
    }

    /// Starts an operation. `call` gets the memory and a place for the request.
    fn start(
        self: &Arc<Self>,
        memory: Memory,
        call: impl FnOnce(&mut Memory, *mut ffi::MPI_Request) -> c_int,
    ) -> Result<Pending> {
        let mut memory = memory;
        // SAFETY: reading a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let guard = self.world.lock();
        let code = call(&mut memory, &mut request);
        drop(guard);
        let pending = Pending {
            comm: self.clone(),
            request,
            memory: Some(memory),
        };
        check(code)?;
        Ok(pending)
    }

    /// Every rank gets the first `bytes` bytes of all ranks' `outgoing`, in rank order.
    pub(super) fn all_gather(self: &Arc<Self>, memory: Memory, bytes: usize) -> Result<Pending> {
        memory.check(bytes, bytes * self.size);
        let raw = self.raw;
        self.start(memory, |memory, request| {
            let (from, to) = memory.pointers();
            // SAFETY: the bounds were checked above, and `Pending` keeps the memory until the
            // operation is complete, or for ever.
            unsafe {
                let (kind, count) = (ffi::RSMPI_UINT8_T, bytes as c_int);
                ffi::MPI_Iallgather(
                    from.cast(),
                    count,
                    kind,
                    to.cast(),
                    count,
                    kind,
                    raw,
                    request,
                )
            }
        })
    }

    /// Sends `outgoing[rank]` to every rank; the layouts are those of the memory.
    pub(super) fn all_to_all(self: &Arc<Self>, memory: Memory) -> Result<Pending> {
        memory.check_layouts(self.size);
        let raw = self.raw;
        self.start(memory, |memory, request| {
            let (from, to) = memory.pointers();
            let Memory { sent, received, .. } = memory;
            // SAFETY: the layouts were checked against the memory, and `Pending` keeps both until
            // the operation is complete, or for ever.
            unsafe {
                let kind = ffi::RSMPI_UINT8_T;
                ffi::MPI_Ialltoallv(
                    from.cast(),
                    sent.counts.as_ptr(),
                    sent.starts.as_ptr(),
                    kind,
                    to.cast(),
                    received.counts.as_ptr(),
                    received.starts.as_ptr(),
                    kind,
                    raw,
                    request,
                )
            }
        })
    }

    /// Gives the first `bytes` bytes of every rank's `outgoing` to all ranks, or to the root only;
    /// the layout is that of what is received.
    pub(super) fn gather(
        self: &Arc<Self>,
        memory: Memory,
        bytes: usize,
        root: Option<usize>,
    ) -> Result<Pending> {
        memory.check(bytes, 0);
        memory.check_layouts(self.size);
        let raw = self.raw;
        self.start(memory, |memory, request| {
            let (from, to) = memory.pointers();
            let (from, to) = (from.cast(), to.cast());
            let (counts, starts) = (
                memory.received.counts.as_ptr(),
                memory.received.starts.as_ptr(),
            );
            // SAFETY: as in `all_to_all`.
            unsafe {
                let (kind, bytes) = (ffi::RSMPI_UINT8_T, bytes as c_int);
                match root {
                    None => ffi::MPI_Iallgatherv(
                        from, bytes, kind, to, counts, starts, kind, raw, request,
                    ),
                    Some(root) => ffi::MPI_Igatherv(
                        from,
                        bytes,
                        kind,
                        to,
                        counts,
                        starts,
                        kind,
                        root as c_int,
                        raw,
                        request,
                    ),
                }
            }
        })
    }

    /// Copies the first `bytes` bytes of the root's `outgoing` to those of all ranks.
    pub(super) fn broadcast(
        self: &Arc<Self>,
        memory: Memory,
        bytes: usize,
        root: usize,
    ) -> Result<Pending> {
        memory.check(bytes, 0);
        let raw = self.raw;
        self.start(memory, |memory, request| {
            let (buffer, _) = memory.pointers();
            // SAFETY: as in `all_gather`; the pointer is to memory that may be written.
            unsafe {
                let (kind, bytes) = (ffi::RSMPI_UINT8_T, bytes as c_int);
                ffi::MPI_Ibcast(buffer.cast(), bytes, kind, root as c_int, raw, request)
            }
        })
    }

    /// Combines `count` elements of `i32` or `i64` of all ranks' `outgoing` into every rank's
    /// `incoming`.
    pub(super) fn all_reduce_integers(
        self: &Arc<Self>,
        memory: Memory,
        dtype: DType,
        op: ReduceOp,
        count: usize,
    ) -> Result<Pending> {
        assert!(
            matches!(dtype, DType::I32 | DType::I64),
            "other types are combined here"
        );
        let bytes = count * dtype.size_bytes();
        memory.check(bytes, bytes);
        let raw = self.raw;
        self.start(memory, |memory, request| {
            let (from, to) = memory.pointers();
            // SAFETY: as in `all_gather`; the memory is aligned for 8 bytes, and every bit pattern
            // is a value of these types.
            unsafe {
                let kind = integer(dtype, op);
                let op = match op {
                    ReduceOp::Sum | ReduceOp::Mean => ffi::RSMPI_SUM,
                    ReduceOp::Min => ffi::RSMPI_MIN,
                    ReduceOp::Max => ffi::RSMPI_MAX,
                    ReduceOp::Prod => ffi::RSMPI_PROD,
                };
                ffi::MPI_Iallreduce(
                    from.cast(),
                    to.cast(),
                    count as c_int,
                    kind,
                    op,
                    raw,
                    request,
                )
            }
        })
    }

    /// Sends the first `bytes` bytes of `outgoing`, as a segment or as a notice.
    pub(super) fn send(
        self: &Arc<Self>,
        memory: Memory,
        bytes: usize,
        to: usize,
        tag: i32,
    ) -> Result<Pending> {
        memory.check(bytes, 0);
        let raw = match tag {
            NOTICE_TAG => self.world.notices,
            _ => self.raw,
        };
        self.start(memory, |memory, request| {
            let (buffer, _) = memory.pointers();
            // SAFETY: as in `all_gather`.
            unsafe {
                let (kind, bytes) = (ffi::RSMPI_UINT8_T, bytes as c_int);
                ffi::MPI_Isend(buffer.cast(), bytes, kind, to as c_int, tag, raw, request)
            }
        })
    }

    /// Receives at most `bytes` bytes into `incoming`.
    pub(super) fn receive(
        self: &Arc<Self>,
        memory: Memory,
        bytes: usize,
        from: usize,
        tag: i32,
    ) -> Result<Pending> {
        memory.check(0, bytes);
        let raw = self.raw;
        self.start(memory, |memory, request| {
            let (_, buffer) = memory.pointers();
            // SAFETY: as in `all_gather`.
            unsafe {
                let (kind, bytes) = (ffi::RSMPI_UINT8_T, bytes as c_int);
                ffi::MPI_Irecv(buffer.cast(), bytes, kind, from as c_int, tag, raw, request)
            }
        })
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

/// A duplicate of the world communicator that is being made.
struct Duplicate {
    /// Written by the library, until the request is complete.
    raw: Box<ffi::MPI_Comm>,
    request: ffi::MPI_Request,
}

impl Duplicate {
    fn begin(world: &World) -> Result<Self> {
        let _guard = world.lock();
        // SAFETY: MPI is initialised as long as `World` lives. The box is where the handle will be
        // written, and is kept until then, or for ever.
        unsafe {
            let mut duplicate = Self {
                raw: Box::new(ffi::RSMPI_COMM_NULL),
                request: ffi::RSMPI_REQUEST_NULL,
            };
            let (raw, request) = (&raw mut *duplicate.raw, &raw mut duplicate.request);
            check(ffi::MPI_Comm_idup(ffi::RSMPI_COMM_WORLD, raw, request))?;
            Ok(duplicate)
        }
    }

    fn is_done(&mut self, world: &World) -> Result<bool> {
        let mut done: c_int = 0;
        let _guard = world.lock();
        // SAFETY: the pointers are to a field and locals that outlive the call.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            check(ffi::MPI_Test(&mut self.request, &mut done, &mut status))?;
        }
        Ok(done != 0)
    }

    fn wait(mut self, world: &World, timeout: Duration) -> Result<ffi::MPI_Comm> {
        let begun = Instant::now();
        let mut polls = 0;
        while !self.is_done(world)? {
            if begun.elapsed() >= timeout {
                // The library may still write there.
                world.abandoned.store(true, Ordering::Release);
                Box::leak(self.raw);
                return Err(unavailable(&format!(
                    "not all ranks have made this group within {timeout:?}: every rank has to call \
                     `communicator`, in the same order"
                )));
            }
            std::thread::sleep(poll_pause(polls));
            polls += 1;
        }
        Ok(*self.raw)
    }
}

/// How long to wait before MPI, which wakes nobody, is asked again; grows with every poll in vain.
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

/// MPI's type for integers. Sums and products are those of unsigned integers, which wrap around.
///
/// # Safety
/// MPI must be initialised.
unsafe fn integer(dtype: DType, op: ReduceOp) -> ffi::MPI_Datatype {
    let ordered = matches!(op, ReduceOp::Min | ReduceOp::Max);
    // SAFETY: reading constants of the library.
    unsafe {
        match (dtype.size_bytes() == size_of::<i32>(), ordered) {
            (true, true) => ffi::RSMPI_INT32_T,
            (true, false) => ffi::RSMPI_UINT32_T,
            (false, true) => ffi::RSMPI_INT64_T,
            (false, false) => ffi::RSMPI_UINT64_T,
        }
    }
}

/// How many bytes each rank sends or gets, and where they start.
#[derive(Default)]
pub(super) struct Layout {
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    total: usize,
}

impl Layout {
    /// One part after the other. Returns the number of bytes of all.
    pub(super) fn set(&mut self, counts: impl Iterator<Item = usize>) -> usize {
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
}

/// What an operation reads and writes. Words, so that it is aligned for every element type.
#[derive(Default)]
pub(super) struct Memory {
    outgoing: Vec<u64>,
    incoming: Vec<u64>,
    pub(super) sent: Layout,
    pub(super) received: Layout,
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

    /// Copies the first bytes of what was received to what is sent next.
    pub(super) fn own_to_outgoing(&mut self, bytes: usize) {
        let own = &bytemuck::cast_slice::<u64, u8>(&self.incoming)[..bytes];
        in_words(&mut self.outgoing, bytes).copy_from_slice(own);
    }

    fn pointers(&mut self) -> (*mut u64, *mut u64) {
        (self.outgoing.as_mut_ptr(), self.incoming.as_mut_ptr())
    }

    fn check(&self, outgoing: usize, incoming: usize) {
        assert!(outgoing <= size_of_val(&self.outgoing[..]) && outgoing <= c_int::MAX as usize);
        assert!(incoming <= size_of_val(&self.incoming[..]) && incoming <= c_int::MAX as usize);
    }

    fn check_layouts(&self, size: usize) {
        self.check(self.sent.total, self.received.total);
        assert!(self.sent.counts.len() == size || self.sent.total == 0);
        assert!(self.sent.counts.len() == self.sent.starts.len());
        assert!(self.received.counts.len() == size && self.received.starts.len() == size);
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
        let (mut done, mut bytes): (c_int, c_int) = (0, 0);
        let guard = self.comm.world.lock();
        // SAFETY: the pointers are to fields and locals that outlive the calls.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            check(ffi::MPI_Test(&mut self.request, &mut done, &mut status))?;
            if done != 0 {
                // Only for receives; the count of other operations means nothing.
                ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes);
            }
        }
        drop(guard);
        if done == 0 {
            return Ok(None);
        }
        Ok(self
            .memory
            .take()
            .map(|memory| (memory, bytes.max(0) as usize)))
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
