//! What the person in front of the terminal sees.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use distribute_core::Result;
use indicatif::{ProgressBar as Bar, ProgressDrawTarget, ProgressStyle};

use super::table::{Table, short};
use crate::{Callback, Control, EpochRecord, FitError, Outcome};

/// How often the loss is read for the bar; reading it waits for the step.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a long epoch says that it is alive where there is no terminal.
const STILL_ALIVE: Duration = Duration::from_secs(30);

const TEMPLATE: &str = "{prefix} [{bar:30}] {pos}/{len}  {per_sec}  eta {eta}  {msg}";
const TEMPLATE_WITHOUT_LENGTH: &str = "{prefix} {spinner} {pos}  {per_sec}  {msg}";

/// A progress bar for the running epoch and one line of a table per epoch.
///
/// On a terminal the bar is drawn on standard error, and the table above it. Elsewhere (a file, a
/// pipe, CI) there are plain lines only: the table, and twice a minute how far a long epoch is.
#[must_use]
pub struct ProgressBar {
    /// Hidden where there is no terminal.
    bar: Bar,
    /// Where the lines go.
    output: Box<dyn Write>,
    table: Table,
    last_shown: Option<Instant>,
}

impl Default for ProgressBar {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressBar {
    /// On standard error: a bar on a terminal, plain lines elsewhere.
    pub fn new() -> Self {
        Self::on(ProgressDrawTarget::stderr(), io::stderr())
    }

    /// Plain lines, without a bar, wherever `output` leads.
    pub fn plain(output: impl Write + 'static) -> Self {
        Self::on(ProgressDrawTarget::hidden(), output)
    }

    fn on(target: ProgressDrawTarget, output: impl Write + 'static) -> Self {
        Self {
            bar: Bar::with_draw_target(None, target),
            output: Box::new(output),
            table: Table::default(),
            last_shown: None,
        }
    }

    /// Writes a line; the bar makes room for it.
    fn line(&mut self, line: &str) -> Result<()> {
        let output = &mut self.output;
        let write = || writeln!(output, "{line}").and_then(|()| output.flush());
        let written = self.bar.suspend(write);
        Ok(written.map_err(FitError::file(Path::new("the progress output"), "write to"))?)
    }

    /// Whether it is time to read the loss again.
    fn is_due(&mut self) -> bool {
        let interval = match self.bar.is_hidden() {
            true => STILL_ALIVE,
            false => REDRAW,
        };
        let now = Instant::now();
        let last = *self.last_shown.get_or_insert(now);
        let due = now.duration_since(last) >= interval;
        if due {
            self.last_shown = Some(now);
        }
        due
    }
}

impl fmt::Debug for ProgressBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressBar")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// The bar of one pass over the data.
fn start(bar: &Bar, title: String, length: Option<usize>) {
    let template = match length {
        Some(_) => TEMPLATE,
        None => TEMPLATE_WITHOUT_LENGTH,
    };
    // A test goes through both templates, so neither is refused.
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.reset();
    match length {
        Some(length) => bar.set_length(length as u64),
        None => bar.unset_length(),
    }
    bar.set_prefix(title);
    bar.set_message("");
}

impl Callback for ProgressBar {
    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        self.last_shown = Some(Instant::now());
        let title = format!("epoch {}/{}", progress.position.epoch + 1, progress.epochs);
        start(&self.bar, title, progress.batches_per_epoch);
        self.bar.set_position(progress.position.batches as u64);
        // So that the rate does not count batches before a resume.
        self.bar.reset_eta();
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        let progress = run.progress();
        let done = progress.position.batches;
        let logs = short(&run.logs()?);
        if !self.bar.is_hidden() {
            self.bar.set_position(done as u64);
            self.bar.set_message(logs);
            return Ok(());
        }
        let of = match progress.batches_per_epoch {
            Some(batches) => format!("{done}/{batches}"),
            None => done.to_string(),
        };
        let (epoch, epochs) = (progress.position.epoch + 1, progress.epochs);
        self.line(&format!("epoch {epoch}/{epochs}: batch {of}  {logs}"))
    }

    fn on_validation_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        if progress.validation_batches == 1 {
            let length = progress.validation_batches_in_all;
            start(&self.bar, "validation".to_string(), length);
        }
        self.bar.set_position(progress.validation_batches as u64);
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let lines = self.table.lines(record, run.progress().epochs);
        lines.iter().try_for_each(|line| self.line(line))
    }

    fn on_train_end(&mut self, outcome: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.bar.finish_and_clear();
        match outcome {
            Outcome::Completed => Ok(()),
            other => self.line(&other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_templates_are_valid() {
        for template in [TEMPLATE, TEMPLATE_WITHOUT_LENGTH] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_bar_starts_again_for_every_pass() {
        let bar = Bar::with_draw_target(None, ProgressDrawTarget::hidden());
        start(&bar, "epoch 1/2".to_string(), Some(10));
        bar.set_position(10);
        start(&bar, "validation".to_string(), None);
        assert_eq!((bar.position(), bar.length()), (0, None));
        assert_eq!(bar.prefix(), "validation");
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_cannot_be_written_is_an_error() {
        let error = ProgressBar::plain(Broken).line("text").unwrap_err();
        insta::assert_snapshot!(error, @"cannot write to the progress output (broken pipe): choose a writable path with free space");
    }
}
