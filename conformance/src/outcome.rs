//! What becomes of a case.

use std::fmt;

use distribute_collectives::CollectiveError;
use distribute_core::Error;
use distribute_core::checkpoint::CheckpointError;
use distribute_records::{MessageError, RecordError};

macro_rules! reasons {
    ($(#[$doc:meta])* $type:ident: $($variant:ident $name:literal $reason:literal,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $type {
            $(#[doc = $reason] $variant,)*
        }

        impl $type {
            /// All of them.
            pub const ALL: &[$type] = &[$(Self::$variant),*];

            /// A short name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The reason, in one sentence.
            pub fn reason(self) -> &'static str {
                match self {
                    $(Self::$variant => $reason,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

reasons! {
    /// Why a case does not apply.
    Rule:
    PythonType "python-type"
        "Python only: an argument of a type that this library's signature does not accept.",
    CompileError "compile-error"
        "The misuse does not compile, which is better than the error at run time.",
    Crash "crash"
        "TensorFlow itself crashed, or never returned.",
    NoInputs "no-inputs"
        "The golden file does not hold the inputs.",
    Internals "internals"
        "A property of TensorFlow's own machinery: graphs, buffers, Python objects.",
    Nccl "nccl"
        "NCCL needs GPUs, which the machine that made the file did not have.",
    NoDestination "no-destination"
        "Every replica gets the result; there is no destination device to name.",
    NoWorkers "no-workers"
        "No program was named that worker processes could run.",
    Mask "mask"
        "Normalization layers take no mask here.",
    BurnLayer "burn-layer"
        "Group normalization is burn's own layer, which refuses what does not fit by a panic.",
    HostInStep "host-in-step"
        "A compiled step reads and assigns nothing in host memory, and tells no replicas apart.",
    WholeInStep "whole-in-step"
        "A compiled step has no place outside of its replicas for all their values (`merge_call`).",
    UnevenShapes "uneven-shapes"
        "All replicas run one compiled program, so a step's values have one shape on all of them.",
    IntegerMean "integer-mean"
        "In a compiled step the mean of integers would have to be a tensor of integers.",
    FewDevices "few-devices"
        "The plugin has fewer devices than the case has replicas.",
}

reasons! {
    /// Where the library deliberately differs from TensorFlow.
    Deviation:
    PlainZero "plain-zero"
        "A plain zero reduces to zero; TensorFlow fails on Python's 0 (AttributeError).",
    PlainNumber "plain-number"
        "Plain numbers can be all-reduced; TensorFlow wants tensors.",
    NoDrift "no-drift"
        "Aggregation NONE in a step is an error; TensorFlow lets the copies drift apart.",
    NoDriftOutside "no-drift-outside"
        "A per-replica value is not assigned outside of a step, which would make copies differ.",
    OddHierarchical "odd-hierarchical"
        "HierarchicalCopy sums all replicas of an odd count; TensorFlow drops the last.",
    UnknownDevice "unknown-device"
        "A device that this build cannot use is refused at once; TensorFlow finds out later.",
    DefaultHandles "default-handles"
        "Handles of the default strategy are one strategy, so making another does no harm.",
    BackwardsRange "backwards-range"
        "A range of SLURM hosts that runs backwards is refused; TensorFlow finds no hosts.",
    NotText "not-text"
        "rpc_layer and session_master must be strings; TensorFlow takes anything.",
    NoRank "no-rank"
        "An evaluator without index has no rank; TensorFlow returns nothing.",
    NoGpus "no-gpus"
        "SLURM works on nodes without GPUs; TensorFlow fails.",
    NodeOrder "node-order"
        "SLURM's ranks follow the node list; TensorFlow sorts the nodes.",
    TracedGather "traced-gather"
        "all_gather works with one replica per worker; TensorFlow fails in a traced step.",
    FirstReplica "first-replica"
        "ONLY_FIRST_REPLICA is replica 0 of all; TensorFlow takes the first of each worker.",
    ChiefWrites "chief-writes"
        "Only the chief writes a checkpoint; in TensorFlow all do, and some are thrown away.",
    JobVariables "job-variables"
        "SLURM's job variables do where the step's are missing; TensorFlow fails.",
    ClipsSum "clips-sum"
        "Gradients are clipped after they were summed, as in Keras 2; Keras 3 clips before.",
    MeanStatistics "mean-statistics"
        "Moving statistics are read as their mean, as in Keras 2; in Keras 3 as the first's.",
    EmptyPart "empty-part"
        "A part without examples changes nothing; Keras 3 gives NaN, Keras 2 an old average.",
    PopulationVariance "population-variance"
        "The moving variance is divided by N, as in Keras 3; Keras 2's fused kernel by N - 1.",
    AnyReplica "any-replica"
        "A gradient that is not finite on any replica, or its sum, counts; in Keras 3 the first's.",
    ScaleBounds "scale-bounds"
        "A loss scale stays between 1 and 2^127, as in Keras 2; Keras 3 has no bounds.",
    SkippedCount "skipped-count"
        "An update that a loss scale skips does not count, as in Keras 3; in Keras 2 it does.",
    SubnormalScale "subnormal-scale"
        "A loss scale above 2^126 is divided by; Keras 2 multiplies by its inverse, flushed to 0.",
    UpdateAverage "update-average"
        "An average of weights counts updates; Keras 3 also counts the micro-batches of each.",
    OneMicroBatch "one-micro-batch"
        "Updates of one micro-batch are no accumulation and work; Keras refuses them.",
    NoGradients "no-gradients"
        "An update without any gradient changes no variable and counts; Keras refuses it.",
    NanIsNeverBest "nan-is-never-best"
        "A watched value that is NaN is never the best one; Keras takes the first whatever it is.",
    MissingMetric "missing-metric"
        "A watched value that is not in the logs is an error; Keras goes on without it.",
    TooFewFiles "too-few-files"
        "Fewer files than workers are refused on all workers; TensorFlow fails on the first.",
    TracedUpdate "traced-update"
        "Accumulation and averages work in every kind of step; Keras 3 fails in a traced one.",
    CutFile "cut-file"
        "A record file that ends early or goes on behind its end is refused; TensorFlow reads on.",
}

/// What became of a case that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The same result, or the same kind of error.
    Passed,
    /// The library does what the deviation says.
    Deviation(Deviation),
    /// The case does not apply.
    NotApplicable(Rule),
}

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What should have come; the case's own expectation if nothing.
    pub expected: Option<String>,
    /// What came.
    pub got: String,
    /// Which part of the result this is about.
    pub at: String,
}

impl Failure {
    /// Two values that should be equal.
    pub(crate) fn new(expected: impl fmt::Display, got: impl fmt::Display) -> Self {
        Self {
            expected: Some(expected.to_string()),
            got: got.to_string(),
            at: String::new(),
        }
    }

    /// Something else came than the case expects.
    pub(crate) fn got(got: impl fmt::Display) -> Self {
        Self {
            expected: None,
            got: got.to_string(),
            at: String::new(),
        }
    }

    /// The case is not of the schema.
    pub(crate) fn schema(what: impl fmt::Display) -> Self {
        Self::new("a case of the golden schema", what)
    }

    /// The same, of a part of the result.
    pub(crate) fn at(mut self, place: impl fmt::Display) -> Self {
        self.at = format!("{place}{}", self.at);
        self
    }
}

macro_rules! from_error {
    ($($type:ty),*) => {$(
        impl From<$type> for Failure {
            fn from(error: $type) -> Self {
                Self::got(format!("an error: {error}"))
            }
        }
    )*};
}

from_error!(
    Error,
    CollectiveError,
    CheckpointError,
    MessageError,
    RecordError,
    std::io::Error
);

/// So that a step can use `?` on what it reads from a case.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error::step(failure.got)
    }
}

/// The result of checking a case.
pub(crate) type Checked = Result<Outcome, Failure>;

/// Passed, if nothing differed.
pub(crate) fn passed(result: Result<(), Failure>) -> Checked {
    result.map(|()| Outcome::Passed)
}
