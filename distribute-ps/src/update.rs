//! What travels to a server: updates and their identity, and the rules of a run.
//!
//! A *run* is one life of a coordinator; servers refuse what other runs send ([`RunId`]). An update
//! has an id, made of the closure and its number in it, by which a server applies it at most once
//! ([`UpdateId`]). The *version* of a shard is the number of changes that it has had, and the
//! *staleness* of a gradient is how many of them came since the values were pulled that it was
//! computed with.

use std::fmt;
use std::time::Duration;

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use crate::error::{PsError, Result};

/// The identity of one run of a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId(pub u128);

impl RunId {
    /// An id that no other run has.
    ///
    /// # Errors
    /// [`PsError::System`] when the operating system has no random numbers.
    pub fn random() -> Result<Self> {
        let bytes = distribute_net::random()
            .map_err(|error| PsError::system("cannot draw the id of a run", error))?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The identity of an update. A server applies each id at most once per shard, so a worker's
/// closure that runs a second time changes nothing a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpdateId {
    /// The run that the update belongs to.
    pub run: RunId,
    /// The scheduled closure, counted by the coordinator; the same when it runs again.
    pub closure: u64,
    /// Which update of the closure, counted by the step.
    pub sequence: u32,
}

/// Closure and sequence of an update: its identity within its run.
pub(crate) type UpdateKey = (u64, u32);

impl UpdateId {
    pub(crate) fn key(self) -> UpdateKey {
        (self.closure, self.sequence)
    }
}

/// Closures of a coordinator are counted from 1, so none has a number like this: updates outside of
/// closures, each source with a number of its own.
pub(crate) const OUTSIDE: u64 = 1 << 63;

/// How often each shard of a variable was updated, in the order of the shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions(pub Vec<u64>);

/// What a worker computed for one variable.
#[derive(Debug, Clone)]
pub enum Gradient {
    /// A gradient of the variable's shape.
    Dense(TensorData),
    /// Rows of a gradient: `rows[i]` belongs to row `ids[i]`; rows with one id add up. Only these
    /// rows travel, and the optimizer changes only them and their slots (a "lazy" Adam).
    Sparse {
        /// The rows of the variable, any order, repetitions allowed.
        ids: Vec<u64>,
        /// Shape: number of ids, then the variable's shape without its first axis.
        rows: TensorData,
    },
    /// As [`Sparse`](Self::Sparse), for a table whose shards count together: those without a row
    /// of the gradient hear of the update too. So every shard has had the same number of updates
    /// (what Adam divides by does not depend on the partitioner), and a synchronous round has a
    /// gradient of every worker, with rows or without.
    Table {
        /// The rows of the variable, any order, repetitions allowed.
        ids: Vec<u64>,
        /// Shape: number of ids, then the variable's shape without its first axis.
        rows: TensorData,
    },
}

/// What a push did, counted in shards, and the versions after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushOutcome {
    /// Shards whose version this push advanced.
    pub applied: usize,
    /// Shards that had this update already.
    pub already_applied: usize,
    /// Shards that wait for the gradients of other workers (synchronous mode).
    pub accumulated: usize,
    /// Shards whose round was over already: the gradient came too late (synchronous mode).
    pub dropped: usize,
    /// The versions after the push, one entry per pushed variable. A shard that was not touched
    /// (sparse pushes) has version 0 here.
    pub versions: Vec<Versions>,
    /// How often the optimizer was applied to each shard, in the same way.
    pub updates: Vec<Versions>,
}

/// What happens to gradients with NaN or infinity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NonFinite {
    /// The whole push fails with [`PsError::NonFinite`] and nothing of it is applied.
    #[default]
    Refuse,
    /// Gradients with NaN or infinity are applied like any other.
    Apply,
}

/// What happens to workers that would break the staleness bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StalenessPolicy {
    /// Faster workers wait in pull and push until no gradient will be staler than the bound.
    Wait,
    /// A gradient that is staler than the bound is refused with [`PsError::Stale`].
    Refuse,
}

/// By how many versions of the weights a gradient may be late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// The most updates between the pull of the weights and the push of their gradient.
    pub bound: u64,
    /// What happens at the bound.
    pub policy: StalenessPolicy,
}

/// The rules that the servers follow during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunOptions {
    /// A bound on staleness; none by default.
    pub staleness: Option<Staleness>,
    /// Synchronous mode: a shard is updated with the mean of this many gradients of its current
    /// version; later ones of that version are dropped (backup workers). Asynchronous by default.
    pub synchronous: Option<usize>,
    /// What happens to NaN and infinity; refused by default.
    pub non_finite: NonFinite,
    /// How long a server lets a worker wait for slower ones; 60 s by default.
    pub wait_timeout: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            staleness: None,
            synchronous: None,
            non_finite: NonFinite::Refuse,
            wait_timeout: Duration::from_secs(60),
        }
    }
}

impl RunOptions {
    /// Whether the rules go together.
    pub(crate) fn check(&self) -> Result<()> {
        match (self.synchronous, self.staleness) {
            (Some(0), _) => Err(PsError::invalid(
                "synchronous: a round needs at least one gradient",
            )),
            (Some(_), Some(_)) => Err(PsError::invalid(
                "a synchronous run has no staleness bound: gradients of older versions are dropped",
            )),
            _ => Ok(()),
        }
    }
}
