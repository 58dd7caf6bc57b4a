//! Cuts values and gradients along the shards, and puts what comes back together.

use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use bytes::Bytes;

use crate::client::pool::Pool;
use crate::client::tensor::{tensor, tensor_bytes};
use crate::error::{PsError, Result};
use crate::placement::ShardPlacement;
use crate::server::elements;
use crate::update::Gradient;
use crate::variable::VariableRef;
use crate::wire::Part;

/// A part of a request for one server.
pub(super) struct Piece {
    pub(super) server: usize,
    /// The shard's number within its variable.
    pub(super) shard: usize,
    pub(super) part: Part,
    pub(super) payload: Vec<Bytes>,
}

impl VariableRef {
    /// Bytes of one row (of the only element for a scalar).
    pub(super) fn row_bytes(&self) -> usize {
        let others = self.shape().get(1..).unwrap_or_default();
        others.iter().product::<usize>() * self.dtype().size()
    }

    pub(super) fn shard_bytes(&self, shard: &ShardPlacement) -> usize {
        shard.rows * self.row_bytes()
    }

    /// Refuses what has another type, or another shape than is `expected` of it.
    pub(crate) fn check(
        &self,
        op: &'static str,
        expected: &[usize],
        dtype: DType,
        shape: &[usize],
    ) -> Result<()> {
        let name = || self.name().to_string();
        if dtype != self.dtype() {
            return Err(PsError::DType {
                op,
                name: name(),
                expected: self.dtype().name().to_string(),
                found: dtype.name().to_string(),
            });
        }
        if shape == expected {
            Ok(())
        } else {
            Err(PsError::Shape {
                op,
                name: name(),
                expected: expected.to_vec(),
                found: shape.to_vec(),
            })
        }
    }

    /// A value of the whole variable, cut along its shards.
    pub(super) fn cut(
        &self,
        op: &'static str,
        value: TensorData,
        base: &[u64],
        bf16: bool,
    ) -> Result<Vec<Piece>> {
        self.check(op, self.shape(), value.dtype(), value.shape())?;
        let bytes = tensor_bytes(value);
        let shards = self.placement().shards.iter().enumerate();
        let pieces = shards.map(|(number, shard)| {
            let begin = shard.offset * self.row_bytes();
            let slice = bytes.slice(begin..begin + self.shard_bytes(shard));
            self.piece(number, base.get(number).copied(), None, slice, bf16)
        });
        Ok(pieces.collect())
    }

    /// What is sent of one shard: values, perhaps narrowed on their way, after the row numbers of a
    /// sparse gradient.
    pub(super) fn piece(
        &self,
        number: usize,
        base: Option<u64>,
        rows: Option<Bytes>,
        values: Bytes,
        bf16: bool,
    ) -> Piece {
        let (values, dtype) = if bf16 && self.dtype() == DType::F32 {
            (elements::narrow(&values).into(), DType::BF16)
        } else {
            (values, self.dtype())
        };
        Piece {
            server: self.placement().shards[number].server,
            shard: number,
            part: Part {
                id: self.0.ids[number],
                base,
                rows: rows.as_ref().map(|rows| rows.len() as u64 / 8),
                bytes: values.len() as u64,
                dtype,
            },
            payload: rows.into_iter().chain([values]).collect(),
        }
    }

    /// A gradient, cut along the shards that it concerns.
    pub(super) fn cut_gradient(
        &self,
        gradient: Gradient,
        base: &[u64],
        bf16: bool,
    ) -> Result<Vec<Piece>> {
        let (ids, rows, all_shards) = match gradient {
            Gradient::Dense(value) => return self.cut("push", value, base, bf16),
            Gradient::Sparse { ids, rows } => (ids, rows, false),
            Gradient::Table { ids, rows } => (ids, rows, true),
        };
        let expected = self.rows_shape("push", ids.len())?;
        self.check("push", &expected, rows.dtype(), rows.shape())?;
        self.check_ids(&ids)?;
        let bytes = tensor_bytes(rows);
        let mut pieces = Vec::new();
        for (number, shard) in self.placement().shards.iter().enumerate() {
            let (numbers, values) = match self.rows_of(shard, &ids, &bytes) {
                Some(rows) => rows,
                None if all_shards => <(Bytes, Bytes)>::default(),
                None => continue,
            };
            let base = base.get(number).copied();
            pieces.push(self.piece(number, base, Some(numbers), values, bf16));
        }
        Ok(pieces)
    }

    /// The ids (within the shard) and rows that belong to a shard; `None` if there are none.
    fn rows_of(
        &self,
        shard: &ShardPlacement,
        ids: &[u64],
        bytes: &Bytes,
    ) -> Option<(Bytes, Bytes)> {
        let range = shard.offset as u64..(shard.offset + shard.rows) as u64;
        let width = self.row_bytes();
        let mut numbers = Vec::new();
        let mut values = Vec::new();
        if ids.iter().all(|id| range.contains(id)) {
            let local = ids.iter().flat_map(|id| (id - range.start).to_le_bytes());
            let numbers: Vec<u8> = local.collect();
            return (!ids.is_empty()).then(|| (numbers.into(), bytes.clone()));
        }
        for (index, id) in ids.iter().enumerate() {
            if range.contains(id) {
                numbers.extend((id - range.start).to_le_bytes());
                values.extend_from_slice(&bytes[index * width..(index + 1) * width]);
            }
        }
        (!numbers.is_empty()).then(|| (numbers.into(), values.into()))
    }

    /// The shape of this many rows.
    pub(super) fn rows_shape(&self, op: &str, rows: usize) -> Result<Vec<usize>> {
        let mut shape = self.shape().to_vec();
        match shape.first_mut() {
            Some(first) => *first = rows,
            None => return Err(PsError::invalid(format!("{op}: a scalar has no rows"))),
        }
        Ok(shape)
    }

    pub(super) fn check_ids(&self, ids: &[u64]) -> Result<()> {
        let rows = self.shape().first().copied().unwrap_or(0) as u64;
        match ids.iter().find(|id| **id >= rows) {
            None => Ok(()),
            Some(row) => Err(PsError::Row {
                name: self.name().to_string(),
                row: *row,
                rows,
            }),
        }
    }

    /// The tensor of all shards' bytes.
    pub(super) fn join(&self, mut shards: Vec<Vec<u8>>) -> TensorData {
        let bytes = match shards.len() {
            1 => shards.swap_remove(0),
            _ => shards.concat(),
        };
        tensor(bytes, self.shape().to_vec(), self.dtype())
    }

    /// The same in memory of a pool, where the shards' memory goes.
    pub(super) fn join_in(&self, pool: &Arc<Pool>, mut shards: Vec<Vec<u8>>) -> Result<TensorData> {
        let bytes = match shards.len() {
            1 => shards.swap_remove(0),
            _ => {
                let count = shards.iter().map(Vec::len).sum();
                let no_memory = |error| PsError::system("no memory for a pulled value", error);
                let mut whole = pool.take(count).map_err(no_memory)?;
                for shard in shards {
                    whole.extend_from_slice(&shard);
                    pool.put(shard);
                }
                whole
            }
        };
        Ok(pool.lend(bytes, self.shape().to_vec(), self.dtype()))
    }
}
