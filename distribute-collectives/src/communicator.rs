//! What every group of ranks can do, whatever carries the bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{Buffer, DType, Element};
use crate::error::Result;
use crate::options::{Algorithm, Order};
use crate::reduce::ReduceOp;

/// One rank's endpoint of a group.
///
/// All ranks must call the same operations in the same order with the same element type, element
/// counts, reduction and root; a difference is [`Mismatch`](crate::CollectiveError::Mismatch) on
/// all ranks, which the suite [`contract`](crate::contract) checks. Every call blocks until this
/// rank's part is done, at most until the deadline of the group. After an error that
/// [is fatal](crate::CollectiveError::is_fatal) the buffers hold unspecified values and the
/// endpoint is poisoned.
///
/// Dropping an endpoint, also while its thread unwinds from a panic, ends the operations that the
/// other ranks still wait for it in with [`PeerLost`](crate::CollectiveError::PeerLost).
///
/// The trait is object safe; [`CommunicatorExt`] adds the typed calls.
pub trait Communicator: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world_size(&self) -> usize;

    /// Combines the buffers of all ranks, element by element; every rank ends with the result in
    /// its own buffers.
    ///
    /// The list is one operation: the buffers count as one long buffer (they are not copied
    /// together where the transport can avoid it). All have one element type. An empty list is
    /// allowed and only synchronises.
    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()>;

    /// Combines the buffers of all ranks; this rank ends with the result in its own share, the
    /// returned range (see [`chunk_range`]). The rest of the buffer is unspecified.
    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>>;

    /// Gives every rank the inputs of all ranks in rank order. The sizes may differ and may be 0.
    ///
    /// `input` holds elements of `dtype` as bytes. `output` is asked for memory once the sizes of
    /// all ranks are known; where it returns less than all of them take, the call ends with
    /// [`Aborted`](crate::CollectiveError::Aborted) on all ranks. Most callers want
    /// [`CommunicatorExt::all_gather`].
    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()>;

    /// Copies the buffers of rank `root` to all other ranks.
    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()>;

    /// Combines the buffers of all ranks in canonical order ([`tree`](crate::tree)); the result is
    /// in the buffers of rank `root`. The buffers of the other ranks hold unspecified values
    /// afterwards.
    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()>;

    /// Sends the elements to rank `to`, which must call [`recv`](Self::recv) with a buffer of the
    /// same type and length. May block until it does. Only the two ranks take part.
    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()>;

    /// Receives the elements that rank `from` sends.
    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Result<()>;

    /// Returns when every rank has called it.
    fn barrier(&mut self) -> Result<()>;

    /// Ends the running and every later operation of all ranks with
    /// [`Aborted`](crate::CollectiveError::Aborted), which names this rank and the reason. Does
    /// nothing when the group has failed before.
    fn abort(&self, reason: &str) {
        self.abort_handle().abort(reason);
    }

    /// A handle that aborts from another thread, also while this endpoint is in an operation.
    fn abort_handle(&self) -> AbortHandle;

    /// Which algorithm and transport are used, and why.
    fn describe(&self) -> Description;
}

/// The typed calls and those built from several operations.
pub trait CommunicatorExt: Communicator {
    /// Gives every rank the inputs of all ranks in rank order; the lengths may differ.
    ///
    /// ```
    /// use distribute_collectives::{CommunicatorExt, GroupOptions, in_process};
    ///
    /// let mut group = in_process(1, GroupOptions::default())?;
    /// let gathered = group[0].all_gather(&[1.5_f32, 2.5])?;
    /// assert_eq!(gathered.rank(0), [1.5, 2.5]);
    /// # Ok::<(), distribute_collectives::CollectiveError>(())
    /// ```
    fn all_gather<T: Element>(&mut self, input: &[T]) -> Result<Gathered<T>> {
        let mut gathered = Gathered::default();
        self.all_gather_reusing(input, &mut gathered)?;
        Ok(gathered)
    }

    /// [`all_gather`](Self::all_gather) into the memory of an earlier result.
    fn all_gather_reusing<T: Element>(
        &mut self,
        input: &[T],
        gathered: &mut Gathered<T>,
    ) -> Result<()> {
        self.all_gather_into(T::DTYPE, bytemuck::cast_slice(input), gathered)
    }

    /// All-reduces buffers that may have different types: one operation per run of buffers with
    /// one type.
    fn all_reduce_by_type(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let one_type = |a: &Buffer<'_>, b: &Buffer<'_>| a.dtype() == b.dtype();
        for run in buffers.chunk_by_mut(one_type) {
            self.all_reduce(op, run)?;
        }
        Ok(())
    }
}

impl<C: Communicator + ?Sized> CommunicatorExt for C {}

/// Where [`Communicator::all_gather_into`] puts its result.
pub trait GatherTarget {
    /// Called once per operation with the number of bytes of each rank's input. Returns memory
    /// for all of them, one after the other; less than that, such as none, where it cannot hold
    /// them.
    fn resize(&mut self, bytes_by_rank: &[usize]) -> &mut [u8];
}

/// The inputs of all ranks, in rank order.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered<T> {
    values: Vec<T>,
    /// Rank `i` has the values from `bounds[i]` to `bounds[i + 1]`.
    bounds: Vec<usize>,
}

impl<T> Default for Gathered<T> {
    fn default() -> Self {
        Gathered {
            values: Vec::new(),
            bounds: vec![0],
        }
    }
}

impl<T> Gathered<T> {
    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The input of one rank.
    ///
    /// # Panics
    /// When `rank` is not below the world size.
    pub fn rank(&self, rank: usize) -> &[T] {
        &self.values[self.bounds[rank]..self.bounds[rank + 1]]
    }

    /// The inputs of all ranks, rank 0 first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[T]> {
        (0..self.world_size()).map(|rank| self.rank(rank))
    }

    /// All values, one rank's after the other's.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, one rank's after the other's.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

impl<T: Element> GatherTarget for Gathered<T> {
    fn resize(&mut self, bytes_by_rank: &[usize]) -> &mut [u8] {
        if self.try_resize(bytes_by_rank).is_none() {
            self.bounds.clear();
            self.bounds.push(0);
            self.values.clear();
        }
        bytemuck::cast_slice_mut(&mut self.values)
    }
}

impl<T: Element> Gathered<T> {
    /// `None` when a number of bytes is not that of whole elements, or there is not that much
    /// memory: the numbers come from other ranks.
    fn try_resize(&mut self, bytes_by_rank: &[usize]) -> Option<()> {
        self.bounds.clear();
        self.bounds.push(0);
        let mut total = 0_usize;
        for bytes in bytes_by_rank {
            if !bytes.is_multiple_of(size_of::<T>()) {
                return None;
            }
            total = total.checked_add(bytes / size_of::<T>())?;
            self.bounds.push(total);
        }
        let missing = total.saturating_sub(self.values.len());
        self.values.try_reserve(missing).ok()?;
        self.values.resize(total, bytemuck::Zeroable::zeroed());
        Some(())
    }
}

/// The share of a rank when `count` elements are spread over `world_size` ranks: contiguous, in
/// rank order, the first `count % world_size` ranks have one element more.
///
/// ```
/// use distribute_collectives::chunk_range;
///
/// assert_eq!(chunk_range(10, 4, 0), 0..3);
/// assert_eq!(chunk_range(10, 4, 3), 8..10);
/// ```
pub fn chunk_range(count: usize, world_size: usize, rank: usize) -> Range<usize> {
    let (base, longer) = (count / world_size, count % world_size);
    let start = base * rank + rank.min(longer);
    start..start + base + usize::from(rank < longer)
}

/// Ends a group's operations from any thread; see [`Communicator::abort_handle`].
#[derive(Clone)]
pub struct AbortHandle {
    rank: usize,
    target: Arc<dyn AbortTarget>,
}

/// What an [`AbortHandle`] acts on; implemented by transports.
pub trait AbortTarget: Send + Sync {
    /// Ends the running and every later operation of all ranks.
    fn abort(&self, rank: usize, reason: &str);
}

impl AbortHandle {
    /// A handle that aborts in the name of `rank`.
    pub fn new(rank: usize, target: Arc<dyn AbortTarget>) -> Self {
        AbortHandle { rank, target }
    }

    /// As [`Communicator::abort`].
    pub fn abort(&self, reason: &str) {
        self.target.abort(self.rank, reason);
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// How a communicator works, and why; made to be logged once.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Description {
    /// The name of the group.
    pub group: String,
    /// The generation of the group.
    pub generation: u64,
    /// Number of ranks.
    pub world_size: usize,
    /// The all-reduce algorithm in use ([`Algorithm::Auto`] when it depends on the size).
    pub algorithm: Algorithm,
    /// What carries the bytes.
    pub transport: String,
    /// The order of the reduction.
    pub order: Order,
    /// Why these were chosen.
    pub reason: String,
}

impl Description {
    /// A description by a communicator of another crate: its transport, its number of ranks, and
    /// why it works as it does. Group and generation are [`GroupOptions`]' defaults,
    /// algorithm and order unspecified.
    ///
    /// [`GroupOptions`]: crate::GroupOptions
    pub fn new(transport: impl Into<String>, world_size: usize, reason: impl Into<String>) -> Self {
        Description {
            group: "group".to_string(),
            generation: 0,
            world_size,
            algorithm: Algorithm::default(),
            transport: transport.into(),
            order: Order::default(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (generation {}): {} ranks, {} all-reduce over {}, {} order; {}",
            self.group,
            self.generation,
            self.world_size,
            self.algorithm,
            self.transport,
            self.order,
            self.reason
        )
    }
}
