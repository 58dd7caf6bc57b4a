//! A TCP proxy that can damage what passes: the network faults that one machine does not have.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the proxy does with bytes from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    Forward,
    /// Nothing passes, nothing is closed: a pulled cable.
    BlackHole,
    /// One byte in each piece is changed.
    Corrupt,
    /// Each piece waits 20 ms.
    Delay,
    /// The connections are shut for writing in one direction.
    HalfClose,
    /// At most 64 KiB per millisecond, in small pieces.
    Throttle,
}

const MODES: [Mode; 6] = [
    Mode::Forward,
    Mode::BlackHole,
    Mode::Corrupt,
    Mode::Delay,
    Mode::HalfClose,
    Mode::Throttle,
];

/// The proxies of one rank share their mode.
#[derive(Clone)]
pub struct Switch(Arc<AtomicU8>, Arc<Mutex<Vec<TcpStream>>>);

impl Switch {
    pub fn new() -> Switch {
        Switch(Arc::new(AtomicU8::new(Mode::Forward as u8)), Arc::default())
    }

    pub fn set(&self, mode: Mode) {
        self.0.store(mode as u8, Ordering::SeqCst);
    }

    /// The connections to whom the proxies stand before: what is written there comes in between.
    pub fn upstreams(&self) -> Vec<TcpStream> {
        let sockets = self.1.lock().expect("no panic");
        sockets
            .iter()
            .map(|it| it.try_clone().expect("a socket"))
            .collect()
    }

    fn get(&self) -> Mode {
        MODES[self.0.load(Ordering::SeqCst) as usize]
    }
}

/// Listens on a free port and passes every connection on to `upstream`. Its threads end with the
/// connections, or with the test process.
pub fn start(upstream: &str, switch: &Switch) -> SocketAddr {
    let upstream: SocketAddr = upstream.parse().expect("an address");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let switch = switch.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(upstream) else {
                continue;
            };
            // Small segments must pass at once, as without a proxy.
            for socket in [&client, &server] {
                socket.set_nodelay(true).expect("a TCP socket");
            }
            let upstream = server.try_clone().expect("a socket");
            switch.1.lock().expect("no panic").push(upstream);
            let pair = (
                client.try_clone().expect("a socket"),
                server.try_clone().expect("a socket"),
            );
            pump(pair.0, pair.1, switch.clone());
            pump(server, client, switch.clone());
        }
    });
    address
}

fn pump(mut from: TcpStream, mut to: TcpStream, switch: Switch) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let limit = if switch.get() == Mode::Throttle {
                4096
            } else {
                buffer.len()
            };
            let Ok(read @ 1..) = from.read(&mut buffer[..limit]) else {
                break;
            };
            match switch.get() {
                Mode::Forward => {}
                Mode::BlackHole => loop {
                    // The sockets stay open until the test process ends.
                    std::thread::park();
                },
                Mode::Corrupt => buffer[read / 2] ^= 0x55,
                // A delay is what this mode is: it synchronises nothing.
                Mode::Delay => std::thread::sleep(Duration::from_millis(20)),
                Mode::Throttle => std::thread::sleep(Duration::from_micros(63)),
                Mode::HalfClose => {
                    let _ = to.shutdown(Shutdown::Write);
                    continue;
                }
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // Either may be closed already.
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    });
}
