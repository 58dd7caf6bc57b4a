//! The hashes of all parameters after every update.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::PathBuf;

use distribute_core::{Error, Result, WorkerGroup};
use serde::Serialize;

use crate::bits::{Hashed, Head, Line, Reader, file_of, hashed};
use crate::side_output::{self, SideOutput};
use crate::snapshot::refuse;
use crate::{Callback, Control, FitError};

/// Writes a SHA-256 hash of every parameter after every update. From the files of two runs
/// [`compare_bits`](crate::compare_bits) finds the first update whose parameters differ. With
/// several workers only the chief writes.
///
/// The file has a line for each update, of 67 bytes per parameter. After every update each
/// parameter is copied to host memory, one at a time, and hashed: this waits for the step and takes
/// about a second for each GB. The file has no gradients, because the update consumes them.
///
/// A new run replaces the file. A resumed run keeps the lines of the updates before its checkpoint
/// and continues the file, which must be of the same parameters. A run locks its file; a second run
/// that would write to the same file is refused.
///
/// An error while training goes on never ends the training: the file is left as it is, with a
/// warning. A new run whose file cannot be created is refused.
///
/// ```
/// use distribute_fit::callbacks::BitLog;
/// use distribute_fit::{BitComparison, compare_bits};
///
/// /// Compares the files of two runs with `Fit::callback(BitLog::new(..))`.
/// fn report(one: &str, other: &str) -> distribute_core::Result<()> {
///     match compare_bits(one, other)? {
///         BitComparison::Equal { last_step, .. } => println!("equal up to step {last_step}"),
///         BitComparison::Part { step, parameters, .. } => println!("step {step}: {parameters:?}"),
///         _ => {}
///     }
///     Ok(())
/// }
/// # assert!(report("no such file", "nor this").is_err());
/// ```
#[derive(Debug)]
#[must_use]
pub struct BitLog {
    path: PathBuf,
    file: SideOutput<File>,
}

impl BitLog {
    /// Writes to this file. For a directory, or a path that ends with `/`, the file is `bits.jsonl`
    /// in it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: file_of(&path.into()),
            file: SideOutput::none(),
        }
    }

    /// The length in bytes of the file up to the line of a step. The later updates are run and
    /// written again; a line that a crash has cut off is one of these.
    fn kept(&self, head: &Head, step: u64) -> Result<u64> {
        let mut reader = Reader::open(&self.path)?;
        if reader.head != *head {
            return Err(refuse(format!(
                "{} has the bits of another model; write to another file",
                self.path.display()
            )));
        }
        let (mut kept, mut last) = (reader.bytes, 0);
        loop {
            match reader.next() {
                Ok(Some(line)) if line.step <= step => (kept, last) = (reader.bytes, line.step),
                Ok(_) => return Ok(kept),
                // The line that the interrupted run was writing.
                Err(_) if last == step => return Ok(kept),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens the file for appending and locks it, unless another run has locked it.
    fn opened(&self) -> io::Result<File> {
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = File::options().append(true).create(true).open(&self.path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if file.metadata()?.is_file() => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another run writes it",
            )),
            // Also if the file system has no locks.
            _ => Ok(file),
        }
    }

    /// Opens the file and keeps what an earlier run of these parameters has written up to a step.
    fn begun(&self, head: &Head, step: u64) -> Result<File> {
        let open = |error| Error::from(FitError::file(&self.path, "open")(error));
        let mut file = self.opened().map_err(open)?;
        let is_empty = file.metadata().map_err(open)?.len() == 0;
        let kept = match step {
            0 => 0,
            _ if is_empty => 0,
            step => self.kept(head, step)?,
        };
        // A pipe or a device has no length.
        if !is_empty {
            file.set_len(kept).map_err(open)?;
        }
        if kept == 0 {
            self.write(&mut file, head)?;
        }
        Ok(file)
    }

    fn write(&self, file: &mut File, content: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(content).map_err(Error::internal)? + "\n";
        let before = file.metadata().map(|metadata| metadata.len());
        // One write per line: a crash leaves whole lines.
        file.write_all(text.as_bytes()).map_err(|error| {
            // Takes back a part of a line. The error of the write is reported, not one of this.
            let _ = before.and_then(|before| file.set_len(before));
            FitError::file(&self.path, "write")(error).into()
        })
    }
}

impl Callback for BitLog {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        let workers = run.strategy().workers();
        if !workers.is_none_or(WorkerGroup::is_chief) {
            return Ok(());
        }
        let (head, step) = (Head::of(&hashes(run)?), run.progress().step);
        let begun = self.begun(&head, step);
        // These mistakes are for the user to correct, before anything is trained.
        let is_mistaken = begun.as_ref().is_err_and(is_of_another_run);
        self.file = side_output::opened(begun, step > 0 && !is_mistaken)?;
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        // A micro-batch is no update.
        if !self.file.is_open() || !run.reached_multiple_of(1) {
            return Ok(());
        }
        let line = Line::of(run.progress().step, hashes(run)?);
        let mut output = std::mem::replace(&mut self.file, SideOutput::none());
        output.write(|file| self.write(file, &line));
        self.file = output;
        Ok(())
    }
}

/// The hashes of all parameters; copies one parameter at a time to host memory.
fn hashes(run: &Control<'_>) -> Result<Hashed> {
    let mut all = Hashed::new();
    run.state.each_parameter(&mut |path, value| {
        all.insert(path.to_string(), hashed(path, &value)?);
        Ok(())
    })?;
    Ok(all)
}

/// Whether the file belongs to another run: one that still writes to it, or one of another model.
fn is_of_another_run(error: &Error) -> bool {
    let error = error.wrapped().and_then(|error| error.downcast_ref());
    match error {
        Some(FitError::File { source, .. }) => source.kind() == io::ErrorKind::ResourceBusy,
        Some(FitError::Resume { .. }) => true,
        _ => false,
    }
}
