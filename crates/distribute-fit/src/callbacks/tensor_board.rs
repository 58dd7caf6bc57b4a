//! Curves for TensorBoard.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use distribute_core::{Result, setters};

use crate::snapshot::parameters;
use crate::tensorboard::EventWriter;
use crate::{Callback, Control, EpochRecord, Outcome};

/// What else is read at the end of an epoch.
struct Readings(Box<dyn FnMut() -> Vec<(&'static str, f64)> + Send>);

impl fmt::Debug for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readings")
    }
}

/// Writes event files as Keras does: `epoch_loss`, `epoch_accuracy` and so on,
/// `epoch_learning_rate` and `epoch_examples_per_second`, over the epochs (from 0); training under
/// `<log directory>/train`, validation under `<log directory>/validation`. Flushed after every
/// epoch.
#[derive(Debug)]
#[must_use]
pub struct TensorBoard {
    directory: PathBuf,
    every_steps: Option<u64>,
    histograms: Option<usize>,
    readings: Option<Readings>,
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
            histograms: None,
            readings: None,
            train,
            validation: None,
        })
    }

    setters! { self;
        /// Also writes `batch_loss`, the mean of the epoch so far, over the optimizer steps (Keras:
        /// `update_freq`). Reading it waits for the step.
        every_steps(steps: u64) => every_steps = (steps > 0).then_some(steps);

        /// Also writes the distribution of every parameter after every `epochs`-th epoch, as
        /// `conv1.weight/histogram` (Keras: `histogram_freq`); 0 is never. Reads the parameters
        /// from the device, which waits for it. What is not finite is left out of a distribution.
        histograms(epochs: usize) => histograms = (epochs > 0).then_some(epochs);
    }

    /// Also writes what this gives at the end of every epoch: a name, and a value, as
    /// `epoch_<name>`.
    pub fn readings<T>(mut self, read: impl FnMut() -> T + Send + 'static) -> Self
    where
        T: IntoIterator<Item = (&'static str, f64)>,
    {
        let mut read = read;
        self.readings = Some(Readings(Box::new(move || read().into_iter().collect())));
        self
    }

    fn write_histograms(&mut self, epoch: u64, run: &Control<'_>) -> Result<()> {
        let now = SystemTime::now();
        for (name, data) in parameters(&run.tensors()?) {
            let finite = data.iter::<f64>().filter(|value| value.is_finite());
            let tag = format!("{name}/histogram");
            self.train.histogram(&tag, finite, epoch, now)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let writers = [Some(&mut self.train), self.validation.as_mut()];
        let mut writers = writers.into_iter().flatten();
        Ok(writers.try_for_each(EventWriter::flush)?)
    }
}

impl Callback for TensorBoard {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let due = |every| run.reached_multiple_of(every);
        if self.every_steps.is_some_and(due) {
            let (loss, step) = (run.logs()?.loss(), run.progress().step);
            self.train
                .scalar("batch_loss", loss as f32, step, SystemTime::now())?;
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let now = SystemTime::now();
        let epoch = record.epoch as u64;
        for (name, value) in record.logs.iter() {
            let (writer, name) = match name.strip_prefix("val_") {
                None => (&mut self.train, name),
                Some(name) => {
                    let writer = match self.validation.take() {
                        None => EventWriter::create(self.directory.join("validation"))?,
                        Some(writer) => writer,
                    };
                    (self.validation.insert(writer), name)
                }
            };
            writer.scalar(&format!("epoch_{name}"), value as f32, epoch, now)?;
        }
        let rate = record.learning_rate as f32;
        self.train.scalar("epoch_learning_rate", rate, epoch, now)?;
        let readings = self.readings.as_mut().map(|readings| (readings.0)());
        let speed = ("examples_per_second", record.examples_per_second());
        for (name, value) in [speed].into_iter().chain(readings.into_iter().flatten()) {
            let name = format!("epoch_{name}");
            self.train.scalar(&name, value as f32, epoch, now)?;
        }
        let due = |every| (record.epoch + 1).is_multiple_of(every);
        if self.histograms.is_some_and(due) {
            self.write_histograms(epoch, run)?;
        }
        self.flush()
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.flush()
    }
}
