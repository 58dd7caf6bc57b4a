//! The socket of a rank: at its listed address, or where it reaches rank 0 from.

use std::time::{Duration, Instant};

use distribute_net::address::{self, BoundListener, Patience, local_ip_towards};

use crate::error::{CollectiveError, MissingRank, Result};
use crate::process_group::options::ProcessGroupOptions;

/// Longer times count as this long: sums with the clock stay in its range.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl ProcessGroupOptions {
    /// The socket of this rank, and the address to tell rank 0 where it is not listed.
    pub(super) fn bind_control(&self, begun: Instant) -> Result<(BoundListener, Option<String>)> {
        let pause = |time| !self.interruption.raised_within(time);
        let patience = Patience {
            until: begun + self.rendezvous_timeout.min(FOREVER),
            pause: &pause,
        };
        let bound = match &self.addresses[self.rank] {
            Some(listed) => self.bind_at(listed, &patience).map(|it| (it, None)),
            None => self
                .bind_unlisted(&patience)
                .map(|(listener, told)| (listener, Some(told))),
        };
        bound.map_err(|error| match error {
            CollectiveError::Address {
                rank,
                address,
                reason,
            } if self.interruption.is_raised() => CollectiveError::Interrupted {
                rank,
                missing: vec![MissingRank {
                    // One that is not listed looks for the way to rank 0.
                    rank: self.addresses[rank].as_ref().map_or(0, |_| rank),
                    address,
                    reason,
                }],
                elapsed: begun.elapsed(),
            },
            error => error,
        })
    }

    fn bind_at(&self, address: &str, patience: &Patience<'_>) -> Result<BoundListener> {
        let bound = BoundListener::bind_patiently(self.rank, address, &self.security, patience);
        Ok(bound?)
    }

    /// Listens where the other ranks reach this one, as far as this host knows.
    fn bind_unlisted(&self, patience: &Patience<'_>) -> Result<(BoundListener, String)> {
        let leader = self
            .addresses
            .first()
            .cloned()
            .flatten()
            .unwrap_or_default();
        let host = match &self.own_host {
            Some(host) => host.clone(),
            None => {
                let local = local_ip_towards(&leader, patience);
                let refuse = |reason| CollectiveError::Address {
                    rank: self.rank,
                    address: leader.clone(),
                    reason: format!("{reason}; it is where this rank meets the others"),
                };
                local.map_err(refuse)?.to_string()
            }
        };
        let host = address::bracketed(&host);
        let bound = self.bind_at(&format!("{host}:{}", self.own_port), patience)?;
        let told = format!("{host}:{}", bound.local_addr().port());
        Ok((bound, told))
    }
}
