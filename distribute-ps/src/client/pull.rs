//! Pulls: values of whole variables, and of some rows.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use burn::tensor::{DType, TensorData};

use crate::client::server::{Call, Server};
use crate::client::{VariableClient, in_parallel};
use crate::error::{PsError, Result};
use crate::server::elements;
use crate::update::{RunId, StalenessPolicy, Versions};
use crate::variable::VariableRef;
use crate::wire::{self, PullItem, PulledItem, Request};

/// A variable as it was pulled.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pulled {
    /// The whole value, or `None` when no shard has changed since the known versions.
    pub value: Option<TensorData>,
    /// The versions of its shards.
    pub versions: Versions,
    /// How often the optimizer was applied to each shard. Unlike versions it may fall: a restore
    /// puts it back.
    pub updates: Versions,
    /// The learning rate that was set in this run, if any, as the first shard's server knows it.
    pub learning_rate: Option<f64>,
}

/// One shard as it was pulled.
pub(super) struct PulledShard {
    got: PulledItem,
    learning_rate: Option<f64>,
    /// Absent when the version is known.
    value: Option<Vec<u8>>,
}

/// Where pulled values go: by variable and shard.
type Collected = BTreeMap<(usize, usize), PulledShard>;

/// One shard of a pull.
pub(super) struct PullPlace {
    place: (usize, usize),
    want: PullItem,
    bytes: usize,
    is_narrow: bool,
}

impl VariableClient {
    /// Current values, each shard at one version.
    ///
    /// `known` is empty or has one entry per variable (an entry may be empty): a variable of which
    /// no shard has changed since is not sent. `closure` names the closure that computes a
    /// gradient of these values: with a staleness bound that waits, servers wait for its push.
    ///
    /// # Errors
    /// [`PsError::Uninitialized`], [`PsError::StalenessTimeout`].
    pub fn pull(
        &self,
        variables: &[VariableRef],
        known: &[Versions],
        closure: Option<u64>,
    ) -> Result<Vec<Pulled>> {
        let mut wanted = Vec::new();
        for (index, variable) in variables.iter().enumerate() {
            let known = known.get(index).map_or(&[][..], |versions| &versions.0);
            let shards = 0..variable.placement().shards.len();
            wanted.extend(shards.map(|shard| (index, shard, known.get(shard).copied())));
        }
        let mut collected = self.pull_shards(variables, &wanted, closure)?;
        // A variable is told whole or not at all.
        let mut missing = Vec::new();
        for (index, variable) in variables.iter().enumerate() {
            let shards = 0..variable.placement().shards.len();
            let is_there = |shard: &usize| collected[&(index, *shard)].value.is_some();
            if shards.clone().any(|shard| is_there(&shard)) {
                let absent = shards.filter(|shard| !is_there(shard));
                missing.extend(absent.map(|shard| (index, shard, None)));
            }
        }
        if !missing.is_empty() {
            collected.extend(self.pull_shards(variables, &missing, None)?);
        }
        let mut entries = collected.into_iter();
        let mut pulled = Vec::with_capacity(variables.len());
        for variable in variables {
            let shards: Vec<PulledShard> = entries
                .by_ref()
                .take(variable.placement().shards.len())
                .map(|(_, shard)| shard)
                .collect();
            let versions = shards
                .iter()
                .map(|shard| shard.got.counts.version)
                .collect();
            let updates = shards
                .iter()
                .map(|shard| shard.got.counts.updates)
                .collect();
            let learning_rate = shards.first().and_then(|shard| shard.learning_rate);
            let values: Option<Vec<Vec<u8>>> =
                shards.into_iter().map(|shard| shard.value).collect();
            let join = |values| variable.join_in(&self.inner.pool, values);
            pulled.push(Pulled {
                value: values.map(join).transpose()?,
                versions: Versions(versions),
                updates: Versions(updates),
                learning_rate,
            });
        }
        Ok(pulled)
    }

    /// Pulls some shards, given as variable, shard and known version.
    fn pull_shards(
        &self,
        variables: &[VariableRef],
        wanted: &[(usize, usize, Option<u64>)],
        closure: Option<u64>,
    ) -> Result<Collected> {
        let (run, rules) = self.in_run()?;
        let bf16 = self.inner.options.bf16;
        let mut per_server: BTreeMap<usize, Vec<PullPlace>> = BTreeMap::new();
        for (variable, shard, known) in wanted {
            let reference = &variables[*variable];
            let placed = &reference.placement().shards[*shard];
            per_server
                .entry(placed.server)
                .or_default()
                .push(PullPlace {
                    place: (*variable, *shard),
                    want: PullItem {
                        id: reference.0.ids[*shard],
                        known: *known,
                    },
                    bytes: reference.shard_bytes(placed),
                    is_narrow: bf16 && reference.dtype() == DType::F32,
                });
        }
        let works: Vec<_> = per_server
            .into_iter()
            .map(|(server, places)| {
                let server = self.inner.servers[server].clone();
                pull_of_server(server, run, closure, bf16, places)
            })
            .collect();
        let bytes = wanted
            .iter()
            .map(|(variable, shard, _)| {
                let variable = &variables[*variable];
                variable.shard_bytes(&variable.placement().shards[*shard])
            })
            .sum();
        self.inner.pool.expect(bytes);
        let waits = |policy| policy == StalenessPolicy::Wait;
        // Waiting for several servers at a time, two workers could wait for each other.
        let in_turn = closure.is_some() && rules.staleness.is_some_and(|rule| waits(rule.policy));
        let all = if in_turn {
            self.inner.driver.run(one_by_one(works))?
        } else {
            self.inner.driver.run(in_parallel(works))?
        };
        Ok(all.into_iter().flatten().collect())
    }

    /// The current value of a variable.
    ///
    /// # Errors
    /// [`PsError::UnknownVariable`], [`PsError::Uninitialized`].
    pub fn read(&self, name: &str) -> Result<TensorData> {
        let variable = self.variable(name)?;
        let pulled = self.pull(&[variable], &[], None)?;
        let value = pulled.into_iter().next().and_then(|pulled| pulled.value);
        value.ok_or_else(|| PsError::Uninitialized {
            name: name.to_string(),
        })
    }
}

pub(super) async fn one_by_one<T, F>(works: Vec<F>) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>>,
{
    let mut done = Vec::with_capacity(works.len());
    for work in works {
        done.push(work.await?);
    }
    Ok(done)
}

pub(super) async fn pull_of_server(
    server: Arc<Server>,
    run: RunId,
    closure: Option<u64>,
    bf16: bool,
    places: Vec<PullPlace>,
) -> Result<Vec<((usize, usize), PulledShard)>> {
    let expected: Vec<u64> = places
        .iter()
        .map(|place| place.bytes as u64 >> u32::from(place.is_narrow))
        .collect();
    let call = Call {
        op: "pull",
        run,
        request: Request::Pull(wire::Pull {
            closure,
            bf16,
            wants: places.iter().map(|place| place.want).collect(),
        }),
        payload: Vec::new(),
        sizes: move |reply: &wire::Pulled| {
            let fits = |(got, bytes): (&PulledItem, &u64)| got.bytes == 0 || got.bytes == *bytes;
            if reply.got.len() == expected.len() && reply.got.iter().zip(&expected).all(fits) {
                Ok(reply.got.iter().map(|got| got.bytes).collect())
            } else {
                Err("values of other sizes than their shards".to_string())
            }
        },
    };
    let (reply, tensors): (wire::Pulled, _) = server.call(call).await?;
    let learning_rate = reply.learning_rate;
    let pulled = places.into_iter().zip(reply.got).zip(tensors);
    let entry = |((place, got), bytes): ((PullPlace, PulledItem), Vec<u8>)| {
        let is_new = place.want.known != Some(got.counts.version);
        let value = is_new.then(|| {
            if place.is_narrow {
                elements::widen(&bytes)
            } else {
                bytes
            }
        });
        let shard = PulledShard {
            got,
            learning_rate,
            value,
        };
        (place.place, shard)
    };
    Ok(pulled.map(entry).collect())
}
