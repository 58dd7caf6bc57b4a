//! The report of a process that fails because of others, for the headline of the job.
//!
//! The launcher names a file in the variable `DISTRIBUTE_FAILURE_REPORT`; a process may write a
//! [`FailureReport`] there, as JSON, before it ends.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::file_tasks::FileTasks;
use crate::report::small_file;

/// A longer file is not a report.
const BYTES_MAX: u64 = 1 << 16;

/// Why a process failed, in a form for programs: `{"lost":[1]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The ranks that it lost, or waited for in vain.
    pub lost: Vec<usize>,
}

/// The path of the report beside a process' log. Removes the report of an earlier process.
pub(crate) fn path(log: &Path, files: &FileTasks) -> PathBuf {
    let log = std::path::absolute(log).unwrap_or_else(|_| log.to_owned());
    let path = log.with_extension("failure.json");
    let old = path.clone();
    // Usually there is no file.
    let _none = files.run(|| fs::remove_file(old));
    path
}

/// Takes the report of a process that has ended; `None` if there is no valid one.
pub(crate) fn take(path: &Path, files: &FileTasks) -> Option<FailureReport> {
    let path = path.to_owned();
    let text = files.run(move || {
        let text = small_file::read(&path, BYTES_MAX);
        let _gone = fs::remove_file(path);
        text
    });
    parse(&text.ok()??)
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
        let files = &FileTasks::default();
        let path = path(&folder.path().join("worker-0.log"), files);
        assert!(path.ends_with("worker-0.failure.json"));
        let written = FailureReport { lost: vec![1, 3] };
        fs::write(&path, serde_json::to_string(&written).unwrap()).unwrap();
        assert_eq!(take(&path, files), Some(written));
        assert_eq!(take(&path, files), None);
        fs::write(&path, "[").unwrap();
        assert_eq!(take(&path, files), None);
    }
}
