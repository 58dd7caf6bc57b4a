//! The ports that a process has open.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where a process listens, for TCP and for UDP, by the tables of the kernel; `process` is its
/// number.
///
/// # Panics
/// If there is no such process, or it is not this user's.
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn listening(process: u32) -> Vec<SocketAddr> {
    let folder = format!("/proc/{process}/fd");
    let links = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets: BTreeSet<String> = links
        .filter_map(|link| {
            let name = link.to_str()?.strip_prefix("socket:[")?;
            Some(name.trim_end_matches(']').to_string())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}"));
        for line in text.unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // 0A: listening; a receiver of datagrams needs no such state.
            let is_open = words.get(3) == Some(&"0A") || table.starts_with("udp");
            let is_its_own = words.get(9).is_some_and(|inode| sockets.contains(*inode));
            if is_open && is_its_own {
                found.extend(words.get(1).and_then(|word| address(word)));
            }
        }
    }
    found
}

/// An address as the kernel writes it: words in the order of the machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok();
    let words: Option<Vec<u32>> = (0..ip.len()).step_by(8).map(word).collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn the_sockets_of_this_process_are_found() {
        let at = ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"];
        // Not every machine has IPv6.
        let tcp: Vec<_> = at.into_iter().flat_map(TcpListener::bind).collect();
        assert!(tcp.len() >= 2);
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let found = listening(std::process::id());
        for address in tcp.iter().map(|it| it.local_addr().unwrap()) {
            assert!(found.contains(&address), "{address} {found:?}");
        }
        assert!(found.contains(&udp.local_addr().unwrap()), "{found:?}");
    }
}
