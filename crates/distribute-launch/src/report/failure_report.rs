//! What a process that fails because of others says about them, for the headline of the job.
//!
//! The launcher names a file in the variable `DISTRIBUTE_FAILURE_REPORT`; a process may write a
//! [`FailureReport`] there, as JSON, before it ends.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A longer file is none of ours.
const BYTES_MAX: u64 = 1 << 16;

/// Why a process failed, in the words of a program: `{"lost":[1]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The ranks that it lost or waited for in vain.
    pub lost: Vec<usize>,
}

/// The file beside a process' log, without what an earlier process wrote there.
pub(crate) fn path(log: &Path) -> PathBuf {
    let log = std::path::absolute(log).unwrap_or_else(|_| log.to_owned());
    let path = log.with_extension("failure.json");
    // Most often there is none.
    let _none = fs::remove_file(&path);
    path
}

/// Takes the report of a process that has ended; nothing if it wrote none that can be read.
pub(crate) fn take(path: &Path) -> Option<FailureReport> {
    let file = File::open(path).ok()?;
    let is_file = file.metadata().is_ok_and(|data| data.is_file());
    let mut text = Vec::new();
    let read = is_file.then(|| file.take(BYTES_MAX).read_to_end(&mut text));
    let _gone = fs::remove_file(path);
    read?.ok()?;
    parse(&text)
}

pub(crate) fn parse(text: &[u8]) -> Option<FailureReport> {
    serde_json::from_slice(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_taken_once_and_nonsense_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder.path().join("worker-0.log"));
        assert!(path.ends_with("worker-0.failure.json"));
        let written = FailureReport { lost: vec![1, 3] };
        fs::write(&path, serde_json::to_string(&written).unwrap()).unwrap();
        assert_eq!(take(&path), Some(written));
        assert_eq!(take(&path), None);
        fs::write(&path, "[").unwrap();
        assert_eq!(take(&path), None);
    }
}
