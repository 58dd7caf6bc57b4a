//! Files with a JSON value in each line.

use std::path::PathBuf;

use distribute_pipeline::{Result, State, Stream};
use serde_json::Value;

use super::bad::Skipped;
use super::text_lines::TextLines;

/// The values of JSON lines files, plain or by gzip, one file after the other. Empty lines are
/// passed.
#[must_use]
pub struct JsonLines {
    lines: TextLines,
}

impl JsonLines {
    /// The values of these files.
    pub fn new(files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            lines: TextLines::new(files),
        }
    }

    /// Longer lines are errors; the default limit is 16 MiB.
    pub fn max_line_bytes(mut self, limit: u64) -> Self {
        self.lines = self.lines.max_line_bytes(limit);
        self
    }

    /// Skips lines of a pass that are no JSON, up to a number, and counts them.
    pub fn skip_bad(mut self, limit: u64) -> Self {
        self.lines = self.lines.skip_bad(limit);
        self
    }

    /// The lines that were skipped in this pass.
    pub fn skipped(&self) -> &Skipped {
        self.lines.skipped()
    }
}

impl Stream for JsonLines {
    type Item = Value;

    fn next(&mut self) -> Result<Option<Value>> {
        loop {
            let Some(line) = self.lines.next()? else {
                return Ok(None);
            };
            let text = line.trim();
            if text.is_empty() {
                continue;
            }
            match serde_json::from_str(text) {
                Ok(value) => return Ok(Some(value)),
                Err(_) if text.starts_with("<!") || text.starts_with("<html") => {
                    let what = "is HTML: a download has saved a message in place of the data";
                    self.lines.skip_line(what)?;
                }
                Err(error) => self
                    .lines
                    .skip_line(&format!("is no JSON value: {error}"))?,
            }
        }
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.lines.start(epoch)
    }

    fn state(&self) -> Result<State> {
        Ok(State::new("json_lines").inner(self.lines.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut read = state.read("json_lines")?;
        self.lines.restore(read.inner()?)?;
        read.finish()
    }

    fn file(&self) -> Option<PathBuf> {
        self.lines.file()
    }
}
