//! Shared by the tests: groups whose ranks are threads, each with a mapping of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::communicator::AbortTarget;
use crate::error::{CollectiveError, Result};
use crate::failure::{Failure, FailureKind};
use crate::options::GroupOptions;
use crate::shared_memory::{
    LocalGroup, LocalIdentity, LocalTransport, Settings, SharedMemoryCommunicator, establish,
    find_leader, passing::Offer,
};
use crate::status::GroupStatus;
use crate::testing::{Random, on_threads};

/// Stands for the control plane: tells all ranks.
pub(crate) struct TellAll(pub(crate) Vec<Arc<GroupStatus>>);

impl AbortTarget for TellAll {
    fn abort(&self, rank: usize, reason: &str) {
        let reason = reason.to_string();
        for status in &self.0 {
            status.record_failure(Failure {
                kind: FailureKind::Ended(CollectiveError::Aborted {
                    rank,
                    reason: reason.clone(),
                }),
                from_sequence: 0,
            });
        }
    }
}

/// Slots of a few bytes, so that few elements need many windows.
pub(crate) fn tiny(slot_bytes: usize, inline_bytes: usize) -> Settings {
    Settings {
        slot_bytes,
        inline_bytes,
        slots: 3,
        mailbox_bytes: 64,
    }
}

/// A rank of a group without a token.
pub(crate) fn own(rank: usize) -> LocalIdentity {
    LocalIdentity {
        rank,
        group: "test".to_string(),
        generation: 0,
        secrets: Vec::new(),
    }
}

/// A deadline for joining.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Runs `f` for every rank of a host on its own thread, with what `establish` returned.
pub(crate) fn join_all<R: Send>(
    world_size: usize,
    settings: &Settings,
    f: impl Fn(usize, Result<LocalGroup>, &[Arc<GroupStatus>]) -> R + Sync,
) -> Vec<R> {
    let offers: Vec<Offer> = (0..world_size).map(|_| Offer::new().unwrap()).collect();
    let names: Vec<Vec<u8>> = offers.iter().map(|offer| offer.name().to_vec()).collect();
    let members: Vec<usize> = (0..world_size).collect();
    let statuses: Vec<Arc<GroupStatus>> = members.iter().map(|_| Arc::default()).collect();
    on_threads(offers.into_iter().enumerate(), |(rank, offer)| {
        let attachment = find_leader(&names, &own(rank), soon()).unwrap();
        assert_eq!(attachment.leader(rank), 0);
        let status = statuses[rank].clone();
        let group = establish(
            offer,
            attachment,
            &own(rank),
            &members,
            settings,
            soon(),
            status,
        );
        f(rank, group, &statuses)
    })
}

/// Runs `f` for every rank of a new group on its own thread.
pub(crate) fn on_ranks<R: Send>(
    world_size: usize,
    settings: &Settings,
    options: &GroupOptions,
    f: impl Fn(SharedMemoryCommunicator) -> R + Sync,
) -> Vec<R> {
    join_all(world_size, settings, |_, group, statuses| {
        let abort = Arc::new(TellAll(statuses.to_vec()));
        let transport = LocalTransport::new(group.unwrap(), options.clone(), abort).unwrap();
        f(SharedMemoryCommunicator::new(transport))
    })
}

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
