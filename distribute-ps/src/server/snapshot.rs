//! The whole state of a server, at one moment, and back.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{PsError, Result};
use crate::rpc::rope::Rope;
use crate::server::segments::Segments;
use crate::server::shard::Shard;
use crate::server::shard_table::ShardTable;
use crate::server::store::Run;
use crate::wire::{ShardState, State};

/// No variable is ever updated so often: the counts go on from there without an overflow.
const COUNT_MAX: u64 = u64::MAX / 2;

/// All shards with their slots. Pushes that are being applied are waited for, later ones change
/// copies: none is in it half.
pub(super) fn take(run: &Run) -> (State, Vec<Bytes>) {
    let closed = run.closed();
    let mut all = State {
        learning_rate: run.learning_rate(),
        shards: Vec::new(),
    };
    let mut tensors: Vec<Segments> = Vec::new();
    for shard in run.table.shards() {
        let state = shard.state();
        let mut slots = state.slots.clone();
        if let (true, Some(value), Some(built)) = (slots.is_empty(), &state.value, &shard.optimizer)
            && !built.starts_at_zero()
        {
            // No update has come, perhaps only to this shard. Zeros need not be sent.
            slots = built.new_slots(value, shard.bytes, shard.dtype);
        }
        let names = shard.slots().iter().take(slots.len());
        all.shards.push(ShardState {
            id: shard.spec.id,
            counts: state.counts,
            is_initialized: state.value.is_some(),
            slots: names.map(ToString::to_string).collect(),
        });
        if let Some(value) = &state.value {
            tensors.push(value.clone());
            tensors.extend(slots);
        }
    }
    drop(closed);
    (all, tensors.iter().flat_map(Segments::bytes).collect())
}

/// What a restore puts where.
pub(super) struct Plan {
    shards: Vec<(Arc<Shard>, ShardState)>,
}

impl Plan {
    /// Checks the announcement.
    pub(super) fn new(table: &ShardTable, state: &State) -> Result<Self> {
        let mut shards = Vec::with_capacity(state.shards.len());
        for header in &state.shards {
            let shard = table.shard(header.id)?;
            let most = header.counts.version.max(header.counts.updates);
            if most > COUNT_MAX {
                return Err(PsError::invalid(format!(
                    "restore of variable `{}`: it cannot have been updated {most} times",
                    shard.name()
                )));
            }
            let own = shard.slots();
            let mut named: Vec<&str> = header.slots.iter().map(String::as_str).collect();
            named.sort_by_key(|slot| own.iter().position(|own| own == slot));
            if !named.is_empty() && named != own {
                return Err(PsError::invalid(format!(
                    "restore of variable `{}`: its optimizer has the slots {own:?}, not {:?}",
                    shard.name(),
                    header.slots
                )));
            }
            shards.push((shard, header.clone()));
        }
        Ok(Self { shards })
    }

    /// The bytes of each tensor, in the order of the payload.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let shards = self.shards.iter();
        let sizes = shards.map(|(shard, header)| (shard.bytes as u64, header.tensors()));
        sizes
            .flat_map(|(bytes, count)| std::iter::repeat_n(bytes, count))
            .collect()
    }

    /// Puts everything into its place. Versions go on from the server's own, so that no client
    /// takes a restored value for one that it has.
    pub(super) fn restore(self, run: &Run, tensors: Vec<Rope>, learning_rate: Option<f64>) {
        let _closed = run.closed();
        let mut tensors = tensors.iter().map(Segments::from_rope);
        for (shard, header) in self.shards {
            let mut state = shard.state();
            if header.is_initialized {
                state.value = tensors.next();
                let came: Vec<Segments> = tensors.by_ref().take(header.slots.len()).collect();
                let own = shard.slots();
                let named = |slot: &&str| header.slots.iter().position(|name| name == slot);
                let in_order = own.iter().filter_map(named);
                state.slots = in_order.map(|place| came[place].clone()).collect();
            }
            state.counts.updates = header.counts.updates;
            let version = header.counts.version.max(state.counts.version + 1);
            state.replaced(version);
        }
        if learning_rate.is_some() {
            run.set_learning_rate(learning_rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use distribute_core::Adam;

    use super::*;
    use crate::server::ServerOptions;
    use crate::variable::OptimizerSpec;
    use crate::wire::ShardSpec;

    /// A variable whose optimizer has two slots.
    fn table() -> ShardTable {
        let table = ShardTable::default();
        let mut shard = ShardSpec::whole("w", DType::F32, &[2]);
        shard.variable.optimizer = Some(OptimizerSpec::of(&Adam::new(0.1)));
        table
            .create(vec![shard], &ServerOptions::default())
            .unwrap();
        table
    }

    fn refused(change: impl FnOnce(&mut ShardState)) -> Option<String> {
        let mut header = ShardState::default();
        change(&mut header);
        let state = State {
            shards: vec![header],
            ..State::default()
        };
        Plan::new(&table(), &state)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn slots_are_restored_each_once_in_any_order() {
        let of = |slots: &[&str]| {
            let slots = slots.iter().map(ToString::to_string).collect();
            refused(|header| header.slots = slots)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["momentum", "velocity"]), None);
        assert_eq!(of(&["velocity", "momentum"]), None);
        for wrong in [&["momentum"; 2][..], &["momentum"], &["momentum", "m"]] {
            assert!(of(wrong).unwrap().contains("has the slots"), "{wrong:?}");
        }
    }

    #[test]
    fn counts_that_could_not_go_on_are_refused() {
        let message = refused(|header| header.counts.updates = u64::MAX).unwrap();
        assert!(message.contains("18446744073709551615 times"), "{message}");
        assert!(refused(|header| header.counts.version = u64::MAX).is_some());
        assert_eq!(
            refused(|header| header.counts.updates = i64::MAX as u64),
            None
        );
    }
}
