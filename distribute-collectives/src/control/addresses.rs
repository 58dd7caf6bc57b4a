//! Where the ranks listen: listed in advance, or told by the ranks.
//!
//! Launchers such as torchrun and Open MPI tell every process where rank 0 is, and nothing about
//! the others. A rank that is not listed says in the Hello of its stream where it listens, so that
//! the handshake proves the address like everything else there. Its parent tells the others, as it
//! tells them that the rank is there. After that there is no difference to a list.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use distribute_net::address;

use crate::sync::unpoisoned;

/// What stands for an address in messages until it is known.
const NOT_KNOWN: &str = "an address that is not known yet";

/// The addresses of all ranks, as far as they are known.
pub(super) struct Addresses {
    known: Mutex<Known>,
    /// By rank, whether the list has the address, so that it need not be told.
    is_listed: Vec<bool>,
}

/// What is known: the address of each rank, and the ranks at each address. A rank hears of all
/// others, and for each one asks who else is there.
#[derive(Default)]
struct Known {
    addresses: Vec<Option<String>>,
    ranks: HashMap<String, Vec<usize>>,
}

impl Known {
    fn set(&mut self, rank: usize, address: &str) {
        let Some(place) = self.addresses.get_mut(rank) else {
            return;
        };
        if let Some(before) = place.replace(address.to_string())
            && let Some(ranks) = self.ranks.get_mut(&before)
        {
            ranks.retain(|other| *other != rank);
        }
        let ranks = self.ranks.entry(address.to_string()).or_default();
        ranks.push(rank);
    }
}

impl Addresses {
    /// `listed[i]` is the address of rank `i` if there is one in the list. Rank `own` is not listed
    /// if it has an address to tell, `told`.
    pub(super) fn new(
        mut listed: Vec<Option<String>>,
        own: usize,
        told: Option<&str>,
    ) -> Addresses {
        let mut is_listed: Vec<bool> = listed.iter().map(Option::is_some).collect();
        if let (Some(told), Some(place)) = (told, listed.get_mut(own)) {
            *place = Some(told.to_string());
            is_listed[own] = false;
        }
        let mut known = Known {
            addresses: vec![None; listed.len()],
            ..Known::default()
        };
        for (rank, address) in listed.iter().enumerate() {
            if let Some(address) = address {
                known.set(rank, address);
            }
        }
        Addresses {
            known: Mutex::new(known),
            is_listed,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.is_listed.len()
    }

    /// The address of a rank, if it is known.
    pub(super) fn get(&self, rank: usize) -> Option<String> {
        let known = unpoisoned(self.known.lock());
        known.addresses.get(rank).cloned().flatten()
    }

    /// The address of a rank in words.
    pub(super) fn shown(&self, rank: usize) -> String {
        self.get(rank).unwrap_or_else(|| NOT_KNOWN.to_string())
    }

    /// Whether the list has the address of this rank; none has that of a rank that there is not.
    pub(super) fn is_listed(&self, rank: usize) -> bool {
        self.is_listed.get(rank).copied().unwrap_or(true)
    }

    /// Notes where a rank listens that is not listed.
    pub(super) fn learn(&self, rank: usize, address: &str) {
        if !self.is_listed(rank) {
            unpoisoned(self.known.lock()).set(rank, address);
        }
    }

    /// The lowest of the ranks at this address that are wanted.
    pub(super) fn rank_at(&self, address: &str, wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let known = unpoisoned(self.known.lock());
        let ranks = known.ranks.get(address)?.iter().copied();
        ranks.filter(|rank| wanted(*rank)).min()
    }
}

/// What is wrong with an address that a rank tells of itself.
pub(super) fn check_told(told: &str) -> Result<(), String> {
    let (host, port) = address::split(told)?;
    let is_unspecified = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if port == 0 || is_unspecified {
        return Err(format!("others cannot connect to {told}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(address: &str) -> Option<String> {
        Some(address.to_string())
    }

    #[test]
    fn what_is_listed_stays_and_the_rest_is_learned() {
        let addresses = Addresses::new(vec![text("a:1"), None, None], 2, Some("c:3"));
        assert!(addresses.is_listed(0) && !addresses.is_listed(1) && !addresses.is_listed(2));
        assert_eq!(addresses.get(2), text("c:3"));
        assert_eq!(addresses.shown(1), NOT_KNOWN);
        addresses.learn(0, "elsewhere:1");
        addresses.learn(1, "b:2");
        addresses.learn(7, "nowhere:2");
        assert_eq!(addresses.get(0), text("a:1"));
        assert_eq!(addresses.get(1), text("b:2"));
        addresses.learn(1, "b:4");
        assert_eq!(addresses.get(1), text("b:4"));
        assert_eq!(addresses.rank_at("b:4", |_| true), Some(1));
        assert_eq!(addresses.rank_at("b:4", |rank| rank != 1), None);
        assert_eq!(addresses.rank_at("b:2", |_| true), None, "rank 1 was there");
        addresses.learn(2, "b:4");
        assert_eq!(addresses.rank_at("b:4", |rank| rank != 1), Some(2));
    }

    #[test]
    fn addresses_that_cannot_be_dialled_are_refused() {
        for told in ["", "host", "host:0", "0.0.0.0:7", "[::]:7"] {
            assert!(check_told(told).is_err(), "{told}");
        }
        assert!(check_told("[2001:db8::1]:7").is_ok());
    }
}
