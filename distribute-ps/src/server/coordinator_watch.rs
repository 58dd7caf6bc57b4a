//! How long servers and workers go on without a coordinator.

use std::time::{Duration, Instant};

use distribute_core::collectives::Interruption;
use distribute_net::handshake::Purpose;

use crate::error::{PsError, Result};
use crate::rpc::{self, POLL_INTERVAL};
use crate::server::ServerOptions;

/// The re-check interval of unbounded waits.
const LONG: Duration = Duration::from_secs(3600);

/// Whether there is a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CoordinatorPresence {
    /// None has come yet.
    Awaited,
    /// One is there; for how long nothing has been heard of it, if that is long.
    Connected(Option<Duration>),
    /// The one that came from this address has gone.
    Gone(String),
}

/// How long a worker or server waits for coordinators.
#[derive(Debug, Clone, Default)]
pub(crate) struct CoordinatorTimeouts {
    /// The process that waits, and its coordinator, in messages.
    pub(crate) task: String,
    pub(crate) chief: String,
    /// For the first one, and the option that says so.
    pub(crate) first: (Duration, &'static str),
    /// For another one when that has gone, and the option that says so.
    pub(crate) orphan: (Duration, &'static str),
    /// Ends both, and the wait for one that is connected but gives no sign of life.
    pub(crate) interruption: Interruption,
}

impl CoordinatorTimeouts {
    /// How long the process goes on before it looks again; without a coordinator it has `waited` so
    /// long. `refused` is what is known of processes that were turned away.
    pub(crate) fn time_left(
        &self,
        presence: CoordinatorPresence,
        waited: Duration,
        refused: impl FnOnce() -> Option<String>,
    ) -> Result<Duration> {
        let (task, chief) = (self.task.clone(), self.chief.clone());
        let is_raised = self.interruption.is_raised();
        let (limit, option) = match &presence {
            // A process ends with its coordinator, as long as that lives.
            CoordinatorPresence::Connected(Some(silence)) if is_raised => {
                let what = format!("{chief}, which has given no sign of life for {silence:.1?}");
                let waited = *silence;
                return Err(PsError::Interrupted { task, what, waited });
            }
            CoordinatorPresence::Connected(_) if is_raised => return Ok(POLL_INTERVAL),
            CoordinatorPresence::Connected(_) => return Ok(LONG),
            CoordinatorPresence::Awaited => self.first,
            CoordinatorPresence::Gone(_) => self.orphan,
        };
        let left = limit.saturating_sub(waited);
        if !left.is_zero() && !is_raised {
            return Ok(left);
        }
        let refused = with_refusal(refused());
        if is_raised {
            let what = format!("{chief}{refused}");
            return Err(PsError::Interrupted { task, what, waited });
        }
        Err(match presence {
            CoordinatorPresence::Gone(remote) => PsError::CoordinatorLost {
                task,
                chief: format!("{chief} (connected from {remote})"),
                waited,
                option,
                refused,
            },
            _ => PsError::NoCoordinator {
                task,
                chief,
                waited,
                option,
                refused,
            },
        })
    }
}

/// When a coordinator was last there.
#[derive(Debug)]
pub(super) struct CoordinatorWatch {
    timeouts: CoordinatorTimeouts,
    /// The end of the last time that nothing was wrong.
    since: Instant,
    /// Whether the server waits for its first coordinator.
    is_first: bool,
}

impl CoordinatorWatch {
    pub(super) fn new(options: &ServerOptions) -> Self {
        let timeouts = CoordinatorTimeouts {
            task: rpc::name(Purpose::ParameterServer, options.server),
            chief: chief(options.chief.as_deref()),
            first: (
                options.coordinator_timeout,
                "ServerOptions::coordinator_timeout",
            ),
            orphan: (options.orphan_timeout, "ServerOptions::orphan_timeout"),
            interruption: options.interruption.clone(),
        };
        Self {
            timeouts,
            since: Instant::now(),
            is_first: true,
        }
    }

    /// Fails when the server has been alone for too long; `refused` is what is known of processes
    /// that were turned away.
    pub(super) fn check(
        &mut self,
        presence: CoordinatorPresence,
        refused: impl FnOnce() -> Option<String>,
    ) -> Result<()> {
        let is_awaited = presence == CoordinatorPresence::Awaited;
        let is_connected = matches!(presence, CoordinatorPresence::Connected(_));
        if is_connected || is_awaited != self.is_first {
            self.since = Instant::now();
            self.is_first = is_awaited;
        }
        let left = self
            .timeouts
            .time_left(presence, self.since.elapsed(), refused);
        left.map(drop)
    }
}

/// The coordinator in messages.
pub(crate) fn chief(address: Option<&str>) -> String {
    match address {
        Some(address) => format!("the chief at {address}"),
        None => "the chief".to_string(),
    }
}

/// The part of a message that says why no peer came, if that is known.
fn with_refusal(known: Option<String>) -> String {
    known.map_or_else(String::new, |known| format!("; {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(first: Duration, orphan: Duration) -> ServerOptions {
        ServerOptions {
            server: Some(0),
            coordinator_timeout: first,
            orphan_timeout: orphan,
            chief: Some("chief:1".to_string()),
            ..ServerOptions::default()
        }
    }

    #[test]
    fn a_server_is_patient_before_and_between_coordinators() {
        let (long, none) = (Duration::from_secs(3600), Duration::ZERO);
        let gone = CoordinatorPresence::Gone("127.0.0.1:9".to_string());
        let (first, orphan) = (options(none, long), options(long, none));
        let mut watch = CoordinatorWatch::new(&orphan);
        assert!(watch.check(CoordinatorPresence::Awaited, || None).is_ok());
        let silence = Some(long);
        let connected = watch.check(CoordinatorPresence::Connected(silence), || None);
        assert!(connected.is_ok());
        let error = watch
            .check(gone.clone(), || Some("another job".to_string()))
            .unwrap_err();
        assert!(matches!(error, PsError::CoordinatorLost { .. }), "{error}");
        let text = error.to_string();
        for part in [
            "the chief at chief:1",
            "127.0.0.1:9",
            "orphan_timeout",
            "another job",
            "server 0",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let mut watch = CoordinatorWatch::new(&first);
        let awaited = watch.check(CoordinatorPresence::Awaited, || None);
        let error = awaited.unwrap_err();
        assert!(
            error.to_string().contains("start the chief at chief:1"),
            "{error}"
        );
        // Told to end, with a coordinator that says nothing.
        let mut watch = CoordinatorWatch::new(&first);
        first.interruption.raise();
        let now = None;
        assert!(
            watch
                .check(CoordinatorPresence::Connected(now), || None)
                .is_ok()
        );
        let error = watch.check(CoordinatorPresence::Connected(silence), || None);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("no sign of life"), "{text}");
        let first = options(none, long);
        // One that has come and gone before anybody looked.
        let mut watch = CoordinatorWatch::new(&first);
        assert!(watch.check(gone, || None).is_ok());
    }
}
