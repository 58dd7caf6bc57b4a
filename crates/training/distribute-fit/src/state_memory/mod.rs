//! The state of the last steps in memory that outlives the process, so that training goes on from
//! the last step when a process is lost, without a disk.

mod agreement;
mod record;
mod slot;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use burn::tensor::TensorData;
use distribute_core::checkpoint::{Checkpoint, Section};
use distribute_core::{Error, Result, Strategy, WorkerGroup};
use gethostname::gethostname;

use self::record::{Encoded, Held, Identity, decode};
use self::slot::Slot;
use crate::FitError;
use crate::worker_sync::{all_of, or_abort};

/// The two files, separated as in `PATH`.
const VARIABLE: &str = "DISTRIBUTE_STATE_MEMORY";

/// Memory of the launcher of this process that holds the training state of two steps: that of the
/// last one which is whole, and that of the one which is being written.
///
/// `distribute-cli launch` gives each worker such a memory, in the variable
/// `DISTRIBUTE_STATE_MEMORY`. It outlives the worker, is that of the worker in its place after a
/// restart, and is gone with the launcher, however that ends. The callback
/// [`ReplicateState`](crate::callbacks::ReplicateState) writes into it, and
/// [`agree`](Self::agree) finds the step that the workers go on from.
///
/// ```no_run
/// use distribute_core::{MultiWorkerMirroredStrategy, Result};
/// use distribute_fit::callbacks::ReplicateState;
/// use distribute_fit::{Fit, StateMemory};
///
/// # fn main() -> Result<()> {
/// let strategy = MultiWorkerMirroredStrategy::new()?;
/// let mut memory = StateMemory::of_launcher()?;
/// let state = memory.agree(&strategy)?;
/// let fit = Fit::new(&strategy)
///     .resume_from(state)
///     .callback(ReplicateState::new(memory));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StateMemory {
    slots: [Slot; 2],
    /// The slot that is written next: the other one is whole, if there is one.
    next: usize,
    sequence: u64,
    /// Whose memory it is.
    launcher: String,
    /// How far on the worker is that holds what this one's replicas have as their own: after
    /// [`agree`](Self::agree) one with another launcher, where there is one.
    pub(crate) distance: usize,
}

impl StateMemory {
    /// The memory that the launcher of this process has given it.
    ///
    /// # Errors
    /// [`FitError::NoStateMemory`] if it has given none, [`FitError::StateMemory`] if it cannot be
    /// opened.
    pub fn of_launcher() -> Result<Self> {
        let paths = std::env::var_os(VARIABLE).unwrap_or_default();
        let paths: Vec<PathBuf> = std::env::split_paths(&paths).collect();
        let paths = <[PathBuf; 2]>::try_from(paths);
        Self::open(paths.map_err(|_| FitError::NoStateMemory { variable: VARIABLE })?)
    }

    /// Memory in two files, which exist and belong to this worker alone.
    ///
    /// # Errors
    /// [`FitError::StateMemory`] if one cannot be opened.
    pub fn open(paths: [PathBuf; 2]) -> Result<Self> {
        let [first, second] = paths;
        let launcher = first.parent().unwrap_or(&first).display();
        Ok(Self {
            launcher: format!("{}:{launcher}", gethostname().display()),
            slots: [Slot::open(first)?, Slot::open(second)?],
            next: 0,
            sequence: 0,
            distance: 1,
        })
    }

    /// The newest state that all workers hold which hold any, with all that each replica has as its
    /// own, for [`Fit::resume_from`](crate::Fit::resume_from). Workers that hold none are given it.
    /// `None` if no worker holds one, or the workers have none in common with what all replicas
    /// have as their own: then the newest checkpoint on disk is what is left.
    ///
    /// All workers call it together, before training; it blocks until they have.
    ///
    /// # Errors
    /// [`FitError::StateMemory`] if the memory cannot be read; a worker that was lost or does not
    /// come before the deadline.
    pub fn agree(&mut self, strategy: &(impl Strategy + ?Sized)) -> Result<Option<Checkpoint>> {
        let handle = strategy.handle();
        let own = or_abort(&*handle, self.held())?;
        let said: Vec<Held> = own.iter().map(|(_, held, _)| held.clone()).collect();
        let said = (self.launcher.clone(), said);
        let all = all_of(&*handle, "what each worker holds of the state", said)?;
        let (launchers, all): (Vec<String>, Vec<Vec<Held>>) = all.into_iter().unzip();
        self.distance = agreement::distance(&launchers);
        let replicas = strategy.num_replicas_in_sync();
        let Some(chosen) = agreement::choose(&all, replicas) else {
            tracing::debug!(?all, "no state in memory is that of all workers");
            return Ok(None);
        };
        let own = own.into_iter().find(|(_, held, _)| held.identity == chosen);
        let own = own.map(|(slot, _, found)| {
            self.next = 1 - slot;
            found
        });
        match strategy.workers() {
            Some(workers) => exchanged(workers, &all, &chosen, own).map(Some),
            None => Ok(own),
        }
    }

    /// The states that are whole, by their slots.
    fn held(&mut self) -> Result<Vec<(usize, Held, Checkpoint)>> {
        let mut held = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let Some((sequence, found)) = slot.read()? else {
                continue;
            };
            if sequence >= self.sequence {
                // Until the workers have agreed on another one.
                (self.sequence, self.next) = (sequence, 1 - index);
            }
            held.push((index, Held::of(&found)?, found));
        }
        Ok(held)
    }

    /// Writes a state in the place of the older one.
    pub(crate) fn write(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.sequence += 1;
        self.slots[self.next].write(self.sequence, checkpoint)?;
        self.next = 1 - self.next;
        Ok(())
    }
}

/// The chosen state with all that any worker holds of it: the first one that holds it gives it to
/// those that do not, and each gives what replicas have as their own and no worker before it holds.
fn exchanged(
    workers: &WorkerGroup,
    all: &[Vec<Held>],
    chosen: &Identity,
    own: Option<Checkpoint>,
) -> Result<Checkpoint> {
    let given = agreement::given_by(all, workers.index(), chosen);
    let is_giver = agreement::first_holder(all, chosen) == Some(workers.index());
    let gives_all = is_giver && agreement::is_missing(all, chosen);
    let part = own.as_ref().map(|own| {
        let is_given = |(name, _): &(&String, &TensorData)| match Section::replica_of(name) {
            Some(replica) => given.contains(&replica),
            None => gives_all,
        };
        let tensors = own.tensors.iter().filter(is_given);
        let mut part = Checkpoint::new(own.metadata.clone());
        part.tensors
            .extend(tensors.map(|(name, data)| (name.clone(), data.clone())));
        Encoded::new(&part)?.into_bytes()
    });
    let part = workers.or_abort(part.transpose())?.unwrap_or_default();
    let length = part.len();
    let part = vec![TensorData::new(part, [length])];
    let parts = workers.gather("the state in memory", &[part])?;
    let mut whole = own;
    for part in parts.into_iter().flatten() {
        let bytes = part.as_bytes();
        if bytes.is_empty() {
            continue;
        }
        let part = decode(bytes).ok_or_else(unreadable)?;
        let whole = whole.get_or_insert_with(|| Checkpoint::new(part.metadata.clone()));
        whole.tensors.extend(part.tensors);
    }
    whole.ok_or_else(unreadable)
}

fn unreadable() -> Error {
    Error::invalid(
        "another worker sent a state that cannot be read: run the same program on all workers",
    )
}
