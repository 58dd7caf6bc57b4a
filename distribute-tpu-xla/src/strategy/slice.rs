//! The processes of a slice as a group of workers: they exchange values over the devices.
//!
//! A TPU slice's processes are connected by nothing but their devices, as far as this crate knows.
//! So what workers tell each other (initial values, metrics, whether to stop) goes through two
//! small programs on the first device of each process: one gathers words, one adds them up. Every
//! operation begins with a header of each process, in which they find that one makes another call
//! or has given up.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distribute_core::collectives::{
    AbortHandle, AbortTarget, Buffer, CollectiveError, Communicator, DType, Description, Element,
    GatherTarget, OperationKind, ReduceOp, chunk_range, reduce,
};

use super::TpuError;
use crate::pjrt::{Client, CompileOptions, Device, ExecuteOptions, LoadedExecutable, PjrtError};
use crate::stablehlo::{Binary, Builder, ElementType, StableHloError, TensorType};

type Result<T, E = CollectiveError> = std::result::Result<T, E>;

/// The words of a header: numbers, then the reason of an abort as text.
const HEADER_WORDS: usize = 64;
const NUMBER_WORDS: usize = 8;

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

/// What the handle that aborts shares with the communicator.
struct SliceGroup {
    client: Client,
    /// The device of this process that speaks for it.
    device: Device,
    /// The devices that speak for all processes, by their global numbers.
    assignment: Vec<i64>,
    rank: usize,
    limit: Duration,
    programs: Mutex<HashMap<(Combine, usize), LoadedExecutable>>,
    /// The first failure; nothing works after it.
    failure: Mutex<Option<CollectiveError>>,
}

/// What a process says before an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    sequence: u64,
    kind: u32,
    dtype: u32,
    root: u32,
    bytes: usize,
    /// Why the process has given up.
    abort: Option<String>,
}

impl SliceCommunicator {
    /// The rank `rank` of the processes whose devices `assignment` names, one of each process.
    ///
    /// # Errors
    /// If the programs cannot be compiled.
    pub(super) fn new(
        client: Client,
        device: Device,
        assignment: Vec<i64>,
        rank: usize,
        limit: Duration,
    ) -> Result<Self, TpuError> {
        let group = SliceGroup {
            client,
            device,
            assignment,
            rank,
            limit,
            programs: Mutex::default(),
            failure: Mutex::default(),
        };
        // An abort must not have to compile.
        group.program(Combine::Gather, HEADER_WORDS)?;
        Ok(Self {
            group: Arc::new(group),
            sequence: 0,
        })
    }

    /// Begins an operation: the sizes of all ranks.
    fn begin(
        &mut self,
        op: OperationKind,
        dtype: DType,
        root: usize,
        bytes: usize,
    ) -> Result<Vec<usize>> {
        self.group.check_healthy()?;
        let known = DType::ALL.iter().position(|known| *known == dtype);
        let own = Header {
            sequence: self.sequence,
            kind: op as u32,
            dtype: known.unwrap_or_default() as u32,
            root: root as u32,
            bytes,
            abort: None,
        };
        self.sequence += 1;
        let outcome = self.compare(op, &own);
        outcome.map_err(|error| self.group.record_failure(error))
    }

    fn compare(&self, op: OperationKind, own: &Header) -> Result<Vec<usize>> {
        let words = self.group.exchange(op, own.sequence, &own.words())?;
        let mut sizes = Vec::new();
        for (rank, words) in words.chunks(HEADER_WORDS).enumerate() {
            let other = Header::of(words);
            if let Some(reason) = other.abort {
                return Err(CollectiveError::Aborted { rank, reason });
            }
            let same = |header: &Header| (header.sequence, header.kind, header.dtype, header.root);
            if same(&other) != same(own) {
                let what = format!("{own:?} on rank {}, {other:?} there", self.group.rank);
                return Err(CollectiveError::Mismatch {
                    rank_a: self.group.rank.min(rank),
                    rank_b: self.group.rank.max(rank),
                    op,
                    sequence: own.sequence,
                    what,
                });
            }
            sizes.push(other.bytes);
        }
        Ok(sizes)
    }

    /// The bytes of all ranks, which have these sizes.
    fn gather(&self, op: OperationKind, mine: &[u8], sizes: &[usize]) -> Result<Vec<Vec<u8>>> {
        let longest = sizes.iter().copied().max().unwrap_or(0);
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); sizes.len()];
        let mut start = 0;
        while start < longest {
            let words = (longest - start)
                .div_ceil(4)
                .min(CHUNK_WORDS)
                .next_power_of_two();
            let mine = words_of(mine, start, words);
            let found = self.group.exchange(op, self.sequence, &mine);
            let found = found.map_err(|error| self.group.record_failure(error))?;
            for ((words, bytes), size) in found.chunks(words).zip(&mut all).zip(sizes) {
                let missing = (size - bytes.len()).min(words.len() * 4);
                bytes.extend_from_slice(&bytemuck::cast_slice(words)[..missing]);
            }
            start += words * 4;
        }
        Ok(all)
    }

    fn mismatch(&self, op: OperationKind, sizes: &[usize]) -> CollectiveError {
        let other = sizes.iter().position(|size| *size != sizes[0]).unwrap_or(0);
        let error = CollectiveError::Mismatch {
            rank_a: 0,
            rank_b: other,
            op,
            sequence: self.sequence,
            what: format!("{} and {} bytes", sizes[0], sizes[other]),
        };
        self.group.record_failure(error)
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
        match &*locked(&self.failure) {
            None => Ok(()),
            Some(cause) => Err(CollectiveError::Poisoned {
                cause: Box::new(cause.clone()),
            }),
        }
    }

    fn record_failure(&self, error: CollectiveError) -> CollectiveError {
        locked(&self.failure).get_or_insert(error).clone()
    }

    fn program(&self, combine: Combine, words: usize) -> Result<LoadedExecutable, TpuError> {
        let mut programs = locked(&self.programs);
        if let Some(found) = programs.get(&(combine, words)) {
            return Ok(found.clone());
        }
        let text = program_of(combine, self.assignment.len(), words);
        let text = text.map_err(|error| TpuError::Internal(error.to_string()))?;
        let options = CompileOptions::replicas(self.assignment.len());
        let options = options.device_assignment(self.assignment.clone());
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

    /// The words of all ranks, one after the other.
    fn exchange(&self, op: OperationKind, sequence: u64, words: &[u32]) -> Result<Vec<u32>> {
        self.combine(Combine::Gather, op, sequence, words)
    }

    fn combine(
        &self,
        combine: Combine,
        op: OperationKind,
        sequence: u64,
        words: &[u32],
    ) -> Result<Vec<u32>> {
        let lost = |error: TpuError| self.lost(op, sequence, &error);
        let broken = |error: PjrtError| lost(error.into());
        let outputs = self.start(combine, words).map_err(lost)?.into_outputs();
        let output = outputs.into_iter().flatten().next();
        let missing = || lost(TpuError::Internal("an exchange has no result".to_string()));
        let output = output.ok_or_else(missing)?;
        if !output.wait_timeout(self.limit).map_err(broken)? {
            let others = (0..self.assignment.len()).filter(|rank| *rank != self.rank);
            return Err(CollectiveError::Timeout {
                missing: others.collect(),
                op,
                sequence,
                elapsed: self.limit,
            });
        }
        output.to_vec::<u32>().map_err(broken)
    }

    /// The plugin says what happened, but not to whom in a form that is the same in all plugins.
    fn lost(&self, op: OperationKind, sequence: u64, error: &TpuError) -> CollectiveError {
        let reason = error.to_string();
        let named = reason.split_once("rank ").and_then(|(_, rest)| {
            let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
            digits?.parse().ok()
        });
        let other = usize::from(self.rank == 0 && self.assignment.len() > 1);
        CollectiveError::PeerLost {
            rank: named.unwrap_or(other),
            op,
            sequence,
            reason,
        }
    }
}

impl AbortTarget for SliceGroup {
    /// Tells the others where they wait in an operation of the group. Those that run a step learn
    /// it from the plugin when this process ends.
    fn abort(&self, rank: usize, reason: &str) {
        let reason = reason.to_string();
        if self.check_healthy().is_err() {
            return;
        }
        self.record_failure(CollectiveError::Aborted {
            rank,
            reason: reason.clone(),
        });
        let header = Header {
            sequence: 0,
            kind: 0,
            dtype: 0,
            root: 0,
            bytes: 0,
            abort: Some(reason),
        };
        // Not waited for: nobody may be there. The plugin runs it when the others come.
        if let Err(error) = self.start(Combine::Gather, &header.words()) {
            tracing::warn!(%error, "the other processes were not told of the failure");
        }
    }
}

impl Header {
    fn words(&self) -> Vec<u32> {
        let mut words = vec![0; HEADER_WORDS];
        let numbers = [
            self.sequence as u32,
            (self.sequence >> 32) as u32,
            self.kind,
            self.dtype,
            self.root,
            self.bytes as u32,
            (self.bytes as u64 >> 32) as u32,
        ];
        words[..numbers.len()].copy_from_slice(&numbers);
        if let Some(reason) = &self.abort {
            let text = &mut bytemuck::cast_slice_mut::<u32, u8>(&mut words)[4 * NUMBER_WORDS..];
            let length = reason.floor_char_boundary(text.len());
            text[..length].copy_from_slice(&reason.as_bytes()[..length]);
            words[NUMBER_WORDS - 1] = length as u32 + 1;
        }
        words
    }

    fn of(words: &[u32]) -> Self {
        let number = |at: usize| u64::from(words[at]) | (u64::from(words[at + 1]) << 32);
        let text = &bytemuck::cast_slice::<u32, u8>(words)[4 * NUMBER_WORDS..];
        let reason = |length: u32| {
            let length = (length as usize - 1).min(text.len());
            String::from_utf8_lossy(&text[..length]).into_owned()
        };
        Self {
            sequence: number(0),
            kind: words[2],
            dtype: words[3],
            root: words[4],
            bytes: usize::try_from(number(5)).unwrap_or(usize::MAX),
            abort: (words[NUMBER_WORDS - 1] > 0).then(|| reason(words[NUMBER_WORDS - 1])),
        }
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
        let kind = OperationKind::AllReduce;
        let mine: Vec<u8> = buffers.iter().flat_map(|b| b.as_bytes().to_vec()).collect();
        let dtype = buffers.first().map_or(DType::ALL[0], Buffer::dtype);
        let sizes = self.begin(kind, dtype, 0, mine.len())?;
        if sizes.iter().any(|size| *size != mine.len()) {
            return Err(self.mismatch(kind, &sizes));
        }
        let all = self.gather(kind, &mine, &sizes)?;
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

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        let length = buffer.len();
        self.all_reduce(op, &mut [buffer])?;
        Ok(chunk_range(length, self.world_size(), self.rank()))
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let kind = OperationKind::AllGather;
        let sizes = self.begin(kind, dtype, 0, input.len())?;
        let all = self.gather(kind, input, &sizes)?.concat();
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
        let kind = OperationKind::Broadcast;
        let length = buffers.iter().map(Buffer::size_bytes).sum();
        let dtype = buffers.first().map_or(DType::ALL[0], Buffer::dtype);
        let sizes = self.begin(kind, dtype, root, length)?;
        if sizes.iter().any(|size| *size != length) {
            return Err(self.mismatch(kind, &sizes));
        }
        let is_root = root == self.rank();
        for buffer in buffers {
            let bytes = buffer.as_bytes_mut();
            for part in bytes.chunks_mut(4 * CHUNK_WORDS) {
                let words = part.len().div_ceil(4).next_power_of_two();
                // Zeros and one value add up to the value.
                let mine = words_of(if is_root { part } else { &[] }, 0, words);
                let sum = self.group.combine(Combine::Sum, kind, self.sequence, &mine);
                let sum = sum.map_err(|error| self.group.record_failure(error))?;
                let size = part.len();
                part.copy_from_slice(&bytemuck::cast_slice(&sum)[..size]);
            }
        }
        Ok(())
    }

    fn reduce(&mut self, op: ReduceOp, _: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.all_reduce(op, buffers)
    }

    fn send(&mut self, _: usize, _: Buffer<'_>) -> Result<()> {
        Err(self.refuse(OperationKind::Send))
    }

    fn recv(&mut self, _: usize, _: Buffer<'_>) -> Result<()> {
        Err(self.refuse(OperationKind::Recv))
    }

    fn barrier(&mut self) -> Result<()> {
        self.begin(OperationKind::Barrier, DType::ALL[0], 0, 0)
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
    let typed = parts.iter().map(|part| bytemuck::pod_collect_to_vec(part));
    let typed: Vec<Vec<T>> = typed.collect();
    let inputs: Vec<&[T]> = typed.iter().map(Vec::as_slice).collect();
    reduce::reduce_into(op, &inputs, out);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic could leave behind is valid: every change is a single one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
