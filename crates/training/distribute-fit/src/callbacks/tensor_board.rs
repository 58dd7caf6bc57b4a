//! Curves for TensorBoard.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use distribute_core::{Error, Result, setters};

use crate::side_output::SideOutput;
use crate::snapshot::parameters;
use crate::tensorboard::{EventWriter, remove_points};
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
/// `<log directory>/train`, validation under `<log directory>/validation`; of several workers also
/// `epoch_slowest_rank_ratio`, how many times as long as the median rank the slowest one computes
/// or waits for its data. Flushed after every epoch.
///
/// A resumed run first removes the points after the state that it goes on from, so that no point is
/// there twice. Only one run at a time may write into a log directory. An error while training goes
/// on never ends the training: the files are left as they are, with a warning.
#[derive(Debug)]
#[must_use]
pub struct TensorBoard {
    directory: PathBuf,
    every_steps: Option<u64>,
    histograms: Option<usize>,
    readings: Option<Readings>,
    writers: SideOutput<Writers>,
}

#[derive(Debug)]
struct Writers {
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
        let train = EventWriter::create(directory.join(TRAIN))?;
        Ok(Self {
            directory,
            every_steps: None,
            histograms: None,
            readings: None,
            writers: SideOutput::new(Writers {
                train,
                validation: None,
            }),
        })
    }

    setters! { self;
        /// Also writes `batch_loss`, the mean of the epoch so far, over the optimizer steps (Keras:
        /// `update_freq`). Reading it waits for the step.
        every_steps(steps: u64) => every_steps = (steps > 0).then_some(steps);

        /// Also writes the distribution of every parameter after every `epochs`-th epoch, as
        /// `conv1.weight/histogram` (Keras: `histogram_freq`); 0 is never. Reads the parameters
        /// from the device, which waits for it. Values that are not finite are left out of a
        /// distribution.
        histograms(epochs: usize) => histograms = (epochs > 0).then_some(epochs);
    }

    /// Calls `read` at the end of every epoch and also writes the pairs of a name and a value that
    /// it returns, as `epoch_<name>`.
    pub fn readings<T>(mut self, read: impl FnMut() -> T + Send + 'static) -> Self
    where
        T: IntoIterator<Item = (&'static str, f64)>,
    {
        let mut read = read;
        self.readings = Some(Readings(Box::new(move || read().into_iter().collect())));
        self
    }

    /// Writes; after an error it writes nothing any more.
    fn write(&mut self, write: impl FnOnce(&mut Writers) -> Result<()>) {
        if let Some(failed) = self.writers.write(write) {
            let writers = [Some(failed.train), failed.validation];
            writers.into_iter().flatten().for_each(EventWriter::discard);
        }
    }
}

impl Writers {
    fn epoch(
        &mut self,
        record: &EpochRecord,
        directory: &Path,
        more: Vec<(&str, f64)>,
    ) -> Result<()> {
        let now = SystemTime::now();
        let epoch = record.epoch as u64;
        for (name, value) in record.logs.iter() {
            let (writer, name) = match name.strip_prefix("val_") {
                None => (&mut self.train, name),
                Some(name) => {
                    let writer = match self.validation.take() {
                        None => EventWriter::create(directory.join(VALIDATION))?,
                        Some(writer) => writer,
                    };
                    (self.validation.insert(writer), name)
                }
            };
            writer.scalar(&format!("{EPOCH}{name}"), value as f32, epoch, now)?;
        }
        let rate = record.learning_rate as f32;
        self.train.scalar("epoch_learning_rate", rate, epoch, now)?;
        let speed = ("examples_per_second", record.examples_per_second());
        for (name, value) in [speed].into_iter().chain(more) {
            let name = format!("{EPOCH}{name}");
            self.train.scalar(&name, value as f32, epoch, now)?;
        }
        Ok(())
    }

    fn histograms(&mut self, epoch: u64, run: &Control<'_>) -> Result<()> {
        let now = SystemTime::now();
        for (name, data) in parameters(&run.model()?) {
            let finite = data.iter::<f64>().filter(|value| value.is_finite());
            let tag = format!("{name}{HISTOGRAM}");
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

/// The folders of the curves.
const TRAIN: &str = "train";
const VALIDATION: &str = "validation";
/// The tags of points per epoch begin or end with these two; the third is the tag of points per
/// update.
const EPOCH: &str = "epoch_";
const HISTOGRAM: &str = "/histogram";
const BATCH_LOSS: &str = "batch_loss";
/// How much longer the slowest rank computes, or waits for its data, than the median rank.
const SLOWEST: &str = "slowest_rank_ratio";

impl Callback for TensorBoard {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        if progress.step == 0 {
            return Ok(());
        }
        let is_obsolete = |tag: &str, step| match tag {
            BATCH_LOSS => step > progress.step,
            tag if tag.starts_with(EPOCH) || tag.ends_with(HISTOGRAM) => {
                step >= progress.position.epoch as u64
            }
            _ => false,
        };
        for folder in [TRAIN, VALIDATION] {
            let removed = remove_points(self.directory.join(folder), is_obsolete);
            self.write(|_| removed.map_err(Error::from));
        }
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let due = |every| run.reached_multiple_of(every);
        if self.every_steps.is_some_and(due) && self.writers.is_open() {
            let (loss, step) = (run.logs()?.loss(), run.progress().step);
            let now = SystemTime::now();
            let loss = loss as f32;
            self.write(|to| Ok(to.train.scalar(BATCH_LOSS, loss, step, now)?));
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let readings = self.readings.as_mut().map(|readings| (readings.0)());
        let mut readings = readings.unwrap_or_default();
        let ratios = run.standings().iter().map(|standing| standing.ratio);
        readings.extend(ratios.max_by(f64::total_cmp).map(|ratio| (SLOWEST, ratio)));
        let due = |every| (record.epoch + 1).is_multiple_of(every);
        let histograms = self.histograms.is_some_and(due);
        let directory = self.directory.clone();
        self.write(|to| {
            to.epoch(record, &directory, readings)?;
            if histograms {
                to.histograms(record.epoch as u64, run)?;
            }
            to.flush()
        });
        Ok(())
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.write(Writers::flush);
        Ok(())
    }
}
