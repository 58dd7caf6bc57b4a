//! The variables that a client knows of.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{PsError, Result};
use crate::placement::{Placement, ShardPlacement};
use crate::server::elements;
use crate::variable::{Variable, VariableRef, VariableSpec};
use crate::wire::ShardSpec;

#[derive(Debug, Default)]
pub(super) struct Catalog(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    variables: BTreeMap<String, VariableRef>,
    next_order: u64,
}

impl Catalog {
    pub(super) fn clear(&self) {
        *self.0.lock() = Known::default();
    }

    pub(super) fn get(&self, name: &str) -> Option<VariableRef> {
        self.0.lock().variables.get(name).cloned()
    }

    /// The number of the next variable in creation order.
    pub(super) fn next_order(&self) -> u64 {
        let mut known = self.0.lock();
        let order = known.next_order;
        known.next_order = order.saturating_add(1);
        order
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
        self.0.lock().variables.insert(name, variable.clone());
        variable
    }

    /// Takes in what the servers hold; all variables of which all shards are there, in creation
    /// order.
    pub(super) fn fill(&self, servers: Vec<Vec<ShardSpec>>) -> Result<Vec<VariableRef>> {
        let mut found: BTreeMap<(u64, String), BTreeMap<u32, (usize, ShardSpec)>> = BTreeMap::new();
        for (server, shards) in servers.into_iter().enumerate() {
            for shard in shards {
                let key = (shard.order, shard.variable.name.clone());
                let known = found.entry(key).or_default();
                known.insert(shard.number, (server, shard));
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
            let variable = match self.get(&name) {
                Some(known) => known,
                None => {
                    let (spec, placement, ids) = variable(shards)?;
                    self.insert(spec, placement, ids)
                }
            };
            let mut known = self.0.lock();
            known.next_order = known.next_order.max(order.saturating_add(1));
            variables.push(variable);
        }
        Ok(variables)
    }
}

/// A variable from its shards.
fn variable(
    shards: BTreeMap<u32, (usize, ShardSpec)>,
) -> Result<(VariableSpec, Placement, Vec<u32>)> {
    let first = shards.values().next().map(|(_, shard)| &shard.variable);
    let spec = first
        .cloned()
        .ok_or_else(|| PsError::invalid("a variable without shards"))?;
    elements::check(spec.dtype)?;
    let mut ids = Vec::with_capacity(shards.len());
    let mut places = Vec::with_capacity(shards.len());
    for (server, shard) in shards.into_values() {
        shard.sizes()?;
        ids.push(shard.id);
        let ShardSpec { offset, rows, .. } = shard;
        places.push(ShardPlacement::new(
            server,
            offset,
            rows,
            &shard.variable.shape,
        ));
    }
    Ok((spec, Placement { shards: places }, ids))
}

/// One shard of a variable as the server gets to know it.
pub(super) fn describe(
    spec: &VariableSpec,
    placement: &Placement,
    number: usize,
    order: u64,
) -> Result<ShardSpec> {
    let shard = &placement.shards[number];
    let count = |count: usize| u32::try_from(count).map_err(PsError::invalid);
    elements::check(spec.dtype)?;
    Ok(ShardSpec {
        variable: spec.clone(),
        number: count(number)?,
        num_shards: count(placement.shards.len())?,
        offset: shard.offset,
        rows: shard.rows,
        order,
        id: 0,
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    fn shard() -> ShardSpec {
        ShardSpec::whole("w", DType::F32, &[4, 2])
    }

    #[test]
    fn a_variable_with_the_last_number_is_one() {
        let order = u64::MAX;
        let catalog = Catalog::default();
        let found = catalog.fill(vec![vec![ShardSpec { order, ..shard() }]]);
        assert_eq!(found.unwrap().len(), 1);
        assert_eq!((catalog.next_order(), catalog.next_order()), (order, order));
    }

    #[test]
    fn sizes_beyond_all_bounds_are_refused() {
        let giant = ShardSpec::whole("w", DType::F32, &[usize::MAX, 2]);
        let offset = usize::MAX;
        let beyond = ShardSpec { offset, ..shard() };
        for shard in [giant, beyond] {
            let error = Catalog::default().fill(vec![vec![shard]]).unwrap_err();
            assert!(error.to_string().contains("cannot have"), "{error}");
        }
        let scalar = ShardSpec::whole("w", DType::F32, &[]);
        assert!(Catalog::default().fill(vec![vec![scalar]]).is_ok());
    }
}
