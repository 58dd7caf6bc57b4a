//! Unauthenticated peers that flood a port, and how much it takes of what they say.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How many unauthenticated peers connect at once: more than a port keeps.
const PEERS: usize = 80;
/// How many bytes of one unauthenticated peer, and of all, a process may hold.
const BYTES_MAX: usize = 64 << 10;
const BYTES_OF_ALL_MAX: usize = 4 << 20;
/// What may lie in the sockets of both ends when a connection is ended: it is not the process that
/// has it, and the number can no longer be read.
const SOCKETS_BYTES: usize = 8 << 20;
/// When nothing more is taken for so long, nothing more will be.
const PATIENCE: Duration = Duration::from_millis(300);

/// What begins a connection of HTTP/2.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const ACKNOWLEDGED: u8 = 1;
const END_HEADERS: u8 = 4;

/// What unauthenticated peers say first, and what they repeat for as long as they are let.
#[derive(Debug)]
pub struct Attack {
    first: Vec<u8>,
    again: Vec<u8>,
}

impl Attack {
    /// Any bytes.
    pub fn new(first: impl Into<Vec<u8>>, again: impl Into<Vec<u8>>) -> Attack {
        let (first, again) = (first.into(), again.into());
        Attack { first, again }
    }

    /// As HTTP/2 wants it, with the settings acknowledged: so it has the windows of a member.
    fn polite(first: Vec<u8>, again: Vec<u8>) -> Attack {
        let settings = frame(SETTINGS, 0, 0, &[]);
        let acknowledged = frame(SETTINGS, ACKNOWLEDGED, 0, &[]);
        Attack::new([PREFACE, &settings, &acknowledged, &first].concat(), again)
    }

    /// Valid and invalid HTTP/2 for a port with this method.
    pub fn all(path: &str) -> Vec<Attack> {
        let giant = [0, 0xff, 0xff, 0xff, 0xff];
        let zeros = vec![0; 16 << 10];
        let message = [request(path, 1), frame(DATA, 0, 1, &giant)].concat();
        let calls = (0..1000).flat_map(|call| request(path, 2 * call + 1));
        let endless = frame(HEADERS, 0, 1, &[0x83]);
        let more_headers = frame(CONTINUATION, 0, 1, &zeros[..1 << 10]);
        vec![
            Attack::polite(message, frame(DATA, 0, 1, &zeros)),
            Attack::polite(calls.collect(), frame(SETTINGS, 0, 0, &[]).repeat(100)),
            Attack::polite(endless, more_headers),
            Attack::new([0x16, 3, 1, 0xff, 0xff], zeros.clone()),
            Attack::new(Vec::new(), b"GET / HTTP/1.1\r\n".repeat(1000)),
            Attack::new([0xff; 4], zeros),
        ]
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(body);
    frame
}

/// The request of a gRPC call.
fn request(path: &str, stream: u32) -> Vec<u8> {
    // Method and scheme are entries of HTTP/2's table, the others literals with an indexed name.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(4, path), (1, "localhost"), (31, "application/grpc")] {
        block.extend([0x40 | name, value.len() as u8]);
        block.extend(value.as_bytes());
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// An unauthenticated peer, and how many of its bytes have been taken.
struct Peer {
    socket: TcpStream,
    said: usize,
    /// Its words are not taken any more: the connection was ended.
    is_over: bool,
}

impl Peer {
    fn new(address: SocketAddr) -> std::io::Result<Peer> {
        let socket = TcpStream::connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Peer {
            socket,
            said: 0,
            is_over: false,
        })
    }

    /// Says more, as much as is taken now. Whether anything was.
    fn say(&mut self, attack: &Attack) -> bool {
        let before = self.said;
        while !self.is_over {
            let again = self.said.checked_sub(attack.first.len());
            let rest = match again {
                None => &attack.first[self.said..],
                Some(said) => &attack.again[said % attack.again.len()..],
            };
            match self.socket.write(rest) {
                Ok(count) => self.said += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_over = true,
            }
        }
        self.said > before
    }

    /// Bytes that the process at the other end has taken out of its socket; nothing if the
    /// connection is over, which takes no memory any more.
    fn taken(&self, queues: &Queues) -> Option<usize> {
        let (own, other) = (
            self.socket.local_addr().ok()?,
            self.socket.peer_addr().ok()?,
        );
        let (unsent, _) = queues.get(&(own.port(), other.port()))?;
        let (_, unread) = queues.get(&(other.port(), own.port()))?;
        Some(self.said.saturating_sub(unsent + unread))
    }
}

/// What was written and not received, and what was received and not read, by the port of a socket
/// and the one at its other end.
type Queues = BTreeMap<(u16, u16), (usize, usize)>;

/// The sockets of IPv4 whose connection is open, as Linux lists them.
fn queues() -> Queues {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let port = |address: &str| u16::try_from(number(address.split_once(':')?.1)?).ok();
    let entry = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (own, other) = (port(fields.next()?)?, port(fields.next()?)?);
        // Established.
        fields.next().filter(|state| *state == "01")?;
        let (unsent, unread) = fields.next()?.split_once(':')?;
        Some(((own, other), (number(unsent)?, number(unread)?)))
    };
    table.lines().filter_map(entry).collect()
}

/// Floods a port that listens in IPv4 with unauthenticated peers, and looks how much it takes: at
/// most 64 KiB of each and 4 MiB of all.
///
/// Counted is what the process has read from its sockets, whatever it then does with it: what was
/// written less what still lies in the sockets of both ends.
///
/// # Panics
/// If it takes more, or refuses to be connected to.
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn assert_flood_costs_nothing(address: SocketAddr, attack: &Attack) {
    let connect = |_| match Peer::new(address) {
        Ok(peer) => peer,
        Err(error) => panic!("{address} cannot be connected to: {error}"),
    };
    let mut peers: Vec<Peer> = (0..PEERS).map(connect).collect();
    let mut last = Instant::now();
    while last.elapsed() < PATIENCE {
        let mut has_said = false;
        for peer in &mut peers {
            has_said |= peer.say(attack);
            let limit = BYTES_MAX + SOCKETS_BYTES;
            assert!(
                peer.said <= limit,
                "it takes more than {limit} bytes of one"
            );
        }
        if has_said {
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_millis(5))
        }
    }
    let queues = queues();
    let taken: Vec<usize> = peers.iter().filter_map(|one| one.taken(&queues)).collect();
    let (most, all) = (taken.iter().max(), taken.iter().sum::<usize>());
    assert!(
        most.is_none_or(|most| *most <= BYTES_MAX) && all <= BYTES_OF_ALL_MAX,
        "{address} keeps {} of {PEERS} and has read {all} bytes of all, {most:?} of one",
        taken.len()
    );
}

/// How many peers that never read connect for each of their words, and the most that one says: less
/// than a port takes of an unauthenticated peer.
const DEAF_PEERS: usize = 12;
const DEAF_BYTES: usize = 60_000;
/// The room for answers that such a peer has.
const DEAF_ROOM: usize = 2048;
/// When its connection must be closed at the latest. A port closes it after 10 s, on a machine that
/// has the time.
const DEAF_LIMIT: Duration = Duration::from_secs(60);

/// What wants answers, for peers that do not read them: PINGs, and gRPC's requests of reflection,
/// whose answers are a hundred times as long.
pub fn demands() -> Vec<Vec<u8>> {
    let settings = frame(SETTINGS, 0, 0, &[]);
    let after = |piece: &dyn Fn(u32) -> Vec<u8>| {
        let begin = [PREFACE, &settings].concat();
        let pieces = (0..).map(|number| piece(2 * number + 1));
        let add = |mut said: Vec<u8>, piece: Vec<u8>| {
            let fits = said.len() + piece.len() <= DEAF_BYTES;
            said.extend(piece);
            if fits { Ok(said) } else { Err(said) }
        };
        let (Ok(mut said) | Err(mut said)) = pieces.into_iter().try_fold(begin, add);
        said.truncate(DEAF_BYTES);
        said
    };
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    // The field `file_containing_symbol`.
    let symbol = b"grpc.health.v1.Health";
    let message = [&[0x22, symbol.len() as u8], &symbol[..]].concat();
    let length = (message.len() as u32).to_be_bytes();
    let message = [&[0], &length[..], &message].concat();
    vec![
        after(&|_| frame(PING, 0, 0, &[7; 8])),
        after(&|stream| [request(path, stream), frame(DATA, 0, stream, &message)].concat()),
    ]
}

/// A peer that has said this and has hardly any room for answers.
fn deaf_peer(address: SocketAddr, words: &[u8]) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket(family, SocketType::STREAM, None)?;
    sockopt::set_socket_recv_buffer_size(&socket, DEAF_ROOM)?;
    connect(&socket, &address)?;
    let mut socket = TcpStream::from(socket);
    socket.set_write_timeout(Some(Duration::from_secs(1)))?;
    // The port may have closed it before all is said, or take no more.
    let _ = socket.write_all(words);
    Ok(socket)
}

/// How many connections between a port and these ones are a socket that a process has open.
fn held(port: u16, peers: &[u16]) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let port_of = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let is_held = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ends = fields
            .get(1..3)
            .map(|ends| [port_of(ends[0]), port_of(ends[1])]);
        // One that is not accepted, or is closed, is no file of a process.
        matches!(ends, Some([Some(own), Some(other)]) if own == port && peers.contains(&other))
            && fields.get(9).is_some_and(|inode| *inode != "0")
    };
    table.lines().filter(is_held).count()
}

/// Lets 12 peers for each of `words` say them to a port that listens in IPv4, and never read: the
/// port must close all their connections, though none of its answers gets away.
///
/// # Panics
/// If it keeps one for longer than 60 s, or refuses to be connected to.
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn assert_deaf_peers_end(address: SocketAddr, words: &[Vec<u8>]) {
    let begin = |words: &Vec<u8>| match deaf_peer(address, words) {
        Ok(peer) => peer,
        Err(error) => panic!("{address} cannot be connected to: {error}"),
    };
    let all = words
        .iter()
        .flat_map(|it| std::iter::repeat_n(it, DEAF_PEERS));
    let peers: Vec<TcpStream> = all.map(begin).collect();
    let own_port = |peer: &TcpStream| peer.local_addr().map(|it| it.port()).ok();
    let ports: Vec<u16> = peers.iter().filter_map(own_port).collect();
    let begun = Instant::now();
    loop {
        let held = held(address.port(), &ports);
        if held == 0 {
            return;
        }
        let elapsed = begun.elapsed();
        assert!(
            elapsed < DEAF_LIMIT,
            "{address} keeps {held} after {elapsed:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    /// A server that reads this much of every connection, and keeps them all open.
    fn server(bytes: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let mut buffer = vec![0; bytes];
                std::thread::spawn({
                    let mut socket = socket.try_clone().unwrap();
                    move || socket.read_exact(&mut buffer)
                });
                kept.push(socket);
            }
        });
        address
    }

    #[test]
    fn connections_that_are_kept_are_counted() {
        let address = server(1);
        let begin = |words: Vec<u8>| deaf_peer(address, &words).unwrap();
        let peers: Vec<_> = demands().into_iter().map(begin).collect();
        let port = |peer: &TcpStream| peer.local_addr().unwrap().port();
        let ports: Vec<u16> = peers.iter().map(port).collect();
        let begun = Instant::now();
        while held(address.port(), &ports) < 2 {
            assert!(begun.elapsed() < DEAF_LIMIT, "they are not seen");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(demands().iter().all(|words| words.len() == DEAF_BYTES));
    }

    #[test]
    fn what_a_server_reads_is_counted() {
        let attack = Attack::new(Vec::new(), [7; 1000]);
        assert_flood_costs_nothing(server(40_000), &attack);
        for bytes in [60_000, 70_000] {
            let address = server(bytes);
            let flooded = std::panic::catch_unwind(|| assert_flood_costs_nothing(address, &attack));
            assert!(flooded.is_err(), "{bytes} bytes of each");
        }
    }
}
