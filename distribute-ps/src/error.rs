//! The one error type of the crate: what failed, on which server or worker, and what to do next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error_fields::{as_text, known};

/// The result of everything in this crate that can fail.
pub type Result<T, E = PsError> = std::result::Result<T, E>;

/// A name that the program knows: serde would borrow a plain `&'static str` from what it reads.
type Name = &'static str;

/// Everything that can go wrong between coordinator, workers and servers. Cloning is cheap.
#[derive(Clone, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum PsError {
    /// A parameter server cannot be reached: its process ended, it hangs, or the network is cut
    /// (TensorFlow: `UnavailableError`). Training resumes from the last checkpoint once the
    /// server is back.
    #[error(
        "parameter server {server} at {address} is unavailable: {reason}; restart it and resume \
         from the last checkpoint"
    )]
    Unavailable {
        /// The number of the server in the cluster.
        server: usize,
        /// The address of the server.
        address: String,
        /// What happened to the connection.
        reason: String,
    },
    /// A server is there but did not answer in time.
    #[error("{op}: parameter server {server} at {address} did not answer within {waited:.1?}")]
    Timeout {
        /// The operation.
        #[serde(deserialize_with = "known")]
        op: Name,
        /// The number of the server in the cluster.
        server: usize,
        /// The address of the server.
        address: String,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Token, certificate, version or kind of the process at the other end are wrong.
    #[error("the process at {address} is not one of this job: {reason}")]
    Refused {
        /// The address that was dialled.
        address: String,
        /// What differs and what to do.
        reason: String,
    },
    /// The server works for another run of the program, or for none yet.
    #[error("parameter server {server} at {address} is in another run: {reason}")]
    OtherRun {
        /// The number of the server in the cluster.
        server: usize,
        /// The address of the server.
        address: String,
        /// The run that the server is in, and what to do.
        reason: String,
    },
    /// No server holds a variable of this name.
    #[error("there is no variable `{name}` on the parameter servers; the coordinator creates it")]
    UnknownVariable {
        /// The name.
        name: String,
    },
    /// A variable of this name exists already.
    #[error("variable `{name}` exists already; choose another name")]
    VariableExists {
        /// The name.
        name: String,
    },
    /// A variable was used before it had a value.
    #[error("variable `{name}` has no value yet; the coordinator initializes it")]
    Uninitialized {
        /// The name.
        name: String,
    },
    /// A value has another shape than the variable or its rows.
    #[error("{op} of variable `{name}`: expected shape {expected:?}, got {found:?}")]
    Shape {
        /// The operation.
        #[serde(deserialize_with = "known")]
        op: Name,
        /// The variable.
        name: String,
        /// The shape that was expected.
        expected: Vec<usize>,
        /// The shape that was given.
        found: Vec<usize>,
    },
    /// A value has another element type than the variable, or the operation has none for it.
    #[error("{op} of variable `{name}`: expected elements of type {expected}, got {found}")]
    DType {
        /// The operation.
        #[serde(deserialize_with = "known")]
        op: Name,
        /// The variable.
        name: String,
        /// The type that was expected.
        expected: String,
        /// The type that was given.
        found: String,
    },
    /// A row that the variable does not have.
    #[error("variable `{name}` has {rows} rows, there is no row {row}")]
    Row {
        /// The variable.
        name: String,
        /// The row that was asked for.
        row: u64,
        /// How many there are.
        rows: u64,
    },
    /// A lookup of a row that the table does not have.
    #[error(
        "lookup in table `{table}`: there is no id {id}, the table has {rows} rows (ids from 0); \
         map unknown ids to a row of their own, or make the table larger"
    )]
    UnknownId {
        /// The name that the table was registered with.
        table: String,
        /// The id that was asked for.
        id: i128,
        /// How many rows there are.
        rows: u64,
    },
    /// Something is larger than a limit of the server.
    #[error(
        "{what} has {bytes} bytes, the limit is {limit}; raise `ServerOptions::{option}`, or use \
         a partitioner with smaller shards"
    )]
    TooLarge {
        /// What is too large.
        what: String,
        /// The size of what is too large, in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
        /// The option of the server that sets the limit.
        #[serde(deserialize_with = "known")]
        option: Name,
    },
    /// The server holds as many things as it may.
    #[error("the parameter server is full: {what}")]
    Full {
        /// What there are too many of, and what to do.
        what: String,
    },
    /// A gradient holds NaN or infinity and the run refuses those.
    #[error(
        "the gradient of variable `{name}` holds NaN or infinity and was refused (nothing of its \
         push was applied); lower the learning rate, clip, or choose `NonFinite::Apply`"
    )]
    NonFinite {
        /// The variable.
        name: String,
    },
    /// A gradient is older than the run's bound allows.
    #[error(
        "the gradient of variable `{name}` was computed {lag} versions ago, the staleness bound \
         is {bound}: pull and compute it again"
    )]
    Stale {
        /// The variable.
        name: String,
        /// How many versions ago its weights were pulled.
        lag: u64,
        /// The bound.
        bound: u64,
    },
    /// A wait for slower workers took longer than the timeout.
    #[error("{op}: waited {waited:.1?} for slower workers (staleness bound {bound})")]
    StalenessTimeout {
        /// The operation that waited.
        #[serde(deserialize_with = "known")]
        op: Name,
        /// The bound.
        bound: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// An argument that cannot work.
    #[error("{what}")]
    InvalidArgument {
        /// What is wrong and what to pass instead.
        what: String,
    },
    /// The bytes of a peer make no sense.
    #[error("the process at {address} sent what is not understood: {what}")]
    Protocol {
        /// The address of the peer.
        address: String,
        /// What was found and what was expected.
        what: String,
    },
    /// The operating system refused something: a socket, a thread, random numbers.
    #[error("{what}: {reason}")]
    System {
        /// What was wanted.
        what: String,
        /// The answer of the system.
        reason: String,
    },
    /// A closure was cancelled because another one failed (TensorFlow: `CancelledError`).
    #[error("The corresponding function is cancelled. Please reschedule the function.")]
    Cancelled,
    /// A worker's iterator is exhausted (TensorFlow: `OutOfRangeError`).
    #[error("End of sequence: the iterator of data set `{dataset}` is exhausted on {worker}")]
    OutOfRange {
        /// The registered name of the data set.
        dataset: String,
        /// The worker.
        worker: String,
    },
    /// A step, data set or state of this name is not registered in this program.
    #[error("no {kind} `{name}` is registered in this program; there are: {known}")]
    Unregistered {
        /// `step`, `dataset` or `state`.
        #[serde(deserialize_with = "known")]
        kind: Name,
        /// The name that was asked for.
        name: String,
        /// The names that are registered.
        known: String,
    },
    /// A closure failed on a worker. [`root_cause`](PsError::root_cause) is the step's own error.
    #[error("closure {closure} (step `{step}`) failed on worker {worker}: {source}")]
    #[serde(skip)]
    Closure {
        /// The closure's id.
        closure: u64,
        /// The registered name of the step.
        step: String,
        /// The worker.
        worker: usize,
        /// The step's error.
        source: Arc<PsError>,
    },
    /// A step panicked. The worker goes on; what the step held of it is built anew.
    #[error("the step panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// Worker after worker was lost while it ran one closure.
    #[error(
        "{attempts} workers were lost while they ran closure {closure} (step `{step}`), at last \
         worker {worker} ({reason}): the step ends its process; see the workers' logs"
    )]
    LostTooOften {
        /// The closure's id.
        closure: u64,
        /// The registered name of the step.
        step: String,
        /// How often it was tried.
        attempts: u32,
        /// The last worker.
        worker: usize,
        /// How that one was lost.
        reason: String,
    },
    /// There is work, and no worker.
    #[error("there was no worker for {waited:.1?}; start them again ({workers})")]
    NoWorkers {
        /// How long.
        waited: Duration,
        /// What is known of each.
        workers: String,
    },
    /// A worker or parameter server waited in vain for its coordinator.
    #[error(
        "{task}: no coordinator has come within {waited:.1?}; start {chief}, or raise \
         `{option}`{refused}"
    )]
    NoCoordinator {
        /// The task that waited: `worker 1`, `parameter server 0`.
        task: String,
        /// The coordinator that it waited for: `the chief at 10.0.0.1:2222`.
        chief: String,
        /// How long.
        waited: Duration,
        /// The option that says how long.
        #[serde(deserialize_with = "known")]
        option: Name,
        /// What is known of a process that tried and was turned away; empty if none did.
        refused: String,
    },
    /// The coordinator of a worker or parameter server has gone without having said that the job is
    /// done, and no other has come.
    #[error(
        "{task}: {chief} has been gone for {waited:.1?} without having ended the job, and none \
         has come since; start the job again, which resumes from the last checkpoint, or raise \
         `{option}`{refused}"
    )]
    CoordinatorLost {
        /// The task that worked for the coordinator: `worker 1`, `parameter server 0`.
        task: String,
        /// The coordinator that has gone: `the chief at 10.0.0.1:2222 (connected from
        /// 10.0.0.1:49152)`.
        chief: String,
        /// How long ago it was noticed.
        waited: Duration,
        /// The option that says how long it may be gone.
        #[serde(deserialize_with = "known")]
        option: Name,
        /// What is known of a process that tried and was turned away; empty if none did.
        refused: String,
    },
    /// An [`Interruption`](distribute_core::collectives::Interruption) ended a wait.
    #[error("interrupted after {waited:.1?}: {task} waited for {what}")]
    Interrupted {
        /// The task that waited: `worker 1`, `parameter server 0`, `the coordinator`.
        task: String,
        /// What the task waited for, and what is known of that.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The coordinator has ended, so nothing can be scheduled.
    #[error("the coordinator has ended")]
    Stopped,
    /// The coordinator ended the job early; its own error says why.
    #[error("the coordinator ended the job: {reason}")]
    CoordinatorFailed {
        /// The coordinator's error.
        reason: String,
    },
    /// A name is taken (two steps, or two resources or datasets).
    #[error("a {kind} `{name}` is registered already; choose another name")]
    AlreadyRegistered {
        /// `step` or `resource`.
        #[serde(deserialize_with = "known")]
        kind: Name,
        /// The name.
        name: String,
    },
    /// A step does not take these arguments.
    #[error("step `{step}` takes {expected}, not {found}: {reason}")]
    WrongArguments {
        /// The registered name of the step.
        step: String,
        /// The type of its arguments.
        expected: String,
        /// The type of what it was given.
        found: String,
        /// What does not fit.
        reason: String,
    },
    /// A remote value was given to a step (TensorFlow: `ValueError`).
    #[error(
        "step `{step}`: `RemoteValue` used as an input to scheduled function is not yet \
         supported; fetch it and pass the value"
    )]
    RemoteValueArgument {
        /// The registered name of the step.
        step: String,
    },
    /// The cluster lacks a job, or this process has no role in it.
    #[error("{what}")]
    Role {
        /// What is missing and what to do.
        what: String,
    },
    /// An error of the caller's own step.
    #[error(transparent)]
    Step(#[serde(with = "as_text")] Arc<dyn std::error::Error + Send + Sync>),
    /// Waiting took longer than the deadline.
    #[error("{op}: nothing happened within {waited:.1?}: {reason}")]
    Deadline {
        /// The operation.
        #[serde(deserialize_with = "known")]
        op: Name,
        /// How long it waited.
        waited: Duration,
        /// What it waited for, and what to do.
        reason: String,
    },
    /// An error of a strategy, a state or a checkpoint.
    #[error(transparent)]
    #[serde(skip)]
    Core(Arc<distribute_core::Error>),
}

distribute_error::debug_as_message!(PsError);

impl PsError {
    /// [`InvalidArgument`](Self::InvalidArgument) with this text.
    pub fn invalid(what: impl fmt::Display) -> Self {
        Self::InvalidArgument {
            what: what.to_string(),
        }
    }

    /// Wraps an error of the caller's own code, so that a step can use `?` on it through
    /// `map_err(PsError::step)`.
    pub fn step(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Step(Arc::from(error.into()))
    }

    /// Whether the same start would fail again: the program, its arguments, its variables or its
    /// numbers are not right for it. A process that was lost or did not come may be there the next
    /// time. A step's own error is none: ask it in its own type.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::UnknownVariable { .. }
            | Self::VariableExists { .. }
            | Self::Uninitialized { .. }
            | Self::Shape { .. }
            | Self::DType { .. }
            | Self::Row { .. }
            | Self::UnknownId { .. }
            | Self::TooLarge { .. }
            | Self::Full { .. }
            | Self::NonFinite { .. }
            | Self::InvalidArgument { .. }
            | Self::OutOfRange { .. }
            | Self::Unregistered { .. }
            | Self::AlreadyRegistered { .. }
            | Self::WrongArguments { .. }
            | Self::RemoteValueArgument { .. }
            | Self::Role { .. } => true,
            Self::Unavailable { .. }
            | Self::Timeout { .. }
            | Self::OtherRun { .. }
            | Self::Stale { .. }
            | Self::StalenessTimeout { .. }
            | Self::Protocol { .. }
            | Self::System { .. }
            | Self::Panicked { .. }
            | Self::LostTooOften { .. }
            | Self::NoWorkers { .. }
            | Self::NoCoordinator { .. }
            | Self::CoordinatorLost { .. }
            | Self::Interrupted { .. }
            | Self::CoordinatorFailed { .. }
            | Self::Deadline { .. }
            | Self::Cancelled
            | Self::Stopped
            | Self::Step(_) => false,
            Self::Closure { source, .. } => source.is_permanent(),
            Self::Core(error) => error.is_permanent(),
        }
    }

    /// Whether gradients or statistics hold NaN or infinity, which the same start computes again.
    pub fn is_not_finite(&self) -> bool {
        match self.root_cause() {
            Self::NonFinite { .. } => true,
            Self::Core(error) => error.is_not_finite(),
            _ => false,
        }
    }

    /// The innermost error of this crate: without the closure that failed by it.
    pub fn root_cause(&self) -> &PsError {
        match self {
            Self::Closure { source, .. } => source.root_cause(),
            other => other,
        }
    }

    /// [`Panicked`](Self::Panicked) with the message of a panic's payload.
    pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = distribute_error::panic_text(payload);
        Self::Panicked {
            message: text.unwrap_or("(no message)").to_string(),
        }
    }

    /// [`System`](Self::System) for what could not be had.
    pub fn system(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self::System {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// An error of this crate that went through a strategy or [`Fit`](distribute_fit::Fit) comes
/// out as it went in.
impl From<distribute_core::Error> for PsError {
    fn from(error: distribute_core::Error) -> Self {
        if let distribute_core::Error::Step(step) = &error
            && let Some(own) = step.downcast_ref::<Self>()
        {
            return own.clone();
        }
        Self::Core(Arc::new(error))
    }
}

impl From<PsError> for distribute_core::Error {
    fn from(error: PsError) -> Self {
        match error {
            PsError::Core(error) => Arc::unwrap_or_clone(error),
            other => distribute_core::Error::step(other),
        }
    }
}
