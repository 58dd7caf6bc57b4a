//! Ports of a process that has no descriptors left.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// How many descriptors the process may have for a while.
const DESCRIPTORS: u64 = 256;
/// How long it is looked at, and how much of this time it may compute.
const WATCHED: Duration = Duration::from_secs(1);
const BUSY_MAX: Duration = Duration::from_millis(200);

/// Takes all descriptors of this process while a client connects to one of its ports, and looks
/// that nothing tries to accept the connection again and again. To be called in a process of its
/// own.
///
/// # Panics
/// If it does, or the descriptors cannot be taken.
pub fn assert_port_pauses(address: SocketAddr) {
    let busy = busy_without_descriptors(|| TcpStream::connect(address));
    assert!(
        busy < BUSY_MAX,
        "{address}: within {WATCHED:?} without descriptors the process computed for {busy:?}"
    );
}

/// How long the process computes within a second in which a client connects to it and it has no
/// descriptors.
///
/// # Panics
/// If the descriptors cannot be taken, or no client could connect.
pub fn busy_without_descriptors<T>(connect: impl FnOnce() -> io::Result<T>) -> Duration {
    let usual = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(DESCRIPTORS),
        ..usual
    };
    let limited = setrlimit(Resource::Nofile, few);
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // The last one is for the end that connects, so that there is none for the one that accepts.
    drop(taken.pop());
    let connected = connect();
    let before = computed();
    std::thread::sleep(WATCHED);
    let after = computed();
    assert!(limited.is_ok() && connected.is_ok(), "no client connected");
    drop((taken, connected));
    let again = setrlimit(Resource::Nofile, usual);
    assert!(again.is_ok(), "the limit of descriptors stays low");
    after.saturating_sub(before)
}

/// How long all threads of the process have computed so far.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
