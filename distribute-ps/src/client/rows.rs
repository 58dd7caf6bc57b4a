//! Lookups: rows of a variable with the versions that their gradients are of, and variables that
//! are initialized shard by shard.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use bytes::Bytes;

use crate::client::pull::{one_by_one, pull_of_server};
use crate::client::server::{Call, Server};
use crate::client::split::Piece;
use crate::client::tensor::{tensor, tensor_bytes};
use crate::client::{VariableClient, in_parallel};
use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::server::elements;
use crate::update::{StalenessPolicy, Versions};
use crate::variable::VariableRef;

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
    /// Rows of a variable by ascending ids, each once. `closure` as in [`pull`](Self::pull); call
    /// this before other pulls of the closure.
    pub(crate) fn look_up(
        &self,
        variable: &VariableRef,
        ids: &[u64],
        closure: Option<u64>,
    ) -> Result<PulledRows> {
        let (run, rules) = self.in_run()?;
        variable.check_ids(ids)?;
        if let Some(closure) = closure
            && rules.staleness.map(|rule| rule.policy) == Some(StalenessPolicy::Wait)
        {
            self.queue_up(variable, closure)?;
        }
        let needs_versions = rules.synchronous.is_some() || rules.staleness.is_some();
        let bf16 = self.inner.options.bf16 && variable.dtype() == DType::F32;
        let width = variable.row_bytes();
        let (mut works, mut places) = (Vec::new(), Vec::new());
        let shards = variable.placement().shards.iter().zip(&variable.0.ids);
        for (number, (shard, id)) in shards.enumerate() {
            let mine = between(ids, shard.offset..shard.offset + shard.rows);
            if mine.is_empty() && !needs_versions {
                continue;
            }
            let first = shard.offset as u64;
            let numbers: Vec<u8> = mine
                .iter()
                .flat_map(|id| (id - first).to_le_bytes())
                .collect();
            let request = wire::PullRows {
                run: run.clone(),
                bf16,
                id: *id,
                count: mine.len() as u64,
            };
            let bytes = (mine.len() * width) as u64 >> u32::from(bf16);
            let server = self.inner.servers[shard.server].clone();
            places.push(number);
            works.push(rows_of(server, request, numbers.into(), bytes));
        }
        let mut versions = Versions(vec![0; variable.placement().shards.len()]);
        let mut rows = Vec::with_capacity(ids.len() * width);
        // Ids ascend, and so do shards: their rows follow each other.
        for (number, (version, bytes)) in places
            .into_iter()
            .zip(self.inner.driver.run(in_parallel(works))?)
        {
            versions.0[number] = version;
            match bf16 {
                true => rows.extend(elements::widen(&bytes)),
                false => rows.extend(bytes),
            }
        }
        let mut shape = variable.shape().to_vec();
        if let Some(first) = shape.first_mut() {
            *first = ids.len();
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
        let works = servers.map(|server| {
            let places = Vec::new();
            pull_of_server(server.clone(), run.clone(), Some(closure), false, places)
        });
        let works: Vec<_> = works.collect();
        self.inner.driver.run(one_by_one(works)).map(drop)
    }

    /// Sets the initial value of one shard.
    pub(crate) fn initialize_shard(
        &self,
        variable: &VariableRef,
        number: usize,
        value: TensorData,
    ) -> Result<()> {
        let (run, _) = self.in_run()?;
        let shards = &variable.placement().shards;
        let Some(shard) = shards.get(number) else {
            return Err(PsError::UnknownVariable {
                name: format!("{}, shard {number}", variable.name()),
            });
        };
        if value.shape()[..] != shard.shape[..] {
            return Err(PsError::Shape {
                op: "initialize",
                name: variable.name().to_string(),
                expected: shard.shape.clone(),
                found: value.shape().to_vec(),
            });
        }
        let dtype = elements::name(value.dtype())?.to_string();
        let payload = tensor_bytes(value);
        let piece = Piece {
            server: shard.server,
            shard: number,
            part: wire::Part {
                id: variable.0.ids[number],
                base: None,
                rows: None,
                bytes: payload.len() as u64,
                dtype,
            },
            payload: vec![payload],
        };
        let (pieces, counts) = (vec![(0, piece)], vec![shards.len()]);
        let header = |parts| wire::Assign {
            run: run.clone(),
            closure: None,
            sequence: 0,
            operation: 0,
            parts,
        };
        let sent = self.send_parts("initialize", path!("Assign"), pieces, counts, header);
        sent.map(drop)
    }
}

/// The part of ascending ids that is in a range.
fn between(ids: &[u64], range: Range<usize>) -> &[u64] {
    let below = |end: usize| ids.partition_point(|id| *id < end as u64);
    &ids[below(range.start)..below(range.end)]
}

async fn rows_of(
    server: Arc<Server>,
    request: wire::PullRows,
    numbers: Bytes,
    bytes: u64,
) -> Result<(u64, Vec<u8>)> {
    let payload = match numbers.is_empty() {
        true => Vec::new(),
        false => vec![numbers],
    };
    let call = Call {
        op: "pull rows",
        path: path!("PullRows"),
        header: request,
        payload,
        sizes: move |reply: &wire::Pulled| match &reply.got[..] {
            [got] if got.bytes == bytes => Ok(vec![bytes]),
            _ => Err("rows of another size".to_string()),
        },
        may_repeat: true,
    };
    let (reply, mut rows): (wire::Pulled, _) = server.call(call).await?;
    let version = reply.got.first().map_or(0, |got| got.version);
    Ok((version, rows.pop().unwrap_or_default()))
}
