//! The meeting at the begin of every collective operation: each member writes down what it calls,
//! and compares with all others before any byte is combined.
//!
//! A record has two places, used in turn. A member writes the record of operation `s + 2` over
//! that of `s` only after it has finished `s + 1`, so after all members had arrived at `s + 1`, so
//! after all had finished `s` and with it reading its records. The same holds for the inline
//! buffers, which are also used in turn.

use std::sync::atomic::Ordering;

use crate::buffer::DType;
use crate::error::{CollectiveError, Result};
use crate::header::{OperationHeader, OperationKind};
use crate::reduce::ReduceOp;
use crate::shared_memory::doorbell::{Operation, SegmentView};

const WORDS: usize = 8;

/// What a member says when it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: OperationHeader,
    /// What may differ between the members: the bytes of its input in an `all_gather`, where its
    /// buffer lies in an `all_reduce`.
    pub(crate) own: usize,
}

impl Record {
    fn encode(&self) -> [u64; WORDS] {
        let header = &self.header;
        let dtype = header.dtype.map_or(0, |dtype| dtype as u64 + 1);
        let op = header.op.map_or(0, |op| op as u64 + 1);
        [
            header.generation,
            header.sequence,
            header.kind as u64 | dtype << 8 | op << 16,
            header.root.map_or(0, |root| root as u64 + 1),
            header.count as u64,
            header.buffers as u64,
            header.layout,
            self.own as u64,
        ]
    }

    /// `None` when the words are not those of a record.
    fn decode(words: [u64; WORDS]) -> Option<Record> {
        let [
            generation,
            sequence,
            tags,
            root,
            count,
            buffers,
            layout,
            own,
        ] = words;
        let tag = |shift: u32| (tags >> shift & 0xff) as usize;
        let kind = *OperationKind::ALL.get(tag(0))?;
        let dtype = match tag(8) {
            0 => None,
            tag => Some(*DType::ALL.get(tag - 1)?),
        };
        let op = match tag(16) {
            0 => None,
            tag => Some(*ReduceOp::ALL.get(tag - 1)?),
        };
        let header = OperationHeader {
            generation,
            sequence,
            kind,
            dtype,
            op,
            root: root.checked_sub(1).map(|root| root as usize),
            count: count as usize,
            buffers: buffers as usize,
            layout,
        };
        let own = own as usize;
        let record = Record { header, own };
        (record.encode() == words).then_some(record)
    }
}

impl SegmentView {
    /// Publishes this member's record; whatever it wrote for the operation before is visible to
    /// who sees it.
    pub(crate) fn arrive(&self, record: &Record) {
        let at = self.layout.record(self.me, record.header.sequence);
        for (index, word) in record.encode().into_iter().enumerate() {
            let at = at + index * size_of::<u64>();
            self.segment.long(at).store(word, Ordering::Relaxed);
        }
        self.announce_arrival(record.header.sequence);
    }

    /// What another member says; this member's own words are not read back, so that nobody can
    /// change them.
    fn record(&self, member: usize, own: &Record, operation: &Operation<'_>) -> Result<Record> {
        if member == self.me {
            return Ok(*own);
        }
        let at = self.layout.record(member, operation.header.sequence);
        let word = |index: usize| {
            let at = at + index * size_of::<u64>();
            self.segment.long(at).load(Ordering::Relaxed)
        };
        Record::decode(std::array::from_fn(word)).ok_or_else(|| {
            operation.fail(CollectiveError::Protocol {
                rank: self.ranks[self.me],
                peer: self.ranks[member],
                address: "shared memory of this host".to_string(),
                what: "an arrival record that no rank writes".to_string(),
            })
        })
    }

    /// Blocks until all members have arrived, and compares their headers. `owns` gets what may
    /// differ.
    ///
    /// # Errors
    /// [`Mismatch`](CollectiveError::Mismatch), the same on every member: each of them sees all
    /// records before it gives up, whoever gave up before.
    pub(crate) fn compare_headers(
        &self,
        own: &Record,
        operation: &Operation<'_>,
        owns: &mut Vec<usize>,
    ) -> Result<()> {
        self.wait_for_arrivals(operation)?;
        owns.clear();
        let first = self.record(0, own, operation)?;
        for member in 0..self.members() {
            let record = self.record(member, own, operation)?;
            owns.push(record.own);
            if let Some(what) = first.header.difference(&record.header) {
                return Err(operation.fail(CollectiveError::Mismatch {
                    rank_a: self.ranks[0],
                    rank_b: self.ranks[member],
                    op: first.header.kind,
                    sequence: first.header.sequence,
                    what,
                }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_way_and_nonsense_is_refused() {
        for kind in OperationKind::ALL {
            let mut header = OperationHeader::new(kind, 3, 7).with_root(0);
            for dtype in DType::ALL {
                header = header.with_dtype(dtype);
                for op in ReduceOp::ALL {
                    header = header.with_op(op);
                    let record = Record { header, own: 9 };
                    assert_eq!(Record::decode(record.encode()), Some(record));
                }
            }
        }
        for nonsense in [8, 8 << 8, 6 << 16, 1 << 24] {
            assert_eq!(Record::decode([0, 0, nonsense, 0, 0, 0, 0, 0]), None);
        }
    }
}
