//! A communicator of NCCL.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;

use super::buffer::Span;
use super::cuda::OwnedStream;
use super::library::{Handle, LibraryError, Nccl, NcclResult, RawConfig, UniqueId};
use crate::nccl::element::reduction_code;
use crate::reduce::ReduceOp;

const SUCCESS: NcclResult = 0;
const IN_PROGRESS: NcclResult = 7;

/// `NCCL_CONFIG_INITIALIZER` sets it.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// The version of `ncclConfig_t` that ends with `blocking`.
const CONFIG_VERSION: u32 = 21_400;

impl UniqueId {
    /// What the ranks have before the first one has made an id.
    pub(crate) const NONE: Self = UniqueId([0; 128]);

    /// Makes one; this process then waits for the ranks until all have come.
    pub(crate) fn new(nccl: &Nccl) -> Result<Self, LibraryError> {
        let mut id = Self::NONE;
        // SAFETY: `id` outlives the call.
        match unsafe { (nccl.functions.ncclGetUniqueId)(&raw mut id) } {
            SUCCESS => Ok(id),
            code => Err(nccl.failed("ncclGetUniqueId", code)),
        }
    }
}

/// One call of NCCL on device memory: of the elements `from`, with a result in `to`. The two are
/// equal where NCCL works in place. They have one type.
pub(crate) struct Call {
    kind: CallKind,
    from: Span,
    to: Span,
}

/// What a [`Call`] does.
#[derive(Clone, Copy)]
pub(crate) enum CallKind {
    AllReduce(ReduceOp),
    /// To this root.
    Reduce(ReduceOp, usize),
    /// Of this root's elements `from`, which come to `to` on the root too.
    Broadcast(usize),
    /// `from` has the elements of all ranks, `to` the elements of one.
    ReduceScatter(ReduceOp),
    /// `from` has the elements of one rank, `to` the elements of all.
    AllGather,
    /// To this rank.
    Send(usize),
    /// From this rank.
    Recv(usize),
}

impl Call {
    pub(crate) fn new(kind: CallKind, from: &Span, to: &Span) -> Self {
        Call {
            kind,
            from: from.clone(),
            to: to.clone(),
        }
    }

    /// The group of a reduce-scatter of `all`, which holds the ranks' parts.
    pub(crate) fn scatter(all: &Span, parts: &[Span], own: usize, op: ReduceOp) -> Vec<Self> {
        let even = Call::new(CallKind::ReduceScatter(op), all, &parts[own]);
        even.or_each_part(parts, |part, root| {
            Call::new(CallKind::Reduce(op, root), part, part)
        })
    }

    /// The group of an all-gather to `all`, which holds the ranks' parts; the own one comes from
    /// `from`.
    pub(crate) fn gather(from: &Span, all: &Span, parts: &[Span], own: usize) -> Vec<Self> {
        let even = Call::new(CallKind::AllGather, from, all);
        even.or_each_part(parts, |part, root| {
            let from = if root == own { from } else { part };
            Call::new(CallKind::Broadcast(root), from, part)
        })
    }

    /// This call where the parts have one length, else a group with a call for each part that holds
    /// something, with the rank whose part it is.
    fn or_each_part(self, parts: &[Span], call: impl Fn(&Span, usize) -> Self) -> Vec<Self> {
        let len = parts[0].count;
        if len > 0 && parts.iter().all(|part| part.count == len) {
            return vec![self];
        }
        let filled = parts.iter().enumerate().filter(|(_, part)| part.count > 0);
        filled.map(|(root, part)| call(part, root)).collect()
    }
}

/// One rank's handle. It stays on one thread: whether another one is about to enter a call cannot
/// be seen from outside, so no other thread could end it without freeing memory that the call uses.
pub(crate) struct Comm {
    nccl: Arc<Nccl>,
    raw: Handle,
    /// The handle is gone.
    ended: Cell<bool>,
}

impl Comm {
    /// Begins to connect the ranks, without blocking; [`state`](Self::state) says when it is done.
    /// The context of the device must be current.
    pub(crate) fn begin(
        nccl: &Arc<Nccl>,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, LibraryError> {
        let mut config = RawConfig {
            size: size_of::<RawConfig>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
        };
        let mut raw = std::ptr::null_mut();
        let (rank, world_size) = (number(rank), number(world_size));
        // SAFETY: the library copies what it needs of `config`, and sets `raw`, before it returns.
        let code = unsafe {
            let begin = nccl.functions.ncclCommInitRankConfig;
            begin(&raw mut raw, world_size, *id, rank, &raw mut config)
        };
        if !matches!(code, SUCCESS | IN_PROGRESS) || raw.is_null() {
            return Err(nccl.failed("ncclCommInitRankConfig", code));
        }
        Ok(Comm {
            nccl: nccl.clone(),
            raw,
            ended: Cell::new(false),
        })
    }

    fn handle(&self, call: &'static str) -> Result<Handle, LibraryError> {
        if self.ended.get() {
            Err(LibraryError {
                call,
                code: SUCCESS,
                text: "the communicator was aborted".to_string(),
            })
        } else {
            Ok(self.raw)
        }
    }

    fn check(&self, call: &'static str, code: NcclResult) -> Result<(), LibraryError> {
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.nccl.failed(call, code)),
        }
    }

    /// Whether the library has nothing left to do before the next call.
    pub(crate) fn state(&self) -> Result<bool, LibraryError> {
        const CALL: &str = "ncclCommGetAsyncError";
        let raw = self.handle(CALL)?;
        let mut state = SUCCESS;
        // SAFETY: the handle has not ended; `state` outlives the call.
        let code = unsafe { (self.nccl.functions.ncclCommGetAsyncError)(raw, &raw mut state) };
        self.check(CALL, code)?;
        // An error that came by itself, such as a closed connection.
        self.check("an operation of NCCL", state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Puts the calls into the stream, as one group.
    pub(crate) fn issue(&self, calls: &[Call], stream: &OwnedStream) -> Result<(), LibraryError> {
        self.handle("ncclGroupStart")?;
        // SAFETY: takes nothing.
        let code = unsafe { (self.nccl.functions.ncclGroupStart)() };
        self.check("ncclGroupStart", code)?;
        let issued = calls.iter().try_for_each(|call| self.call(call, stream));
        // SAFETY: takes nothing; the group must be ended also when a call was refused.
        let code = unsafe { (self.nccl.functions.ncclGroupEnd)() };
        issued.and(self.check("ncclGroupEnd", code))
    }

    fn call(&self, call: &Call, stream: &OwnedStream) -> Result<(), LibraryError> {
        let (f, comm, stream) = (&self.nccl.functions, self.raw, stream.0.raw);
        let (from, to) = (call.from.pointer().cast_const(), call.to.pointer());
        // Elements of one rank: the other side may have the elements of all.
        let count = call.from.count.min(call.to.count);
        let dtype = call.from.element as c_int;
        // SAFETY: the maker of the spans has promised that they are in the memory of the device,
        // and the issuer of the calls that they stay there until the stream is done with them;
        // equal addresses for input and output are NCCL's in-place form, and the offsets of the
        // other two calls are those that it asks for.
        let (name, code) = unsafe {
            match call.kind {
                CallKind::AllReduce(op) => ("ncclAllReduce", {
                    let op = reduction_code(op);
                    (f.ncclAllReduce)(from, to, count, dtype, op, comm, stream)
                }),
                CallKind::Reduce(op, root) => ("ncclReduce", {
                    let (op, root) = (reduction_code(op), number(root));
                    (f.ncclReduce)(from, to, count, dtype, op, root, comm, stream)
                }),
                CallKind::Broadcast(root) => ("ncclBroadcast", {
                    (f.ncclBroadcast)(from, to, count, dtype, number(root), comm, stream)
                }),
                CallKind::ReduceScatter(op) => ("ncclReduceScatter", {
                    let op = reduction_code(op);
                    (f.ncclReduceScatter)(from, to, count, dtype, op, comm, stream)
                }),
                CallKind::AllGather => ("ncclAllGather", {
                    (f.ncclAllGather)(from, to, count, dtype, comm, stream)
                }),
                CallKind::Send(peer) => ("ncclSend", {
                    (f.ncclSend)(from, count, dtype, number(peer), comm, stream)
                }),
                CallKind::Recv(peer) => ("ncclRecv", {
                    (f.ncclRecv)(to, count, dtype, number(peer), comm, stream)
                }),
            }
        };
        self.check(name, code)
    }

    /// Begins to end the communicator in an orderly way; [`state`](Self::state) says when that is
    /// done, and dropping the value frees it.
    pub(crate) fn finalize(&self) -> Result<(), LibraryError> {
        let raw = self.handle("ncclCommFinalize")?;
        // SAFETY: the handle has not ended.
        let code = unsafe { (self.nccl.functions.ncclCommFinalize)(raw) };
        self.check("ncclCommFinalize", code)
    }

    /// Frees a communicator that was finalized.
    pub(crate) fn destroy(&self) {
        self.end(self.nccl.functions.ncclCommDestroy);
    }

    /// Ends what runs, and the communicator.
    pub(crate) fn abort(&self) {
        self.end(self.nccl.functions.ncclCommAbort);
    }

    fn end(&self, function: unsafe extern "C" fn(Handle) -> NcclResult) {
        if !self.ended.replace(true) {
            // SAFETY: the handle has not ended before, and is not used afterwards.
            let _ = unsafe { function(self.raw) };
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A number of NCCL's; those here are below the world size.
fn number(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}
