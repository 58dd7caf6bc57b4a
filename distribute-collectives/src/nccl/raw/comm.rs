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
    /// Bytes of an id.
    pub(crate) const BYTES: usize = 128;

    /// Makes one; this process then waits for the ranks until all have come.
    pub(crate) fn new(nccl: &Nccl) -> Result<Self, LibraryError> {
        let mut id = UniqueId([0; Self::BYTES]);
        // SAFETY: `id` outlives the call.
        match unsafe { (nccl.functions.ncclGetUniqueId)(&raw mut id) } {
            SUCCESS => Ok(id),
            code => Err(nccl.failed("ncclGetUniqueId", code)),
        }
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        UniqueId(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

/// One call of NCCL on device memory.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    AllReduce {
        at: Span,
        op: ReduceOp,
    },
    Reduce {
        at: Span,
        op: ReduceOp,
        root: usize,
    },
    Broadcast {
        at: Span,
        root: usize,
    },
    /// Of the root's elements `from`, which come to `to` on the root too.
    BroadcastOwn {
        from: Span,
        to: Span,
        root: usize,
    },
    /// `from` has the elements of all ranks, `to` those of one.
    ReduceScatter {
        from: Span,
        to: Span,
        op: ReduceOp,
    },
    /// `from` has the elements of one rank, `to` those of all.
    AllGather {
        from: Span,
        to: Span,
    },
    Send {
        at: Span,
        to: usize,
    },
    Recv {
        at: Span,
        from: usize,
    },
}

/// One rank's handle. It stays on one thread: whether another one is about to enter a call cannot
/// be seen from outside, so nobody else could end it without freeing what that call uses.
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
        match self.ended.get() {
            false => Ok(self.raw),
            true => Err(LibraryError {
                call,
                code: SUCCESS,
                text: "the communicator was aborted".to_string(),
            }),
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
        let input = |span: &Span| span.pointer().cast_const();
        let dtype = |span: &Span| span.element as c_int;
        // SAFETY: whoever made the spans has promised that they are in the memory of the device,
        // and whoever issues the calls that they stay there until the stream is done with them;
        // equal addresses for input and output are NCCL's in-place form, and the offsets of the
        // other two calls are those that it asks for.
        let (name, code) = unsafe {
            match call {
                Call::AllReduce { at, op } => ("ncclAllReduce", {
                    let op = reduction_code(*op);
                    let (from, to) = (input(at), at.pointer());
                    (f.ncclAllReduce)(from, to, at.count, dtype(at), op, comm, stream)
                }),
                Call::Reduce { at, op, root } => ("ncclReduce", {
                    let (op, root) = (reduction_code(*op), number(*root));
                    let (from, to) = (input(at), at.pointer());
                    (f.ncclReduce)(from, to, at.count, dtype(at), op, root, comm, stream)
                }),
                Call::Broadcast { at, root } => ("ncclBroadcast", {
                    let (from, to) = (input(at), at.pointer());
                    (f.ncclBroadcast)(from, to, at.count, dtype(at), number(*root), comm, stream)
                }),
                Call::BroadcastOwn { from, to, root } => ("ncclBroadcast", {
                    let (count, dtype, root) = (to.count, dtype(to), number(*root));
                    (f.ncclBroadcast)(input(from), to.pointer(), count, dtype, root, comm, stream)
                }),
                Call::ReduceScatter { from, to, op } => ("ncclReduceScatter", {
                    let op = reduction_code(*op);
                    let (from, out) = (input(from), to.pointer());
                    (f.ncclReduceScatter)(from, out, to.count, dtype(to), op, comm, stream)
                }),
                Call::AllGather { from, to } => ("ncclAllGather", {
                    let (count, dtype) = (from.count, dtype(from));
                    (f.ncclAllGather)(input(from), to.pointer(), count, dtype, comm, stream)
                }),
                Call::Send { at, to } => ("ncclSend", {
                    (f.ncclSend)(input(at), at.count, dtype(at), number(*to), comm, stream)
                }),
                Call::Recv { at, from } => ("ncclRecv", {
                    (f.ncclRecv)(
                        at.pointer(),
                        at.count,
                        dtype(at),
                        number(*from),
                        comm,
                        stream,
                    )
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
