//! An example of your own communicator, and the ten lines that check it.
//!
//! [`NaiveCommunicator`] is as simple as can be: every operation puts its header and a copy of the
//! rank's bytes on a table that all ranks see, waits for the others, compares the headers, and
//! reads. `tests/own_communicator.rs` checks it against TensorFlow's recorded results, and that it
//! gives ranks that disagree an error.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytemuck::pod_collect_to_vec;
use distribute_collectives::{
    AbortHandle, AbortTarget, Buffer, CollectiveError, Communicator, DType, Description, Element,
    FirstFailure, GatherTarget, OperationHeader, OperationKind, ReduceOp, Result, chunk_range,
    reduce,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// What the ranks of a group share: a place on the table for everyone, and who is done with it.
#[derive(Default)]
struct Table {
    round: u64,
    places: Vec<Option<(OperationHeader, Vec<u8>)>>,
    readers: usize,
    mail: Vec<(usize, usize, OperationHeader, Vec<u8>)>,
    gone: Option<CollectiveError>,
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

/// One rank of a group of threads.
pub struct NaiveCommunicator {
    rank: usize,
    world_size: usize,
    shared: Arc<Shared>,
    /// The number of the next operation.
    sequence: u64,
    failure: FirstFailure,
}

/// A group of `world_size` ranks.
pub fn naive_group(world_size: usize) -> Vec<NaiveCommunicator> {
    let table = Table {
        places: vec![None; world_size],
        ..Table::default()
    };
    let shared = Arc::new(Shared {
        table: Mutex::new(table),
        changed: Condvar::new(),
    });
    let rank = |rank| NaiveCommunicator {
        rank,
        world_size,
        shared: Arc::clone(&shared),
        sequence: 0,
        failure: FirstFailure::default(),
    };
    (0..world_size).map(rank).collect()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` gives something; fails when a rank is gone or nothing happens for long.
    fn wait<T>(&self, mut ready: impl FnMut(&mut Table) -> Option<T>) -> Result<T> {
        let mut table = self.lock();
        loop {
            if let Some(found) = ready(&mut table) {
                self.changed.notify_all();
                return Ok(found);
            }
            if let Some(gone) = &table.gone {
                return Err(gone.clone());
            }
            let waited = self.changed.wait_timeout(table, DEADLINE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            table = guard;
            if timeout.timed_out() {
                let what = "a rank did not come".to_string();
                return Err(CollectiveError::InvalidOption { what });
            }
        }
    }

    fn leave(&self, error: CollectiveError) {
        self.lock().gone.get_or_insert(error);
        self.changed.notify_all();
    }
}

impl AbortTarget for Shared {
    fn abort(&self, rank: usize, reason: &str) {
        let reason = reason.to_string();
        self.leave(CollectiveError::Aborted { rank, reason });
    }
}

impl NaiveCommunicator {
    fn header(&self, kind: OperationKind) -> OperationHeader {
        OperationHeader::new(kind, 0, self.sequence)
    }

    /// What `send` and `recv` compare.
    fn passing(&self, buffer: &Buffer<'_>) -> Result<OperationHeader> {
        let header = self.header(OperationKind::Send);
        header.with_buffers(self.rank, std::slice::from_ref(buffer))
    }

    /// Gives every rank the bytes of all ranks. All must make the same call.
    fn exchange(&mut self, header: &OperationHeader, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.failure.check()?;
        let round = self.shared.wait(|table| {
            let place = &mut table.places[self.rank];
            place
                .is_none()
                .then(|| *place = Some((*header, bytes.to_vec())))?;
            Some(table.round)
        })?;
        let all = self.shared.wait(|table| {
            let all: Vec<_> = table.places.iter().flatten().cloned().collect();
            (all.len() == self.world_size).then_some(all)
        })?;
        self.shared.wait(|table| {
            table.readers += 1;
            if table.readers == self.world_size {
                table.places = vec![None; self.world_size];
                table.readers = 0;
                table.round += 1;
            }
            Some(())
        })?;
        self.shared
            .wait(|table| (table.round != round).then_some(()))?;
        self.sequence += 1;
        let agreed = OperationHeader::agree(all.iter().map(|(header, _)| header));
        agreed.map_err(|error| self.failure.record(error))?;
        header.check_root(self.rank, self.world_size)?;
        Ok(all.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// Combines the buffers of all ranks; every rank gets the whole result.
    fn combine(
        &mut self,
        header: OperationHeader,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let header = header.with_op(op).with_buffers(self.rank, buffers)?;
        let all = self.exchange(&header, &bytes_of(buffers))?;
        let mut start = 0;
        for buffer in buffers {
            let end = start + buffer.size_bytes();
            let parts: Vec<&[u8]> = all.iter().map(|bytes| &bytes[start..end]).collect();
            match buffer {
                Buffer::F32(own) => fold(op, own, &parts),
                Buffer::F64(own) => fold(op, own, &parts),
                Buffer::F16(own) => fold(op, own, &parts),
                Buffer::BF16(own) => fold(op, own, &parts),
                Buffer::I32(own) => fold(op, own, &parts),
                Buffer::I64(own) => fold(op, own, &parts),
                Buffer::U8(own) => fold(op, own, &parts),
            }
            start = end;
        }
        Ok(())
    }
}

fn bytes_of(buffers: &[Buffer<'_>]) -> Vec<u8> {
    buffers
        .iter()
        .flat_map(|buffer| buffer.as_bytes().to_vec())
        .collect()
}

/// Replaces the elements by the combination of all ranks' elements.
fn fold<T: Element>(op: ReduceOp, own: &mut [T], parts: &[&[u8]]) {
    let inputs: Vec<Vec<T>> = parts.iter().map(|part| pod_collect_to_vec(part)).collect();
    let inputs: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
    reduce::reduce_into(op, &inputs, own);
}

impl Communicator for NaiveCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.combine(self.header(OperationKind::AllReduce), op, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size, self.rank);
        self.combine(self.header(OperationKind::ReduceScatter), op, &mut [buffer])?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        let all = self.exchange(&header, input)?;
        let sizes: Vec<usize> = all.iter().map(Vec::len).collect();
        output.resize(&sizes).copy_from_slice(&all.concat());
        Ok(())
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self
            .header(OperationKind::Broadcast)
            .with_root(root)
            .with_buffers(self.rank, buffers)?;
        let all = self.exchange(&header, &bytes_of(buffers))?;
        let mut rest = &all[root][..];
        for buffer in buffers {
            let (bytes, after) = rest.split_at(buffer.size_bytes());
            buffer.as_bytes_mut().copy_from_slice(bytes);
            rest = after;
        }
        Ok(())
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.combine(
            self.header(OperationKind::Reduce).with_root(root),
            op,
            buffers,
        )
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        let header = self.passing(&buffer)?;
        let mail = (self.rank, to, header, buffer.as_bytes().to_vec());
        self.shared.lock().mail.push(mail);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let header = self.passing(&buffer)?;
        let (_, to, theirs, bytes) = self.shared.wait(|table| {
            let place = table
                .mail
                .iter()
                .position(|mail| (mail.0, mail.1) == (from, self.rank))?;
            Some(table.mail.remove(place))
        })?;
        header.compare(to, &theirs, from).inspect_err(|error| {
            self.failure.record(error.clone());
            self.shared.leave(error.clone());
        })?;
        buffer.as_bytes_mut().copy_from_slice(&bytes);
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.exchange(&self.header(OperationKind::Barrier), &[])
            .map(drop)
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.rank, self.shared.clone())
    }

    fn describe(&self) -> Description {
        Description::new("a table for all", self.world_size, "it is the simplest way")
    }
}

impl Drop for NaiveCommunicator {
    fn drop(&mut self) {
        self.shared.leave(CollectiveError::PeerLost {
            rank: self.rank,
            op: OperationKind::Barrier,
            sequence: 0,
            reason: "its endpoint was dropped".to_string(),
        });
    }
}
