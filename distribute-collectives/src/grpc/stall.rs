//! Data connections whose bytes do not arrive although the other rank is heard of.
//!
//! A path that loses large packets, or a firewall that has forgotten a connection, lets heartbeats
//! pass: nothing ends such a connection for minutes. So a rank that waits looks whether the kernel
//! of the other one acknowledges what was sent. (A rank that does not read acknowledges, too: its
//! window is closed then, and nothing is on its way.)

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How often a rank that waits looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long the accepting end of a connection waits longer than the one that dialled, which can
/// find out more.
const ACCEPTING_MORE: Duration = Duration::from_secs(1);
/// How long a new connection may take.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// How long bytes may be on their way before the connection counts as stalled, for a rank that may
/// be silent for `silence`. After a cut of just so much TCP takes as long once more to send again
/// what was lost.
pub(crate) fn stall_limit(silence: Duration) -> Duration {
    silence
        .saturating_mul(2)
        .saturating_add(Duration::from_secs(1))
}

/// What the kernel says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    /// Bytes that were sent and not acknowledged.
    pub(super) in_flight: usize,
    /// Bytes that were acknowledged so far.
    pub(super) acknowledged: u64,
}

/// How a connection gets on.
#[derive(Debug, Default)]
pub(super) struct Progress {
    acknowledged: u64,
    /// Since when bytes are on their way and none has arrived.
    since: Option<Instant>,
}

impl Progress {
    /// One look; for how long nothing has arrived that is on its way.
    pub(super) fn look(&mut self, now: Instant, sent: Sent) -> Duration {
        if sent.in_flight == 0 || sent.acknowledged != self.acknowledged {
            self.since = None;
        }
        self.acknowledged = sent.acknowledged;
        if sent.in_flight == 0 {
            return Duration::ZERO;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now))
    }
}

/// How long a connection may stand still for this rank.
pub(super) fn limit_of(limit: Duration, has_dialled: bool) -> Duration {
    if has_dialled {
        limit
    } else {
        limit.saturating_add(ACCEPTING_MORE)
    }
}

/// What is known about a connection that stands still: `dialled` is where this rank had reached the
/// other one, if it had. Dials there once more.
pub(super) fn explain(in_flight: usize, elapsed: Duration, dialled: Option<SocketAddr>) -> String {
    let what = format!("{in_flight} bytes have been on their way for {elapsed:.1?}");
    let Some(address) = dialled else {
        return format!(
            "{what}; either a firewall drops what comes back, or the path loses large packets: \
             compare the MTU of all its parts"
        );
    };
    let (ip, port) = (address.ip(), address.port());
    if answers(address) {
        format!(
            "{what}, but a new connection to port {port} is answered: small packets pass, large \
             ones are lost; compare the MTU of all parts of the path (ping -M do -s 1400 {ip})"
        )
    } else {
        format!(
            "{what}, and a new connection to port {port} gets no answer: a firewall drops this \
             port; let it pass, or choose one that passes"
        )
    }
}

/// Whether the host answers a new connection, even by refusing it.
fn answers(address: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&address, DIAL_TIMEOUT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sent(in_flight: usize, acknowledged: u64) -> Sent {
        Sent {
            in_flight,
            acknowledged,
        }
    }

    #[test]
    fn only_bytes_that_do_not_arrive_stand_still() {
        let (mut progress, begin) = (Progress::default(), Instant::now());
        let mut look = |seconds: u32, sent| progress.look(begin + seconds * SECOND, sent);
        assert_eq!(look(0, sent(5000, 0)), Duration::ZERO);
        assert_eq!(look(3, sent(9000, 0)), 3 * SECOND);
        // One packet of them has arrived: the connection is slow.
        assert_eq!(look(6, sent(8000, 1000)), Duration::ZERO);
        assert_eq!(look(8, sent(8000, 1000)), 2 * SECOND);
        // The other rank does not read: all that was sent has arrived, and nothing more is sent.
        assert_eq!(look(10, sent(0, 9000)), Duration::ZERO);
        assert_eq!(look(600, sent(0, 9000)), Duration::ZERO);
        // Time without bytes on their way counts for none of them.
        assert_eq!(look(601, sent(10, 9000)), Duration::ZERO);
        assert_eq!(look(608, sent(10, 9000)), 7 * SECOND);
    }

    #[test]
    fn a_connection_may_stand_still_for_as_long_as_a_cut_takes_to_heal() {
        let limit = stall_limit(3 * SECOND);
        assert_eq!(limit, 7 * SECOND);
        assert!(limit_of(limit, false) > limit_of(limit, true));
        assert_eq!(stall_limit(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn the_cause_is_looked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let told = explain(70_000, 7 * SECOND, Some(address));
        assert!(told.contains("large ones are lost"), "{told}");
        drop(listener);
        let told = explain(70_000, 7 * SECOND, Some(address));
        assert!(
            told.contains("is answered"),
            "no one listens, but it answers: {told}"
        );
        let told = explain(1, 7 * SECOND, None);
        assert!(told.contains("firewall") && told.contains("MTU"), "{told}");
    }
}
