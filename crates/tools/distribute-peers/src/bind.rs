//! The ports of a process, and what it says of itself.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use distribute_net::NetError;
use distribute_net::address::{self, Patience, local_ip_towards};
use distribute_net::peers::PeerListener;

use crate::dial::Identity;
use crate::error::Result;
use crate::interfaces::interfaces;
use crate::messages::{Card, LISTED_MAX};
use crate::options::PeersOptions;

/// How long to wait for a name or an address of this host that may still come.
const PATIENCE: Duration = Duration::from_secs(5);

/// A process that listens, if it can.
pub(crate) struct Bound {
    pub(crate) identity: Identity,
    pub(crate) card: Card,
    pub(crate) listeners: Vec<PeerListener>,
}

impl Bound {
    /// Listens at the address of this process. A process other than rank 0 goes on without a port
    /// that it cannot have, and says so: rank 0 reports it.
    pub(crate) fn bind(options: &PeersOptions) -> Result<Self> {
        let pause = |time| {
            std::thread::sleep(time);
            true
        };
        let patience = Patience {
            until: Instant::now() + PATIENCE.min(options.timeout),
            pause: &pause,
        };
        let identity = Identity {
            rank: options.rank,
            size: options.addresses.len(),
            secret: options.security.secret(),
            tls: options.security.tls_settings()?,
            interfaces: interfaces(),
        };
        let mut listed = options.addresses.clone();
        if identity.size > LISTED_MAX {
            listed.clear();
        }
        let mut bound = Self {
            card: Card {
                rank: options.rank,
                name: options.name.clone(),
                address: options.addresses.get(options.rank).cloned().flatten(),
                listens_at: None,
                trouble: None,
                from: None,
                leader: None,
                listed,
                facts: options.facts.clone(),
                interfaces: identity.interfaces.clone(),
            },
            identity,
            listeners: Vec::new(),
        };
        match bound.listen(options, &patience) {
            Err(error) if options.rank == 0 || error.is_permanent() => return Err(error.into()),
            Err(error) => bound.card.trouble = Some(error.to_string()),
            Ok(()) => {}
        }
        Ok(bound)
    }

    fn listen(&mut self, options: &PeersOptions, patience: &Patience<'_>) -> Result<(), NetError> {
        let (rank, security) = (options.rank, &options.security);
        let own = match &self.card.address {
            Some(listed) => {
                let bound = PeerListener::bind_patiently(rank, listed, security, patience);
                bound?
            }
            None => {
                let host = own_host(options, patience)?;
                let at = format!("{host}:{}", options.own_port);
                let bound = PeerListener::bind_patiently(rank, &at, security, patience)?;
                self.card.address = Some(format!("{host}:{}", bound.local_addr().port()));
                bound
            }
        };
        let ip: IpAddr = own.local_addr().ip();
        self.card.listens_at = Some(ip);
        self.listeners.push(own);
        Ok(())
    }
}

/// Where the others reach this process, as far as its host knows.
fn own_host(options: &PeersOptions, patience: &Patience<'_>) -> Result<String, NetError> {
    let leader = options.leader();
    let host = match &options.own_host {
        Some(host) => host.clone(),
        None => local_ip_towards(leader, patience)
            .map_err(|reason| NetError::Address {
                task: options.rank,
                address: leader.to_string(),
                reason: format!("{reason}; it is where this process meets the others"),
            })?
            .to_string(),
    };
    Ok(address::bracketed(&host))
}
