//! The result of a closure that may not have run yet.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
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
    fn lock(&self) -> MutexGuard<'_, Option<Result<Bytes>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the closure ended. Only the first time counts.
    pub(super) fn set(&self, outcome: Result<Bytes>) {
        self.lock().get_or_insert(outcome);
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
        let mut ended = self.slot.lock();
        let bytes = loop {
            match &*ended {
                Some(outcome) => break outcome.clone()?,
                None => {
                    let waited = self.slot.changed.wait(ended);
                    ended = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(ended);
        self.read(&bytes)
    }

    /// [`fetch`](Self::fetch), but for so long at most.
    ///
    /// # Errors
    /// As `fetch`, and [`PsError::Deadline`].
    pub fn fetch_timeout<R: DeserializeOwned>(&self, timeout: Duration) -> Result<R> {
        let begun = Instant::now();
        let mut ended = self.slot.lock();
        let bytes = loop {
            let left = timeout.saturating_sub(begun.elapsed());
            match &*ended {
                Some(outcome) => break outcome.clone()?,
                None if left.is_zero() => return Err(self.late(timeout)),
                None => {
                    let waited = self.slot.changed.wait_timeout(ended, left);
                    ended = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        drop(ended);
        self.read(&bytes)
    }

    /// Whether the closure has finished, failed or been cancelled. Does not block.
    pub fn is_ready(&self) -> bool {
        self.slot.lock().is_some()
    }

    fn read<R: DeserializeOwned>(&self, bytes: &[u8]) -> Result<R> {
        value::decode(bytes).map_err(|reason| {
            let (step, wanted) = (&self.step, std::any::type_name::<R>());
            PsError::invalid(format!(
                "the result of step `{step}` is no {wanted}: {reason}; fetch it as the type that \
                 the step returns"
            ))
        })
    }

    fn late(&self, waited: Duration) -> PsError {
        PsError::Deadline {
            op: "fetch",
            waited,
            reason: format!("closure {} ({}) has not ended", self.closure, self.step),
        }
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
