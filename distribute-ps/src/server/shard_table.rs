//! The shards that a server holds, and how much memory they may have.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{PsError, Result};
use crate::server::ServerOptions;
use crate::server::elements;
use crate::server::shard::Shard;
use crate::wire::ShardSpec;

/// The shards of a run.
#[derive(Debug, Default)]
pub(super) struct ShardTable(RwLock<Held>);

#[derive(Debug, Default)]
struct Held {
    shards: Vec<Arc<Shard>>,
    names: BTreeSet<(String, u32)>,
    bytes: u64,
}

impl ShardTable {
    /// Takes in new shards, all or none.
    pub(super) fn create(
        &self,
        shards: Vec<ShardSpec>,
        options: &ServerOptions,
    ) -> Result<Vec<u32>> {
        let mut table = self.0.write();
        let mut bytes = table.bytes;
        let mut made: Vec<Shard> = Vec::with_capacity(shards.len());
        for shard in shards {
            let key = self::key(&shard);
            if table.names.contains(&key) || made.iter().any(|made| self::key(&made.spec) == key) {
                return Err(PsError::VariableExists { name: key.0 });
            }
            let shard = checked(shard, options)?;
            // A slot is as large as the value.
            let tensors = 1 + shard.slots().len() as u64;
            bytes = bytes.saturating_add(shard.bytes as u64 * tensors);
            if bytes > options.max_memory_bytes {
                return Err(PsError::TooLarge {
                    what: format!("all variables of the server, with `{}`,", shard.name()),
                    bytes,
                    limit: options.max_memory_bytes,
                    option: "max_memory_bytes",
                });
            }
            made.push(shard);
        }
        if table.shards.len() + made.len() > options.max_variables {
            return Err(PsError::Full {
                what: format!(
                    "it holds at most {} shards; raise `ServerOptions::max_variables`",
                    options.max_variables
                ),
            });
        }
        table.bytes = bytes;
        let mut ids = Vec::with_capacity(made.len());
        for mut shard in made {
            let id = u32::try_from(table.shards.len()).map_err(PsError::invalid)?;
            shard.spec.id = id;
            ids.push(id);
            table.names.insert(key(&shard.spec));
            table.shards.push(Arc::new(shard));
        }
        Ok(ids)
    }

    /// All shards in creation order.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        self.0.read().shards.clone()
    }

    /// A shard by its number.
    pub(super) fn shard(&self, id: u32) -> Result<Arc<Shard>> {
        let table = self.0.read();
        table
            .shards
            .get(id as usize)
            .cloned()
            .ok_or_else(|| PsError::UnknownVariable {
                name: format!("#{id}"),
            })
    }
}

fn key(shard: &ShardSpec) -> (String, u32) {
    (shard.variable.name.clone(), shard.number)
}

/// A shard whose description makes sense and keeps to the limits.
fn checked(shard: ShardSpec, options: &ServerOptions) -> Result<Shard> {
    let variable = &shard.variable;
    elements::check(variable.dtype)?;
    let (bytes, row_bytes) = shard.sizes()?;
    if bytes as u64 > options.max_shard_bytes {
        return Err(PsError::TooLarge {
            what: format!("shard {} of variable `{}`", shard.number, variable.name),
            bytes: bytes as u64,
            limit: options.max_shard_bytes,
            option: "max_shard_bytes",
        });
    }
    if variable.optimizer.is_some() && !variable.dtype.is_float() {
        return Err(PsError::invalid(format!(
            "variable `{}`: only variables of a float type have an optimizer",
            variable.name
        )));
    }
    let build = |spec| options.optimizers.build(spec);
    let optimizer = variable.optimizer.as_ref().map(build).transpose()?;
    Ok(Shard::new(shard, bytes, row_bytes, optimizer))
}
