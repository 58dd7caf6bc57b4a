//! Flight records as files: one JSON object per line, the first one says whose record it is.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::FlightRecordError;

/// What every record begins with.
pub const FORMAT: &str = "distribute-flight-record";
/// The version of the format.
pub const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The name of the group.
    pub group: String,
    /// The generation of the group.
    pub generation: u64,
    /// Whose record it is.
    pub rank: usize,
    /// Number of ranks of the group.
    pub world_size: usize,
    /// When the recorder started, in microseconds since 1970.
    pub started_unix_us: u64,
    /// When the file was written, in microseconds since the start.
    pub written_us: u64,
    /// Operations that had begun, also those that are not kept any more.
    pub operations: u64,
    /// Number of lines that follow.
    pub lines: usize,
}

/// How an operation ended, if it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has not.
    Running,
    /// Well.
    Done,
    /// An error, which was that the deadline passed.
    Timeout,
    /// Any other error.
    Error,
}

/// One operation. Times in microseconds since the start of the recorder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Its number; of a point-to-point call that of the next collective operation.
    pub sequence: u64,
    /// The name of its [`OperationKind`](crate::OperationKind).
    pub kind: String,
    /// The name of the element type.
    pub dtype: Option<String>,
    /// The name of the reduction.
    pub op: Option<String>,
    /// The root, or the other rank of a point-to-point call.
    pub root: Option<usize>,
    /// Elements in all buffers.
    pub count: usize,
    /// Number of buffers.
    pub buffers: usize,
    /// As text: not every reader of JSON keeps 64-bit numbers.
    pub layout: String,
    /// When the call began.
    pub begin_us: u64,
    /// When it returned.
    pub end_us: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// The start of its error.
    pub error: Option<String>,
}

fn file_name(head: &Head) -> String {
    let is_unsafe = |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c);
    let group = head.group.replace(is_unsafe, "_");
    let (generation, rank) = (head.generation, head.rank);
    format!("flight-{group:.100}-g{generation}-rank{rank}.jsonl")
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
    let path = dir.join(file_name(head));
    put(&path, text.as_bytes()).map_err(|error| FlightRecordError::io(&path, &error))?;
    Ok(path)
}

/// Puts a file in its place once it is whole and on the disk.
fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".flight-record-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As of any new file: less what the user's mask takes away.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
