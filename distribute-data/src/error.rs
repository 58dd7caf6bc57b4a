//! The one error type of the crate.

/// What can go wrong in an input pipeline beside the reading itself, and why a dataset cannot be
/// divided between workers.
///
/// Arrives inside `Error::Input`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The code that makes the batches panicked.
    #[error("making a batch panicked: {message}; the epoch ends here, later epochs start anew")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The dataset panicked, or a batcher in it.
    #[error(
        "making a batch panicked: {message}; it was the batch of part {part} of a global batch, of \
         the examples {indices}; call the dataset's `batch` with these indices to see the panic \
         alone, return an error for an example that cannot be read, or leave the example out of \
         the dataset; the epoch ends here, later epochs start anew"
    )]
    BatchPanicked {
        /// The part: the id of the replica, unless the workers take the parts in turn.
        part: usize,
        /// The first of its examples, and how many there are.
        indices: String,
        /// The panic's message.
        message: String,
    },
    /// The operating system gave no thread.
    #[error("cannot start the prefetch thread: {source}; pass `.prefetch(0)` to do without one")]
    Thread {
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A data loader of burn has ended before it has read its items: a thread of it has panicked.
    #[error(
        "the data loader ended after {read} of {items} items: a thread of it has panicked, in the \
         dataset or the batcher, and its message is on standard error; distribute the dataset and \
         the batcher themselves in a `FnDataset`, which names the examples, or build the loader \
         without `num_workers`"
    )]
    LoaderEnded {
        /// The items that were read.
        read: usize,
        /// The items that the loader has.
        items: usize,
    },
    /// A batch cannot be cut to an empty one, to fill up a partial last step.
    #[error("cannot make an empty batch like the last one: {what}")]
    EmptyBatch {
        /// What is wrong with it.
        what: String,
    },
    /// The policy FILE for a dataset that is not read from files (TensorFlow: `NotFoundError`).
    #[error(
        "cannot divide the dataset by file: it is not read from files; use the policy DATA or OFF"
    )]
    Unshardable,
    /// There are fewer files than workers (TensorFlow: `InvalidArgumentError`).
    #[error(
        "cannot divide {files} file(s) between {workers} workers; write at least {workers} files, \
         or use the policy DATA or OFF"
    )]
    TooFewFiles {
        /// The files of the dataset.
        files: usize,
        /// The workers.
        workers: usize,
    },
    /// A dataset with a shard hint under another policy (TensorFlow: `FailedPreconditionError`).
    #[error(
        "the dataset has a shard hint, which needs the policy HINT; pass \
         `.auto_shard(AutoShardPolicy::Hint)`, or distribute the dataset without `ShardHint`"
    )]
    HintIgnored,
}

distribute_error::debug_as_message!(DataError);

distribute_core::wrap_errors!(Input: DataError);

impl DataError {
    /// Whether the same call would fail again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::EmptyBatch { .. }
            | Self::Unshardable
            | Self::TooFewFiles { .. }
            | Self::HintIgnored => true,
            Self::Panicked { .. }
            | Self::BatchPanicked { .. }
            | Self::LoaderEnded { .. }
            | Self::Thread { .. } => false,
        }
    }
}
