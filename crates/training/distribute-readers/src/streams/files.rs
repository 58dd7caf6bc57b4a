//! Files by a pattern.

use std::path::PathBuf;

use distribute_pipeline::{PipelineError, Result};

const STAGE: &str = "matching_files";

/// The files that a pattern names, in the order of their names (TensorFlow:
/// `tf.data.Dataset.list_files`, without its shuffle): `*` and `?` in a name, `[ab]`, and `**` for
/// folders in folders. A path without any of them is itself.
///
/// # Errors
/// If the pattern is malformed, if no file is there, or if a folder cannot be read.
pub fn matching_files(pattern: &str) -> Result<Vec<PathBuf>> {
    let malformed = |error: glob::PatternError| {
        PipelineError::argument(STAGE, format!("`{pattern}` is no pattern: {error}"))
    };
    let mut files = Vec::new();
    for path in glob::glob(pattern).map_err(malformed)? {
        let path = path.map_err(PipelineError::other)?;
        if !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        let what = format!("no file is named `{pattern}`; check the path, and quote it in a shell");
        return Err(PipelineError::argument(STAGE, what));
    }
    files.sort();
    Ok(files)
}
