//! Flight records as files: one JSON object per line, the first one says whose record it is.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::FlightRecordError;

pub(super) const FORMAT: &str = "distribute-flight-record";
pub(super) const VERSION: u32 = 1;

/// A record has 256 lines of at most about a kilobyte.
const MOST_BYTES: u64 = 1 << 20;

/// More ranks than any group has: a damaged file must not make a list of billions.
const MOST_RANKS: usize = 1 << 16;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) group: String,
    pub(super) generation: u64,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// When the recorder started, in microseconds since 1970.
    pub(super) started_unix_us: u64,
    /// When the file was written, in microseconds since the start.
    pub(super) written_us: u64,
    /// Operations that had begun, also those that are not kept any more.
    pub(super) operations: u64,
    /// Number of lines that follow.
    pub(super) lines: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Running,
    Done,
    /// An error, which was that the deadline passed.
    Timeout,
    /// Any other error.
    Error,
}

/// One operation. Times in microseconds since the start of the recorder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) sequence: u64,
    pub(super) kind: String,
    pub(super) dtype: Option<String>,
    pub(super) op: Option<String>,
    /// The root, or the other rank of a point-to-point call.
    pub(super) root: Option<usize>,
    pub(super) count: usize,
    pub(super) buffers: usize,
    /// As text: not every reader of JSON keeps 64-bit numbers.
    pub(super) layout: String,
    pub(super) begin_us: u64,
    pub(super) end_us: Option<u64>,
    pub(super) outcome: Outcome,
    pub(super) error: Option<String>,
}

impl Line {
    pub(super) fn is_point_to_point(&self) -> bool {
        self.kind == "send" || self.kind == "recv"
    }

    /// Whether two ranks made the same call.
    pub(super) fn is_same_call(&self, other: &Line) -> bool {
        let call = |line: &Line| {
            let Line {
                kind,
                dtype,
                op,
                root,
                count,
                buffers,
                layout,
                ..
            } = line.clone();
            (kind, dtype, op, root, count, buffers, layout)
        };
        call(self) == call(other)
    }

    /// The call in short: `all_reduce f32 x 1000`.
    pub(super) fn brief(&self) -> String {
        match &self.dtype {
            Some(dtype) if self.kind == "all_gather" => format!("{} {dtype}", self.kind),
            Some(dtype) => format!("{} {dtype} x {}", self.kind, self.count),
            None => self.kind.clone(),
        }
    }

    /// The call with all that must be equal on all ranks.
    pub(super) fn in_full(&self) -> String {
        let mut text = self.brief();
        if let Some(op) = &self.op {
            text += &format!(" {op}");
        }
        match (&*self.kind, self.root) {
            ("send", Some(rank)) => text += &format!(" to rank {rank}"),
            ("recv", Some(rank)) => text += &format!(" from rank {rank}"),
            (_, Some(rank)) => text += &format!(" with root {rank}"),
            (_, None) => {}
        }
        if self.buffers > 1 {
            text += &format!(" in {} buffers", self.buffers);
        }
        text
    }
}

/// One rank's record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) head: Head,
    pub(super) lines: Vec<Line>,
}

fn file_name(head: &Head) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let group: String = head.group.chars().map(safe).take(100).collect();
    format!(
        "flight-{group}-g{}-rank{}.jsonl",
        head.generation, head.rank
    )
}

/// The content of a file.
pub(super) fn to_text(head: &Head, lines: &[Line]) -> serde_json::Result<String> {
    let mut text = serde_json::to_string(head)?;
    text.push('\n');
    for line in lines {
        text += &serde_json::to_string(line)?;
        text.push('\n');
    }
    Ok(text)
}

/// Writes a record under another name, then renames it.
pub(super) fn write(dir: &Path, head: &Head, lines: &[Line]) -> Result<PathBuf, FlightRecordError> {
    let json = |error: serde_json::Error| FlightRecordError::io(dir, &error.into());
    let text = to_text(head, lines).map_err(json)?;
    fs::create_dir_all(dir).map_err(|error| FlightRecordError::io(dir, &error))?;
    let name = file_name(head);
    let path = dir.join(&name);
    let mut unique = [0; 8];
    // Without randomness the process number alone keeps the processes apart.
    let _ = getrandom::fill(&mut unique);
    let unique = u64::from_ne_bytes(unique);
    let temporary = dir.join(format!(".{name}.{}-{unique:016x}", std::process::id()));
    let written = File::create_new(&temporary)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, &path));
    match written {
        Ok(()) => Ok(path),
        Err(error) => {
            // Perhaps it was never made.
            let _ = fs::remove_file(&temporary);
            Err(FlightRecordError::io(&path, &error))
        }
    }
}

/// The names of the records in a directory, in order.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, FlightRecordError> {
    let failed = |error: std::io::Error| FlightRecordError::io(dir, &error);
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
pub(super) fn read(path: &Path) -> Result<Record, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("it is larger than {MOST_BYTES} bytes"));
    }
    parse(&text)
}

pub(super) fn parse(text: &str) -> Result<Record, String> {
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
