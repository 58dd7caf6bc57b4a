//! The meeting at the begin of every collective operation: each member writes down what it calls,
//! and compares with all others before any byte is combined.
//!
//! A record has two places, used in turn. A member writes the record of operation `s + 2` over
//! that of `s` only after it has finished `s + 1`, so after all members had arrived at `s + 1`, so
//! after all had finished `s` and with it reading its records. The same holds for the inline
//! buffers, which are also used in turn.

use std::sync::atomic::Ordering;

use crate::error::{CollectiveError, Result};
use crate::header::{HeaderError, OperationHeader};
use crate::shared_memory::doorbell::{Operation, SegmentView};

const WORDS: usize = OperationHeader::BYTES / size_of::<u64>() + 1;

/// What a member says when it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: OperationHeader,
    /// What may differ between the members: the bytes of its input in an `all_gather`.
    pub(crate) own: usize,
}

impl Record {
    fn encode(&self) -> [u64; WORDS] {
        let mut words = [self.own as u64; WORDS];
        bytemuck::cast_slice_mut(&mut words)[..OperationHeader::BYTES]
            .copy_from_slice(&self.header.encode());
        words
    }

    fn decode(words: [u64; WORDS]) -> Result<Record, HeaderError> {
        let mut header = [0; OperationHeader::BYTES];
        header.copy_from_slice(&bytemuck::cast_slice(&words)[..OperationHeader::BYTES]);
        Ok(Record {
            header: OperationHeader::decode(&header)?,
            own: words[WORDS - 1] as usize,
        })
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

    /// The words of another member; this member's own words are not read back, so that no other can
    /// change them.
    fn record(&self, member: usize, own: &Record, operation: &Operation<'_>) -> Result<Record> {
        if member == self.me {
            return Ok(*own);
        }
        let at = self
            .layout
            .record(member, operation.running.header.sequence);
        let word = |index: usize| {
            let at = at + index * size_of::<u64>();
            self.segment.long(at).load(Ordering::Relaxed)
        };
        Record::decode(std::array::from_fn(word)).map_err(|error| {
            operation.fail(CollectiveError::Protocol {
                rank: self.ranks[self.me],
                peer: self.ranks[member],
                address: "shared memory of this host".to_string(),
                what: format!("an arrival record that no rank writes: {error}"),
            })
        })
    }

    /// Blocks until all members have arrived, and compares their headers. `owns` gets what may
    /// differ.
    ///
    /// # Errors
    /// [`Mismatch`](CollectiveError::Mismatch), the same on every member: each of them sees all
    /// records before it gives up, even if others gave up before.
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
            let (rank_a, rank_b) = (self.ranks[0], self.ranks[member]);
            let compared = first.header.compare(rank_a, &record.header, rank_b);
            compared.map_err(|error| operation.fail(error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::OperationKind;

    #[test]
    fn records_survive_the_way_and_nonsense_is_refused() {
        let header = OperationHeader::new(OperationKind::Reduce, 3, 7).with_root(0);
        let record = Record { header, own: 9 };
        assert_eq!(Record::decode(record.encode()), Ok(record));
        let mut words = record.encode();
        words[0] = 0;
        assert_eq!(Record::decode(words), Err(HeaderError::Version(0)));
    }
}
