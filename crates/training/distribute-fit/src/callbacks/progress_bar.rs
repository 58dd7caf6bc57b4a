//! What the person in front of the terminal sees.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use distribute_core::Result;
use indicatif::{ProgressBar as Bar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::table::{Table, short};
use crate::{Callback, Control, EpochRecord, FitError, Outcome};

/// How often the loss is read for the bar; reading it waits for the step.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is printed during a long epoch where there is no terminal.
const STILL_ALIVE: Duration = Duration::from_secs(30);

/// The bar fills the rest of the line: less than a tenth of 80 columns.
const TEMPLATE: &str = "{prefix} [{wide_bar}] {pos}/{len} {rate}eta {eta} {msg}";
const TEMPLATE_WITHOUT_LENGTH: &str = "{prefix} {spinner} {pos} {rate}{msg}";

/// A progress bar for the running epoch and one line of a table per epoch.
///
/// The table is a result and goes to standard output; the progress goes to standard error. On a
/// terminal the progress is a bar below the table. Elsewhere (a file, a pipe, CI) it is a plain
/// line twice a minute, which says how far a long epoch is.
#[must_use]
pub struct ProgressBar {
    /// Hidden where there is no terminal.
    bar: Bar,
    /// Where lines about progress go.
    progress: Box<dyn Write>,
    /// Where the rows of the table go; `None` if they go where the progress goes.
    rows: Option<Box<dyn Write>>,
    table: Table,
    last_shown: Option<Instant>,
    /// Whether the line about the end of training is left out.
    quiet_end: bool,
    /// Whether there was anything to train.
    has_begun: bool,
}

impl Default for ProgressBar {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressBar {
    /// The table on standard output, and the progress on standard error: a bar on a terminal, else
    /// plain lines.
    pub fn new() -> Self {
        Self::on(ProgressDrawTarget::stderr(), io::stderr()).table_on(io::stdout())
    }

    /// Plain lines without a bar, and the table, on `output`.
    pub fn plain(output: impl Write + 'static) -> Self {
        Self::on(ProgressDrawTarget::hidden(), output)
    }

    /// The same with the table on `output`.
    pub fn table_on(mut self, output: impl Write + 'static) -> Self {
        self.rows = Some(Box::new(output));
        self
    }

    /// The same without a line about how training ended, for a program that prints its own.
    pub fn quiet_end(mut self) -> Self {
        self.quiet_end = true;
        self
    }

    fn on(target: ProgressDrawTarget, progress: impl Write + 'static) -> Self {
        Self {
            bar: Bar::with_draw_target(None, target),
            progress: Box::new(progress),
            rows: None,
            table: Table::default(),
            last_shown: None,
            quiet_end: false,
            has_begun: false,
        }
    }

    /// Writes a line about progress.
    fn line(&mut self, line: &str) -> Result<()> {
        write_line(&self.bar, &mut self.progress, line)
    }

    /// Writes a line of the table.
    fn row(&mut self, line: &str) -> Result<()> {
        let output = self.rows.as_mut().unwrap_or(&mut self.progress);
        write_line(&self.bar, output, line)
    }

    /// Whether it is time to read the loss again.
    fn is_due(&mut self) -> bool {
        let interval = if self.bar.is_hidden() {
            STILL_ALIVE
        } else {
            REDRAW
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

/// Writes a line; the bar makes room for it.
fn write_line(bar: &Bar, output: &mut Box<dyn Write>, line: &str) -> Result<()> {
    let write = || writeln!(output, "{line}").and_then(|()| output.flush());
    let written = bar.suspend(write);
    Ok(written.map_err(FitError::file(Path::new("the progress output"), "write to"))?)
}

/// The rate with its unit; an empty text before the first batch.
fn rate(batches_per_second: f64) -> String {
    match batches_per_second {
        rate if !rate.is_finite() || rate <= 0.0 => String::new(),
        rate if rate < 10.0 => format!("{rate:.2} batches/s "),
        rate => format!("{rate:.0} batches/s "),
    }
}

fn write_rate(state: &ProgressState, output: &mut dyn fmt::Write) {
    // It writes into memory, which does not fail.
    let _ = output.write_str(&rate(state.per_sec()));
}

/// The bar of one pass over the data.
fn start(bar: &Bar, title: String, length: Option<usize>) {
    // First, because every change draws the bar: the message is the loss of the pass before.
    bar.set_message("");
    let template = match length {
        Some(_) => TEMPLATE,
        None => TEMPLATE_WITHOUT_LENGTH,
    };
    // A test uses both templates, so they are valid.
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.with_key("rate", write_rate));
    bar.reset();
    match length {
        Some(length) => bar.set_length(length as u64),
        None => bar.unset_length(),
    }
    bar.set_prefix(title);
}

impl Callback for ProgressBar {
    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        self.has_begun = true;
        self.last_shown = Some(Instant::now());
        let title = format!("epoch {}/{}", progress.position.epoch + 1, progress.epochs);
        start(&self.bar, title, progress.batches_per_epoch);
        self.bar.set_position(progress.position.batches as u64);
        // The rate must not count the batches before a resume.
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
        lines.iter().try_for_each(|line| self.row(line))
    }

    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        self.bar.finish_and_clear();
        if self.quiet_end {
            return Ok(());
        }
        match outcome {
            Outcome::Completed if self.has_begun => Ok(()),
            Outcome::Completed => self.line(&format!(
                "nothing is left to train: all {} epochs were done before; train for more epochs, \
                 or begin anew without the checkpoint",
                run.progress().epochs
            )),
            other => self.line(&other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

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

    #[test]
    fn a_rate_has_its_unit_and_none_is_shown_before_there_is_one() {
        let shown = [0.0, f64::NAN, 0.25, 454.9935].map(rate);
        assert_eq!(shown, ["", "", "0.25 batches/s ", "455 batches/s "]);
    }

    /// A terminal of 80 columns that knows what was drawn last.
    #[derive(Debug, Default, Clone)]
    struct Screen(Arc<Mutex<(String, String)>>);

    impl Screen {
        fn add(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().0.push_str(text);
            Ok(())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.add(&format!("{text}\n"))
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.add(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            let mut screen = self.0.lock().unwrap();
            screen.1 = std::mem::take(&mut screen.0);
            Ok(())
        }
    }

    /// The line that is drawn in the middle of an epoch, after `then` has changed the bar.
    fn drawn(length: Option<usize>, then: impl FnOnce(&Bar)) -> String {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let bar = Bar::with_draw_target(None, target);
        start(&bar, "epoch 10/30".to_string(), length);
        bar.set_position(1_000);
        bar.set_message("loss 0.1234 accuracy 0.9876");
        then(&bar);
        bar.force_draw();
        let text = screen.0.lock().unwrap().1.clone();
        text.trim_end().to_string()
    }

    #[test]
    fn the_bar_is_one_line_of_80_columns() {
        for length in [Some(1_875), None] {
            let line = drawn(length, |_| {});
            assert!(line.chars().count() <= 80, "{line:?}");
            assert!(line.contains("accuracy 0.9876"), "{line:?}");
        }
    }

    #[test]
    fn a_new_pass_shows_no_loss_of_the_pass_before() {
        let line = drawn(Some(1_875), |bar| {
            start(bar, "validation".to_string(), Some(6));
        });
        assert!(line.starts_with("validation"), "{line:?}");
        assert!(!line.contains("loss"), "{line:?}");
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
