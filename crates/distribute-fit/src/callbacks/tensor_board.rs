//! Curves for TensorBoard.

use std::path::PathBuf;
use std::time::SystemTime;

use distribute_core::{Error, Result};

use crate::tensorboard::EventWriter;
use crate::{Callback, Control, EpochRecord, Outcome};

/// Writes event files as Keras does: `epoch_loss`, `epoch_accuracy` and so on, and
/// `epoch_learning_rate`, over the epochs (from 0); training under `<log directory>/train`,
/// validation under `<log directory>/validation`. Flushed after every epoch.
#[derive(Debug)]
#[must_use]
pub struct TensorBoard {
    directory: PathBuf,
    every_steps: Option<u64>,
    train: EventWriter,
    validation: Option<EventWriter>,
}

impl TensorBoard {
    /// Creates the log directory and the first event file.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn new(log_directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = log_directory.into();
        let train = EventWriter::create(directory.join("train"))?;
        Ok(Self {
            directory,
            every_steps: None,
            train,
            validation: None,
        })
    }

    /// Also writes `batch_loss`, the mean of the epoch so far, over the optimizer steps (Keras:
    /// `update_freq`). Reading it waits for the step.
    pub fn every_steps(mut self, steps: u64) -> Self {
        self.every_steps = (steps > 0).then_some(steps);
        self
    }
}

impl Callback for TensorBoard {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let step = run.progress().step;
        if !self
            .every_steps
            .is_some_and(|every| run.reached_multiple_of(every))
        {
            return Ok(());
        }
        let loss = run.logs()?.loss();
        let now = SystemTime::now();
        self.train
            .scalar("batch_loss", loss as f32, step, now)
            .map_err(Error::from)
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        let now = SystemTime::now();
        let epoch = record.epoch as u64;
        for (name, value) in record.logs.iter() {
            let (writer, name) = match name.strip_prefix("val_") {
                None => (&mut self.train, name),
                Some(name) => {
                    if self.validation.is_none() {
                        let directory = self.directory.join("validation");
                        self.validation = Some(EventWriter::create(directory)?);
                    }
                    let Some(writer) = &mut self.validation else {
                        continue;
                    };
                    (writer, name)
                }
            };
            let tag = format!("epoch_{name}");
            writer.scalar(&tag, value as f32, epoch, now)?;
        }
        let rate = record.learning_rate as f32;
        self.train.scalar("epoch_learning_rate", rate, epoch, now)?;
        self.flush()
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.flush()
    }
}

impl TensorBoard {
    fn flush(&mut self) -> Result<()> {
        self.train.flush()?;
        self.validation
            .as_mut()
            .map_or(Ok(()), |writer| writer.flush().map_err(Error::from))
    }
}
