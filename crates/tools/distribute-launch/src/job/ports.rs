//! Ports for processes that do not listen yet.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::ops::{Range, RangeInclusive};

/// The range that ports are drawn from, without ports that the system hands out by itself. Linux
/// hands out ports from 32768 on, other systems from 49152 on.
const DRAWN: Range<u16> = 20_000..32_768;

/// IANA's dynamic ports: the default range that a system hands out.
const DYNAMIC: Range<u16> = 49_152..65_535;

/// How many ports are tried for each that is needed.
const DRAWS: usize = 1000;

/// TCP ports of this host, for processes that are about to start and listen there.
///
/// A port that is merely free may be taken by another program before the process listens: the
/// system gives free ports to every connection and to programs that ask for any port. These ports
/// are outside the range that the system hands out (unless it hands out all from 20,000 to 32,767
/// too). Until this is dropped no other `ReservedPorts`, in any process, has them: each is claimed
/// by a UDP socket of the same number, which does not hinder TCP. A program that names such a port
/// explicitly can still take it.
///
/// ```
/// use std::net::{Ipv4Addr, TcpListener};
///
/// let ports = distribute_launch::ReservedPorts::new(2, Ipv4Addr::LOCALHOST.into())?;
/// assert_ne!(ports.addresses()[0], ports.addresses()[1]);
/// let listener = TcpListener::bind(ports.addresses()[0])?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ReservedPorts {
    addresses: Vec<SocketAddr>,
    /// Closed when this is dropped, also when the process is killed.
    _claims: Vec<UdpSocket>,
}

impl ReservedPorts {
    /// Reserves `count` ports at an address of this host. Does not block.
    ///
    /// # Errors
    /// The system's error if it has no port: no address of this host, or too many open files (each
    /// port uses one).
    pub fn new(count: usize, address: IpAddr) -> io::Result<Self> {
        let drawn = drawn(handed_out());
        let reserve = |_| (0..DRAWS).find_map(|_| draw(&drawn, address).transpose());
        let reserved = (0..count)
            .map(|index| reserve(index).unwrap_or_else(|| any(address)))
            .collect::<io::Result<Vec<_>>>()?;
        let (addresses, claims) = reserved.into_iter().unzip();
        Ok(Self {
            addresses,
            _claims: claims,
        })
    }

    /// Reserves `count` ports of this range, the lowest that are free; `None` if there are too few.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn within(
        count: usize,
        address: IpAddr,
        range: RangeInclusive<u16>,
    ) -> io::Result<Option<Self>> {
        let mut reserved = Vec::new();
        for port in range.filter(|port| *port > 0) {
            if reserved.len() == count {
                break;
            }
            reserved.extend(unless_taken(claim(SocketAddr::from((address, port))))?);
        }
        let is_enough = reserved.len() == count;
        let (addresses, claims) = reserved.into_iter().unzip();
        Ok(is_enough.then_some(Self {
            addresses,
            _claims: claims,
        }))
    }

    /// Where the processes are to listen: distinct addresses, in no order.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// The ports of [`DRAWN`] that the system does not hand out.
fn drawn(handed_out: Range<u16>) -> Vec<u16> {
    DRAWN.filter(|port| !handed_out.contains(port)).collect()
}

/// The ports that this system hands out.
fn handed_out() -> Range<u16> {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let bounds = setting.ok().and_then(|text| {
        let mut words = text.split_whitespace().map(str::parse);
        match (words.next(), words.next()) {
            // Both ends are handed out.
            (Some(Ok(first)), Some(Ok(last))) => Some(first..u16::saturating_add(last, 1)),
            _ => None,
        }
    });
    bounds.unwrap_or(DYNAMIC)
}

/// Tries random ports and claims a free one; `None` if none was found.
fn draw(drawn: &[u16], address: IpAddr) -> io::Result<Option<(SocketAddr, UdpSocket)>> {
    let chance = getrandom::u32().map_err(io::Error::other)? as usize;
    let Some(port) = chance
        .checked_rem(drawn.len())
        .and_then(|index| drawn.get(index))
    else {
        return unless_taken(any(address));
    };
    let at = SocketAddr::from((address, *port));
    unless_taken(claim(at))
}

/// Claims a port that no program listens at.
fn claim(at: SocketAddr) -> io::Result<(SocketAddr, UdpSocket)> {
    let claim = UdpSocket::bind(at)?;
    TcpListener::bind(at)?;
    Ok((at, claim))
}

/// `None` for a port that is taken, or that the system keeps for itself.
fn unless_taken<T>(claimed: io::Result<T>) -> io::Result<Option<T>> {
    let taken = [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied];
    match claimed {
        Err(error) if taken.contains(&error.kind()) => Ok(None),
        claimed => claimed.map(Some),
    }
}

/// Claims a port that the system hands out, where it hands out all of them.
fn any(address: IpAddr) -> io::Result<(SocketAddr, UdpSocket)> {
    let listener = TcpListener::bind((address, 0))?;
    let at = listener.local_addr()?;
    Ok((at, UdpSocket::bind(at)?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;
    use std::sync::Barrier;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn no_two_have_the_same_port_and_the_system_hands_out_none() {
        let all_are_there = Barrier::new(50);
        let ports: Vec<SocketAddr> = std::thread::scope(|scope| {
            let one = || {
                let ports = ReservedPorts::new(4, HERE);
                all_are_there.wait();
                ports.unwrap().addresses().to_vec()
            };
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(one)).collect();
            let ports = threads.into_iter().map(|thread| thread.join().unwrap());
            ports.flatten().collect()
        });
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 200);
        let handed_out = handed_out();
        if drawn(handed_out.clone()).len() > 1000 {
            assert!(ports.iter().all(|at| !handed_out.contains(&at.port())));
        }
    }

    #[test]
    fn a_port_is_claimed_until_its_owner_is_gone() {
        let (at, claim) = (0..DRAWS)
            .find_map(|_| draw(&drawn(handed_out()), HERE).unwrap())
            .unwrap();
        let only = [at.port()];
        assert!(draw(&only, HERE).unwrap().is_none(), "claimed");
        let listener = TcpListener::bind(at).expect("the claim is of no hindrance");
        drop(claim);
        assert!(draw(&only, HERE).unwrap().is_none(), "taken");
        drop(listener);
        assert_eq!(draw(&only, HERE).unwrap().unwrap().0, at);
    }

    #[test]
    fn where_the_system_hands_out_all_it_chooses() {
        assert!(drawn(1024..65_535).is_empty());
        assert_eq!(drawn(32_000..61_000), (20_000..32_000).collect::<Vec<_>>());
        let (at, _claim) = (0..DRAWS).find_map(|_| draw(&[], HERE).unwrap()).unwrap();
        assert!(handed_out().contains(&at.port()), "{at}");
    }

    #[test]
    fn a_range_gives_what_is_free_in_it_and_no_more() {
        let (at, claim) = (0..DRAWS)
            .find_map(|_| draw(&drawn(handed_out()), HERE).unwrap())
            .unwrap();
        let range = at.port()..=at.port();
        let reserve = |count| ReservedPorts::within(count, HERE, range.clone()).unwrap();
        assert!(reserve(1).is_none(), "claimed");
        drop(claim);
        assert!(reserve(2).is_none(), "one is there");
        let reserved = reserve(1).unwrap();
        assert_eq!(reserved.addresses(), [at]);
        assert!(reserve(1).is_none(), "reserved");
    }

    #[test]
    fn an_address_of_another_host_is_the_systems_error() {
        let elsewhere = Ipv4Addr::new(192, 0, 2, 1).into();
        let error = ReservedPorts::new(1, elsewhere).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(
            ReservedPorts::new(0, elsewhere)
                .unwrap()
                .addresses()
                .is_empty()
        );
    }
}
