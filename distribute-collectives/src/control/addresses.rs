//! Where the ranks listen: listed in advance, or told to rank 0 by the ranks, and by it to all.
//!
//! Launchers such as torchrun and Open MPI tell every process where rank 0 is, and nothing about
//! the others. A rank that is not listed says in the Hello of its stream to rank 0 where it
//! listens, so that the handshake proves the address like everything else there. Rank 0 tells all
//! ranks the addresses as they come; a rank connects to another one as soon as it knows its
//! address. After that there is no difference to a list.

use std::collections::BTreeMap;
use std::net::IpAddr;

use distribute_net::address;
use tokio::sync::watch;

use crate::control::generated::{Addresses as AddressesMessage, RankAddress};

/// What stands for an address in messages until it is known.
const NOT_KNOWN: &str = "an address that is not known yet";
/// Bytes of addresses in one message: it stays far below the limit.
const MESSAGE_BYTES: usize = 32 << 10;

/// The addresses of all ranks, as far as they are known.
pub(super) struct Addresses {
    known: watch::Sender<Vec<Option<String>>>,
    /// By rank, whether the list has the address, so that it need not be told.
    is_listed: Vec<bool>,
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
        Addresses {
            known: watch::Sender::new(listed),
            is_listed,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.is_listed.len()
    }

    /// The address of a rank, if it is known.
    pub(super) fn get(&self, rank: usize) -> Option<String> {
        self.known.borrow().get(rank).cloned().flatten()
    }

    /// The address of a rank in words.
    pub(super) fn shown(&self, rank: usize) -> String {
        self.get(rank).unwrap_or_else(|| NOT_KNOWN.to_string())
    }

    /// Whether the list has the address of this rank; none has that of a rank that there is not.
    pub(super) fn is_listed(&self, rank: usize) -> bool {
        self.is_listed.get(rank).copied().unwrap_or(true)
    }

    /// Waits until the address of a rank is known.
    pub(super) async fn known(&self, rank: usize) -> String {
        let mut receiver = self.known.subscribe();
        let is_known = |all: &Vec<Option<String>>| all.get(rank).is_some_and(Option::is_some);
        loop {
            // The sender lives as long as this does.
            if let Ok(all) = receiver.wait_for(is_known).await
                && let Some(address) = all.get(rank).cloned().flatten()
            {
                return address;
            }
        }
    }

    /// Notes where a rank listens that is not listed.
    pub(super) fn learn(&self, rank: usize, address: &str) {
        if self.is_listed(rank) {
            return;
        }
        self.known.send_if_modified(|all| match all.get_mut(rank) {
            Some(place) if place.as_deref() != Some(address) => {
                *place = Some(address.to_string());
                true
            }
            _ => false,
        });
    }

    /// The other rank, of `ranks`, that listens where this one says it listens.
    pub(super) fn rank_at(
        &self,
        address: &str,
        mut ranks: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        ranks.find(|rank| self.get(*rank).as_deref() == Some(address))
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

/// The ranks that have told rank 0 where they listen, in the order in which they came.
#[derive(Default)]
pub(super) struct Registered(Vec<(usize, String)>);

impl Registered {
    /// Adds where a rank listens, unless it has told the same before.
    pub(super) fn add(&mut self, rank: usize, address: String) {
        let mut told = self.0.iter().rev();
        let last = told.find(|(other, _)| *other == rank);
        if last.is_none_or(|(_, last)| *last != address) {
            self.0.push((rank, address));
        }
    }

    /// A message with the next addresses for a rank that was told `told` of them, and how many it
    /// has been told then; `None` if it knows all.
    pub(super) fn next(&self, told: usize) -> Option<(AddressesMessage, usize)> {
        let mut bytes = 0;
        let new = self.0.get(told..)?.iter().take_while(|(_, address)| {
            // At least one.
            let fits = bytes < MESSAGE_BYTES;
            bytes += address.len() + 16;
            fits
        });
        let entries: Vec<RankAddress> = new
            .map(|(rank, address)| RankAddress {
                rank: *rank as u32,
                address: address.clone(),
            })
            .collect();
        let count = entries.len();
        (count > 0).then_some((AddressesMessage { entries }, told + count))
    }
}

/// The addresses in a message of rank 0, the last one of each rank.
pub(super) fn entries(message: AddressesMessage) -> BTreeMap<usize, String> {
    let entries = message.entries.into_iter();
    let fits = |(_, address): &(usize, String)| check_told(address).is_ok();
    entries
        .map(|entry| (entry.rank as usize, entry.address))
        .filter(fits)
        .collect()
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
        assert_eq!(addresses.rank_at("b:4", 0..3), Some(1));
        assert_eq!(addresses.rank_at("b:4", [0, 2].into_iter()), None);
    }

    #[test]
    fn a_rank_that_comes_again_and_again_is_told_once() {
        let mut registered = Registered::default();
        for address in ["a:1", "a:1", "b:1", "a:1", "a:1"] {
            registered.add(1, address.to_string());
        }
        assert_eq!(registered.0.len(), 3);
    }

    #[test]
    fn long_lists_are_told_in_messages_of_bounded_size() {
        let mut registered = Registered::default();
        for rank in 0..5000 {
            registered.add(rank, format!("{}.example:{rank}", "n".repeat(200)));
        }
        let (mut told, mut messages, mut all) = (0, 0, BTreeMap::new());
        while let Some((message, next)) = registered.next(told) {
            assert!(prost::Message::encoded_len(&message) < 2 * MESSAGE_BYTES);
            all.extend(entries(message));
            (told, messages) = (next, messages + 1);
        }
        assert_eq!(told, 5000);
        assert!(messages > 10);
        assert_eq!(all.len(), 4999, "port 0 is none");
        assert!(registered.next(told).is_none());
    }

    #[test]
    fn addresses_that_cannot_be_dialled_are_refused() {
        for told in ["", "host", "host:0", "0.0.0.0:7", "[::]:7"] {
            assert!(check_told(told).is_err(), "{told}");
        }
        assert!(check_told("[2001:db8::1]:7").is_ok());
    }
}
