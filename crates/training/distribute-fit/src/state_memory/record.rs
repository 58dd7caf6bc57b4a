//! A training state as bytes, and back: a head in JSON, then the elements of all tensors.

use std::collections::BTreeSet;
use std::io::{self, Write};

use burn::tensor::TensorData;
use distribute_core::checkpoint::{Checkpoint, Metadata, Section};
use distribute_core::trace::TensorSpec;
use distribute_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::data_state;
use crate::snapshot::RunMetadata;

/// What tells states apart. Workers that hold the same one hold the same bits of all that every
/// replica has alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) batches: u64,
    /// Replicas in sync.
    pub(super) replicas: usize,
    /// CRC-32C of what every replica has alike.
    pub(super) checksum: u32,
}

/// A state, or part of one, that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) identity: Identity,
    /// The replicas whose own tensors are there; without any none are.
    pub(super) replicas: BTreeSet<usize>,
    /// Whether micro-batches wait: then the own tensors of all replicas are needed, with however
    /// many the run goes on.
    pub(super) is_waiting: bool,
}

impl Held {
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let metadata = &checkpoint.metadata;
        let run = RunMetadata::load(checkpoint)?;
        let names = checkpoint.tensors.keys();
        Ok(Self {
            identity: Identity {
                step: metadata.step,
                epoch: metadata.epoch,
                batches: metadata.batches_into_epoch,
                replicas: run.replicas,
                checksum: checksum(checkpoint)?,
            },
            replicas: names.filter_map(|name| Section::replica_of(name)).collect(),
            is_waiting: run.waiting > 0,
        })
    }
}

fn checksum(checkpoint: &Checkpoint) -> Result<u32> {
    let metadata = serde_json::to_vec(&checkpoint.metadata).map_err(Error::internal)?;
    let mut sum = crc32c::crc32c(&metadata);
    let tensors = checkpoint.tensors.iter();
    let is_alike = |name: &str| Section::replica_of(name).is_none() && !data_state::is_state(name);
    for named in tensors.filter(|(name, _)| is_alike(name)) {
        let form = serde_json::to_vec(&form_of(named)).map_err(Error::internal)?;
        sum = crc32c::crc32c_append(sum, &form);
        sum = crc32c::crc32c_append(sum, named.1.as_bytes());
    }
    Ok(sum)
}

/// A tensor without its elements: its name, and what they are.
type Form = (String, TensorSpec);

fn form_of((name, data): (&String, &TensorData)) -> Form {
    (name.clone(), TensorSpec::of(data))
}

/// What stands before the elements.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    metadata: Metadata,
    forms: Vec<Form>,
}

/// A state on its way into bytes.
pub(super) struct Encoded<'a> {
    head: Vec<u8>,
    checkpoint: &'a Checkpoint,
}

impl<'a> Encoded<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> Result<Self> {
        let tensors = checkpoint.tensors.iter();
        let head = Head {
            metadata: checkpoint.metadata.clone(),
            forms: tensors.map(form_of).collect(),
        };
        let head = serde_json::to_vec(&head).map_err(Error::internal)?;
        Ok(Self { head, checkpoint })
    }

    pub(super) fn write_to(&self, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(&(self.head.len() as u64).to_le_bytes())?;
        writer.write_all(&self.head)?;
        let mut tensors = self.checkpoint.tensors.values();
        tensors.try_for_each(|data| writer.write_all(data.as_bytes()))
    }

    pub(super) fn into_bytes(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).map_err(Error::internal)?;
        Ok(bytes)
    }
}

/// The state that bytes are of; `None` if they are of none.
pub(super) fn decode(bytes: &[u8]) -> Option<Checkpoint> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (head, mut rest) = rest.split_at_checked(length)?;
    let Head { metadata, forms } = serde_json::from_slice(head).ok()?;
    let mut checkpoint = Checkpoint::new(metadata);
    for (name, TensorSpec { shape, dtype }) in forms {
        let mut sizes = shape.iter().copied();
        let bytes = sizes.try_fold(dtype.size(), usize::checked_mul)?;
        let (elements, left) = rest.split_at_checked(bytes)?;
        rest = left;
        let data = TensorData::from_bytes_vec(elements.to_vec(), shape, dtype);
        checkpoint.tensors.insert(name, data);
    }
    rest.is_empty().then_some(checkpoint)
}
