//! Updates that are decided and not applied yet, where stale gradients are refused.
//!
//! An update of several servers is refused by all of them or by none. So it comes in two phases:
//! each server is asked whether its shards take it (`Prepare`), and remembers it if they do; the
//! gradients are sent when all have said yes. What is decided counts as applied for the updates
//! that come after it, and they wait when they would make it staler than the bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::rpc::Peer;
use crate::update::UpdateKey;

/// A shard that an update is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpdateTarget {
    pub(super) shard: u32,
    /// The version that it has.
    pub(super) version: u64,
    /// The version that the gradient was computed at.
    pub(super) base: u64,
}

/// What a server says of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Decided,
    /// The shard is further than the bound allows.
    Stale {
        shard: u32,
        lag: u64,
    },
    /// It would overtake a decided one too often.
    Wait,
}

#[derive(Debug)]
struct Reservation {
    /// The versions that its gradients were computed at, by shard.
    bases: BTreeMap<u32, u64>,
    /// The connection that it came over; it is void when that has ended.
    holder: Weak<Peer>,
}

/// The decided updates of a run.
#[derive(Debug, Default)]
pub(super) struct Reservations(BTreeMap<UpdateKey, Reservation>);

impl Reservations {
    /// Decides about an update. One that was decided before is decided again, with these versions.
    pub(super) fn decide(
        &mut self,
        key: UpdateKey,
        wants: &[UpdateTarget],
        bound: u64,
        holder: &Arc<Peer>,
    ) -> Decision {
        self.0.retain(|_, held| held.holder.strong_count() > 0);
        self.0.remove(&key);
        let others = |shard| {
            self.0
                .values()
                .filter_map(move |held| held.bases.get(&shard))
        };
        let mut is_overtaking = false;
        for want in wants {
            // Where the shard will be when the others are applied.
            let ahead = want.version + others(want.shard).count() as u64;
            let lag = ahead.saturating_sub(want.base);
            if lag > bound {
                let shard = want.shard;
                return Decision::Stale { shard, lag };
            }
            is_overtaking |= others(want.shard).any(|base| ahead.saturating_sub(*base) > bound);
        }
        if is_overtaking {
            return Decision::Wait;
        }
        let bases = wants.iter().map(|want| (want.shard, want.base)).collect();
        let holder = Arc::downgrade(holder);
        self.0.insert(key, Reservation { bases, holder });
        Decision::Decided
    }

    /// The update is applied, or will not come.
    pub(super) fn release(&mut self, key: UpdateKey) {
        self.0.remove(&key);
    }

    /// No update of these closures will come.
    pub(super) fn release_closures(&mut self, closures: impl Fn(u64) -> bool) {
        self.0.retain(|(closure, _), _| !closures(*closure));
    }
}
