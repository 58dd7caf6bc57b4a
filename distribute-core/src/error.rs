//! The one error type of the crate: what failed, on which replica, and what to do next.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::DType;
use distribute_collectives::contract::ContractError;
use distribute_collectives::flight_record::FlightRecordError;
use distribute_collectives::{CollectiveError, HeaderError, ReduceOp};
use distribute_net::NetError;
use distribute_net::exchange::ExchangeError;
use distribute_net::handshake::HandshakeError;

use crate::checkpoint::CheckpointError;
use crate::wrong_gradient::WrongGradient;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of another crate or of the caller.
type Wrapped = Arc<dyn StdError + Send + Sync>;

/// Everything that can go wrong in a strategy.
///
/// Cloning is cheap. Errors name the replica they come from; [`Error::root_cause`] takes the
/// wrapping off.
///
/// `?` makes one of every error of the crates that know this one: checkpoints, readers of data,
/// callbacks, collectives, clusters, parameter servers, TPUs, launchers, the standard library's
/// files. All are wrapped in one way: the message is theirs, [`source`](StdError::source) goes on
/// with their cause, and [`Error::wrapped`] is the error itself. `Debug`, which `main` prints, is
/// the message with its causes.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A strategy, optimizer or dataset was configured with something that cannot work.
    #[error("{what}")]
    InvalidArgument {
        /// What is wrong and what to pass instead.
        what: String,
    },
    /// The operating system refused a thread, a socket or a file for a reason that may pass: a full
    /// disk, a port that is in use, a limit that others reach too.
    #[error("{what}")]
    System {
        /// What was refused, the system's reason and what to do.
        what: String,
    },
    /// A tensor has another shape than the operation needs. Usually a bug in the step.
    #[error("{op}: expected shape {expected:?}, got {found:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The shape that was expected.
        expected: Vec<usize>,
        /// The shape that was given.
        found: Vec<usize>,
    },
    /// An axis is out of range.
    #[error("{op}: axis {axis} is out of range for a value with {rank} dimensions")]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis that was given; negative ones count from the end.
        axis: i64,
        /// The value's number of dimensions.
        rank: usize,
    },
    /// A value that is the same on every replica was reduced with an operation that needs to
    /// know how often it counts
    /// (TensorFlow: "A non-DistributedValues value cannot be reduced").
    #[error(
        "reduce {op}: the value is not distributed, one value stands for all {replicas} replicas; \
         reduce what `run` returned, or use MEAN, which gives the value itself"
    )]
    NotDistributed {
        /// The reduction.
        op: ReduceOp,
        /// The strategy's replicas.
        replicas: usize,
    },
    /// The operation is not defined for this element type.
    #[error("{op}: not defined for elements of type {dtype}; cast the tensor first")]
    DType {
        /// The operation.
        op: &'static str,
        /// The element type that was given.
        dtype: String,
    },
    /// A value or scope of one strategy was used with another one
    /// (TensorFlow: "Mixing different tf.distribute.Strategy objects").
    #[error(
        "a value made under {owner} was used under {user}: one program run uses one strategy; \
         build the value in {user}'s scope or move it through a checkpoint"
    )]
    MixedStrategies {
        /// The strategy that owns the value or the open scope.
        owner: String,
        /// The strategy it was handed to.
        user: String,
    },
    /// A per-replica value has another number of components than the strategy has replicas.
    #[error("{what}: {found} components for {replicas} replicas")]
    ReplicaCount {
        /// Which value.
        what: &'static str,
        /// The strategy's local replicas.
        replicas: usize,
        /// The components found.
        found: usize,
    },
    /// A call of cross-replica context (`run`, `scope`, `reduce`, ...) was made inside a step.
    #[error(
        "{strategy}: {what} was called inside a running step; a step runs in replica context, \
         call it outside (or use `ReplicaContext::merge_call`)"
    )]
    InsideStep {
        /// The strategy.
        strategy: String,
        /// The call that was refused.
        what: &'static str,
    },
    /// The step of one replica returned an error. The other replicas were stopped.
    #[error("replica {replica}: {source}")]
    Replica {
        /// The global replica id.
        replica: usize,
        /// The error that the step returned.
        source: Arc<Error>,
    },
    /// Something is wrong with one tensor or number inside a value.
    #[error("`{path}`: {source}")]
    Leaf {
        /// Where it is in the value: `outputs.loss`.
        path: String,
        /// What is wrong with it.
        source: Arc<Error>,
    },
    /// The step of one replica panicked. The other replicas were stopped.
    #[error("replica {replica} panicked: {message}; the strategy is usable again")]
    ReplicaPanicked {
        /// The global replica id.
        replica: usize,
        /// The panic's message.
        message: String,
    },
    /// A mirrored value may differ between replicas because a run that changed it failed.
    #[error(
        "this mirrored value may differ between replicas since a failed run ({cause}); restore it \
         from a checkpoint, or call `Mirrored::resync` to copy replica 0's value to all"
    )]
    Poisoned {
        /// The failure that made it so.
        cause: String,
    },
    /// Some replicas reached a cross-replica point (`merge_call`, `all_reduce`) that others did
    /// not.
    #[error(
        "{op}: replica {replica} did not arrive ({why}); every replica must make the same \
         cross-replica calls in the same order"
    )]
    ReplicaMissing {
        /// The call the others were waiting in.
        op: &'static str,
        /// The first replica that did not arrive.
        replica: usize,
        /// What is known about it.
        why: String,
    },
    /// A worker built another model than the chief, so their gradients do not fit.
    #[error(
        "worker {worker} has another model than the chief: {what}; run the same program with the \
         same model on all workers"
    )]
    DifferentModels {
        /// The worker, from 0; the chief is worker 0.
        worker: usize,
        /// The first parameter that differs.
        what: String,
    },
    /// A number of replicas for the whole job that leaves a worker without one.
    #[error(
        "{replicas} replicas for {workers} workers: each worker needs at least one; ask for more \
         replicas in all, or start fewer workers"
    )]
    TooFewReplicas {
        /// The replicas of the job.
        replicas: usize,
        /// Its workers.
        workers: usize,
    },
    /// A worker names fewer devices than it is to hold replicas.
    #[error(
        "{replicas} of the job's replicas are this worker's, but it names {devices} devices: name \
         more, start more workers, or ask for fewer replicas in all"
    )]
    TooFewDevices {
        /// The worker's share of the job's replicas.
        replicas: usize,
        /// The devices that were named.
        devices: usize,
    },
    /// Workers were told different numbers of replicas for the whole job.
    #[error(
        "the workers hold {found} replicas in all, but this one was told that the job has {own}: \
         tell all workers the same number"
    )]
    DifferentTotals {
        /// The number that this worker was told.
        own: usize,
        /// The sum of what the workers hold.
        found: usize,
    },
    /// A worker has another configuration than the chief, so they would not train the same.
    #[error(
        "{}; run all workers with the same",
        difference.between(&format!("on worker {worker}"), "on the chief")
    )]
    DifferentConfigurations {
        /// The worker, from 0; the chief of workers that train together is worker 0.
        worker: usize,
        /// What differs: the worker's value is the own one, the chief's the other.
        difference: Box<crate::Difference>,
    },
    /// A directory that all workers need is another one on a worker than on the chief.
    #[error(
        "worker {worker} does not see the directory {} that the chief writes to: the workers do \
         not share it; use a file system that all of them see", path.display()
    )]
    NotShared {
        /// The first worker that does not see it, from 0; the chief is worker 0.
        worker: usize,
        /// The chief's directory.
        path: PathBuf,
    },
    /// Synchronization NONE under a strategy that distributes variables.
    #[error(
        "variable synchronization NONE is not possible under {strategy}: use AUTO, ON_WRITE or \
         ON_READ"
    )]
    UnsupportedSynchronization {
        /// The strategy.
        strategy: String,
    },
    /// Aggregation MEAN of elements that have no fractions.
    #[error(
        "a variable of {dtype} elements cannot be aggregated with MEAN: use SUM or \
         ONLY_FIRST_REPLICA, or a floating-point type"
    )]
    MeanOfIntegers {
        /// The element type.
        dtype: String,
    },
    /// Several replicas update a variable that has no aggregation. TensorFlow lets the copies of a
    /// mirrored variable drift apart here; this library does not.
    #[error(
        "{op}: the replicas' values cannot become one without an aggregation; create the variable \
         with SUM, MEAN or ONLY_FIRST_REPLICA, or with synchronization ON_READ"
    )]
    AggregationRequired {
        /// The update.
        op: &'static str,
    },
    /// An on-read variable without aggregation was used outside of a step.
    #[error(
        "{op}: the copies of an ON_READ variable with aggregation NONE have no common value; read \
         them in a step, or create the variable with an aggregation"
    )]
    NoCommonValue {
        /// The call.
        op: &'static str,
    },
    /// `assign_add` or `assign_sub` outside of a step on an on-read variable that is summed: it is
    /// not defined which copy the amount goes to.
    #[error(
        "{op} on an ON_READ variable with aggregation SUM is not possible outside of a step: \
         assign the new total instead"
    )]
    UpdateOfSum {
        /// The update.
        op: &'static str,
    },
    /// The copies of an on-write variable took different numbers of updates, because a run failed
    /// between them.
    #[error(
        "{op}: the copies of the variable may differ since a failed run; assign it anew outside of \
         a step"
    )]
    Diverged {
        /// The call.
        op: &'static str,
    },
    /// The step reads a tensor on the host, which has no value while the step is captured.
    #[error(
        "the step reads {what} on the host while it is captured, when tensors have no values yet \
         (`into_data`, `into_scalar`, a branch on a value); return the tensor from the step and \
         read it from the result of `run`"
    )]
    HostRead {
        /// What is read.
        what: String,
    },
    /// The step uses something that another replica cannot do again.
    #[error("{what} cannot be computed again by another replica: {instead}")]
    NotRecomputable {
        /// The operation or value.
        what: String,
        /// What to do instead.
        instead: String,
    },
    /// Gradients that were computed again are not the same.
    #[error(transparent)]
    WrongGradient(Box<WrongGradient>),
    /// The step uses something that a compiled step cannot do.
    #[error("{what} cannot be part of a compiled step: {instead}")]
    NotCompilable {
        /// The operation or value.
        what: String,
        /// What to do instead.
        instead: String,
    },
    /// A policy of mixed precision asks for what cannot be computed in its type.
    #[error("{what} cannot be computed in {dtype} (policy {policy}): {why}")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// The type that it computes in.
        dtype: &'static str,
        /// The layer, or the model and its device.
        what: String,
        /// The reason, and what to do instead.
        why: String,
    },
    /// The step computes something else than when it was compiled.
    #[error(
        "the step computes something else than when it was compiled: it captures a value that has \
         changed since ({what}), and up to {calls} calls have used the old one; pass the value to \
         `run` as an argument: a number as it is, a tensor as `Replicated`"
    )]
    StepChanged {
        /// What is another one.
        what: &'static str,
        /// The calls since the program was last compared with the step.
        calls: u64,
    },
    /// The step draws random numbers on the host, or is another one each time for another reason.
    #[error(
        "the step draws random numbers on the host while it is captured: {what}; they would be \
         constants of the program, the same in every step and on every replica; use \
         `distribute_core::dropout` or `Tensor::random` on `ctx.device()`, which the program draws \
         anew in every step, or draw before the step and pass the values to `run` as an argument"
    )]
    RandomOnHost {
        /// What is drawn, and where.
        what: String,
    },
    /// The step panicked while it was captured.
    #[error("the step panicked while it was captured: {message}")]
    CapturePanicked {
        /// The panic's message.
        message: String,
    },
    /// The replicas' parts of an argument differ in shape; one program serves all of them.
    #[error(
        "replica {replica} got {found} where replica 0 got {expected}: a compiled step runs the \
         same program on every replica; use `pad_remainder` or `drop_remainder`, or batches whose \
         last one divides evenly"
    )]
    UnevenArguments {
        /// The first replica that differs.
        replica: usize,
        /// Shape and type on replica 0.
        expected: String,
        /// Shape and type on that replica.
        found: String,
    },
    /// The argument shapes changed so often that the step was compiled more than the limit allows.
    #[error(
        "the step was compiled {compiled} times, which is the limit: its arguments change in shape \
         or its plain numbers in value from call to call ({last}); pass changing numbers as \
         tensors and keep shapes the same, or raise the limit"
    )]
    TooManyPrograms {
        /// How often it was compiled.
        compiled: usize,
        /// The arguments of the last call.
        last: String,
    },
    /// Running statistics have become NaN or infinite. The state is as it was before the step.
    #[error(
        "replica {replica}, after {updates} updates: the running statistics `{path}` are not \
         finite: the layer was given NaN or infinite values, or the sum of their squares \
         overflows; the state is as it was before the step: look at the inputs, or lower the \
         learning rate"
    )]
    StatisticsNotFinite {
        /// The statistic, `norm.running_mean` for example.
        path: String,
        /// The first replica that has them, from 0.
        replica: usize,
        /// The updates that the state had before the step; 0 of a model without an optimizer.
        updates: u64,
    },
    /// Copying a training state from the device failed; the host's copy is an old one.
    #[error("the value is on the device and could not be read: {cause}")]
    Fetch {
        /// The failure.
        cause: String,
    },
    /// Recording the graph failed.
    #[error("capture: {message}")]
    Capture {
        /// burn's message.
        message: String,
    },
    /// Lowering, compiling or running the program failed.
    #[error(transparent)]
    Backend(Wrapped),
    /// A collective operation failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A replica was stopped because another one failed; the other one's error is the cause.
    #[error("stopped, because {cause}")]
    Stopped {
        /// The failure elsewhere.
        cause: String,
    },
    /// The cluster, or this process' place in it, cannot be worked out.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
    /// Credentials or an address cannot be used, or a handshake failed.
    #[error(transparent)]
    Connection(Wrapped),
    /// The processes of a job could not be started, or the job failed.
    #[error(transparent)]
    Launch(Wrapped),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(Wrapped),
    /// Reading input data failed.
    #[error(transparent)]
    Input(Wrapped),
    /// The training loop or one of its callbacks gave up.
    #[error(transparent)]
    Fit(Wrapped),
    /// An error of the caller's own step.
    #[error(transparent)]
    Step(Wrapped),
    /// A failure that is not the caller's: a device or the machine has failed, or this library has
    /// a bug.
    #[error(
        "{source}; neither the program nor its data caused this: the device or the machine has \
         failed, or it is a bug of this library; try again, and report it if it comes again"
    )]
    Internal {
        /// What could not be done.
        source: Wrapped,
    },
}

distribute_error::debug_as_message!(Error);

/// Makes `?` wrap errors of another crate in a variant of [`Error`]: the one way in which it is
/// done.
///
/// ```
/// #[derive(Debug)]
/// struct NoLabels;
/// # impl std::fmt::Display for NoLabels {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
/// #         f.write_str("no labels")
/// #     }
/// # }
/// impl std::error::Error for NoLabels {}
/// distribute_core::wrap_errors!(Input: NoLabels);
///
/// let failed = || -> distribute_core::Result<()> { Err(NoLabels)? };
/// assert!(matches!(failed(), Err(distribute_core::Error::Input(_))));
/// ```
#[macro_export]
macro_rules! wrap_errors {
    ($variant:ident: $($error:ty),+) => {$(
        impl ::std::convert::From<$error> for $crate::Error {
            fn from(error: $error) -> Self {
                Self::$variant(::std::sync::Arc::new(error))
            }
        }
    )+};
}

wrap_errors!(Checkpoint: CheckpointError);
wrap_errors!(Input: FlightRecordError);
// A file or a socket of the caller's own step, and a test of the caller's own communicator.
wrap_errors!(Step: std::io::Error, ContractError, HeaderError);
wrap_errors!(Connection: NetError, HandshakeError, ExchangeError);

impl Error {
    /// An [`Error::InvalidArgument`].
    pub fn invalid(what: impl fmt::Display) -> Self {
        Self::InvalidArgument {
            what: what.to_string(),
        }
    }

    /// What the system refused: an [`Error::System`] if that may pass, else an
    /// [`Error::InvalidArgument`]. `what` has the system's reason in it.
    pub fn of_system(error: &std::io::Error, what: impl fmt::Display) -> Self {
        let what = what.to_string();
        if distribute_error::lasts(error) {
            Self::InvalidArgument { what }
        } else {
            Self::System { what }
        }
    }

    /// Wraps an error of the caller's own code, so that a step can use `?` on it through
    /// `map_err(Error::step)`.
    pub fn step(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Step(Arc::from(error.into()))
    }

    /// An [`Error::Internal`]: wraps what can only fail with the device or by a bug.
    pub fn internal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Internal {
            source: Arc::from(error.into()),
        }
    }

    /// Wraps an error of a data source.
    pub fn input(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Input(Arc::from(error.into()))
    }

    pub(crate) fn shape(op: &'static str, expected: &[usize], found: &[usize]) -> Self {
        Self::Shape {
            op,
            expected: expected.to_vec(),
            found: found.to_vec(),
        }
    }

    pub(crate) fn dtype(op: &'static str, dtype: DType) -> Self {
        let dtype = dtype.name().to_string();
        Self::DType { op, dtype }
    }

    pub(crate) fn host_read(what: impl fmt::Display) -> Self {
        Self::HostRead {
            what: what.to_string(),
        }
    }

    pub(crate) fn not_compilable(what: impl fmt::Display, instead: impl fmt::Display) -> Self {
        Self::NotCompilable {
            what: what.to_string(),
            instead: instead.to_string(),
        }
    }

    pub(crate) fn not_recomputable(what: impl fmt::Display, instead: impl fmt::Display) -> Self {
        Self::NotRecomputable {
            what: what.to_string(),
            instead: instead.to_string(),
        }
    }

    /// The error of another crate, or of the caller, that this one wraps, on whatever replica: it
    /// is told apart by its type.
    pub fn wrapped(&self) -> Option<&(dyn StdError + 'static)> {
        match self.root_cause() {
            Self::Checkpoint(error)
            | Self::Connection(error)
            | Self::Launch(error)
            | Self::Input(error)
            | Self::Fit(error)
            | Self::Step(error)
            | Self::Backend(error)
            | Self::Internal { source: error } => Some(&**error),
            Self::Collective(error) => Some(error),
            Self::Cluster(error) => Some(error),
            _ => None,
        }
    }

    /// The innermost error: without the replica it happened on, and the part of a value.
    pub fn root_cause(&self) -> &Error {
        match self {
            Self::Replica { source, .. } | Self::Leaf { source, .. } => source.root_cause(),
            other => other,
        }
    }

    /// Whether an [`Interruption`](distribute_collectives::Interruption) ended what failed, of this
    /// process or of another worker.
    pub fn is_interruption(&self) -> bool {
        let Self::Collective(error) = self.root_cause() else {
            return false;
        };
        matches!(error.root_cause(), CollectiveError::Interrupted { .. })
    }

    /// Whether the same start would fail again: with these arguments, devices, workers, files or
    /// numbers. A replica that panicked, a worker that was lost and what only follows from another
    /// failure may be otherwise the next time. An error of a crate that this one does not know is
    /// none: ask [`wrapped`](Self::wrapped) in its own type.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::InvalidArgument { .. }
            | Self::Shape { .. }
            | Self::Axis { .. }
            | Self::NotDistributed { .. }
            | Self::DType { .. }
            | Self::MixedStrategies { .. }
            | Self::ReplicaCount { .. }
            | Self::InsideStep { .. }
            | Self::DifferentModels { .. }
            | Self::TooFewReplicas { .. }
            | Self::TooFewDevices { .. }
            | Self::DifferentTotals { .. }
            | Self::DifferentConfigurations { .. }
            | Self::NotShared { .. }
            | Self::UnsupportedSynchronization { .. }
            | Self::MeanOfIntegers { .. }
            | Self::AggregationRequired { .. }
            | Self::NoCommonValue { .. }
            | Self::UpdateOfSum { .. }
            | Self::HostRead { .. }
            | Self::NotCompilable { .. }
            | Self::NotRecomputable { .. }
            | Self::Policy { .. }
            | Self::StepChanged { .. }
            | Self::RandomOnHost { .. }
            | Self::UnevenArguments { .. }
            | Self::TooManyPrograms { .. }
            | Self::StatisticsNotFinite { .. } => true,
            Self::System { .. }
            | Self::ReplicaPanicked { .. }
            | Self::Poisoned { .. }
            | Self::ReplicaMissing { .. }
            | Self::Diverged { .. }
            | Self::WrongGradient(_)
            | Self::CapturePanicked { .. }
            | Self::Fetch { .. }
            | Self::Capture { .. }
            | Self::Stopped { .. }
            | Self::Internal { .. } => false,
            Self::Replica { source, .. } | Self::Leaf { source, .. } => source.is_permanent(),
            Self::Collective(error) => error.is_permanent(),
            Self::Cluster(error) => error.is_permanent(),
            Self::Checkpoint(error)
            | Self::Connection(error)
            | Self::Input(error)
            | Self::Step(error)
            | Self::Fit(error)
            | Self::Launch(error)
            | Self::Backend(error) => is_known_as_permanent(&**error),
        }
    }

    /// Whether numbers of the training are NaN or infinite, which the same start computes again.
    pub fn is_not_finite(&self) -> bool {
        matches!(self.root_cause(), Self::StatisticsNotFinite { .. })
    }

    /// How far from the cause of a failed run this error is: 0 for a replica's own failure, 1 for
    /// one that names a replica whose step ended early, 2 for a call that went wrong because of
    /// another replica, 3 for the news that another one failed.
    pub(crate) fn distance_to_cause(&self) -> u8 {
        match self.root_cause() {
            Self::ReplicaMissing { .. } => 1,
            Self::Stopped { .. } => 3,
            Self::Collective(error) => match error {
                CollectiveError::Aborted { .. } | CollectiveError::Poisoned { .. } => 3,
                CollectiveError::PeerLost { .. }
                | CollectiveError::Timeout { .. }
                | CollectiveError::CutOff { .. }
                | CollectiveError::LinkStalled { .. }
                | CollectiveError::Mismatch { .. } => 2,
                _ => 0,
            },
            _ => 0,
        }
    }
}

impl From<WrongGradient> for Error {
    fn from(found: WrongGradient) -> Self {
        Self::WrongGradient(Box::new(found))
    }
}

/// Whether a wrapped error of a crate below this one lasts.
fn is_known_as_permanent(error: &(dyn StdError + 'static)) -> bool {
    let checkpoint = || error.downcast_ref().map(CheckpointError::is_permanent);
    let net = || error.downcast_ref().map(NetError::is_permanent);
    let records = || error.downcast_ref().map(FlightRecordError::is_permanent);
    let core = || error.downcast_ref().map(Error::is_permanent);
    let found = checkpoint().or_else(net).or_else(records).or_else(core);
    found.unwrap_or(false)
}

/// Whether a value has a component for each local replica.
pub(crate) fn check_count(what: &'static str, replicas: usize, found: usize) -> Result<()> {
    if replicas == found {
        Ok(())
    } else {
        Err(Error::ReplicaCount {
            what,
            replicas,
            found,
        })
    }
}

/// Refuses a number that is not above zero.
pub(crate) fn check_positive(what: impl fmt::Display, number: f64) -> Result<()> {
    if number.is_finite() && number > 0.0 {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "{what} must be a positive number, got {number}"
        )))
    }
}
