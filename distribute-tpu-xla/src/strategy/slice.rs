//! The processes of a slice as a group of workers: they exchange values over the devices.
//!
//! A TPU slice's processes are connected by nothing but their devices, as far as this crate knows.
//! So what workers tell each other (initial values, metrics, whether to stop) goes through two
//! small programs on the first device of each process: one gathers words, one adds them up. Every
//! operation begins with the [`OperationHeader`] of each process, in which they find that one makes
//! another call or has given up.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distribute_core::collectives::{
    AbortHandle, AbortTarget, Buffer, CollectiveError, Communicator, DType, Description, Element,
    FirstFailure, GatherTarget, HeaderError, OperationHeader, OperationKind, ReduceOp, chunk_range,
    reduce,
};

use super::TpuError;
use crate::pjrt::{Client, CompileOptions, Device, ExecuteOptions, LoadedExecutable, PjrtError};
use crate::stablehlo::{Binary, Builder, ElementType, StableHloError, TensorType};
use crate::sync::lock;

type Result<T, E = CollectiveError> = std::result::Result<T, E>;

/// The words of an arrival: the operation's header, bytes of this process, the length of what it
/// tells of a failure plus 1, and that.
const ARRIVAL_WORDS: usize = 128;
const BYTES_WORD: usize = OperationHeader::BYTES / 4;
const FAILURE_WORD: usize = BYTES_WORD + 2;
const FAILURE_BYTES: usize = 4 * (ARRIVAL_WORDS - FAILURE_WORD - 1);

/// The words that travel at once, at most: 1 MiB of each process.
const CHUNK_WORDS: usize = 1 << 18;

/// How a program combines the words of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Combine {
    Gather,
    Sum,
}

/// One process of a slice, as a rank.
pub(super) struct SliceCommunicator {
    group: Arc<SliceGroup>,
    /// The number of the next operation.
    sequence: u64,
}

/// The state that the abort handle shares with the communicator.
struct SliceGroup {
    client: Client,
    /// The device of this process that speaks for it.
    device: Device,
    /// The devices that speak for all processes, by their global numbers.
    assignment: Vec<i64>,
    rank: usize,
    limit: Duration,
    programs: Mutex<HashMap<(Combine, usize), LoadedExecutable>>,
    failure: Mutex<FirstFailure>,
}

/// The message of a process before an operation.
struct Arrival {
    header: OperationHeader,
    /// The bytes of its input, which may differ in an `all_gather`.
    bytes: usize,
    /// Why the process has given up, as it [tells](FirstFailure::told) others.
    failure: Option<String>,
}

impl SliceCommunicator {
    /// Process `process` of `processes`, each of which speaks through its first one of these
    /// devices.
    ///
    /// # Errors
    /// [`TpuError::Processes`] if one of them has none; if the programs cannot be compiled.
    pub(super) fn over(
        client: &Client,
        devices: &[Device],
        process: usize,
        processes: usize,
        limit: Duration,
    ) -> Result<Self, TpuError> {
        let first_of = |process| {
            let mut devices = devices.iter();
            devices.find(|device| process_of(device) == process)
        };
        let firsts: Vec<&Device> = (0..processes).filter_map(first_of).collect();
        let own = firsts.get(process);
        let (Some(device), true) = (own, firsts.len() == processes) else {
            let cause = "one of them has no device".to_string();
            return Err(TpuError::Processes { processes, cause });
        };
        let group = SliceGroup {
            client: client.clone(),
            device: (*device).clone(),
            assignment: firsts.into_iter().map(global_id).collect(),
            rank: process,
            limit,
            programs: Mutex::default(),
            failure: Mutex::default(),
        };
        // An abort must not have to compile.
        group.program(Combine::Gather, ARRIVAL_WORDS)?;
        Ok(Self {
            group: Arc::new(group),
            sequence: 0,
        })
    }

    fn header(&self, kind: OperationKind) -> OperationHeader {
        OperationHeader::new(kind, 0, self.sequence)
    }

    /// Begins an operation to which this process gives this many bytes: the bytes of all ranks.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`] on all ranks when their headers differ; a root that is no rank
    /// is refused on all of them, and the group goes on.
    fn begin(&mut self, header: &OperationHeader, bytes: usize) -> Result<Vec<usize>> {
        self.group.check_healthy()?;
        let agreed = self.group.agree(header, bytes);
        let sizes = agreed.map_err(|error| self.group.record_failure(error))?;
        self.sequence += 1;
        header.check_root(self.rank(), self.world_size())?;
        Ok(sizes)
    }

    /// The bytes of all ranks, which have these sizes.
    fn gather(
        &self,
        header: &OperationHeader,
        mine: &[u8],
        sizes: &[usize],
    ) -> Result<Vec<Vec<u8>>> {
        let longest = sizes.iter().copied().max().unwrap_or(0);
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); sizes.len()];
        let mut start = 0;
        while start < longest {
            let words = (longest - start)
                .div_ceil(4)
                .min(CHUNK_WORDS)
                .next_power_of_two();
            let mine = words_of(mine, start, words);
            let found = self
                .group
                .combine(Combine::Gather, header, &mine)
                .map_err(|error| self.group.record_failure(error))?;
            for ((words, bytes), size) in found.chunks(words).zip(&mut all).zip(sizes) {
                let missing = (size - bytes.len()).min(words.len() * 4);
                bytes.extend_from_slice(&bytemuck::cast_slice(words)[..missing]);
            }
            start += words * 4;
        }
        Ok(all)
    }

    /// `all_reduce`, `reduce_scatter` and `reduce`: every process gets the whole result.
    fn reduction(
        &mut self,
        header: OperationHeader,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let header = header.with_op(op).with_buffers(self.rank(), buffers)?;
        let mine: Vec<u8> = buffers.iter().flat_map(|b| b.as_bytes().to_vec()).collect();
        let sizes = self.begin(&header, mine.len())?;
        let all = self.gather(&header, &mine, &sizes)?;
        let mut start = 0;
        for buffer in buffers {
            let range = start..start + buffer.size_bytes();
            start = range.end;
            let parts: Vec<&[u8]> = all.iter().map(|bytes| &bytes[range.clone()]).collect();
            match buffer {
                Buffer::F32(out) => reduce_parts(op, &parts, out),
                Buffer::F64(out) => reduce_parts(op, &parts, out),
                Buffer::F16(out) => reduce_parts(op, &parts, out),
                Buffer::BF16(out) => reduce_parts(op, &parts, out),
                Buffer::I32(out) => reduce_parts(op, &parts, out),
                Buffer::I64(out) => reduce_parts(op, &parts, out),
                Buffer::U8(out) => reduce_parts(op, &parts, out),
            }
        }
        Ok(())
    }

    fn refuse(&self, op: OperationKind) -> CollectiveError {
        CollectiveError::InvalidArgument {
            rank: self.group.rank,
            op,
            what: "the devices of a slice exchange values only all together; use a collective \
                   operation"
                .to_string(),
        }
    }
}

impl SliceGroup {
    /// # Errors
    /// That an earlier operation has failed.
    fn check_healthy(&self) -> Result<()> {
        lock(&self.failure).check()
    }

    fn record_failure(&self, error: CollectiveError) -> CollectiveError {
        lock(&self.failure).record(error)
    }

    fn program(&self, combine: Combine, words: usize) -> Result<LoadedExecutable, TpuError> {
        let mut programs = lock(&self.programs);
        if let Some(found) = programs.get(&(combine, words)) {
            return Ok(found.clone());
        }
        let text = program_of(combine, self.assignment.len(), words)
            .map_err(|error| TpuError::Internal(error.to_string()))?;
        let options = CompileOptions::replicas(self.assignment.len())
            .device_assignment(self.assignment.clone());
        let program = self.client.compile(&text, &options)?;
        programs.insert((combine, words), program.clone());
        Ok(program)
    }

    /// Starts a program on these words.
    fn start(&self, combine: Combine, words: &[u32]) -> Result<crate::pjrt::Execution, TpuError> {
        let program = self.program(combine, words.len())?;
        let input = self.client.buffer(words, &[1, words.len()], &self.device)?;
        Ok(program.execute(&[[input]], &ExecuteOptions::default())?)
    }

    /// Compares the headers of all ranks; the bytes that each of them gives.
    fn agree(&self, header: &OperationHeader, bytes: usize) -> Result<Vec<usize>> {
        let own = Arrival {
            header: *header,
            bytes,
            failure: None,
        };
        let words = self.combine(Combine::Gather, header, &own.words())?;
        let (mut headers, mut sizes) = (Vec::new(), Vec::new());
        for (rank, words) in words.chunks(ARRIVAL_WORDS).enumerate() {
            let unreadable = |what: String| CollectiveError::Protocol {
                rank: self.rank,
                peer: rank,
                address: "the devices of the slice".to_string(),
                what,
            };
            let other = Arrival::of(words).map_err(|error| unreadable(error.to_string()))?;
            if let Some(told) = other.failure {
                let heard = FirstFailure::heard(&told, self.assignment.len());
                return Err(heard.unwrap_or_else(|| unreadable(format!("a failure: {told:?}"))));
            }
            headers.push(other.header);
            sizes.push(other.bytes);
        }
        OperationHeader::agree(&headers)?;
        Ok(sizes)
    }

    /// The words of all ranks, combined.
    fn combine(
        &self,
        combine: Combine,
        header: &OperationHeader,
        words: &[u32],
    ) -> Result<Vec<u32>> {
        let lost = |error: TpuError| self.lost(header, &error);
        let broken = |error: PjrtError| lost(error.into());
        let outputs = self.start(combine, words).map_err(lost)?.into_outputs();
        let output = outputs.into_iter().flatten().next();
        let missing = || lost(TpuError::Internal("an exchange has no result".to_string()));
        let output = output.ok_or_else(missing)?;
        if !output.wait_timeout(self.limit).map_err(broken)? {
            let others = (0..self.assignment.len()).filter(|rank| *rank != self.rank);
            return Err(CollectiveError::Timeout {
                missing: others.collect(),
                op: header.kind,
                sequence: header.sequence,
                elapsed: self.limit,
            });
        }
        output.to_vec::<u32>().map_err(broken)
    }

    /// The plugin has failed. The error names no process: this process gives up without blaming
    /// another one.
    fn lost(&self, header: &OperationHeader, error: &TpuError) -> CollectiveError {
        let OperationHeader { kind, sequence, .. } = header;
        CollectiveError::Aborted {
            rank: self.rank,
            reason: format!("its devices failed in operation {sequence} ({kind}): {error}"),
        }
    }
}

impl AbortTarget for SliceGroup {
    /// Tells the others where they wait in an operation of the group. Processes that run a step
    /// learn it from the plugin when this process ends.
    fn abort(&self, rank: usize, reason: &str) {
        if self.check_healthy().is_err() {
            return;
        }
        let reason = reason.to_string();
        self.record_failure(CollectiveError::Aborted { rank, reason });
        let own = Arrival {
            header: OperationHeader::new(OperationKind::Barrier, 0, 0),
            bytes: 0,
            failure: lock(&self.failure).told(self.rank, FAILURE_BYTES),
        };
        // Not waited for: the others may be gone. The plugin runs it when they come.
        if let Err(error) = self.start(Combine::Gather, &own.words()) {
            tracing::warn!(%error, "the other processes were not told of the failure");
        }
    }
}

impl Arrival {
    fn words(&self) -> Vec<u32> {
        let mut words = vec![0; ARRIVAL_WORDS];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        bytes[..OperationHeader::BYTES].copy_from_slice(&self.header.encode());
        let (numbers, text) = bytes[4 * BYTES_WORD..].split_at_mut(12);
        numbers[..8].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        if let Some(told) = &self.failure {
            let length = told.len().min(text.len());
            text[..length].copy_from_slice(&told.as_bytes()[..length]);
            numbers[8..].copy_from_slice(&(length as u32 + 1).to_le_bytes());
        }
        words
    }

    fn of(words: &[u32]) -> Result<Self, HeaderError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let mut header = [0; OperationHeader::BYTES];
        header.copy_from_slice(&bytes[..OperationHeader::BYTES]);
        let own = u64::from(words[BYTES_WORD]) | u64::from(words[BYTES_WORD + 1]) << 32;
        let text = &bytes[4 * (FAILURE_WORD + 1)..];
        let told = (words[FAILURE_WORD] as usize)
            .checked_sub(1)
            .map(|length| String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned());
        Ok(Self {
            header: OperationHeader::decode(&header)?,
            bytes: usize::try_from(own).map_err(|_| HeaderError::Number)?,
            failure: told,
        })
    }
}

impl Communicator for SliceCommunicator {
    fn rank(&self) -> usize {
        self.group.rank
    }

    fn world_size(&self) -> usize {
        self.group.assignment.len()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.reduction(self.header(OperationKind::AllReduce), op, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size(), self.rank());
        self.reduction(self.header(OperationKind::ReduceScatter), op, &mut [buffer])?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        let sizes = self.begin(&header, input.len())?;
        let all = self.gather(&header, input, &sizes)?.concat();
        let memory = output.resize(&sizes);
        let Some(memory) = memory.get_mut(..all.len()) else {
            let reason = format!("there is no memory for the {} bytes of all", all.len());
            let rank = self.rank();
            return Err(self
                .group
                .record_failure(CollectiveError::Aborted { rank, reason }));
        };
        memory.copy_from_slice(&all);
        Ok(())
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self
            .header(OperationKind::Broadcast)
            .with_root(root)
            .with_buffers(self.rank(), buffers)?;
        self.begin(&header, 0)?;
        let is_root = root == self.rank();
        for buffer in buffers {
            let bytes = buffer.as_bytes_mut();
            for part in bytes.chunks_mut(4 * CHUNK_WORDS) {
                let words = part.len().div_ceil(4).next_power_of_two();
                // Zeros and one value add up to the value.
                let mine = words_of(if is_root { part } else { &[] }, 0, words);
                let sum = self
                    .group
                    .combine(Combine::Sum, &header, &mine)
                    .map_err(|error| self.group.record_failure(error))?;
                let size = part.len();
                part.copy_from_slice(&bytemuck::cast_slice(&sum)[..size]);
            }
        }
        Ok(())
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Reduce).with_root(root);
        self.reduction(header, op, buffers)
    }

    fn send(&mut self, _: usize, _: Buffer<'_>) -> Result<()> {
        Err(self.refuse(OperationKind::Send))
    }

    fn recv(&mut self, _: usize, _: Buffer<'_>) -> Result<()> {
        Err(self.refuse(OperationKind::Recv))
    }

    fn barrier(&mut self) -> Result<()> {
        self.begin(&self.header(OperationKind::Barrier), 0)
            .map(drop)
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.group.rank, self.group.clone())
    }

    fn describe(&self) -> Description {
        let why = "the processes of a slice are connected by their devices";
        Description::new("PJRT devices", self.world_size(), why)
    }
}

impl fmt::Debug for SliceCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceCommunicator")
            .field("rank", &self.group.rank)
            .field("devices", &self.group.assignment)
            .finish_non_exhaustive()
    }
}

/// The number of the process that a device belongs to.
pub(super) fn process_of(device: &Device) -> usize {
    usize::try_from(device.description().process_index).unwrap_or(0)
}

pub(super) fn global_id(device: &Device) -> i64 {
    i64::from(device.id())
}

/// A program that combines `[1, words]` of every process.
fn program_of(
    combine: Combine,
    processes: usize,
    words: usize,
) -> std::result::Result<String, StableHloError> {
    let mut builder = Builder::new("exchange", processes);
    let input = builder.input(TensorType::new([1, words], ElementType::U32), None);
    let output = match combine {
        Combine::Gather => builder.all_gather(&input, 0)?,
        Combine::Sum => builder.all_reduce(Binary::Add, &[input])?.swap_remove(0),
    };
    Ok(builder.finish(&[output])?.text)
}

/// `count` words of the bytes from `start` on, with zeros behind the end.
fn words_of(bytes: &[u8], start: usize, count: usize) -> Vec<u32> {
    let mut words = vec![0_u32; count];
    let bytes = bytes.get(start..).unwrap_or_default();
    let length = bytes.len().min(4 * count);
    bytemuck::cast_slice_mut::<u32, u8>(&mut words)[..length].copy_from_slice(&bytes[..length]);
    words
}

fn reduce_parts<T: Element>(op: ReduceOp, parts: &[&[u8]], out: &mut [T]) {
    let typed: Vec<Vec<T>> = parts
        .iter()
        .map(|part| bytemuck::pod_collect_to_vec(part))
        .collect();
    let inputs: Vec<&[T]> = typed.iter().map(Vec::as_slice).collect();
    reduce::reduce_into(op, &inputs, out);
}
