//! Chooses the connection to close when too many are unauthenticated.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

/// How many bytes of a connection are read before its peer is authenticated: more than a
/// handshake needs, certificates included. An unauthenticated peer's bytes take no more memory than
/// this.
pub const UNPROVEN_BYTES_MAX: usize = 64 << 10;
/// How many unauthenticated connections a port may have.
const PENDING_MAX: usize = 64;
const PENDING_MIN: usize = 4;
/// Pending connections take at most this part of the descriptors that the process may have.
const PENDING_PART: u64 = 8;

/// How many connections of unauthenticated peers a port may keep: a flood must not take the
/// descriptors that the process needs for itself.
pub fn pending_connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let part = limit.map_or(u64::MAX, |limit| limit / PENDING_PART);
    let part = usize::try_from(part).unwrap_or(usize::MAX);
    part.clamp(PENDING_MIN, PENDING_MAX)
}

/// How far an unauthenticated connection has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// No bytes have arrived.
    #[default]
    Idle,
    /// Some bytes have arrived.
    SentBytes,
    /// The first message of the handshake has arrived.
    SentHello,
}

/// An unauthenticated connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Where it comes from.
    pub source: IpAddr,
    /// How far it has come.
    pub progress: Progress,
}

impl Pending {
    /// A source: an IPv4 address, or the IPv6 network that one host has.
    fn source(&self) -> IpAddr {
        match self.source.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        }
    }
}

/// The index of the connection to close to make room for another one, if there is any.
///
/// It is a connection of the source with the most connections; among these, one that has come
/// least far; and among these a random one. So one source takes no room from others, and silent
/// connections take none from connections that have sent bytes. A flood cannot arrange that an
/// honest process is always the next to go: each of its attempts has a chance, and it tries again.
pub fn one_to_end(pending: &[Pending]) -> Option<usize> {
    let of_source = |one: &Pending| {
        let same = |other: &&Pending| other.source() == one.source();
        pending.iter().filter(same).count()
    };
    let weight = |one: &Pending| (of_source(one), Reverse(one.progress));
    let weights: Vec<_> = pending.iter().map(weight).collect();
    let heaviest = weights.iter().max()?;
    let candidates: Vec<usize> = weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| *weight == heaviest)
        .map(|(index, _)| index)
        .collect();
    // Without random numbers: the first one.
    let drawn = getrandom::u32().unwrap_or(0) as usize;
    candidates.get(drawn % candidates.len()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(source: u8, progress: Progress) -> Pending {
        Pending {
            source: [127, 0, 0, source].into(),
            progress,
        }
    }

    #[test]
    fn the_source_with_most_connections_makes_room_and_who_has_come_least_far_first() {
        assert_eq!(one_to_end(&[]), None);
        let mut all = vec![
            pending(1, Progress::Idle),
            pending(2, Progress::SentHello),
            pending(2, Progress::SentHello),
        ];
        for (progress, next) in [(Progress::SentBytes, 3), (Progress::Idle, 4)] {
            for _ in 0..20 {
                assert_ne!(one_to_end(&all), Some(0));
            }
            all.push(pending(2, progress));
            for _ in 0..20 {
                assert_eq!(one_to_end(&all), Some(next));
            }
        }
    }

    /// A flood that replaces its connections in any order does not know which one is next.
    #[test]
    fn any_of_equal_connections_may_go() {
        let all = [pending(1, Progress::SentBytes); 8];
        let mut hit = [false; 8];
        for _ in 0..1000 {
            hit[one_to_end(&all).unwrap()] = true;
        }
        assert_eq!(hit, [true; 8]);
    }

    #[test]
    fn all_addresses_of_one_network_are_one_source() {
        let of = |text: &str| Pending {
            source: text.parse().unwrap(),
            progress: Progress::SentBytes,
        };
        let all = [of("::ffff:127.0.0.1"), of("fd00::1"), of("fd00::2:1")];
        for _ in 0..20 {
            assert_ne!(one_to_end(&all), Some(0));
        }
        assert_eq!(of("::ffff:127.0.0.1").source(), of("127.0.0.1").source());
    }
}
