//! Where the ids of updates come from.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

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

    pub(crate) fn closure(&self) -> u64 {
        self.closure
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// The next id.
    ///
    /// # Errors
    /// [`PsError::Cancelled`] if the closure is to stop.
    pub fn next(&self) -> Result<UpdateId> {
        if self.is_cancelled() {
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

/// The id of an update that is being made. Dropped when its outcome is known: until then the
/// servers are not told that all before a later one have ended.
#[must_use]
pub(crate) struct PendingUpdate<'a> {
    id: UpdateId,
    updates: &'a Updates,
}

impl PendingUpdate<'_> {
    /// The id itself, to be used while this lives.
    pub(crate) fn id(&self) -> UpdateId {
        self.id
    }
}

impl Drop for PendingUpdate<'_> {
    fn drop(&mut self) {
        if let UpdateIds::WithoutCoordinator { under_way, .. } = &mut *self.updates.ids.lock() {
            under_way.remove(&self.id.closure);
        }
    }
}

/// How many updates without closures the servers remember, if closures are not counted elsewhere.
const REMEMBERED: u64 = 1024;

/// A strategy's updates: of the closure that it runs, else its own.
#[derive(Debug)]
pub(crate) struct Updates {
    run: RunId,
    closure: Mutex<Option<UpdateSource>>,
    ids: Mutex<UpdateIds>,
}

/// Ids of updates that belong to no closure.
#[derive(Debug)]
enum UpdateIds {
    /// A coordinator schedules closures in the same run.
    WithCoordinator { closure: u64, sequence: u32 },
    /// The run has no coordinator: each update counts as a closure, and earlier ones are finished.
    WithoutCoordinator {
        closure: u64,
        client: VariableClient,
        /// What threads have drawn and not made yet.
        under_way: BTreeSet<u64>,
    },
}

impl Updates {
    /// The ids of a strategy whose run has a coordinator.
    pub(crate) fn new(run: RunId) -> Result<Self> {
        let bytes = distribute_net::random()
            .map_err(|error| PsError::system("cannot draw the id of updates", error))?;
        let closure = OUTSIDE | u64::from_le_bytes(bytes);
        Ok(Self::with(
            run,
            UpdateIds::WithCoordinator {
                closure,
                sequence: 0,
            },
        ))
    }

    /// The ids of a strategy whose run has no coordinator.
    pub(crate) fn alone(run: RunId, client: VariableClient) -> Self {
        let ids = UpdateIds::WithoutCoordinator {
            closure: 0,
            client,
            under_way: BTreeSet::new(),
        };
        Self::with(run, ids)
    }

    fn with(run: RunId, ids: UpdateIds) -> Self {
        Self {
            run,
            closure: Mutex::default(),
            ids: Mutex::new(ids),
        }
    }

    pub(crate) fn enter(&self, source: UpdateSource) {
        *self.closure.lock() = Some(source);
    }

    pub(crate) fn leave(&self) {
        *self.closure.lock() = None;
    }

    /// The closure that runs, for servers where faster workers wait for it.
    pub(crate) fn closure(&self) -> Option<u64> {
        Some(self.closure.lock().as_ref()?.closure)
    }

    pub(crate) fn next(&self) -> Result<PendingUpdate<'_>> {
        let id = self.next_id()?;
        Ok(PendingUpdate { id, updates: self })
    }

    fn next_id(&self) -> Result<UpdateId> {
        if let Some(source) = &*self.closure.lock() {
            return source.next();
        }
        let (closure, sequence) = match &mut *self.ids.lock() {
            UpdateIds::WithCoordinator { closure, sequence } => {
                let id = (*closure, *sequence);
                (*closure, *sequence) = match sequence.checked_add(1) {
                    Some(next) => (*closure, next),
                    None => (OUTSIDE | closure.wrapping_add(1), 0),
                };
                id
            }
            UpdateIds::WithoutCoordinator {
                closure,
                client,
                under_way,
            } => {
                *closure += 1;
                if closure.is_multiple_of(REMEMBERED) {
                    client.finished_below(under_way.first().copied().unwrap_or(*closure))?;
                }
                under_way.insert(*closure);
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

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, TensorData};

    use super::*;
    use crate::{ClientOptions, ParameterServer, RoundRobin, RunOptions, ServerOptions};
    use crate::{VariableRef, VariableSpec};

    fn variable(client: &VariableClient) -> VariableRef {
        let spec = VariableSpec {
            name: "w".to_string(),
            shape: vec![1],
            dtype: DType::F32,
            optimizer: None,
        };
        let mut round_robin = RoundRobin::new(1).unwrap();
        let placement = round_robin.place(&spec.shape, 4, None).unwrap();
        let variable = client.create(&spec, &placement).unwrap();
        let zero = TensorData::new(vec![0.0_f32], [1]);
        client.initialize(&variable, zero).unwrap();
        variable
    }

    #[test]
    fn an_update_drawn_long_before_it_is_sent_is_applied_once() {
        let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let address = server.address().to_string();
        let client = VariableClient::connect(&[address], ClientOptions::default()).unwrap();
        let run = RunId::random().unwrap();
        client.attach(run, RunOptions::default()).unwrap();
        let variable = variable(&client);
        let updates = Updates::alone(run, client.clone());
        let add = |id| {
            let one = TensorData::new(vec![1.0_f32], [1]);
            client.assign_add(id, &variable, one).unwrap()
        };
        let slow = updates.next().unwrap();
        // Another thread makes many meanwhile; it is enough to draw them.
        for _ in 0..2 * REMEMBERED {
            drop(updates.next().unwrap());
        }
        let done = add(slow.id());
        assert_eq!((done.applied, done.already_applied), (1, 0));
        // A repetition is still one.
        assert_eq!(add(slow.id()).already_applied, 1);
        drop(slow);
        // What has ended is forgotten all the same.
        let old = updates.next().unwrap().id();
        for _ in 0..2 * REMEMBERED {
            drop(updates.next().unwrap());
        }
        assert_eq!(add(old).already_applied, 1);
    }
}
