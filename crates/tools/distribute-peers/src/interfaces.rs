//! The network interfaces of this host, and which of them has an address.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use serde::{Deserialize, Serialize};

/// An address of a network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Interface {
    /// The name, such as `eth0`.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// Whether it is a bridge: containers and virtual machines of one host have such a network
    /// among themselves.
    pub is_bridge: bool,
}

impl Interface {
    /// An interface with this address.
    pub fn new(name: impl Into<String>, address: IpAddr, is_bridge: bool) -> Self {
        Self {
            name: name.into(),
            address,
            is_bridge,
        }
    }
}

/// All addresses of this host; none where the system does not list them.
pub fn interfaces() -> Vec<Interface> {
    #[cfg(target_os = "linux")]
    {
        route::addresses().unwrap_or_default()
    }
    #[cfg(not(target_os = "linux"))]
    {
        Vec::new()
    }
}

/// The interface that has an address.
pub(crate) fn having(interfaces: &[Interface], ip: IpAddr) -> Option<&Interface> {
    let ip = ip.to_canonical();
    let is_loopback_net = |it: &&Interface| ip.is_loopback() && it.address.is_loopback();
    let exact = interfaces.iter().find(|it| it.address == ip);
    // All of 127.0.0.0/8 belongs to the loopback interface.
    exact.or_else(|| interfaces.iter().find(is_loopback_net))
}

/// The address from which this host reaches another one, by its routes. Nothing is sent.
pub(crate) fn local_towards(remote: SocketAddr) -> Option<IpAddr> {
    let everywhere: SocketAddr = match remote {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(everywhere).ok()?;
    socket.connect(remote).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The addresses as the kernel of Linux lists them over netlink (rtnetlink(7)): the only way that
/// needs no C function.
#[cfg(target_os = "linux")]
mod route {
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send,
        socket_with,
    };

    use super::Interface;

    const HEADER_BYTES: usize = 16;
    const ADDRESS_BYTES: usize = 8;
    const DONE: u16 = 3;
    const NEW_ADDRESS: u16 = 20;
    const GET_ADDRESS: u16 = 22;
    /// The kernel sends the list in parts of at most this size.
    const PART_BYTES: usize = 64 << 10;
    /// A host has fewer parts of addresses.
    const PARTS_MAX: usize = 256;

    /// The request for all addresses: a header, and `ifaddrmsg` without a choice.
    fn request() -> Vec<u8> {
        const REQUEST_AND_DUMP: u16 = 0x301;
        let length = (HEADER_BYTES + ADDRESS_BYTES) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(GET_ADDRESS.to_ne_bytes());
        bytes.extend(REQUEST_AND_DUMP.to_ne_bytes());
        bytes.resize(HEADER_BYTES + ADDRESS_BYTES, 0);
        bytes
    }

    pub(super) fn addresses() -> io::Result<Vec<Interface>> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        send(&socket, &request(), SendFlags::empty())?;
        let (mut part, mut found) = (vec![0; PART_BYTES], Vec::new());
        for _ in 0..PARTS_MAX {
            // The kernel puts each part there before the call before returns.
            let (_, count) = recv(&socket, &mut part[..], RecvFlags::DONTWAIT)?;
            let part = part.get(..count).unwrap_or_default();
            let is_last = messages(part, |kind, body| {
                if kind == NEW_ADDRESS {
                    found.extend(address(body));
                }
            });
            if is_last {
                break;
            }
        }
        Ok(found
            .into_iter()
            .filter_map(|(index, ip)| named(&socket, index, ip))
            .collect())
    }

    fn named(socket: &OwnedFd, index: u32, ip: IpAddr) -> Option<Interface> {
        let name = netdevice::index_to_name(socket, index).ok()?;
        let is_bridge = Path::new("/sys/class/net")
            .join(&name)
            .join("bridge")
            .exists();
        Some(Interface::new(name, ip, is_bridge))
    }

    fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
        let two = bytes.get(at..at + 2)?;
        Some(u16::from_ne_bytes(two.try_into().ok()?))
    }

    fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
        let four = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(four.try_into().ok()?))
    }

    /// Calls `each` with kind and body of every message; returns whether the list ends here.
    fn messages(mut bytes: &[u8], mut each: impl FnMut(u16, &[u8])) -> bool {
        while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
            let length = length as usize;
            let Some(body) = bytes.get(HEADER_BYTES..length) else {
                return true;
            };
            if kind == DONE {
                return true;
            }
            each(kind, body);
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        false
    }

    /// The index of an interface, and its address, of an `ifaddrmsg` with its attributes.
    fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
        const ADDRESS: u16 = 1;
        /// Where a line has two ends, the one of this host.
        const LOCAL: u16 = 2;
        let index = u32_at(body, 4)?;
        let mut rest = body.get(ADDRESS_BYTES..)?;
        let (mut own, mut other) = (None, None);
        while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
            let length = usize::from(length);
            let Some(value) = rest.get(4..length) else {
                break;
            };
            match kind {
                LOCAL => own = ip(value),
                ADDRESS => other = ip(value),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Some((index, own.or(other)?))
    }

    fn ip(value: &[u8]) -> Option<IpAddr> {
        let four = || <[u8; 4]>::try_from(value).map(IpAddr::from);
        let sixteen = || <[u8; 16]>::try_from(value).map(IpAddr::from);
        four().or_else(|_| sixteen()).ok()
    }

    #[cfg(test)]
    mod tests {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            /// Whatever the kernel would send, nothing is read beyond it and every loop ends.
            #[test]
            fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
                messages(&bytes, |_, body| assert!(address(body).is_none() || body.len() > 8));
                address(&bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_by_all_its_addresses() {
        let all = interfaces();
        if all.is_empty() {
            println!("SKIPPED: the system lists no interfaces");
            return;
        }
        for loopback in ["127.0.0.1", "127.3.4.5"] {
            let found = having(&all, loopback.parse().unwrap());
            assert_eq!(found.map(|it| &*it.name), Some("lo"), "{all:?}");
        }
        assert_eq!(having(&all, "192.0.2.213".parse().unwrap()), None);
    }

    #[test]
    fn the_way_to_an_address_of_this_host_begins_there() {
        let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(local_towards(here), Some(here.ip()));
    }
}
