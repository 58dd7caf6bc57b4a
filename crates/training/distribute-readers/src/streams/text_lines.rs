//! The lines of text files.

use std::io::{self, BufRead as _, Read as _};
use std::path::PathBuf;

use distribute_pipeline::{PipelineError, Result, State, Stream};

use super::bad::{Bad, Skipped};
use super::input::{Input, Place, unreadable};

const STAGE: &str = "text_lines";

/// The longest line, unless another limit is set.
const MAX_LINE_BYTES: u64 = 1 << 24;

/// The lines of text files, plain or by gzip, one file after the other, without their ends
/// (TensorFlow: `tf.data.TextLineDataset`). Text is UTF-8; an empty line is an element.
#[must_use]
pub struct TextLines {
    place: Place,
    limit: u64,
    bad: Bad,
    input: Option<Input>,
}

/// A line that is no element.
enum Fault {
    Read(io::Error),
    /// It is too long; the rest of the file is one line.
    Long,
    NotText,
}

impl TextLines {
    /// The lines of these files.
    pub fn new(files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            place: Place::new(files),
            limit: MAX_LINE_BYTES,
            bad: Bad::default(),
            input: None,
        }
    }

    /// Longer lines are errors; the default limit is 16 MiB.
    pub fn max_line_bytes(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Skips lines of a pass that are no UTF-8 or too long, up to a number, and counts them.
    pub fn skip_bad(mut self, limit: u64) -> Self {
        self.bad.limit = limit;
        self
    }

    /// The lines that were skipped in this pass.
    pub fn skipped(&self) -> &Skipped {
        &self.bad.skipped
    }

    /// The number of the last line, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.place.element
    }

    /// Counts a bad line, or gives an error that names it.
    pub(crate) fn skip_line(&mut self, what: &str) -> Result<()> {
        let path = self.place.last_file().unwrap_or_default();
        let text = format!("{}: line {}: {what}", path.display(), self.line());
        self.bad.skip(PipelineError::other(text))
    }

    /// The next line; none at the end of a file.
    fn read(input: &mut Input, limit: u64) -> (u64, Result<Option<String>, Fault>) {
        let mut line = Vec::new();
        let mut start = input.by_ref().take(limit.saturating_add(2));
        let mut bytes = match start.read_until(b'\n', &mut line) {
            Ok(0) => return (0, Ok(None)),
            Ok(bytes) => bytes as u64,
            Err(error) => return (0, Err(Fault::Read(error))),
        };
        let has_end = line.pop_if(|byte| *byte == b'\n').is_some();
        line.pop_if(|byte| *byte == b'\r');
        if line.len() as u64 > limit {
            if !has_end {
                match pass_line(input) {
                    Ok(more) => bytes += more,
                    Err(error) => return (bytes, Err(Fault::Read(error))),
                }
            }
            return (bytes, Err(Fault::Long));
        }
        let text = String::from_utf8(line).map_err(|_| Fault::NotText);
        (bytes, text.map(Some))
    }
}

/// Passes the rest of a line: how many bytes it has.
fn pass_line(input: &mut Input) -> io::Result<u64> {
    let mut passed = 0;
    loop {
        let buffer = input.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let bytes = end.map_or(buffer.len(), |end| end + 1);
        input.consume(bytes);
        passed += bytes as u64;
        if end.is_some() || bytes == 0 {
            return Ok(passed);
        }
    }
}

impl Stream for TextLines {
    type Item = String;

    fn next(&mut self) -> Result<Option<String>> {
        loop {
            let Some(path) = self.place.path() else {
                return Ok(None);
            };
            let failed = |source| unreadable(STAGE, path, source);
            let input = match &mut self.input {
                Some(input) => input,
                None => {
                    let mut input = Input::open(path).map_err(failed)?;
                    input.pass(self.place.offset).map_err(failed)?;
                    self.input.insert(input)
                }
            };
            let (bytes, line) = Self::read(input, self.limit);
            if let Err(Fault::Read(source)) = line {
                return Err(failed(source));
            }
            self.place.element += 1;
            self.place.offset += bytes;
            self.place.last = Some(self.place.file);
            match line {
                Ok(Some(line)) => return Ok(Some(line)),
                Ok(None) => {
                    self.input = None;
                    self.place.go_to_file(self.place.file + 1);
                }
                Err(Fault::NotText) => self.skip_line("is not UTF-8; convert the file")?,
                Err(_) => {
                    let limit = self.limit;
                    self.skip_line(&format!("has more than {limit} bytes (`max_line_bytes`)"))?;
                }
            }
        }
    }

    super::input::of_files!(STAGE, input);
}
