//! The variables that a client knows of.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::placement::{Placement, ShardPlacement};
use crate::server::elements;
use crate::variable::{OptimizerSpec, Variable, VariableRef, VariableSpec};

#[derive(Debug, Default)]
pub(super) struct Catalog(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    variables: BTreeMap<String, VariableRef>,
    next_order: u64,
}

impl Catalog {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clear(&self) {
        *self.lock() = Known::default();
    }

    pub(super) fn get(&self, name: &str) -> Option<VariableRef> {
        self.lock().variables.get(name).cloned()
    }

    /// The number of the next variable in creation order.
    pub(super) fn next_order(&self) -> u64 {
        let mut known = self.lock();
        known.next_order += 1;
        known.next_order - 1
    }

    pub(super) fn insert(
        &self,
        spec: VariableSpec,
        placement: Placement,
        ids: Vec<u32>,
    ) -> VariableRef {
        let variable = VariableRef(Arc::new(Variable {
            spec,
            placement,
            ids,
        }));
        let name = variable.name().to_string();
        self.lock().variables.insert(name, variable.clone());
        variable
    }

    /// Takes in what the servers hold; all variables of which all shards are there, in creation
    /// order.
    pub(super) fn fill(&self, servers: Vec<Vec<wire::Shard>>) -> Result<Vec<VariableRef>> {
        let mut found: BTreeMap<(u64, String), BTreeMap<u32, (usize, wire::Shard)>> =
            BTreeMap::new();
        for (server, shards) in servers.into_iter().enumerate() {
            for shard in shards {
                let key = (shard.order, shard.name.clone());
                found
                    .entry(key)
                    .or_default()
                    .insert(shard.shard, (server, shard));
            }
        }
        let mut variables = Vec::new();
        for ((order, name), shards) in found {
            let whole = shards
                .values()
                .next()
                .map_or(0, |(_, shard)| shard.num_shards);
            if shards.len() != whole as usize {
                continue;
            }
            let known = self.get(&name);
            let variable = match known {
                Some(known) => known,
                None => {
                    let (spec, placement, ids) = variable(shards)?;
                    self.insert(spec, placement, ids)
                }
            };
            let mut known = self.lock();
            known.next_order = known.next_order.max(order + 1);
            variables.push(variable);
        }
        Ok(variables)
    }
}

fn narrow(numbers: &[u64]) -> Vec<usize> {
    let narrow = |number: &u64| usize::try_from(*number).unwrap_or(usize::MAX);
    numbers.iter().map(narrow).collect()
}

/// A variable from its shards.
fn variable(
    shards: BTreeMap<u32, (usize, wire::Shard)>,
) -> Result<(VariableSpec, Placement, Vec<u32>)> {
    let mut spec = None;
    let mut ids = Vec::with_capacity(shards.len());
    let mut places = Vec::with_capacity(shards.len());
    for (server, shard) in shards.into_values() {
        ids.push(shard.id);
        let mut shape = narrow(&shard.shape);
        let rows = narrow(&[shard.rows])[0];
        if spec.is_none() {
            spec = Some(spec_of(&shard, shape.clone())?);
        }
        if let Some(first) = shape.first_mut() {
            *first = rows;
        }
        places.push(ShardPlacement {
            server,
            offset: narrow(&[shard.offset])[0],
            rows,
            shape,
        });
    }
    let spec = spec.ok_or_else(|| PsError::invalid("a variable without shards"))?;
    Ok((spec, Placement { shards: places }, ids))
}

fn spec_of(shard: &wire::Shard, shape: Vec<usize>) -> Result<VariableSpec> {
    let bad = |what: String| PsError::invalid(format!("variable `{}`: {what}", shard.name));
    let optimizer = match shard.optimizer.is_empty() {
        true => None,
        false => Some(OptimizerSpec {
            name: shard.optimizer.clone(),
            config: serde_json::from_str(&shard.config).map_err(|error| bad(error.to_string()))?,
        }),
    };
    let dtype = elements::parse(&shard.dtype);
    Ok(VariableSpec {
        name: shard.name.clone(),
        shape,
        dtype: dtype.ok_or_else(|| bad(format!("unknown element type {}", shard.dtype)))?,
        optimizer,
    })
}

/// One shard of a variable as the server gets to know it.
pub(super) fn describe(
    spec: &VariableSpec,
    placement: &Placement,
    number: usize,
    order: u64,
) -> Result<wire::Shard> {
    let shard = &placement.shards[number];
    let count = |count: usize| u32::try_from(count).map_err(PsError::invalid);
    let (optimizer, config) = match &spec.optimizer {
        Some(optimizer) => (optimizer.name.clone(), optimizer.config.to_string()),
        None => (String::new(), String::new()),
    };
    Ok(wire::Shard {
        name: spec.name.clone(),
        dtype: elements::name(spec.dtype)?.to_string(),
        shape: spec.shape.iter().map(|size| *size as u64).collect(),
        shard: count(number)?,
        num_shards: count(placement.shards.len())?,
        offset: shard.offset as u64,
        rows: shard.rows as u64,
        optimizer,
        config,
        order,
        id: 0,
    })
}
