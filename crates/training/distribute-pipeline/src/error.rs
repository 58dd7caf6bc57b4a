//! What can go wrong in a pipeline: which stage, which element, and what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The result of everything in this crate that can fail.
pub type Result<T, E = PipelineError> = std::result::Result<T, E>;

/// What a function of the user's may return as its error: any error type, or a text.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a pipeline has no next element. Cloning is cheap.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A stage was built with something that cannot work
    /// (TensorFlow: `InvalidArgumentError`, `ValueError`).
    #[error("{stage}: {what}")]
    Argument {
        /// The stage: `batch`.
        stage: &'static str,
        /// What is wrong and what to pass instead.
        what: String,
    },
    /// A function of the user's, or a reader, failed at an element.
    #[error("{stage}: element {index}{}: {source}", of_file(.file.as_ref()))]
    Element {
        /// The stage, with the name of its function: `map (train::decode)`.
        stage: String,
        /// The element's place in the input of the stage, from 0.
        index: u64,
        /// The file it was read from, if the source knows it.
        file: Option<PathBuf>,
        /// What the function said.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// A function of the user's panicked on a thread of the pipeline.
    #[error("{stage}: the function panicked: {message}")]
    Panicked {
        /// The stage.
        stage: String,
        /// What the panic said.
        message: String,
    },
    /// An index that a source does not have.
    #[error("{stage}: no element {index}: there are {len}, counted from 0")]
    OutOfRange {
        /// The stage.
        stage: &'static str,
        /// The index that was asked for.
        index: u64,
        /// The source's length.
        len: u64,
    },
    /// Elements that do not fit into one batch (TensorFlow: `InvalidArgumentError`).
    #[error(
        "{stage}: cannot batch arrays with different shapes: the first element has shape \
         {first:?}, element {element} has shape {shape:?}; pad them (`padded_batch`), or make \
         batches by length (`bucket_by_sequence_length`)"
    )]
    Shapes {
        /// The stage.
        stage: &'static str,
        /// The shape of the first element.
        first: Vec<usize>,
        /// The place in the batch of the element that differs, from 0.
        element: usize,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// An element that is longer than what it is to be padded to (TensorFlow: `DataLossError`).
    #[error(
        "{stage}: element {element} of the batch has shape {shape:?}, which does not fit into \
         {padded:?}; pad to a larger shape, or to the longest of each batch"
    )]
    TooLong {
        /// The stage.
        stage: &'static str,
        /// The place in the batch of the element, from 0.
        element: usize,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape that it is to be padded to.
        padded: Vec<usize>,
    },
    /// A state that this pipeline cannot be restored to.
    #[error(
        "{stage}: this is no state of this stage: {what}; restore a state that the same pipeline \
         has saved"
    )]
    State {
        /// The stage that was to be restored.
        stage: String,
        /// What does not fit.
        what: String,
    },
    /// A state that is too large to be saved.
    #[error(
        "the state of the pipeline takes {bytes} bytes, more than the {limit} that a checkpoint \
         keeps: `{stage}` holds most of it; make its buffer smaller, or let it hold what is small \
         (file names, indices) and read the elements behind it"
    )]
    StateTooLarge {
        /// The stage that holds most.
        stage: String,
        /// The bytes of the state.
        bytes: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// An element that cannot be written into a state or a file, or read from one.
    #[error("{stage}: an element cannot be {what}: {message}")]
    Item {
        /// The stage.
        stage: String,
        /// "saved" or "restored".
        what: &'static str,
        /// What the serializer said.
        message: String,
    },
    /// A file that cannot be read or written.
    #[error("{stage}: {}: {source}{}", .path.display(), advice(.source))]
    Io {
        /// The stage.
        stage: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The operating system refused a thread.
    #[error("{stage}: cannot start a thread: {source}; use fewer, or raise the limit")]
    Thread {
        /// The stage.
        stage: &'static str,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// An implementation of [`Source`](crate::Source) or [`Stream`](crate::Stream) that breaks its
    /// contract ([`contract`](crate::contract)).
    #[error("the contract is broken: {what}")]
    Contract {
        /// Which rule, and by what.
        what: String,
    },
    /// An error of a reader.
    #[error("{0}")]
    Other(Arc<dyn Error + Send + Sync>),
}

distribute_error::debug_as_message!(PipelineError);

impl PipelineError {
    /// An error of a reader or of a stage of your own.
    pub fn other(error: impl Into<BoxError>) -> Self {
        Self::Other(Arc::from(error.into()))
    }

    /// A wrong argument of `stage`.
    pub fn argument(stage: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self::Argument { stage, what }
    }

    /// A failure at the element `index`, read from `file`. An error that is already that of an
    /// element stays as it is.
    pub fn element(
        stage: impl Into<String>,
        index: u64,
        file: Option<PathBuf>,
        error: impl Into<BoxError>,
    ) -> Self {
        let source = match error.into().downcast::<Self>() {
            Ok(error) if matches!(*error, Self::Element { .. }) => return *error,
            Ok(error) => Arc::from(error as BoxError),
            Err(error) => Arc::from(error),
        };
        Self::Element {
            stage: stage.into(),
            index,
            file,
            source,
        }
    }
}

fn of_file(file: Option<&PathBuf>) -> String {
    file.map_or_else(String::new, |file| format!(" of {}", file.display()))
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space, name a file on another disk, or cache in memory"
        }
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            "; check the path and its permissions"
        }
        _ => "",
    }
}

#[cfg(feature = "core")]
distribute_core::wrap_errors!(Input: PipelineError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_stage_element_and_file() {
        let error = PipelineError::element("map", 7, Some("a.csv".into()), "no number");
        assert_eq!(error.to_string(), "map: element 7 of a.csv: no number");
        let outer = PipelineError::element("map", 3, None, error);
        assert_eq!(outer.to_string(), "map: element 7 of a.csv: no number");
    }
}
