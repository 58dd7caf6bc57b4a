//! What an operation is: the description that must be equal on all ranks, and its bytes.
//!
//! An encoded header has [`OperationHeader::BYTES`] bytes, wherever it travels: before a segment
//! over gRPC, in a record in shared memory, through MPI or NCCL's group, over the devices of a
//! slice, in a heartbeat.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, [`VERSION`] |
//! | 1 | flags: bit 0 the operation has a root |
//! | 2 | kind |
//! | 3 | element type plus 1, 0 for none |
//! | 4 | reduction plus 1, 0 for none |
//! | 5..8 | zero |
//! | 8..16 | generation |
//! | 16..24 | sequence |
//! | 24..32 | count |
//! | 32..40 | layout |
//! | 40..48 | buffers |
//! | 48..56 | root, 0 for none |
//!
//! Numbers are little-endian.

use std::fmt;

use crate::buffer::{Buffer, DType};
use crate::error::{CollectiveError, Result};
use crate::operation::OperationKind;
use crate::options::WireType;
use crate::reduce::ReduceOp;

/// The version of the bytes.
const VERSION: u8 = 2;

const HAS_ROOT: u8 = 1;

/// The bits of [`OperationHeader::layout`] that hold the wire type.
const WIRE_BITS: u64 = 3;

/// Why bytes are not an [`OperationHeader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Another version of this crate wrote them.
    #[error("an operation header of version {0}, this program speaks version {VERSION}")]
    Version(u8),
    /// A byte has no meaning.
    #[error("byte {offset} of an operation header is {value}, which has no meaning")]
    Value {
        /// Which byte.
        offset: usize,
        /// What it is.
        value: u8,
    },
    /// A number is too large for this machine.
    #[error("a number in an operation header is too large for this machine")]
    Number,
}

/// The ranks that get the result of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// `all_reduce`.
    All,
    /// `reduce`, to this rank.
    Root(usize),
    /// `reduce_scatter`: every rank its share.
    Shares,
}

/// The description of one operation, compared between the ranks before any byte is combined.
///
/// A transport sends it (or compares it in shared memory) and turns the first difference into
/// [`CollectiveError::Mismatch`] on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct OperationHeader {
    /// The generation of the group; a restart makes a new one.
    pub generation: u64,
    /// Number of the operation in the group, from 0.
    pub sequence: u64,
    /// The call.
    pub kind: OperationKind,
    /// The element type, `None` for a barrier.
    pub dtype: Option<DType>,
    /// The reduction, `None` for calls that only move data.
    pub op: Option<ReduceOp>,
    /// The root rank of a broadcast or reduce.
    pub root: Option<usize>,
    /// Elements in all buffers together; 0 for `all_gather`, where ranks may differ.
    pub count: usize,
    /// Number of buffers.
    pub buffers: usize,
    /// Hash of the length of each buffer, so that two layouts with one total do not match, and of
    /// the parts of the group if there are several. Its two lowest bits are the [`WireType`] (0 for
    /// none).
    pub layout: u64,
}

impl OperationHeader {
    /// Bytes of an encoded header.
    pub const BYTES: usize = 56;

    /// A header without data; the `with` functions fill it.
    pub fn new(kind: OperationKind, generation: u64, sequence: u64) -> Self {
        OperationHeader {
            generation,
            sequence,
            kind,
            dtype: None,
            op: None,
            root: None,
            count: 0,
            buffers: 0,
            layout: 0,
        }
    }

    /// Takes type, count and layout from the buffers, which must all have one type.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidArgument`] of `rank` when they have not.
    pub fn with_buffers(mut self, rank: usize, buffers: &[Buffer<'_>]) -> Result<Self> {
        for buffer in buffers {
            let dtype = *self.dtype.get_or_insert(buffer.dtype());
            if dtype != buffer.dtype() {
                let what = format!(
                    "the buffers of one call must have one type, found {dtype} and {}; \
                     make one call per type",
                    buffer.dtype()
                );
                return Err(self.refused(rank, what));
            }
            self.count += buffer.len();
        }
        self.buffers = buffers.len();
        Ok(self.with_layout(buffers.iter().map(|buffer| buffer.len() as u64)))
    }

    /// Sets the layout to a hash (FNV-1a) of these words.
    pub fn with_layout(mut self, words: impl IntoIterator<Item = u64>) -> Self {
        let hash = words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
            (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
        });
        self.layout = hash & !WIRE_BITS;
        self
    }

    /// Notes which ranks are reduced with each other, if not all with all; after
    /// [`with_buffers`](Self::with_buffers).
    pub(crate) fn with_parts(self, parts: &[usize]) -> Self {
        match parts {
            [_] => self,
            _ => {
                let parts = parts.iter().map(|part| *part as u64);
                self.with_layout(std::iter::once(self.layout).chain(parts))
            }
        }
    }

    /// Sets the reduction.
    pub fn with_op(mut self, op: ReduceOp) -> Self {
        self.op = Some(op);
        self
    }

    /// Sets the root.
    pub fn with_root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }

    /// Sets the element type.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Notes what the elements of a reduction travel as, if they are `f32`; after
    /// [`with_buffers`](Self::with_buffers).
    pub(crate) fn with_wire(mut self, wire: Option<WireType>) -> Self {
        if self.op.is_some() && self.dtype == Some(DType::F32) {
            self.layout |= wire.map_or(0, |wire| wire as u64);
        }
        self
    }

    /// What the elements travel as, when not as they are.
    pub(crate) fn wire(&self) -> Option<WireType> {
        let bits = self.layout & WIRE_BITS;
        WireType::ALL.into_iter().find(|wire| *wire as u64 == bits)
    }

    /// The ranks that get the result of a reduction.
    pub(crate) fn target(&self) -> Target {
        match (self.kind, self.root) {
            (OperationKind::Reduce, Some(root)) => Target::Root(root),
            (OperationKind::ReduceScatter, _) => Target::Shares,
            _ => Target::All,
        }
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = VERSION;
        bytes[1] = if self.root.is_some() { HAS_ROOT } else { 0 };
        bytes[2] = self.kind as u8;
        bytes[3] = self.dtype.map_or(0, |dtype| dtype as u8 + 1);
        bytes[4] = self.op.map_or(0, |op| op as u8 + 1);
        let numbers = [
            self.generation,
            self.sequence,
            self.count as u64,
            self.layout,
            self.buffers as u64,
            self.root.unwrap_or(0) as u64,
        ];
        bytes[8..].copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
        bytes
    }

    /// Reads a header. Whatever it accepts encodes to the same bytes.
    ///
    /// # Errors
    /// [`HeaderError`], which says what no rank writes.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, HeaderError> {
        if bytes[0] != VERSION {
            return Err(HeaderError::Version(bytes[0]));
        }
        let bad = |offset: usize| HeaderError::Value {
            offset,
            value: bytes[offset],
        };
        let number = |offset: usize| u64::from_le_bytes(bytes.as_chunks().0[offset / 8]);
        let size = |offset| usize::try_from(number(offset)).map_err(|_| HeaderError::Number);
        let has_root = match bytes[1] {
            0 => false,
            HAS_ROOT => true,
            _ => return Err(bad(1)),
        };
        if let Some(offset) = (5..8).find(|&offset| bytes[offset] != 0) {
            return Err(bad(offset));
        }
        let kind = OperationKind::ALL.get(usize::from(bytes[2]));
        let root = size(48)?;
        if !has_root && root != 0 {
            return Err(bad(48));
        }
        Ok(OperationHeader {
            generation: number(8),
            sequence: number(16),
            kind: *kind.ok_or(bad(2))?,
            dtype: optional(bytes[3], &DType::ALL).ok_or(bad(3))?,
            op: optional(bytes[4], &ReduceOp::ALL).ok_or(bad(4))?,
            root: has_root.then_some(root),
            count: size(24)?,
            buffers: size(40)?,
            layout: number(32),
        })
    }

    /// The first difference to another rank's header in words, or `None` when they are equal.
    pub fn first_difference(&self, other: &OperationHeader) -> Option<String> {
        if self == other {
            return None;
        }
        fn option<T: fmt::Display>(value: Option<T>) -> String {
            value.map_or_else(|| "none".to_string(), |value| value.to_string())
        }
        let values = |header: &Self| {
            [
                ("generation", header.generation.to_string()),
                ("sequence", header.sequence.to_string()),
                ("kind", header.kind.to_string()),
                ("dtype", option(header.dtype)),
                ("op", option(header.op)),
                ("root", option(header.root)),
                ("number of buffers", header.buffers.to_string()),
                ("count", header.count.to_string()),
                ("wire type", option(header.wire())),
            ]
        };
        let mut pairs = values(self).into_iter().zip(values(other));
        let different = pairs.find(|((_, a), (_, b))| a != b);
        Some(different.map_or_else(
            || "the lengths of the single buffers differ, or the parts".to_string(),
            |((name, a), (_, b))| format!("{name} is {a} on one and {b} on the other"),
        ))
    }

    /// Compares the headers of all ranks (rank `i` at index `i`) with that of rank 0.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`] of rank 0 and the first rank that differs: the same error on
    /// every rank that compares.
    pub fn agree<'a>(headers: impl IntoIterator<Item = &'a OperationHeader>) -> Result<()> {
        let mut headers = headers.into_iter();
        let Some(first) = headers.next() else {
            return Ok(());
        };
        for (index, header) in headers.enumerate() {
            first.compare(0, header, index + 1)?;
        }
        Ok(())
    }

    /// Compares the header of one rank with that of another one.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`], with the operation and the values of the lower rank first.
    pub fn compare(&self, rank: usize, other: &OperationHeader, other_rank: usize) -> Result<()> {
        let (low, high) = if rank <= other_rank {
            (self, other)
        } else {
            (other, self)
        };
        match low.first_difference(high) {
            None => Ok(()),
            Some(what) => Err(low.mismatch(rank, other_rank, what)),
        }
    }

    /// The error when a rank cannot make this call.
    pub(crate) fn refused(&self, rank: usize, what: String) -> CollectiveError {
        let op = self.kind;
        CollectiveError::InvalidArgument { rank, op, what }
    }

    /// The error when two ranks differ; this is the header of the lower one.
    pub(crate) fn mismatch(&self, rank: usize, other: usize, what: String) -> CollectiveError {
        CollectiveError::Mismatch {
            rank_a: rank.min(other),
            rank_b: rank.max(other),
            op: self.kind,
            sequence: self.sequence,
            what,
        }
    }

    /// The error when rank `from` sent a segment of `found` bytes where `expected` belong.
    pub(crate) fn wrong_size(
        &self,
        rank: usize,
        from: usize,
        found: impl fmt::Display,
        expected: usize,
    ) -> CollectiveError {
        let what =
            format!("rank {from} sent a segment of {found} bytes, rank {rank} expects {expected}");
        self.mismatch(rank, from, what)
    }

    /// Refuses a root that is no rank of the group. For after the comparison, so that all ranks
    /// refuse it together: a root that only one of them gives is a difference.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidArgument`] of `rank`.
    pub fn check_root(&self, rank: usize, world_size: usize) -> Result<()> {
        let Some(root) = self.root.filter(|root| *root >= world_size) else {
            return Ok(());
        };
        let what = format!("the root is rank {root}, but the group has {world_size} ranks");
        Err(self.refused(rank, what))
    }
}

/// 0 is `None`; else the value whose place is one less. The outer `None`: there is no such value.
fn optional<T: Copy>(byte: u8, all: &[T]) -> Option<Option<T>> {
    match byte.checked_sub(1) {
        None => Some(None),
        Some(index) => all.get(usize::from(index)).copied().map(Some),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any header.
    pub(crate) fn headers() -> impl Strategy<Value = OperationHeader> {
        let names = (
            proptest::sample::select(&OperationKind::ALL[..]),
            proptest::option::of(proptest::sample::select(&DType::ALL[..])),
            proptest::option::of(proptest::sample::select(&ReduceOp::ALL[..])),
        );
        let numbers = (any::<[u64; 3]>(), any::<[usize; 2]>());
        (names, numbers, proptest::option::of(any::<usize>())).prop_map(
            |((kind, dtype, op), (wide, sizes), root)| OperationHeader {
                generation: wide[0],
                sequence: wide[1],
                kind,
                dtype,
                op,
                root,
                count: sizes[0],
                buffers: sizes[1],
                layout: wide[2],
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(header in headers()) {
            prop_assert_eq!(OperationHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn no_bytes_panic_and_accepted_ones_are_canonical(
            mut bytes in prop::collection::vec(any::<u8>(), OperationHeader::BYTES),
            plausible in any::<bool>(),
        ) {
            if plausible {
                let (flags, kind) = (bytes[1] & 1, bytes[2] & 7);
                bytes[..8].copy_from_slice(&[VERSION, flags, kind, 0, 0, 0, 0, 0]);
            }
            let bytes: [u8; OperationHeader::BYTES] = bytes.try_into().unwrap();
            if let Ok(header) = OperationHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn every_change_is_a_difference(header in headers(), other in headers()) {
            prop_assert_eq!(header.first_difference(&other).is_none(), header == other);
            prop_assert_eq!(header.compare(0, &other, 1), other.compare(1, &header, 0));
        }
    }

    #[test]
    fn every_name_survives_the_way() {
        for (code, kind) in OperationKind::ALL.into_iter().enumerate() {
            let header = OperationHeader::new(kind, 0, 0);
            assert_eq!(header.encode()[2], code as u8);
            for dtype in DType::ALL {
                for op in ReduceOp::ALL {
                    let header = header.with_dtype(dtype).with_op(op);
                    assert_eq!(OperationHeader::decode(&header.encode()), Ok(header));
                }
            }
        }
    }

    #[test]
    fn what_no_rank_writes_is_named() {
        let changed = |offset: usize, value: u8| {
            let mut bytes = OperationHeader::new(OperationKind::Barrier, 1, 2).encode();
            bytes[offset] = value;
            OperationHeader::decode(&bytes).unwrap_err().to_string()
        };
        let version = "an operation header of version 1, this program speaks version 2";
        assert_eq!(changed(0, 1), version);
        for (offset, value) in [(1, 2), (2, 8), (3, 8), (4, 6), (5, 1), (7, 9), (48, 1)] {
            let meaning = format!("byte {offset} of an operation header is {value}, which has no");
            assert!(changed(offset, value).starts_with(&meaning));
        }
    }

    #[test]
    fn a_segment_of_the_wrong_size_names_both_ranks_and_sizes() {
        let header = OperationHeader::new(OperationKind::Broadcast, 0, 0);
        let expected = CollectiveError::Mismatch {
            rank_a: 1,
            rank_b: 2,
            op: OperationKind::Broadcast,
            sequence: 0,
            what: "rank 1 sent a segment of 8 bytes, rank 2 expects 4".to_string(),
        };
        assert_eq!(header.wrong_size(2, 1, 8, 4), expected);
    }
}
