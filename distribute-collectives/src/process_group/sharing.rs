//! Ranks of a group that share memory: which they are, and the endpoint that comes of it.

use distribute_net::handshake::Secret;

use crate::error::{CollectiveError, Result};
use crate::options::Algorithm;
use crate::process_group::communicator::ProcessCommunicator;
use crate::process_group::hosts::Hosts;
use crate::process_group::joining::{Joining, Routes};
use crate::process_group::mixed::MixedTransport;
use crate::process_group::options::{ProcessGroupOptions, ProcessTransport};
use crate::shared_memory::{
    Attachment, LocalGroup, LocalIdentity, LocalTransport, MEMBERS_MAX, Offer, SEGMENT_BYTES_MAX,
    Settings, SharedMemoryCommunicator, establish, find_leader,
};

/// Refuses segments that no mailbox holds.
pub(super) fn check_sizes(options: &ProcessGroupOptions) -> Result<()> {
    match options.transport {
        ProcessTransport::Grpc => Ok(()),
        _ => (options.group).check_segment(SEGMENT_BYTES_MAX, "a mailbox in shared memory"),
    }
}

/// What this rank offers to ranks of its host, unless it is to use gRPC only.
pub(super) fn offer(transport: ProcessTransport) -> Result<Option<Offer>> {
    match transport {
        ProcessTransport::Grpc => Ok(None),
        _ => Offer::new().map(Some),
    }
}

/// What the others must know to take the offer.
pub(super) fn announcement(offer: Option<&Offer>) -> Vec<u8> {
    offer.map(|offer| offer.name().to_vec()).unwrap_or_default()
}

impl Joining {
    /// Shares memory with the ranks that can; the others are reached over gRPC.
    pub(super) fn share_memory(self, offer: Offer, routes: &Routes) -> Result<ProcessCommunicator> {
        let (hosts, attachment) = self.find_hosts()?;
        if hosts.count() > 1 && !hosts.share_memory() {
            return self.over_grpc(routes);
        }
        let (most, limit) = (hosts.most_ranks(), self.members_max());
        if most > limit {
            if self.options.rank == 0 {
                tracing::warn!(
                    "a host has {most} ranks, and at most {limit} can share memory: all ranks use \
                     gRPC"
                );
            }
            return self.over_grpc(routes);
        }
        let members = hosts.members(self.options.rank);
        // Also a rank that is alone on its host: all ranks must speak to each other in one way.
        let local = self.establish(offer, attachment, members)?;
        if hosts.count() == 1 {
            return self.on_one_host(local);
        }
        let links = self.links(members, routes)?;
        let (status, abort) = (self.status.clone(), self.control.abort_target());
        let timeout = self.options.group.timeout;
        let transport = MixedTransport::new(links, local, status, abort, timeout);
        let ranks_per_host = hosts.ranks_per_host().filter(|ranks| *ranks > 1);
        self.over(transport, ranks_per_host)
    }

    /// Which ranks share memory, as they found out by trying.
    fn find_hosts(&self) -> Result<(Hosts, Attachment)> {
        let (rank, world_size) = (self.options.rank, self.options.addresses.len());
        let mut offers = vec![Vec::new(); world_size];
        for peer in self.control.peers() {
            #[cfg(test)]
            if let Some(hosts) = &self.options.hosts
                && hosts[rank] != hosts[peer.rank]
            {
                continue;
            }
            offers[peer.rank].clone_from(&peer.announcement.shared_memory);
        }
        let attachment = find_leader(&offers, &self.local_identity(), self.deadline)?;
        let leader = attachment.leader(rank) as u64;
        let leaders: Vec<usize> = self
            .control
            .all_gather(&leader.to_le_bytes())?
            .iter()
            .map(|bytes| {
                let bytes = <[u8; 8]>::try_from(bytes.as_slice()).unwrap_or([0xff; 8]);
                u64::from_le_bytes(bytes) as usize
            })
            .collect();
        let hosts = Hosts::from_leaders(&leaders);
        if self.options.transport == ProcessTransport::SharedMemory && hosts.count() > 1 {
            let others: Vec<usize> = (0..world_size)
                .filter(|rank| !hosts.members(0).contains(rank))
                .collect();
            let reason = format!(
                "rank(s) {others:?} cannot share memory with rank 0 (another host, container or \
                 user); use the transport auto or grpc"
            );
            return Err(CollectiveError::unavailable("shared memory", reason));
        }
        let limit = self.members_max();
        if self.options.transport == ProcessTransport::SharedMemory && world_size > limit {
            let reason = format!(
                "at most {limit} ranks can share memory, not {world_size}; use the transport auto \
                 or grpc"
            );
            return Err(CollectiveError::unavailable("shared memory", reason));
        }
        Ok((hosts, attachment))
    }

    /// How many ranks of a host can share memory.
    fn members_max(&self) -> usize {
        #[cfg(test)]
        if let Some(members) = self.options.members_max {
            return members;
        }
        MEMBERS_MAX
    }

    fn establish(
        &self,
        offer: Offer,
        attachment: Attachment,
        members: &[usize],
    ) -> Result<LocalGroup> {
        let mut settings = Settings::default();
        if let Some(bytes) = self.options.group.segment_bytes {
            settings = settings.for_segments(bytes);
        }
        establish(
            offer,
            attachment,
            &self.local_identity(),
            members,
            &settings,
            self.deadline,
            self.status.clone(),
        )
    }

    /// This rank's identity for the ranks of its host.
    fn local_identity(&self) -> LocalIdentity {
        LocalIdentity {
            rank: self.options.rank,
            group: self.options.group.name.clone(),
            generation: self.options.group.generation,
            secrets: self.secrets(),
        }
    }

    /// What this rank and each other one know since they have met, by rank.
    fn secrets(&self) -> Vec<Secret> {
        let mut secrets = vec![Secret::default(); self.options.addresses.len()];
        for peer in self.control.peers() {
            secrets[peer.rank] = self.control.secret_with(peer.rank);
        }
        secrets
    }

    fn on_one_host(self, local: LocalGroup) -> Result<ProcessCommunicator> {
        let (options, abort) = (&self.options.group, self.control.abort_target());
        let transport = LocalTransport::new(local, options.clone(), abort)?;
        let direct = matches!(options.algorithm, Algorithm::Auto | Algorithm::Direct);
        if direct && options.wire.is_none() {
            let communicator = SharedMemoryCommunicator::new(transport);
            return Ok(self.finish(communicator, None));
        }
        self.over(transport, None)
    }
}
