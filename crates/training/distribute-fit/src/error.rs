//! The one error type of the crate.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Why the training loop or one of its callbacks gave up; inside
/// [`Error::Fit`](distribute_core::Error::Fit).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// A file of a callback could not be read or written.
    #[error(
        "cannot {operation} {} ({source}): choose a writable {choice} with free space",
        path.display()
    )]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted, a verb.
        operation: &'static str,
        /// What the user chooses: a path, or TensorBoard's log directory.
        choice: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A tag of an event that is empty or too long.
    #[error("tag {tag:?} has {bytes} bytes: use 1 to 4096")]
    EventTag {
        /// The beginning of the tag.
        tag: String,
        /// Its length.
        bytes: usize,
    },
    /// A step beyond what an event file holds.
    #[error("step {step} of {tag:?} is too large for an event file: count from 0")]
    EventStep {
        /// The tag of the event.
        tag: String,
        /// The step.
        step: u64,
    },
    /// A histogram has no place for infinities and NaN.
    #[error("{count} values of histogram {tag:?} are not finite: look for a diverging loss")]
    NonFiniteHistogram {
        /// The tag of the histogram.
        tag: String,
        /// How many values are NaN or infinite.
        count: usize,
    },
    /// A row of a CSV file could not be formatted or parsed.
    #[error("a row of the history: {what}; write it to another file")]
    Csv {
        /// The reason.
        what: String,
    },
    /// A callback watches a value that the epoch's logs do not have.
    #[error("{callback} watches `{monitor}`, but the logs only have {available}")]
    NoSuchLog {
        /// The callback.
        callback: &'static str,
        /// The value it looked for.
        monitor: String,
        /// The names there are, and which is most like it.
        available: String,
    },
    /// The name of what a callback watches does not say which values of it are better.
    #[error(
        "{callback} watches `{monitor}`, whose name does not say whether larger or smaller values \
         of it are better: give `direction(Direction::Max)` or `direction(Direction::Min)`{nearest}"
    )]
    UnknownDirection {
        /// The callback.
        callback: &'static str,
        /// The value that it watches.
        monitor: String,
        /// A usual name that is like it, as a question; else empty.
        nearest: String,
    },
    /// The weights hold NaN or infinity, so they were not saved over good ones.
    #[error(
        "parameter `{parameter}` is not finite after step {step}, it was not saved: lower the \
         learning rate or clip the gradients, and continue from an earlier checkpoint"
    )]
    WeightsNotFinite {
        /// The first such parameter.
        parameter: String,
        /// The step after which it was to be saved.
        step: u64,
    },
    /// The replicas do not have the same state any more, so it was not saved.
    #[error(
        "the replicas do not have the same state any more after step {step}: {}; the first \
         difference is in `{parameter}`. Nothing of it was saved: start the job again from the last \
         checkpoint, as `launch --max-restarts` does. A byte has changed in memory or on its way \
         (encrypt the connections with `--certs`), or the processes compute differently (run the \
         same build on equal processors)",
        described(hosts, ranks, replicas, *has_majority)
    )]
    Diverged {
        /// The step after which they were compared.
        step: u64,
        /// The host of each of the ranks.
        hosts: Vec<String>,
        /// The ranks (workers) with a replica that differs from most, or all.
        ranks: Vec<usize>,
        /// These replicas, counted over all workers.
        replicas: Vec<usize>,
        /// Whether more than half of the replicas have the same state.
        has_majority: bool,
        /// The name of the first tensor that is not the same everywhere: a parameter, or a slot of
        /// the optimizer.
        parameter: String,
    },
    /// A checkpoint does not continue this run.
    #[error("cannot resume from this checkpoint: {what}")]
    Resume {
        /// What differs and what to do.
        what: String,
    },
    /// A file of bits cannot be opened or read.
    #[error(
        "cannot read {} ({source}): name the file or directory that `BitLog` (`--log-bits`) wrote",
        path.display()
    )]
    BitsFile {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file of bits is damaged, or is none.
    #[error(
        "{}: line {line} {what}; it is damaged, or not a file of `BitLog` (`--log-bits`): write it \
         again",
        path.display()
    )]
    Bits {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 for a file without any.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Two files of bits are not of two runs of the same training.
    #[error("{what}; compare runs of one model with the same number of updates")]
    OtherBits {
        /// How they differ.
        what: String,
    },
    /// The state was to be kept in memory that outlives the process, and there is none.
    #[error(
        "no memory outlives this process (the variable {variable} names none): start the workers \
         with `distribute-cli launch`, on Linux, to replicate their state"
    )]
    NoStateMemory {
        /// The variable by which a launcher gives it.
        variable: &'static str,
    },
    /// Memory that outlives the process cannot be used.
    #[error(
        "cannot {operation} the memory {} that outlives this process{}: {source}; make memory free, \
         or train without replicated state",
        path.display(),
        step.map(|step| format!(", at step {step}")).unwrap_or_default()
    )]
    StateMemory {
        /// Its name as a file.
        path: PathBuf,
        /// What was attempted, a verb.
        operation: &'static str,
        /// The step whose state was to be written.
        step: Option<u64>,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A strategy whose state cannot be kept in memory of the workers.
    #[error(
        "the state cannot be replicated under the {strategy} strategy: {why}; use \
         `MultiWorkerMirroredStrategy`, or save checkpoints"
    )]
    StateNotReplicated {
        /// The name of the strategy.
        strategy: &'static str,
        /// What is in the way.
        why: &'static str,
    },
    /// The loss of an objective was not scaled for the sum over several replicas.
    #[error(
        "the loss of the objective counts once per replica: it went through nothing that scales it \
         for the sum over {replicas} replicas. Pass losses per example to `average_loss(ctx, \
         losses)`, or a mean, as burn's losses are, to `ctx.mean_loss(loss)`; if it is scaled \
         already, call `ctx.loss_is_scaled()`, or `Objective::averaged_over` with what it was \
         divided by"
    )]
    LossNotScaled {
        /// The number of replicas.
        replicas: usize,
    },
    /// Nothing says how many examples an objective has seen.
    #[error(
        "the objective does not say how many examples the replica's batch has, and the batch does \
         not either (its tensors have no or different numbers of rows, or the step is compiled): \
         say it with `Objective::examples(n)`; for weighted examples it is the sum of the weights"
    )]
    ExamplesUnknown,
    /// Gradients are to be computed again, and the data source cannot read a batch again.
    #[error(
        "the gradients of a replica cannot be computed again elsewhere: the data source does not \
         read its part of a batch anew. Write `BatchSource::replica_batch` for a source of your \
         own; data sets do it unless workers read different files or shards (leave `auto_shard` \
         out), functions and burn's loaders cannot; or train without `recompute`"
    )]
    NotReadAgain,
    /// The training or validation data has no example.
    #[error("{what} has no examples: check the data, or use smaller batches")]
    NoExamples {
        /// Which data.
        what: &'static str,
    },
}

distribute_error::debug_as_message!(FitError);

distribute_core::wrap_errors!(Fit: FitError);

impl FitError {
    /// Whether the same run would end the same: with its settings, its files and its memory as they
    /// are, or because its numbers are [not finite](Self::is_not_finite) again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::File { source, .. } | Self::BitsFile { source, .. } => {
                distribute_error::lasts(source)
            }
            Self::EventTag { .. }
            | Self::EventStep { .. }
            | Self::NonFiniteHistogram { .. }
            | Self::Csv { .. }
            | Self::NoSuchLog { .. }
            | Self::UnknownDirection { .. }
            | Self::WeightsNotFinite { .. }
            | Self::Resume { .. }
            | Self::Bits { .. }
            | Self::OtherBits { .. }
            | Self::NoStateMemory { .. }
            | Self::StateNotReplicated { .. }
            | Self::LossNotScaled { .. }
            | Self::ExamplesUnknown
            | Self::NotReadAgain
            | Self::NoExamples { .. } => true,
            Self::StateMemory { .. } | Self::Diverged { .. } => false,
        }
    }

    /// Whether weights or gradients hold NaN or infinity.
    pub fn is_not_finite(&self) -> bool {
        matches!(
            self,
            Self::WeightsNotFinite { .. } | Self::NonFiniteHistogram { .. }
        )
    }

    pub(super) fn file(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        Self::choose("path", path, operation)
    }

    /// What the file system refuses; another `choice` would help.
    pub(super) fn choose(
        choice: &'static str,
        path: &Path,
        operation: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File {
            path: path.to_path_buf(),
            operation,
            choice,
            source,
        }
    }

    pub(super) fn csv(error: impl Display) -> Self {
        Self::Csv {
            what: error.to_string(),
        }
    }
}

/// Which replicas differ, in words.
fn described(hosts: &[String], ranks: &[usize], replicas: &[usize], has_majority: bool) -> String {
    let which = format!(
        "replica{} {} (rank{} {})",
        plural(replicas),
        listed(replicas),
        plural(ranks),
        listed(ranks)
    );
    let on = on_hosts(hosts);
    if !has_majority {
        format!("{which} differ from each other{on}, and no state is that of most")
    } else if replicas.len() == 1 {
        format!("{which} differs from the others{on}")
    } else {
        format!("{which} differ from the others{on}")
    }
}

fn listed<T: ToString>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(T::to_string).collect();
    texts.join(", ")
}

fn plural<T>(items: &[T]) -> &'static str {
    if items.len() == 1 { "" } else { "s" }
}

/// Where that is, each host once.
fn on_hosts(hosts: &[String]) -> String {
    let mut each: Vec<&String> = Vec::new();
    for host in hosts {
        if !each.contains(&host) {
            each.push(host);
        }
    }
    if each.is_empty() {
        return String::new();
    }
    format!(", on host{} {}", plural(&each), listed(&each))
}
