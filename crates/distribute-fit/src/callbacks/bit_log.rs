//! The hashes of all parameters after every update.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use distribute_core::{Error, Result, WorkerGroup};
use serde::Serialize;

use crate::bits::{Head, Line, Reader, file_of};
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
/// as that of a run that was never interrupted; it must be of the same parameters.
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
    file: Option<File>,
}

impl BitLog {
    /// Writes to this file; to `bits.jsonl` in a directory, if that is what it is or its name ends
    /// with `/`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: file_of(&path.into()),
            file: None,
        }
    }

    /// How many bytes of the file are those of its updates up to a step. The later updates are
    /// written again, and so is a line that a crash has cut off.
    fn kept(&self, head: &Head, step: u64) -> Result<u64> {
        let mut reader = match Reader::open(&self.path) {
            Ok(reader) => reader,
            Err(FitError::BitsFile { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        };
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

    /// The file with so many bytes of before, to append to.
    fn opened(&self, kept: u64) -> io::Result<File> {
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = File::options().append(true).create(true).open(&self.path)?;
        file.set_len(kept)?;
        Ok(file)
    }

    fn write(&mut self, content: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(content).map_err(Error::internal)? + "\n";
        if let Some(file) = &mut self.file {
            // One write per line: a crash leaves whole ones.
            let written = file.write_all(text.as_bytes());
            written.map_err(FitError::file(&self.path, "write"))?;
        }
        Ok(())
    }
}

impl Callback for BitLog {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        let workers = run.strategy().workers();
        if !workers.is_none_or(WorkerGroup::is_chief) {
            return Ok(());
        }
        let head = Head::of(&run.tensors()?);
        let kept = match run.progress().step {
            0 => 0,
            step => self.kept(&head, step)?,
        };
        let file = self.opened(kept);
        self.file = Some(file.map_err(FitError::file(&self.path, "open"))?);
        match kept {
            0 => self.write(&head),
            _ => Ok(()),
        }
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        // A micro-batch is no update.
        if self.file.is_none() || !run.reached_multiple_of(1) {
            return Ok(());
        }
        self.write(&Line::of(run.progress().step, &run.tensors()?)?)
    }
}
