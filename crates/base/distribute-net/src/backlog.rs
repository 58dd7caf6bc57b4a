//! How many connections the system keeps for a port until the process accepts them.

use std::os::fd::AsFd;

/// As many as Linux keeps by default (`net.core.somaxconn`), if the system lets it. The standard
/// library asks for 128. A connection beyond that is not answered, and is tried again by the system
/// of its other end after 1 s, 3 s and 7 s: some of a thousand ranks which come at once would wait
/// so long.
const BACKLOG: i32 = 4096;

/// Widens the queue of a socket that listens.
pub(crate) fn widen(listener: impl AsFd) {
    // A system that refuses stays as it is: slower, not wrong.
    let _ = rustix::net::listen(listener, BACKLOG);
}
