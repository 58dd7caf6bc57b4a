//! How long a server has been without a coordinator.

use std::time::{Duration, Instant};

use crate::error::{PsError, Result};
use crate::server::ServerOptions;
use crate::server::store::CoordinatorPresence;

/// After an interruption: how long a coordinator that is connected may say nothing. It speaks once
/// a second.
const SILENT_AFTER: Duration = Duration::from_millis(1500);

/// When a coordinator was last there.
#[derive(Debug)]
pub(super) struct CoordinatorWatch<'a> {
    options: &'a ServerOptions,
    /// The end of the last time that nothing was wrong.
    since: Instant,
    /// Whether the server waits for its first coordinator.
    is_first: bool,
}

impl<'a> CoordinatorWatch<'a> {
    pub(super) fn new(options: &'a ServerOptions) -> Self {
        Self {
            options,
            since: Instant::now(),
            is_first: true,
        }
    }

    /// Fails when the server has been alone for too long; `silence` is how long nothing was heard
    /// of its coordinator, `refused` what is known of processes that were turned away.
    pub(super) fn check(
        &mut self,
        presence: CoordinatorPresence,
        silence: Option<Duration>,
        refused: impl FnOnce() -> Option<String>,
    ) -> Result<()> {
        let is_awaited = presence == CoordinatorPresence::Awaited;
        if presence == CoordinatorPresence::Connected || is_awaited != self.is_first {
            self.since = Instant::now();
            self.is_first = is_awaited;
        }
        let waited = self.since.elapsed();
        let silence = silence.filter(|silence| *silence > SILENT_AFTER);
        if let Some(silence) = silence
            && presence == CoordinatorPresence::Connected
            && self.options.interruption.is_raised()
        {
            let chief = self.chief();
            return Err(PsError::Interrupted {
                task: self.task(),
                what: format!("{chief}, which has given no sign of life for {silence:.1?}"),
                waited: silence,
            });
        }
        if presence != CoordinatorPresence::Connected && self.options.interruption.is_raised() {
            let what = format!("{}{}", self.chief(), with_refusal(refused()));
            let task = self.task();
            return Err(PsError::Interrupted { task, what, waited });
        }
        match presence {
            CoordinatorPresence::Awaited if waited >= self.options.coordinator_timeout => {
                Err(self.no_coordinator_error(waited, refused()))
            }
            CoordinatorPresence::Gone(remote) if waited >= self.options.orphan_timeout => {
                Err(PsError::CoordinatorLost {
                    task: self.task(),
                    chief: format!("{} (connected from {remote})", self.chief()),
                    waited,
                    option: "ServerOptions::orphan_timeout",
                    refused: with_refusal(refused()),
                })
            }
            _ => Ok(()),
        }
    }

    fn no_coordinator_error(&self, waited: Duration, refused: Option<String>) -> PsError {
        PsError::NoCoordinator {
            task: self.task(),
            chief: self.chief(),
            waited,
            option: "ServerOptions::coordinator_timeout",
            refused: with_refusal(refused),
        }
    }

    fn task(&self) -> String {
        format!("parameter server {}", self.options.server)
    }

    fn chief(&self) -> String {
        chief(self.options.chief.as_deref())
    }
}

/// The coordinator in messages.
pub(crate) fn chief(address: Option<&str>) -> String {
    match address {
        Some(address) => format!("the chief at {address}"),
        None => "the chief".to_string(),
    }
}

/// What is added to a message about a process that was turned away.
pub(crate) fn with_refusal(refused: Option<String>) -> String {
    refused.map_or_else(String::new, |refused| {
        format!("; the last process that was turned away: {refused}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(first: Duration, orphan: Duration) -> ServerOptions {
        ServerOptions {
            coordinator_timeout: first,
            orphan_timeout: orphan,
            chief: Some("chief:1".to_string()),
            ..ServerOptions::default()
        }
    }

    #[test]
    fn a_server_is_patient_before_and_between_coordinators() {
        let (long, none) = (Duration::from_secs(3600), Duration::ZERO);
        let gone = CoordinatorPresence::Gone("127.0.0.1:9".parse().unwrap());
        let (first, orphan) = (options(none, long), options(long, none));
        let mut watch = CoordinatorWatch::new(&orphan);
        assert!(
            watch
                .check(CoordinatorPresence::Awaited, None, || None)
                .is_ok()
        );
        let silence = Some(long);
        let connected = watch.check(CoordinatorPresence::Connected, silence, || None);
        assert!(connected.is_ok());
        let error = watch
            .check(gone, None, || Some("a stranger".to_string()))
            .unwrap_err();
        assert!(matches!(error, PsError::CoordinatorLost { .. }), "{error}");
        let text = error.to_string();
        for part in [
            "the chief at chief:1",
            "127.0.0.1:9",
            "orphan_timeout",
            "a stranger",
            "server 0",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let mut watch = CoordinatorWatch::new(&first);
        let awaited = watch.check(CoordinatorPresence::Awaited, None, || None);
        let error = awaited.unwrap_err();
        assert!(
            error.to_string().contains("start the chief at chief:1"),
            "{error}"
        );
        // Told to end, with a coordinator that says nothing.
        let mut watch = CoordinatorWatch::new(&first);
        first.interruption.raise();
        let now = Some(none);
        assert!(
            watch
                .check(CoordinatorPresence::Connected, now, || None)
                .is_ok()
        );
        let error = watch.check(CoordinatorPresence::Connected, silence, || None);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("no sign of life"), "{text}");
        let first = options(none, long);
        // One that has come and gone before anybody looked.
        let mut watch = CoordinatorWatch::new(&first);
        assert!(watch.check(gone, None, || None).is_ok());
    }
}
