//! Which connection goes when too many have not proven themselves.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

/// What is read of a connection before its peer has proven itself: more than a handshake has,
/// certificates included. What a stranger sends costs no more memory than that.
pub const UNPROVEN_BYTES_MAX: usize = 64 << 10;
/// How many such connections a port may have.
const PENDING_MAX: usize = 64;
const PENDING_MIN: usize = 4;
/// Pending connections take at most this part of the descriptors that the process may have.
const PENDING_PART: u64 = 8;

/// How many connections of strangers a port may keep: a flood must not take the descriptors that
/// the process needs for itself.
pub fn pending_connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let part = limit.map_or(u64::MAX, |limit| limit / PENDING_PART);
    let part = usize::try_from(part).unwrap_or(usize::MAX);
    part.clamp(PENDING_MIN, PENDING_MAX)
}

/// How far a connection has come that has not proven itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Nothing has come from it.
    #[default]
    Silent,
    /// Something has.
    Speaks,
    /// It has said who it is, as a process of the job does: the first message of the handshake.
    Greeted,
}

/// A connection that has not proven itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Where it comes from.
    pub source: IpAddr,
    /// How far it has come.
    pub progress: Progress,
}

impl Pending {
    /// What counts as one source: an address, or a network of those that one host of IPv6 has.
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

/// The index of the connection that makes room for another one, if there is any.
///
/// One of the source that has most of them; of those one that has not come as far as the others;
/// and of those any one. So one source takes no room from others, who only connects takes none from
/// who speaks, and no order in which a flood comes and goes makes sure that an honest process is
/// the next to go: each of its tries has a chance, and it tries again.
pub fn one_to_end(pending: &[Pending]) -> Option<usize> {
    let of_source = |one: &Pending| {
        let same = |other: &&Pending| other.source() == one.source();
        pending.iter().filter(same).count()
    };
    let weight = |one: &Pending| (of_source(one), Reverse(one.progress));
    let weights: Vec<_> = pending.iter().map(weight).collect();
    let heaviest = weights.iter().max()?;
    let candidates = weights.iter().enumerate();
    let candidates = candidates.filter(|(_, weight)| *weight == heaviest);
    let candidates: Vec<usize> = candidates.map(|(index, _)| index).collect();
    // Without random numbers the first one, which is as good as any.
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
            pending(1, Progress::Silent),
            pending(2, Progress::Greeted),
            pending(2, Progress::Greeted),
        ];
        for (progress, next) in [(Progress::Speaks, 3), (Progress::Silent, 4)] {
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
        let all = [pending(1, Progress::Speaks); 8];
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
            progress: Progress::Speaks,
        };
        let all = [of("::ffff:127.0.0.1"), of("fd00::1"), of("fd00::2:1")];
        for _ in 0..20 {
            assert_ne!(one_to_end(&all), Some(0));
        }
        assert_eq!(of("::ffff:127.0.0.1").source(), of("127.0.0.1").source());
    }
}
