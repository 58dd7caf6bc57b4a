//! The result of a closure that may not have run yet.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use serde::de::DeserializeOwned;
use serde::ser::{Error as _, Serialize, Serializer};

use crate::error::{PsError, Result};
use crate::value;

/// TensorFlow's message, which serde carries through.
pub(super) const AS_ARGUMENT: &str = "`RemoteValue` used as an input to scheduled function is not \
                                      yet supported";

/// Where a result arrives.
#[derive(Debug, Default)]
pub(super) struct Slot {
    ended: Mutex<Option<Result<Bytes>>>,
    changed: Condvar,
}

impl Slot {
    /// How the closure ended. Only the first time counts.
    pub(super) fn set(&self, outcome: Result<Bytes>) {
        self.ended.lock().get_or_insert(outcome);
        self.changed.notify_all();
    }
}

/// The result of a scheduled closure, which may not have run yet (TensorFlow: `RemoteValue`).
///
/// Cheap to clone. Dropping all clones drops the result; the closure runs all the same.
#[derive(Clone)]
pub struct RemoteValue {
    pub(super) closure: u64,
    pub(super) step: Arc<str>,
    pub(super) slot: Arc<Slot>,
}

impl RemoteValue {
    /// The closure's id, counted from 1.
    pub fn closure_id(&self) -> u64 {
        self.closure
    }

    /// The registered name of the step.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// Waits until the closure has ended and gives its result. The result stays; it can be fetched
    /// again.
    ///
    /// # Errors
    /// [`PsError::Closure`] with the closure's own error if it failed, [`PsError::Cancelled`] if it
    /// was cancelled because another one failed or because the coordinator ended,
    /// [`PsError::InvalidArgument`] if the result is no `R`.
    pub fn fetch<R: DeserializeOwned>(&self) -> Result<R> {
        self.wait(None)
    }

    /// [`fetch`](Self::fetch), but for so long at most.
    ///
    /// # Errors
    /// As `fetch`, and [`PsError::Deadline`].
    pub fn fetch_timeout<R: DeserializeOwned>(&self, timeout: Duration) -> Result<R> {
        self.wait(Some(timeout))
    }

    fn wait<R: DeserializeOwned>(&self, timeout: Option<Duration>) -> Result<R> {
        let Slot { ended, changed } = &*self.slot;
        let mut ended = ended.lock();
        let is_running = |ended: &mut Option<_>| ended.is_none();
        match timeout {
            None => changed.wait_while(&mut ended, is_running),
            Some(limit) => {
                changed.wait_while_for(&mut ended, is_running, limit);
            }
        }
        let late = || PsError::Deadline {
            op: "fetch",
            waited: timeout.unwrap_or_default(),
            reason: format!("closure {} ({}) has not ended", self.closure, self.step),
        };
        let bytes = ended.clone().ok_or_else(late)??;
        drop(ended);
        value::decode(&bytes).map_err(|reason| {
            let (step, wanted) = (&self.step, std::any::type_name::<R>());
            PsError::invalid(format!(
                "the result of step `{step}` is no {wanted}: {reason}; fetch it as the type that \
                 the step returns"
            ))
        })
    }

    /// Whether the closure has finished, failed or been cancelled. Does not block.
    pub fn is_ready(&self) -> bool {
        self.slot.ended.lock().is_some()
    }
}

impl fmt::Debug for RemoteValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteValue")
            .field("closure", &self.closure)
            .field("step", &self.step)
            .field("ready", &self.is_ready())
            .finish()
    }
}

/// Never succeeds: as in TensorFlow a remote value cannot be an argument. The error comes where
/// it is scheduled.
impl Serialize for RemoteValue {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom(AS_ARGUMENT))
    }
}
