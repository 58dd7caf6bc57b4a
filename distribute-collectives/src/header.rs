//! What an operation is: the description that must be equal on all ranks.

use std::fmt;

use crate::buffer::{Buffer, DType};
use crate::error::{CollectiveError, Result};
use crate::operation::OperationKind;
use crate::options::WireType;
use crate::reduce::ReduceOp;

/// The bits of [`OperationHeader::layout`] that hold the wire type.
const WIRE_BITS: u64 = 3;

/// The description of one operation, compared between the ranks before any byte is combined.
///
/// A transport sends it (or compares it in shared memory) and turns the first difference into
/// [`CollectiveError::Mismatch`] on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Hash of the length of each buffer, so that two layouts with one total do not match. Its two
    /// lowest bits are the [`WireType`] (0 for none).
    pub layout: u64,
}

impl OperationHeader {
    /// A header without data; the builder functions below fill it.
    pub(crate) fn new(kind: OperationKind, generation: u64, sequence: u64) -> Self {
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
    pub(crate) fn with_buffers(mut self, rank: usize, buffers: &[Buffer<'_>]) -> Result<Self> {
        let mut layout = 0xcbf2_9ce4_8422_2325_u64;
        for buffer in buffers {
            let dtype = *self.dtype.get_or_insert(buffer.dtype());
            if dtype != buffer.dtype() {
                return Err(CollectiveError::InvalidArgument {
                    rank,
                    op: self.kind,
                    what: format!(
                        "the buffers of one call must have one type, found {dtype} and {}; \
                         make one call per type",
                        buffer.dtype()
                    ),
                });
            }
            self.count += buffer.len();
            // FNV-1a over the lengths.
            layout = (layout ^ buffer.len() as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.buffers = buffers.len();
        self.layout = layout & !WIRE_BITS;
        Ok(self)
    }

    pub(crate) fn with_op(mut self, op: ReduceOp) -> Self {
        self.op = Some(op);
        self
    }

    pub(crate) fn with_root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }

    pub(crate) fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Notes what the elements travel as; after [`with_buffers`](Self::with_buffers).
    pub(crate) fn with_wire(mut self, wire: Option<WireType>) -> Self {
        self.layout |= wire.map_or(0, |wire| wire as u64);
        self
    }

    fn wire(&self) -> Option<WireType> {
        let bits = self.layout & WIRE_BITS;
        WireType::ALL.into_iter().find(|wire| *wire as u64 == bits)
    }

    /// The first difference to another rank's header in words, or `None` when they are equal.
    pub fn difference(&self, other: &OperationHeader) -> Option<String> {
        fn differ<T: PartialEq>(
            name: &str,
            a: T,
            b: T,
            show: impl Fn(T) -> String,
        ) -> Option<String> {
            (a != b).then(|| format!("{name} is {} on one and {} on the other", show(a), show(b)))
        }
        fn option<T: fmt::Display>(value: Option<T>) -> String {
            value.map_or_else(|| "none".to_string(), |value| value.to_string())
        }
        let number = |n: u64| n.to_string();
        let size = |n: usize| n.to_string();
        differ("generation", self.generation, other.generation, number)
            .or_else(|| differ("sequence", self.sequence, other.sequence, number))
            .or_else(|| differ("kind", self.kind, other.kind, |kind| kind.to_string()))
            .or_else(|| differ("dtype", self.dtype, other.dtype, option))
            .or_else(|| differ("op", self.op, other.op, option))
            .or_else(|| differ("root", self.root, other.root, option))
            .or_else(|| differ("number of buffers", self.buffers, other.buffers, size))
            .or_else(|| differ("count", self.count, other.count, size))
            .or_else(|| differ("wire type", self.wire(), other.wire(), option))
            .or_else(|| {
                (self.layout != other.layout)
                    .then(|| "the lengths of the single buffers differ".to_string())
            })
    }

    /// Compares the headers of all ranks (rank `i` at index `i`); the error names the first pair.
    pub fn agree<'a>(headers: impl IntoIterator<Item = &'a OperationHeader>) -> Result<()> {
        let mut headers = headers.into_iter();
        let Some(first) = headers.next() else {
            return Ok(());
        };
        for (index, header) in headers.enumerate() {
            if let Some(what) = first.difference(header) {
                return Err(CollectiveError::Mismatch {
                    rank_a: 0,
                    rank_b: index + 1,
                    op: first.kind,
                    sequence: first.sequence,
                    what,
                });
            }
        }
        Ok(())
    }
}
