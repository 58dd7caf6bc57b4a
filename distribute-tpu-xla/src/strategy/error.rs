//! Why a TPU strategy cannot be had.

use distribute_core::Error;

use crate::lower::LowerError;
use crate::pjrt::PjrtError;
use crate::stablehlo::StableHloError;

/// Everything that can go wrong between a TPU's name and a running strategy.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TpuError {
    /// There is no TPU system, or it does not start. Nothing else is used in its place.
    #[error("TPU failed to initialize: {cause}")]
    Initialize {
        /// Why, with what to do.
        cause: String,
        /// Where a plugin was looked for, if that is the reason.
        searched: Vec<String>,
        /// Whether the same start would meet it again: the machine, the plugin or what was asked
        /// for is not right. A device that another process holds is free again.
        lasts: bool,
    },
    /// The environment or the arguments name a TPU in a way that cannot be understood.
    #[error("{what}")]
    Resolve {
        /// What is wrong and what to set.
        what: String,
    },
    /// More replicas were asked for than the system has devices.
    #[error(
        "{replicas} replicas were asked for, but the system has {devices} devices ({names}); a \
         replica needs a device of its own"
    )]
    Replicas {
        /// The replicas.
        replicas: usize,
        /// The devices.
        devices: usize,
        /// The kind of the devices.
        names: String,
    },
    /// The processes do not make one system, or one of them was lost.
    #[error("the {processes} processes of the TPU system: {cause}")]
    Processes {
        /// How many there are.
        processes: usize,
        /// What is wrong.
        cause: String,
    },
    /// The processes compiled different programs for the same call of `run`: the replicas would
    /// wait for each other forever.
    #[error(
        "process {process} compiled another program than process 0 for this step (here: \
         {arguments}): {difference}; every process must run the same steps with arguments of the \
         same shapes: use `drop_remainder`, and the same numbers in all processes"
    )]
    DifferentPrograms {
        /// The first process that differs.
        process: usize,
        /// The first difference between the two.
        difference: String,
        /// The arguments of the step in this process.
        arguments: String,
    },
    /// What the devices compute was not there before the deadline; other processes take part in it.
    #[error(
        "a step did not end within {limit:.1?}: another process does not take part in it; look \
         there, or raise the timeout of the strategy"
    )]
    Timeout {
        /// The deadline.
        limit: std::time::Duration,
    },
    /// The plugin reported an error.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),
    /// The step has an operation that cannot be lowered.
    #[error(transparent)]
    Lower(Box<LowerError>),
    /// The step was compiled for devices that are not there, as it should; nothing has run.
    #[error(
        "the step is compiled for {topology}; nothing was run, because only compiling was asked for"
    )]
    CompiledOnly {
        /// The arguments that it was compiled for.
        topology: String,
    },
    /// A value on the devices and the program do not fit together: a bug of this crate.
    #[error("{0}")]
    Internal(String),
}

distribute_error::debug_as_message!(TpuError);

impl TpuError {
    /// [`Initialize`](Self::Initialize) for another reason than that there is no plugin, which
    /// lasts.
    pub(super) fn initialize(cause: String) -> Self {
        Self::Initialize {
            cause,
            searched: Vec::new(),
            lasts: true,
        }
    }

    /// Whether the same start would fail again: there is no plugin, or the step, the arguments or
    /// the environment are not right for it. Another process may come, and a device that is in use
    /// is free again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Initialize { lasts, .. } => *lasts,
            Self::Resolve { .. }
            | Self::Replicas { .. }
            | Self::DifferentPrograms { .. }
            | Self::Lower(_) => true,
            Self::Pjrt(error) => error.is_permanent(),
            Self::Processes { .. }
            | Self::Timeout { .. }
            | Self::CompiledOnly { .. }
            | Self::Internal(_) => false,
        }
    }

    /// Where a plugin was looked for, if there is none.
    pub fn searched(&self) -> &[String] {
        match self {
            Self::Initialize { searched, .. } => searched,
            Self::Pjrt(error) => error.searched(),
            _ => &[],
        }
    }

    /// The error of this crate behind one that `run` has returned.
    pub fn of(error: &Error) -> Option<&Self> {
        error.wrapped()?.downcast_ref()
    }
}

impl From<LowerError> for TpuError {
    fn from(error: LowerError) -> Self {
        Self::Lower(Box::new(error))
    }
}

distribute_core::wrap_errors!(Backend: TpuError);

impl From<LowerError> for Error {
    fn from(error: LowerError) -> Self {
        TpuError::from(error).into()
    }
}

impl From<PjrtError> for Error {
    fn from(error: PjrtError) -> Self {
        TpuError::from(error).into()
    }
}

impl From<StableHloError> for Error {
    fn from(error: StableHloError) -> Self {
        LowerError::from(error).into()
    }
}
