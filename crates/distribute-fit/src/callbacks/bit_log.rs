//! The hashes of all parameters after every update.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::PathBuf;

use distribute_core::{Error, Result, WorkerGroup};
use serde::Serialize;

use crate::bits::{Head, Line, Reader, file_of};
use crate::side_output::{self, SideOutput};
use crate::snapshot::refuse;
use crate::{Callback, Control, FitError};

/// Writes the SHA-256 of every parameter after every update, by which
/// [`compare_bits`](crate::compare_bits) finds where two runs part. Of several workers the chief
/// writes.
///
/// The file has a line for each update, of 67 bytes per parameter. Every update costs a copy of the
/// whole training state to host memory, which waits for the step, and the hash of every parameter:
/// about a second for each GB. Gradients are not in it: they are consumed by the update.
///
/// A new run replaces the file. A resumed one keeps the updates before it, so that the file ends up
/// as that of a run that was never interrupted; it must be of the same parameters. One run at a
/// time writes to a file, which it has locked; a second one is refused.
///
/// Training never ends because of it: a file that can no longer be written is left as it is, with a
/// warning. Only a run that begins is refused a file that cannot be made.
///
/// ```
/// use distribute_fit::callbacks::BitLog;
/// use distribute_fit::{BitComparison, compare_bits};
///
/// /// Of two runs with `Fit::callback(BitLog::new(..))`.
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
    /// Writes to this file; to `bits.jsonl` in a directory, if that is what it is or its name ends
    /// with `/`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: file_of(&path.into()),
            file: SideOutput::none(),
        }
    }

    /// How many bytes of the file are those of its updates up to a step. The later updates are
    /// written again, and so is a line that a crash has cut off.
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
                // What the interrupted run was writing.
                Err(_) if last == step => return Ok(kept),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file as it is, to append to, unless another run does.
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
            // Of a file system without locks, too.
            _ => Ok(file),
        }
    }

    /// The file with what an earlier run of these parameters has left in it up to a step.
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
        // One write per line: a crash leaves whole ones.
        file.write_all(text.as_bytes()).map_err(|error| {
            // The error that matters is the first one.
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
        let (head, step) = (Head::of(&run.tensors()?), run.progress().step);
        let begun = self.begun(&head, step);
        // Both are the user's to mend, and nothing is lost yet.
        let is_mistaken = begun.as_ref().is_err_and(is_of_another_run);
        self.file = side_output::opened(begun, step > 0 && !is_mistaken)?;
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        // A micro-batch is no update.
        if !self.file.is_open() || !run.reached_multiple_of(1) {
            return Ok(());
        }
        let line = Line::of(run.progress().step, &run.tensors()?)?;
        let mut output = std::mem::replace(&mut self.file, SideOutput::none());
        output.write(|file| self.write(file, &line));
        self.file = output;
        Ok(())
    }
}

/// Whether the file belongs to another run, of now or of another model.
fn is_of_another_run(error: &Error) -> bool {
    let error = error.wrapped().and_then(|error| error.downcast_ref());
    match error {
        Some(FitError::File { source, .. }) => source.kind() == io::ErrorKind::ResourceBusy,
        Some(FitError::Resume { .. }) => true,
        _ => false,
    }
}
