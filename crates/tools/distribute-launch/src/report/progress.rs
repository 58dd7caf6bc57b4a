//! One line on a terminal about the progress of the whole job, as its first process reports it.
//!
//! The launcher names a file in the variable `DISTRIBUTE_PROGRESS`, where the first process may
//! write its [`Progress`] as JSON as often as it likes, replacing the file's content.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::file_tasks::FileTasks;
use crate::report::small_file;

/// A longer file is not a progress file.
const BYTES_MAX: u64 = 1 << 12;
/// The greatest width of the line, however wide the terminal is.
const WIDTH_MAX: usize = 80;

/// How far a job is, in a form for programs: `{"step":12,"epoch":1,"epochs":30,"loss":0.5,
/// "examples_per_second":9000.0}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates so far.
    pub step: u64,
    /// The current epoch, from 1.
    pub epoch: usize,
    /// The epochs in all.
    pub epochs: usize,
    /// The average loss of the epoch so far, if it is known and finite.
    pub loss: Option<f64>,
    /// Examples per second, of all workers.
    pub examples_per_second: f64,
}

/// The processes of the job on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alive {
    pub(crate) workers: usize,
    pub(crate) of: usize,
    pub(crate) restart: u32,
}

/// The path of the file in a directory of log files. Removes the file of an earlier process.
pub(crate) fn path(directory: &Path, files: &FileTasks) -> PathBuf {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let path = directory.join("progress.json");
    remove(&path, files);
    path
}

pub(crate) fn remove(path: &Path, files: &FileTasks) {
    let path = path.to_owned();
    // Usually a program writes none.
    let _none = files.run(|| fs::remove_file(path));
}

/// Reads the file; `None` while it is being written.
pub(crate) fn read(path: &Path, files: &FileTasks) -> Option<Progress> {
    let path = path.to_owned();
    let text = files.run(move || small_file::read(&path, BYTES_MAX));
    parse(&text.ok()??)
}

pub(crate) fn parse(text: &[u8]) -> Option<Progress> {
    serde_json::from_slice(text).ok()
}

/// The line for a terminal with this many columns. The last column stays free: a terminal would go
/// to the next line.
pub(crate) fn line(progress: &Progress, alive: Alive, columns: usize) -> String {
    let mut line = format!("step {}", progress.step);
    // Writing into memory does not fail.
    let _ = write!(line, "  epoch {}/{}", progress.epoch, progress.epochs);
    if let Some(loss) = progress.loss {
        let _ = write!(line, "  loss {}", short(loss));
    }
    let rate = short(progress.examples_per_second);
    let _ = write!(line, "  {rate} examples/s");
    // A host with only a chief or servers has no workers.
    if alive.of > 0 {
        let _ = write!(line, "  workers {}/{}", alive.workers, alive.of);
    }
    if alive.restart > 0 {
        let _ = write!(line, "  restart {}", alive.restart);
    }
    let width = WIDTH_MAX.min(columns).saturating_sub(1);
    line.chars().take(width).collect()
}

/// A number of at most ten characters.
fn short(number: f64) -> String {
    match number.abs() {
        size if (100.0..1e9).contains(&size) => format!("{number:.0}"),
        size if (1e-3..100.0).contains(&size) || size == 0.0 => format!("{number:.4}"),
        _ => format!("{number:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: Progress = Progress {
        step: 1234,
        epoch: 3,
        epochs: 30,
        loss: Some(0.123_456),
        examples_per_second: 45_678.9,
    };
    const ALIVE: Alive = Alive {
        workers: 2,
        of: 2,
        restart: 0,
    };

    #[test]
    fn the_line_says_how_far_all_are() {
        insta::assert_snapshot!(
            line(&PROGRESS, ALIVE, 80),
            @"step 1234  epoch 3/30  loss 0.1235  45679 examples/s  workers 2/2"
        );
    }

    #[test]
    fn a_host_without_workers_says_nothing_of_them() {
        let none = Alive {
            workers: 0,
            of: 0,
            restart: 1,
        };
        insta::assert_snapshot!(
            line(&PROGRESS, none, 80),
            @"step 1234  epoch 3/30  loss 0.1235  45679 examples/s  restart 1"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let great = Progress {
            step: u64::MAX,
            epoch: usize::MAX,
            epochs: usize::MAX,
            loss: Some(-1e300),
            examples_per_second: f64::MAX,
        };
        for columns in [0, 1, 20, 80, 500] {
            let shown = line(&great, ALIVE, columns);
            assert!(shown.len() < columns.clamp(1, WIDTH_MAX), "{shown:?}");
        }
    }

    #[test]
    fn what_is_no_progress_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let files = &FileTasks::default();
        let path = path(folder.path(), files);
        assert_eq!(read(&path, files), None);
        fs::write(&path, serde_json::to_string(&PROGRESS).unwrap()).unwrap();
        assert_eq!(read(&path, files), Some(PROGRESS));
        fs::write(&path, "{\"step\":1").unwrap();
        assert_eq!(read(&path, files), None);
        remove(&path, files);
        assert!(!path.exists());
    }
}
