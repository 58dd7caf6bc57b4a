//! When bytes last came over a connection.
//!
//! The keep-alive pings of HTTP/2 and their answers bring some at least once an interval, as long
//! as the process at the other end lives. One that is silent for longer is not waited for by a
//! process that was told to end; any other one waits until the connection ends, as
//! [`keepalive_timeout`](super::RpcOptions::keepalive_timeout) says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distribute_net::compute_clock::{ComputeClock, ComputeInstant};
use tokio::io::AsyncRead;
use tokio_util::io::InspectReader;

use crate::rpc::RpcOptions;

/// What an answer may take beyond the interval of the pings.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// How often a process that was told to end looks whether its peers are silent.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// When something was last heard of a process. Clones are of the same connection.
#[derive(Debug, Clone)]
pub(crate) struct LastHeard {
    clock: Arc<ComputeClock>,
    opened: ComputeInstant,
    /// Milliseconds after `opened`, by the clock.
    heard: Arc<AtomicU64>,
    keepalive_interval: Duration,
}

impl LastHeard {
    pub(super) fn new(options: &RpcOptions) -> Self {
        Self {
            clock: options.clock.clone(),
            opened: options.clock.now(),
            heard: Arc::default(),
            keepalive_interval: options.keepalive_interval,
        }
    }

    /// The connection, which notes when bytes come.
    pub(super) fn listening<S: AsyncRead>(self, stream: S) -> InspectReader<S, impl FnMut(&[u8])> {
        InspectReader::new(stream, move |came: &[u8]| {
            if !came.is_empty() {
                let after = self.clock.elapsed(self.opened).as_millis();
                let after = u64::try_from(after).unwrap_or(u64::MAX);
                self.heard.store(after, Ordering::Relaxed);
            }
        })
    }

    /// For how long nothing was heard, if that is longer than it takes a living process. What this
    /// process did not get to compute is no silence of the other one.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        let silence = self.clock.elapsed(self.opened).saturating_sub(heard);
        (silence > self.keepalive_interval + ANSWER_TIME).then_some(silence)
    }
}

#[cfg(test)]
mod tests {
    use distribute_net::handshake::Purpose;
    use distribute_net::security::Security;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::rpc::clock;

    #[tokio::test]
    async fn what_comes_ends_a_silence() {
        let (mut far, near) = tokio::io::duplex(64);
        let mut options = RpcOptions::new(Purpose::Worker, None, Security::default());
        options.keepalive_interval = Duration::ZERO;
        let ticking = options.clock.clone();
        tokio::spawn(async move { ticking.keep_ticking().await });
        let last = LastHeard::new(&options);
        let mut near = last.clone().listening(near);
        // By the clock: on a busy machine it takes longer.
        clock::sleep(options.clock.clone(), ANSWER_TIME * 2).await;
        assert!(last.silence().unwrap() >= ANSWER_TIME);
        // What this side sends is no sign of life of the other.
        near.write_all(b"ping").await.unwrap();
        assert!(last.silence().is_some());
        far.write_all(b"pong").await.unwrap();
        near.read_exact(&mut [0; 4]).await.unwrap();
        assert_eq!(last.silence(), None);
    }
}
