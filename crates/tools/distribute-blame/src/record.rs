//! Flight records as files are read.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use distribute_collectives::flight_record::{FORMAT, FlightRecordError, Head, Line, VERSION};

/// A record has 256 lines of at most about a kilobyte.
const MOST_BYTES: u64 = 1 << 20;

/// More ranks than any group has: a damaged file must not make a list of billions.
const MOST_RANKS: usize = 1 << 16;

/// One rank's record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    /// Whose it is.
    pub(crate) head: Head,
    /// Its last operations, the last one at the end.
    pub(crate) lines: Vec<Line>,
}

impl Record {
    /// Reads the content of a file; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Record, String> {
        let mut lines = text.lines();
        let first = lines.next().ok_or("it is empty")?;
        let head: Head = serde_json::from_str(first).map_err(|error| format!("line 1: {error}"))?;
        if head.format != FORMAT || head.version != VERSION {
            return Err(format!(
                "it is {} version {}, not {FORMAT} version {VERSION}",
                head.format, head.version
            ));
        }
        if head.rank >= head.world_size || head.world_size > MOST_RANKS {
            return Err(format!(
                "rank {} of {} ranks cannot be",
                head.rank, head.world_size
            ));
        }
        let mut parsed = Vec::new();
        for (index, line) in lines.enumerate() {
            let line = serde_json::from_str(line);
            parsed.push(line.map_err(|error| format!("line {}: {error}", index + 2))?);
        }
        if parsed.len() != head.lines {
            return Err(format!(
                "it has {} of {} operations: truncated",
                parsed.len(),
                head.lines
            ));
        }
        Ok(Record {
            head,
            lines: parsed,
        })
    }
}

/// The names of the records in a directory, in order.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, FlightRecordError> {
    let failed = |error: std::io::Error| FlightRecordError::Io {
        path: dir.display().to_string(),
        reason: format!("{error}; ranks write flight records when their group has failed"),
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("flight-") && name.ends_with(".jsonl") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a record; the error says what is wrong with the file.
pub(crate) fn read(path: &Path) -> Result<Record, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("it is larger than {MOST_BYTES} bytes"));
    }
    Record::parse(&text)
}
