//! `train --trace`: one file per run, or one per worker, which are merged at the end.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use distribute_core::{Error, Result, WorkerGroup};
use serde_json::json;

use super::clock::{self, Offset};
use super::writer::{self, TraceFile};
use super::{Phases, merge};
use crate::failure::Failure;
use crate::notes::note;

/// A trace that is being written.
#[derive(Debug)]
pub(crate) struct Trace {
    phases: Phases,
    /// The path of the whole trace.
    path: PathBuf,
    /// The path of this process' part, and its rank.
    part: PathBuf,
    workers: Option<WorkerGroup>,
    run: String,
    /// Dropping the sender ends the thread.
    writer: Option<(SyncSender<()>, JoinHandle<io::Result<()>>)>,
}

/// The state of one worker's part, as exchanged between workers.
type Part = Option<String>;

impl Trace {
    /// Creates the file and starts recording phases. Each of several workers has its own file, and
    /// all of them call it together.
    ///
    /// # Errors
    /// If it cannot be written, on all workers; for a run that `goes_on` this is only a warning.
    pub(crate) fn start(
        phases: &Phases,
        path: &Path,
        workers: Option<&WorkerGroup>,
        goes_on: bool,
    ) -> std::result::Result<Self, Failure> {
        let workers = workers.filter(|workers| workers.num_workers() > 1);
        let rank = workers.map_or(0, WorkerGroup::index);
        let part = match workers {
            Some(_) => part_of(path, rank),
            None => path.to_path_buf(),
        };
        let made = TraceFile::create(&part).map_err(|error| cannot_write(&part, &error));
        let made = match made {
            // A continued run is more important than its trace.
            Err(error) if goes_on => {
                note(&format!("warning: {error}; training goes on without it"));
                TraceFile::create(Path::new("/dev/null")).map_err(Error::from)
            }
            made => made,
        };
        let file = match workers {
            Some(workers) => workers.or_abort(made)?,
            None => made?,
        };
        let (offset, run) = match workers {
            Some(workers) => clock::compare(workers)?,
            None => (Offset::default(), String::new()),
        };
        let mut trace = Self {
            phases: phases.clone(),
            path: path.to_path_buf(),
            part,
            workers: workers.cloned(),
            run,
            writer: None,
        };
        trace.write(file, rank, offset)?;
        Ok(trace)
    }

    /// Starts the writing thread.
    fn write(&mut self, mut file: TraceFile, rank: usize, offset: Offset) -> Result<()> {
        let name = match &self.workers {
            Some(_) => format!("worker {rank}"),
            None => "train".to_string(),
        };
        let workers = self.workers.as_ref().map_or(1, WorkerGroup::num_workers);
        let head = json!({
            "run": self.run, "rank": rank, "workers": workers,
            "start_us": clock::now() / 1000,
            "offset_us": offset.nanoseconds / 1000.0, "error_us": offset.error / 1000.0,
        });
        let written = file
            .add(&writer::metadata(rank, 0, merge::HEAD, &head))
            .and_then(|()| {
                let name = json!({"name": name});
                file.add(&writer::metadata(rank, 0, "process_name", &name))
            })
            .and_then(|()| {
                let order = json!({"sort_index": rank});
                file.add(&writer::metadata(rank, 0, "process_sort_index", &order))
            })
            .and_then(|()| file.flush());
        written.map_err(|error| cannot_write(&self.part, &error))?;
        let (stopper, stop) = sync_channel(0);
        let phases = self.phases.clone();
        self.phases.begin();
        let thread = thread::Builder::new()
            .name("trace".to_string())
            .spawn(move || writer::run(&phases, &stop, file, rank))
            .map_err(Error::internal)?;
        self.writer = Some((stopper, thread));
        Ok(())
    }

    /// Ends the file, and merges the files of all workers. `together`: all workers call it. An
    /// incomplete trace gives a warning, not an error.
    pub(crate) fn finish(mut self, together: bool) {
        let own = self.end();
        if let Some(problem) = &own {
            note(&format!("warning: {problem}"));
        }
        let Some(workers) = self.workers.take() else {
            return;
        };
        let all: Option<Vec<Part>> = together
            .then(|| workers.all_gather_json("the end of the trace", &own).ok())
            .flatten();
        let is_whole = all.is_some();
        if is_whole && !workers.is_chief() {
            return;
        }
        // After a failure each remaining worker merges the existing parts: the last one finds most.
        let parts: Vec<PathBuf> = (0..workers.num_workers())
            .map(|rank| part_of(&self.path, rank))
            .collect();
        let said = match merge::merge(&parts, &self.run, &self.path) {
            Ok(merged) => self.say(&merged, is_whole, &parts),
            Err(error) => Some(format!(
                "the trace is not merged: cannot write {} ({error}); the parts of the \
                 workers stay beside it",
                self.path.display()
            )),
        };
        if let Some(said) = said {
            note(&format!("warning: {said}"));
        }
    }

    /// The warnings about merged parts. Parts that are not needed any more are removed.
    fn say(&self, merged: &[usize], is_whole: bool, parts: &[PathBuf]) -> Option<String> {
        let missing: Vec<String> = (0..parts.len())
            .filter(|rank| !merged.contains(rank))
            .map(|rank| rank.to_string())
            .collect();
        if !missing.is_empty() {
            return Some(format!(
                "the trace {} is without worker {}: its part is on another host, or was not \
                 written; the parts of the others stay beside it",
                self.path.display(),
                missing.join(", ")
            ));
        }
        for part in parts.iter().filter(|_| is_whole) {
            // It is in the trace; if it cannot be removed, it does no harm.
            let _ = std::fs::remove_file(part);
        }
        None
    }

    /// Ends the thread; returns an error of the file.
    fn end(&mut self) -> Part {
        let (stopper, thread) = self.writer.take()?;
        drop(stopper);
        let outcome = thread.join();
        let dropped = self.phases.end().1;
        let path = self.part.display();
        match outcome {
            Ok(Ok(())) if dropped == 0 => None,
            Ok(Ok(())) => Some(format!(
                "the trace {path} is without {dropped} events, which came faster than they could \
                 be written"
            )),
            Ok(Err(error)) => Some(format!(
                "the trace {path} ends early ({error}); free some space or choose another path"
            )),
            Err(_) => Some(format!("the trace {path} ends early: its thread panicked")),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Only after an error: a finished trace has no thread any more.
        let _said = self.end();
    }
}

/// The path of a worker's part: `trace.worker-1.json` for `trace.json`.
pub(super) fn part_of(path: &Path, rank: usize) -> PathBuf {
    let mut name = path.file_stem().map_or_else(OsString::new, OsString::from);
    name.push(format!(".worker-{rank}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    let what = format!(
        "cannot write the trace {} ({error}); choose another path for --trace, of a file and with \
         free space",
        path.display()
    );
    Error::of_system(error, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_beside_the_trace() {
        let part = |path: &str| part_of(Path::new(path), 3).display().to_string();
        assert_eq!(part("logs/trace.json"), "logs/trace.worker-3.json");
        assert_eq!(part("trace"), "trace.worker-3");
    }
}
