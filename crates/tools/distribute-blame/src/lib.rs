//! Reads the flight records of a group and says which rank the others waited for.
//!
//! The ranks write them with
//! [`Recorded`](distribute_collectives::flight_record::Recorded) when an operation fails;
//! `distribute-cli blame DIR` prints what [`blame`] returns.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod call;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod judge;
mod record;
mod slow;

use std::fmt;
use std::path::Path;

use distribute_collectives::flight_record::FlightRecordError;

use record::Record;

/// What the records of a group say; made to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blame {
    /// The name of the group.
    pub group: String,
    /// The generation of the group.
    pub generation: u64,
    /// Number of ranks.
    pub world_size: usize,
    /// The first operation in which the ranks differ, else the last one that any rank has begun.
    pub sequence: Option<u64>,
    /// Ranks that never began that operation.
    pub lagging: Vec<usize>,
    /// Ranks that began it after another rank had given up.
    pub late: Vec<usize>,
    /// Ranks that made another call than most; all ranks when there is no majority.
    pub diverging: Vec<usize>,
    /// Ranks without a record that can be read.
    pub missing: Vec<usize>,
    /// Ranks that took much longer than the others between operations, for long; not the reason why
    /// a group hangs, but why it was slow.
    pub slow: Vec<usize>,
    /// What was found, one sentence each.
    pub findings: Vec<String>,
    /// What was skipped while reading, one sentence each.
    pub notes: Vec<String>,
}

impl Blame {
    /// What these records say; `None` when there is none.
    fn of(records: Vec<Record>) -> Option<Blame> {
        let heads = records.iter().map(|record| &record.head);
        let newest = heads.max_by_key(|head| head.started_unix_us)?;
        let (group, generation) = (newest.group.clone(), newest.generation);
        let world_size = newest.world_size;
        Some(judge::judge(group, generation, world_size, records))
    }

    /// The ranks to look at first: ranks that differ, else ranks without a record.
    pub fn ranks(&self) -> Vec<usize> {
        let mut ranks = [&self.lagging[..], &self.late, &self.diverging].concat();
        if ranks.is_empty() {
            ranks.clone_from(&self.missing);
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Blame {
            group, generation, ..
        } = self;
        write!(
            f,
            "{group} (generation {generation}): {} ranks",
            self.world_size
        )?;
        for finding in &self.findings {
            write!(f, "\n{finding}")?;
        }
        for note in &self.notes {
            write!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

/// Reads the records that the ranks of a group wrote to a directory and finds the first operation
/// in which they differ.
///
/// With records of several groups or generations, the group that started last is used.
/// Files that are damaged are skipped and noted. To tell whether a rank came too late, the clocks
/// of the hosts are compared.
///
/// # Errors
/// [`FlightRecordError::Io`] when the directory cannot be read, [`FlightRecordError::NoRecords`]
/// when it has no record.
pub fn blame(dir: impl AsRef<Path>) -> Result<Blame, FlightRecordError> {
    let dir = dir.as_ref();
    let mut notes = Vec::new();
    let mut records = Vec::new();
    for path in record::list(dir)? {
        match record::read(&path) {
            Ok(record) => records.push(record),
            Err(reason) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                notes.push(format!("{name} was skipped: {reason}"));
            }
        }
    }
    let Some(mut blame) = Blame::of(records) else {
        let path = dir.display().to_string();
        return Err(FlightRecordError::NoRecords { path, notes });
    };
    notes.append(&mut blame.notes);
    blame.notes = notes;
    Ok(blame)
}
