//! The progress of a job, which the chief writes for the launcher.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use distribute_core::Result;
use distribute_fit::{Callback, Control};
use distribute_launch::{PROGRESS_VARIABLE, Progress};

use crate::examples_seen::ExamplesSeen;

/// Interval of the updates; reading the loss waits for the step.
const INTERVAL: Duration = Duration::from_millis(200);
/// The text is padded with blanks to this length, so that one write replaces all of it.
const BYTES: usize = 512;

/// A callback that writes the progress.
pub(crate) struct JobProgress {
    file: File,
    seen: ExamplesSeen,
    /// Time of the last update, and the examples until then.
    last: Option<(Instant, u64)>,
}

impl JobProgress {
    /// `None` without a launcher, or if its file cannot be opened.
    pub(crate) fn for_launcher(seen: ExamplesSeen) -> Option<Self> {
        let path = PathBuf::from(std::env::var_os(PROGRESS_VARIABLE)?);
        let file = File::create(path).ok()?;
        Some(Self {
            file,
            seen,
            last: None,
        })
    }

    fn write(&self, progress: &Progress) -> io::Result<()> {
        let mut text = serde_json::to_vec(progress)?;
        text.resize(text.len().max(BYTES), b' ');
        self.file.write_all_at(&text, 0)
    }
}

impl Callback for JobProgress {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        let examples = self.seen.until(progress.position);
        let now = Instant::now();
        let (last, before) = *self.last.get_or_insert((now, examples));
        let since = now.duration_since(last);
        if since < INTERVAL {
            return Ok(());
        }
        self.last = Some((now, examples));
        let said = Progress {
            step: progress.step,
            epoch: progress.position.epoch + 1,
            epochs: progress.epochs,
            loss: run.loss_so_far()?.filter(|loss| loss.is_finite()),
            examples_per_second: examples.saturating_sub(before) as f64 / since.as_secs_f64(),
        };
        // Without it the launcher shows less; training continues.
        let _untold = self.write(&said);
        Ok(())
    }
}
