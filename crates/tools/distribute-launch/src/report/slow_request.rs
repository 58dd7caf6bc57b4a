//! The request of a worker that is slow for long to go on without it.
//!
//! In a job that drops such workers, the launcher names a file in the variable `DISTRIBUTE_SLOW`.
//! A worker writes there, in one line, how slow it is, and removes the file when it has recovered.

use std::fs;
use std::path::{Path, PathBuf};

use crate::file_tasks::FileTasks;
use crate::report::small_file;

/// A longer line is cut off.
const BYTES_MAX: u64 = 1 << 10;

/// The path of the file beside a process' log.
pub fn path(log: &Path) -> PathBuf {
    let log = std::path::absolute(log).unwrap_or_else(|_| log.to_owned());
    log.with_extension("slow.txt")
}

/// Removes the request of an earlier process.
pub fn remove(path: &Path, files: &FileTasks) {
    let path = path.to_owned();
    // Usually there is no file.
    let _none = files.run(|| fs::remove_file(path));
}

/// The first line of the request; `None` if there is none.
pub fn read(path: &Path, files: &FileTasks) -> Option<String> {
    let path = path.to_owned();
    let text = files.run(move || small_file::read(&path, BYTES_MAX));
    let text = String::from_utf8_lossy(&text.ok()??).into_owned();
    let line = text.lines().next()?.trim();
    let is_shown = |c: &char| !c.is_control();
    (!line.is_empty()).then(|| line.chars().filter(is_shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_there_until_it_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let files = &FileTasks::default();
        let path = path(&folder.path().join("worker-0.log"));
        assert!(path.ends_with("worker-0.slow.txt"));
        assert_eq!(read(&path, files), None);
        fs::write(&path, "rank 1 is \u{1b}[1mslow\nand more").unwrap();
        assert_eq!(read(&path, files).unwrap(), "rank 1 is [1mslow");
        fs::write(&path, "x".repeat(5000)).unwrap();
        assert_eq!(read(&path, files).unwrap().len(), 1024);
        fs::write(&path, "\n").unwrap();
        assert_eq!(read(&path, files), None);
        remove(&path, files);
        assert!(!path.exists());
    }
}
