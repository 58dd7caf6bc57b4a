//! One rank's endpoint: what every operation has in common.

use std::fmt;

use super::agreement::{self, RECORD_BYTES, Record};
use super::control::{ControlGroup, renamed};
use super::element::ElementType;
use super::options::NcclOptions;
use super::raw::{DeviceBuffer, DeviceMemory, PinnedMemory, Span};
use super::setup;
use super::thread::{NcclThread, RequestError, Round, ThreadSide};
use super::unavailable::unavailable;
use super::version::Version;
use crate::algorithm::exchange::segments_of;
use crate::bookkeeping::Bookkeeping;
use crate::buffer::{Buffer, Element};
use crate::communicator::{CommunicatorExt, Description, Gathered};
use crate::engine::Engine;
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// How long to wait for the group to say which rank was lost, after NCCL has failed.
const BLAME_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(500);

/// Memory for operations on buffers in host memory.
struct Staging {
    host: PinnedMemory,
    device: DeviceMemory,
}

/// One rank's endpoint of a group over NCCL, beside a group `G` of the same ranks; see the
/// [module](super).
pub struct NcclCommunicator<G: ControlGroup> {
    /// Before the group: NCCL ends first.
    pub(super) thread: NcclThread,
    pub(super) group: G,
    pub(super) options: NcclOptions,
    pub(super) version: Version,
    pub(super) description: Description,
    pub(super) operations: Bookkeeping,
    staging: Option<Staging>,
    gathered: Gathered<u8>,
    /// Bytes of each rank's input of an `all_gather`.
    pub(super) sizes: Vec<usize>,
}

/// NCCL cannot be used; the group can, with what else carries bytes (where
/// [`is_fatal`](CollectiveError::is_fatal) of the cause is false).
#[derive(thiserror::Error)]
#[error("{cause}")]
pub struct NcclRefused<G> {
    /// The group, as it was given.
    pub group: G,
    /// Why.
    pub cause: CollectiveError,
}

impl<G> fmt::Debug for NcclRefused<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclRefused")
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}

impl<G> From<Box<NcclRefused<G>>> for CollectiveError {
    fn from(refused: Box<NcclRefused<G>>) -> Self {
        refused.cause
    }
}

impl<G: ControlGroup> NcclCommunicator<G> {
    /// Sets NCCL up between the ranks of a group. All ranks call it together; it blocks until they
    /// have, at most until the deadline of the group, then at most for
    /// [`init_timeout`](NcclOptions::init_timeout).
    ///
    /// # Errors
    /// On all ranks together, with the group back:
    /// [`BackendUnavailable`](CollectiveError::BackendUnavailable) when a rank lacks a library, has
    /// one that is too old or has no such GPU, when two ranks have one GPU, when the ranks have
    /// different versions of NCCL, or when NCCL cannot connect them;
    /// [`InvalidOption`](CollectiveError::InvalidOption); what an operation of the group returns.
    pub fn new(mut group: G, options: NcclOptions) -> Result<Self, Box<NcclRefused<G>>> {
        match setup::set_up(&mut group, &options) {
            Ok((thread, version)) => {
                let description = describe(&group.describe(), version);
                Ok(NcclCommunicator {
                    thread,
                    group,
                    options,
                    version,
                    description,
                    operations: Bookkeeping::default(),
                    staging: None,
                    gathered: Gathered::default(),
                    sizes: Vec::new(),
                })
            }
            Err(cause) => Err(Box::new(NcclRefused { group, cause })),
        }
    }

    /// Ends NCCL's part and returns the group. Memory from [`allocate`](Self::allocate) stays.
    pub fn into_group(self) -> G {
        drop(self.thread);
        self.group
    }

    /// The version of NCCL.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether NCCL, or the device, could not be made to end an operation. The buffers of that
    /// operation are then in use for as long as the process lives: end it soon.
    pub fn is_stuck(&self) -> bool {
        self.thread.is_stuck()
    }

    /// Takes memory on the device of this rank, which holds anything. No other rank takes part.
    ///
    /// # Errors
    /// [`BackendUnavailable`](CollectiveError::BackendUnavailable) when there is not that much.
    pub fn allocate(&mut self, element: ElementType, count: usize) -> Result<DeviceMemory> {
        self.take_memory(move |side| Ok(DeviceMemory::new(&side.context, element, count)?))
    }

    /// Has the thread take memory, in which no other rank takes part.
    fn take_memory<M: Send + 'static>(
        &mut self,
        memory: impl FnOnce(&mut ThreadSide) -> Result<M, RequestError> + Send + 'static,
    ) -> Result<M> {
        self.operations.check()?;
        let taken = self.thread.ask(self.options.timeout, &|| Ok(()), memory);
        taken.map_err(|request_error| unavailable(request_error.to_string()))
    }

    /// Copies elements from host memory to the device. No other rank takes part.
    ///
    /// # Errors
    /// [`InvalidArgument`](CollectiveError::InvalidArgument) when type or length differ, and those
    /// of the device.
    pub fn upload<T: Element>(&mut self, to: &mut DeviceMemory, values: &[T]) -> Result<()> {
        let (kind, bytes) = (OperationKind::Send, bytemuck::cast_slice::<T, u8>(values));
        let to = self.copied::<T>(kind, "upload", to, values.len())?;
        let header = self.header(kind);
        let mut segments = segments_of(&(0..to.count), self.options.staging_bytes);
        let result = segments.try_for_each(|range| {
            let round = Round {
                upload: Some(to.slice(range.clone())),
                ..Round::default()
            };
            let part = &bytes[range];
            let fill = |_: &(), host: &mut [u8]| host[..part.len()].copy_from_slice(part);
            self.round(&header, None, round, &mut (), fill, |_, _| ())
        });
        self.operations.end(kind, result)
    }

    /// Copies elements from the device to host memory; as [`upload`](Self::upload).
    ///
    /// # Errors
    /// As `upload`.
    pub fn download<T: Element>(&mut self, from: &DeviceMemory, values: &mut [T]) -> Result<()> {
        let kind = OperationKind::Recv;
        let from = self.copied::<T>(kind, "download", from, values.len())?;
        let (header, bytes) = (self.header(kind), bytemuck::cast_slice_mut::<T, u8>(values));
        let mut segments = segments_of(&(0..from.count), self.options.staging_bytes);
        let result = segments.try_for_each(|range| {
            let round = Round {
                download: Some(from.slice(range.clone())),
                ..Round::default()
            };
            let drain = |part: &mut [u8], host: &[u8]| part.copy_from_slice(&host[..part.len()]);
            self.round(&header, None, round, &mut bytes[range], |_, _| (), drain)
        });
        self.operations.end(kind, result)
    }

    /// The bytes of the memory. Refuses a copy, by the method `name`, of what it does not hold.
    fn copied<T: Element>(
        &self,
        op: OperationKind,
        name: &str,
        memory: &DeviceMemory,
        count: usize,
    ) -> Result<Span> {
        self.operations.check()?;
        let element = ElementType::from(T::DTYPE);
        let (found, len) = (memory.element(), memory.len());
        if found == element && len == count {
            return Ok(memory.span().cast(ElementType::U8));
        }
        let what = format!("{name} of {count} elements of {element} does not fit {len} of {found}");
        Err(self.invalid(op, what))
    }

    pub(super) fn invalid(&self, op: OperationKind, what: String) -> CollectiveError {
        let rank = self.group.rank();
        CollectiveError::InvalidArgument { rank, op, what }
    }

    pub(super) fn header(&self, kind: OperationKind) -> OperationHeader {
        self.member().header(kind)
    }

    /// Refuses types that this version of NCCL lacks.
    pub(super) fn check_elements(
        &self,
        op: OperationKind,
        buffers: &[DeviceBuffer<'_>],
    ) -> Result<()> {
        let unknown = |element: &ElementType| self.version < element.since();
        match buffers.iter().map(DeviceBuffer::element).find(unknown) {
            None => Ok(()),
            Some(element) => {
                let (since, version) = (element.since(), self.version);
                let what = format!("{element} needs NCCL {since}, this one is {version}");
                Err(self.invalid(op, what))
            }
        }
    }

    /// Runs one operation: the ranks compare their calls, then `body` has NCCL do it.
    pub(super) fn operate<R>(
        &mut self,
        record: &Record,
        peer: Option<usize>,
        body: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        let header = record.header;
        self.operations.check()?;
        let agreed = match peer {
            Some(peer) => self.agree_with(record, peer),
            None => self.agree(record),
        };
        let refused = header.check_root(self.group.rank(), self.group.world_size());
        if let (Ok(()), Err(refusal)) = (&agreed, refused) {
            // All ranks together: it was an operation and has its number.
            self.operations.end(header.kind, Ok(()))?;
            return Err(refusal);
        }
        let result = agreed.and_then(|()| {
            let result = body(self);
            if let Err(error) = &result
                && error.is_fatal()
            {
                // For ranks that have not heard of it; does nothing when the group has.
                self.group.abort(&error.to_string());
            }
            result
        });
        if result.as_ref().is_err_and(CollectiveError::is_fatal) {
            self.thread.abort();
        }
        self.operations.end(header.kind, result)
    }

    fn agree(&mut self, record: &Record) -> Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let result = self
            .group
            .all_gather_reusing(&record.encode(), &mut gathered)
            .map_err(|error| renamed(error, &record.header))
            // All ranks find the same difference, so none need be told.
            .and_then(|()| agreement::compare(&gathered, &mut self.sizes));
        self.gathered = gathered;
        result
    }

    /// The two ranks of a point-to-point call give each other their records.
    fn agree_with(&mut self, record: &Record, peer: usize) -> Result<()> {
        let (mut own, mut other) = (record.encode(), [0; RECORD_BYTES]);
        let sends = record.header.kind == OperationKind::Send;
        let exchanged = if sends {
            (self.group.send(peer, Buffer::U8(&mut own)))
                .and_then(|()| self.group.recv(peer, Buffer::U8(&mut other)))
        } else {
            (self.group.recv(peer, Buffer::U8(&mut other)))
                .and_then(|()| self.group.send(peer, Buffer::U8(&mut own)))
        };
        exchanged.map_err(|error| renamed(error, &record.header))?;
        let rank = self.group.rank();
        let mut lower = record.header;
        let what = match Record::decode(&other) {
            Err(what) => Some(what),
            Ok(mut other) => {
                if peer < rank {
                    lower.kind = other.header.kind;
                }
                // The two are one call, and ranks count only collective operations.
                other.header.kind = record.header.kind;
                other.header.sequence = record.header.sequence;
                let (a, b) = if peer < rank {
                    (&other, record)
                } else {
                    (record, &other)
                };
                a.first_difference(b)
            }
        };
        let Some(what) = what else {
            return Ok(());
        };
        let error = lower.mismatch(rank, peer, what);
        if sends {
            // For the other ranks; the receiver has what it needs to see for itself.
            self.group.abort(&error.to_string());
        }
        Err(error)
    }

    /// Takes the memory for buffers in host memory. Before the ranks agree: taking memory may wait
    /// for a device that is in an operation.
    pub(super) fn prepare_staging(&mut self) -> Result<()> {
        self.staging = Some(self.take_staging()?);
        Ok(())
    }

    /// The memory for buffers in host memory, which is taken once.
    fn take_staging(&mut self) -> Result<Staging> {
        if let Some(staging) = self.staging.take() {
            return Ok(staging);
        }
        let bytes = self.options.staging_bytes;
        self.take_memory(move |side| {
            Ok(Staging {
                host: PinnedMemory::new(&side.context, bytes)?,
                device: DeviceMemory::new(&side.context, ElementType::U8, bytes)?,
            })
        })
    }

    /// Some elements of the staging memory on the device.
    pub(super) fn staged<T: Element>(&mut self, count: usize) -> Result<Span> {
        let staging = self.take_staging()?;
        let all = self.staging.insert(staging).device.span();
        let bytes = all.slice(0..count * size_of::<T>());
        Ok(bytes.cast(ElementType::from(T::DTYPE)))
    }

    /// One round on host memory: `fill` writes what is uploaded of `data`, `drain` reads what was
    /// downloaded into it.
    pub(super) fn round<D: ?Sized>(
        &mut self,
        header: &OperationHeader,
        peer: Option<usize>,
        mut round: Round,
        data: &mut D,
        fill: impl FnOnce(&D, &mut [u8]),
        drain: impl FnOnce(&mut D, &[u8]),
    ) -> Result<()> {
        let Staging { mut host, device } = self.take_staging()?;
        fill(data, &mut host);
        round.host = Some(host);
        if let Some(host) = self.perform(round, header, peer)? {
            drain(data, &host);
            self.staging = Some(Staging { host, device });
        }
        Ok(())
    }

    /// Has NCCL do a round, and looks after the group meanwhile.
    pub(super) fn perform(
        &mut self,
        round: Round,
        header: &OperationHeader,
        peer: Option<usize>,
    ) -> Result<Option<PinnedMemory>> {
        let (group, timeout) = (&self.group, self.options.timeout);
        let health = || group.health(header, peer);
        let run = move |side: &mut ThreadSide| side.run(round);
        let performed = self.thread.ask(timeout, &health, run);
        performed.map_err(|request_error| self.failure(request_error, header, peer))
    }

    /// The error of an operation that NCCL did not do.
    fn failure(
        &self,
        request_error: RequestError,
        header: &OperationHeader,
        peer: Option<usize>,
    ) -> CollectiveError {
        let (op, sequence) = (header.kind, header.sequence);
        let reason = match request_error {
            RequestError::GroupEnded(error) => return error,
            RequestError::TimedOut(elapsed) => format!(
                "NCCL did not finish operation {sequence} ({op}) within {elapsed:.1?}, though all \
                 its ranks had begun it: a network, a link or a GPU hangs; look there, or raise \
                 the timeout of NCCL"
            ),
            request_error => {
                // NCCL may have seen a closed connection before the group.
                let end = std::time::Instant::now() + BLAME_TIMEOUT;
                while std::time::Instant::now() < end {
                    if let Err(error) = self.group.health(header, peer) {
                        return error;
                    }
                    std::thread::sleep(BLAME_TIMEOUT / 100);
                }
                format!("operation {sequence} ({op}): {request_error}")
            }
        };
        let rank = self.group.rank();
        CollectiveError::Aborted { rank, reason }
    }
}

fn describe(group: &Description, version: Version) -> Description {
    Description {
        transport: format!("NCCL {version}"),
        reason: format!(
            "NCCL picks algorithm and order; calls are compared over {}",
            group.transport
        ),
        algorithm: crate::Algorithm::Auto,
        order: crate::Order::Fast,
        ..group.clone()
    }
}
