//! The whole state of a server, at one moment, and back.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::rpc::message::Outgoing;
use crate::rpc::rope::Rope;
use crate::server::segments::Segments;
use crate::server::shard::Shard;
use crate::server::store::Run;

/// All shards with their slots. Pushes that are being applied are waited for, later ones change
/// copies: none is in it half.
pub(super) fn take(run: &Run) -> Outgoing {
    let closed = run.closed();
    let mut header = wire::State {
        learning_rate: run.learning_rate(),
        ..wire::State::default()
    };
    let mut tensors: Vec<Segments> = Vec::new();
    for shard in run.shards() {
        let state = shard.state();
        let has_slots = !state.slots.is_empty();
        let names = if has_slots { shard.slots() } else { &[] };
        header.shards.push(wire::ShardStateHeader {
            id: shard.wire.id,
            version: state.version,
            updates: state.updates,
            initialized: state.value.is_some(),
            slots: names.iter().map(ToString::to_string).collect(),
        });
        if let Some(value) = &state.value {
            tensors.push(value.clone());
            tensors.extend(state.slots.iter().cloned());
        }
    }
    drop(closed);
    let payload: Vec<Bytes> = tensors.iter().flat_map(Segments::bytes).collect();
    Outgoing::new(&header, payload)
}

/// What a restore puts where.
pub(super) struct Plan {
    shards: Vec<(Arc<Shard>, wire::ShardStateHeader)>,
}

impl Plan {
    /// Checks the announcement.
    pub(super) fn new(run: &Run, state: &wire::State) -> Result<Self> {
        let mut shards = Vec::with_capacity(state.shards.len());
        for header in &state.shards {
            let shard = run.shard(header.id)?;
            let own = shard.slots();
            let is_own = |slot: &String| own.contains(&slot.as_str());
            let count = header.slots.len();
            if count != 0 && (count != own.len() || !header.slots.iter().all(is_own)) {
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
        let sizes = self.shards.iter().flat_map(|(shard, header)| {
            let count = match header.initialized {
                true => 1 + header.slots.len(),
                false => 0,
            };
            std::iter::repeat_n(shard.bytes as u64, count)
        });
        sizes.collect()
    }

    /// Puts everything into its place. Versions go on from the server's own, so that no client
    /// takes a restored value for one that it has.
    pub(super) fn restore(self, run: &Run, tensors: Vec<Rope>, learning_rate: Option<f64>) {
        let _closed = run.closed();
        let mut tensors = tensors.iter().map(Segments::from_rope);
        for (shard, header) in self.shards {
            let mut state = shard.state();
            if header.initialized {
                state.value = tensors.next();
                let came: Vec<Segments> = tensors.by_ref().take(header.slots.len()).collect();
                let own = shard.slots();
                let named = |slot: &&str| header.slots.iter().position(|name| name == slot);
                let in_order = own.iter().filter_map(named);
                state.slots = in_order.map(|place| came[place].clone()).collect();
            }
            state.updates = header.updates;
            let version = header.version.max(state.version + 1);
            state.replaced(version);
        }
        if learning_rate.is_some() {
            run.set_learning_rate(learning_rate);
        }
    }
}
