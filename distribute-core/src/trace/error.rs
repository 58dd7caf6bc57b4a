//! Why a step cannot be captured, compiled or run as a compiled program.

use std::fmt;
use std::sync::Arc;

/// Everything that can go wrong with a step that is captured and compiled.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
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
    /// The step uses something that a compiled step cannot do.
    #[error("{what} cannot be part of a compiled step: {instead}")]
    Unsupported {
        /// The operation or value.
        what: String,
        /// What to do instead.
        instead: String,
    },
    /// The step computes something else than when it was compiled.
    #[error(
        "the step computes something else than when it was compiled: it captures a value that has \
         changed since ({what}), and up to {calls} calls have used the old one; pass the value to \
         `run` as an argument: a number as it is, a tensor as `Replicated`"
    )]
    Changed {
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
    Random {
        /// What is drawn, and where.
        what: String,
    },
    /// The step panicked while it was captured.
    #[error("the step panicked while it was captured: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The replicas' parts of an argument differ in shape; one program serves all of them.
    #[error(
        "replica {replica} got {found} where replica 0 got {expected}: a compiled step runs the \
         same program on every replica; use `pad_remainder` or `drop_remainder`, or batches whose \
         last one divides evenly"
    )]
    Uneven {
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
    #[error("{0}")]
    Backend(Arc<dyn std::error::Error + Send + Sync>),
}

distribute_error::debug_as_message!(TraceError);

impl TraceError {
    /// An error of the layer that compiles and runs programs.
    pub fn backend(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Backend(Arc::new(error))
    }

    pub(crate) fn host_read(what: impl fmt::Display) -> Self {
        Self::HostRead {
            what: what.to_string(),
        }
    }

    pub(crate) fn unsupported(what: impl fmt::Display, instead: impl fmt::Display) -> Self {
        Self::Unsupported {
            what: what.to_string(),
            instead: instead.to_string(),
        }
    }

    /// The meaning of a message of burn's capture backend, from an error or a panic.
    pub(crate) fn of_message(message: &str) -> Option<Self> {
        // Nothing that an error of a real device may say as well ("An error happened during
        // execution" is what burn says of every one).
        const READS: [&str; 3] = [
            "has no concrete value",
            "has no initialized value",
            "Cannot move a tensor from a capture device",
        ];
        if READS.iter().any(|part| message.contains(part)) {
            return Some(Self::host_read("a tensor"));
        }
        if let Some(error) = Self::of_mixed_devices(message) {
            return Some(error);
        }
        if message.contains("Capture tensors do not support autodiff") {
            return Some(Self::unsupported(
                "`backward`, `Tensor::autodiff`, `inner` and `Module::valid` on the step's own \
                 tensors",
                "burn 0.22.1 cannot record them; use `ctx.gradient` for gradients",
            ));
        }
        None
    }

    /// burn's message for an operation on tensors of a capture and of a real device.
    fn of_mixed_devices(message: &str) -> Option<Self> {
        let mixes = message.contains("not on the same device") && message.contains("Capture(");
        let operation = || {
            let quoted = message.split_once("Operation: '").map(|(_, rest)| rest);
            quoted.and_then(|rest| rest.split('\'').next())
        };
        let what = match mixes {
            true => operation().map(|operation| format!("in the operation {operation}")),
            false => message
                .contains("is on the wrong backend")
                .then(|| format!("in an operation ({})", message.trim())),
        };
        Some(Self::unsupported(
            format!("a tensor of another device than `ctx.device()`, {},", what?),
            "the step has captured it, or has made it on the CPU; pass it to `run` as an argument, \
             as `Replicated` if it is one for all replicas, or make it on `ctx.device()`",
        ))
    }

    /// A panic inside a captured step.
    pub(crate) fn of_panic(message: String) -> Self {
        Self::of_message(&message).unwrap_or(Self::Panicked { message })
    }
}

#[cfg(test)]
mod tests {
    use super::TraceError;

    #[test]
    fn what_a_real_device_says_of_itself_is_no_read_in_a_captured_step() {
        let read = "Error while reading data: use `try_into_data` instead";
        for cause in [
            "An error happened during execution\nCaused by:\n  out of memory",
            &format!("{read}: An error happened during execution\nCaused by:\n  not compiled"),
        ] {
            assert_eq!(
                TraceError::of_message(cause).map(|error| error.to_string()),
                None
            );
        }
        let captured = format!("{read}: tensor 7 has no concrete value");
        let error = TraceError::of_message(&captured).map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("on the host")));
    }
}
