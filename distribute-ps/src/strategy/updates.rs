//! Where the ids of updates come from.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;
use crate::client::VariableClient;
use crate::error::{PsError, Result};
use crate::update::{OUTSIDE, RunId, UpdateId};

/// The ids of one closure's updates, numbered in the order in which they are made: a closure that
/// runs again makes the same ones. Clones count together.
#[derive(Clone)]
pub struct UpdateSource {
    run: RunId,
    closure: u64,
    sequence: Arc<AtomicU32>,
    is_cancelled: Arc<AtomicBool>,
}

impl UpdateSource {
    /// Of a closure. `sequence` is the number of the next update; when `is_cancelled` becomes true
    /// there are no more.
    pub fn new(
        run: RunId,
        closure: u64,
        sequence: Arc<AtomicU32>,
        is_cancelled: Arc<AtomicBool>,
    ) -> Self {
        Self {
            run,
            closure,
            sequence,
            is_cancelled,
        }
    }

    /// The next id.
    ///
    /// # Errors
    /// [`PsError::Cancelled`] if the closure is to stop.
    pub fn next(&self) -> Result<UpdateId> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(PsError::Cancelled);
        }
        Ok(UpdateId {
            run: self.run,
            closure: self.closure,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
        })
    }
}

impl fmt::Debug for UpdateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateSource")
            .field("closure", &self.closure)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// How many updates without closures the servers remember, where nobody else counts closures.
const REMEMBERED: u64 = 1024;

/// A strategy's updates: those of the closure that it runs, else its own.
#[derive(Debug)]
pub(crate) struct Updates {
    run: RunId,
    closure: Mutex<Option<UpdateSource>>,
    own: Mutex<Own>,
}

/// Ids of updates that belong to no closure.
#[derive(Debug)]
enum Own {
    /// Beside a coordinator's closures.
    Beside { closure: u64, sequence: u32 },
    /// Nobody schedules closures in this run: each update is one, and earlier ones are finished.
    Alone {
        closure: u64,
        client: VariableClient,
    },
}

impl Updates {
    /// Beside those of a coordinator.
    pub(super) fn new(run: RunId) -> Result<Self> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| PsError::system("cannot draw the id of updates", error))?;
        let closure = OUTSIDE | u64::from_le_bytes(bytes);
        Ok(Self::with(
            run,
            Own::Beside {
                closure,
                sequence: 0,
            },
        ))
    }

    /// The only ones of a run.
    pub(super) fn alone(run: RunId, client: VariableClient) -> Self {
        Self::with(run, Own::Alone { closure: 0, client })
    }

    fn with(run: RunId, own: Own) -> Self {
        Self {
            run,
            closure: Mutex::default(),
            own: Mutex::new(own),
        }
    }

    pub(super) fn enter(&self, source: UpdateSource) {
        *lock(&self.closure) = Some(source);
    }

    pub(super) fn leave(&self) {
        *lock(&self.closure) = None;
    }

    /// The closure that runs, for servers where faster workers wait for it.
    pub(crate) fn closure(&self) -> Option<u64> {
        Some(lock(&self.closure).as_ref()?.closure)
    }

    pub(super) fn next(&self) -> Result<UpdateId> {
        if let Some(source) = &*lock(&self.closure) {
            return source.next();
        }
        let (closure, sequence) = match &mut *lock(&self.own) {
            Own::Beside { closure, sequence } => {
                let id = (*closure, *sequence);
                (*closure, *sequence) = match sequence.checked_add(1) {
                    Some(next) => (*closure, next),
                    None => (OUTSIDE | closure.wrapping_add(1), 0),
                };
                id
            }
            Own::Alone { closure, client } => {
                *closure += 1;
                if closure.is_multiple_of(REMEMBERED) {
                    client.finished_below(*closure)?;
                }
                (*closure, 0)
            }
        };
        Ok(UpdateId {
            run: self.run,
            closure,
            sequence,
        })
    }
}
