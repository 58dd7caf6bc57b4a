//! Lookups: rows of a variable with the versions that their gradients are of, and variables that
//! are initialized shard by shard.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use bytes::Bytes;

use crate::client::pull::{one_by_one, pull_of_server};
use crate::client::server::{Call, Server};
use crate::client::tensor::{tensor, tensor_bytes};
use crate::client::{VariableClient, in_parallel};
use crate::error::{PsError, Result};
use crate::server::elements;
use crate::update::{RunId, StalenessPolicy, Versions};
use crate::variable::VariableRef;
use crate::wire::{Assignment, PullRows, Pulled, Request};

/// Rows as they were looked up.
#[derive(Debug, Clone)]
pub(crate) struct PulledRows {
    /// One row per id.
    pub(crate) values: TensorData,
    /// The versions of the shards. One that no row was asked of is 0, unless the run's rules need
    /// its version.
    pub(crate) versions: Versions,
}

impl VariableClient {
    /// Rows of a variable, one per id, in this order; shape: ids, then the variable's without its
    /// first axis. Each row travels once.
    ///
    /// # Errors
    /// [`PsError::Row`], [`PsError::Uninitialized`].
    pub fn pull_rows(&self, variable: &VariableRef, ids: &[u64]) -> Result<TensorData> {
        let mut distinct = ids.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let pulled = self.distinct_rows(variable, &distinct, false)?.values;
        if distinct == ids {
            return Ok(pulled);
        }
        let (rows, width) = (pulled.as_bytes(), variable.row_bytes());
        let mut bytes = Vec::with_capacity(ids.len() * width);
        for id in ids {
            let place = distinct.partition_point(|known| known < id) * width;
            bytes.extend_from_slice(&rows[place..place + width]);
        }
        Ok(tensor(
            bytes,
            variable.rows_shape("pull of rows", ids.len())?,
            variable.dtype(),
        ))
    }

    /// Rows of a variable by ascending ids, each once. `closure` as in [`pull`](Self::pull); call
    /// this before other pulls of the closure.
    pub(crate) fn look_up(
        &self,
        variable: &VariableRef,
        ids: &[u64],
        closure: Option<u64>,
    ) -> Result<PulledRows> {
        let (_, rules) = self.in_run()?;
        variable.check_ids(ids)?;
        if let Some(closure) = closure
            && rules.staleness.map(|rule| rule.policy) == Some(StalenessPolicy::Wait)
        {
            self.queue_up(variable, closure)?;
        }
        let needs_versions = rules.synchronous.is_some() || rules.staleness.is_some();
        self.distinct_rows(variable, ids, needs_versions)
    }

    /// Rows by ascending ids, each once; also the versions of shards without any if `all_shards`.
    fn distinct_rows(
        &self,
        variable: &VariableRef,
        ids: &[u64],
        all_shards: bool,
    ) -> Result<PulledRows> {
        let (run, _) = self.in_run()?;
        let shape = variable.rows_shape("pull of rows", ids.len())?;
        variable.check_ids(ids)?;
        let bf16 = self.inner.options.bf16 && variable.dtype() == DType::F32;
        let width = variable.row_bytes();
        let (mut works, mut places) = (Vec::new(), Vec::new());
        let shards = variable.placement().shards.iter().zip(&variable.0.ids);
        for (number, (shard, id)) in shards.enumerate() {
            let mine = between(ids, shard.offset..shard.offset + shard.rows);
            if mine.is_empty() && !all_shards {
                continue;
            }
            let first = shard.offset as u64;
            let numbers: Vec<u8> = mine
                .iter()
                .flat_map(|id| (id - first).to_le_bytes())
                .collect();
            let request = PullRows {
                bf16,
                id: *id,
                count: mine.len() as u64,
            };
            let bytes = (mine.len() * width) as u64 >> u32::from(bf16);
            let server = self.inner.servers[shard.server].clone();
            places.push(number);
            works.push(rows_of(server, run, request, numbers.into(), bytes));
        }
        let mut versions = Versions(vec![0; variable.placement().shards.len()]);
        let mut rows = Vec::with_capacity(ids.len() * width);
        // Ids ascend, and so do shards: their rows follow each other.
        for (number, (version, bytes)) in places
            .into_iter()
            .zip(self.inner.driver.run(in_parallel(works))?)
        {
            versions.0[number] = version;
            if bf16 {
                rows.extend(elements::widen(&bytes))
            } else {
                rows.extend(bytes)
            }
        }
        Ok(PulledRows {
            values: tensor(rows, shape, variable.dtype()),
            versions,
        })
    }

    /// Lets the servers wait for this closure's push, one after the other from the first server
    /// on: closures that all do it in one order do not wait for each other.
    fn queue_up(&self, variable: &VariableRef, closure: u64) -> Result<()> {
        let (run, _) = self.in_run()?;
        let shards = variable.placement().shards.iter();
        let last = shards.map(|shard| shard.server).max().unwrap_or(0);
        let servers = self.inner.servers.iter().take(last + 1);
        let works: Vec<_> = servers
            .map(|server| {
                let places = Vec::new();
                pull_of_server(server.clone(), run, Some(closure), false, places)
            })
            .collect();
        self.inner.driver.run(one_by_one(works)).map(drop)
    }

    /// Sets the initial value of one shard.
    pub(crate) fn initialize_shard(
        &self,
        variable: &VariableRef,
        number: usize,
        value: TensorData,
    ) -> Result<()> {
        let Some(shard) = variable.placement().shards.get(number) else {
            return Err(PsError::UnknownVariable {
                name: format!("{}, shard {number}", variable.name()),
            });
        };
        variable.check("initialize", &shard.shape, value.dtype(), value.shape())?;
        let piece = variable.piece(number, None, None, tensor_bytes(value), false);
        let op = "initialize";
        let assigned = self.assign_pieces(op, Assignment::Assign, None, variable, vec![piece]);
        assigned.map(drop)
    }
}

/// The part of ascending ids that is in a range.
fn between(ids: &[u64], range: Range<usize>) -> &[u64] {
    let below = |end: usize| ids.partition_point(|id| *id < end as u64);
    &ids[below(range.start)..below(range.end)]
}

async fn rows_of(
    server: Arc<Server>,
    run: RunId,
    request: PullRows,
    numbers: Bytes,
    bytes: u64,
) -> Result<(u64, Vec<u8>)> {
    let payload = if numbers.is_empty() {
        Vec::new()
    } else {
        vec![numbers]
    };
    let call = Call {
        op: "pull rows",
        run,
        request: Request::PullRows(request),
        payload,
        sizes: move |reply: &Pulled| match &reply.got[..] {
            [got] if got.bytes == bytes => Ok(vec![bytes]),
            _ => Err("rows of another size".to_string()),
        },
    };
    let (reply, mut rows): (Pulled, _) = server.call(call).await?;
    let version = reply.got.first().map_or(0, |got| got.counts.version);
    Ok((version, rows.pop().unwrap_or_default()))
}
