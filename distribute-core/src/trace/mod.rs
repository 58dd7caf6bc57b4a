//! Steps that are captured once, compiled, and run as programs.
//!
//! Under the eager strategies [`run`](crate::StrategyExt::run) calls the step on every replica. A
//! strategy with a [`Tracer`] runs the same closure once instead, on tensors of burn's capture
//! backend, and later calls run the program that was compiled from the graph
//! (TensorFlow: `tf.function`). This module is the part of that which knows nothing of the
//! compiler; `distribute-tpu-xla` implements the [`Tracer`].
//!
//! # One call
//!
//! 1. The arguments are bound, until the end of the call. Every tensor is a *leaf*: leaves
//!    of mirrored values are on the devices already or are copied there now, leaves of a batch are
//!    moved out, one part per replica. The mirrored values' identities, shapes, element types,
//!    plain numbers and all that decides which operations the step makes (optimizer, clipping,
//!    position in an accumulation) become the [`StepKey`].
//! 2. The [`Tracer`] has a program for the key, or the step is captured: the bound arguments lend
//!    it values with inputs of a graph in place of the leaves, the closure runs, and what has
//!    become of the mutable ones is collected. Inputs have no values while this goes on, so reading
//!    one on the host is [`Error::HostRead`](crate::Error::HostRead) and no value of the first
//!    batch can slip into the program.
//! 3. The program runs. Its results are the new tensors of the mirrored values, which replace the
//!    old ones on the devices and take over their memory, and the leaves of what the closure
//!    returned. If running statistics are not finite, it leaves the old tensors behind; a state
//!    with a dynamic loss scale keeps its own where the summed gradients are not finite.
//! 4. The bound arguments are left: the mirrored values take the new tensors over and make the
//!    change of their numbers: the captured step counted one update, so this one does.
//!
//! # Where the state is
//!
//! After a step a [`Mirrored`](crate::Mirrored) value holds device tensors and a host copy that is
//! marked as older. Nothing is copied until it is read: by `primary`, `values`, a checkpoint.
//! `update` brings the value home first and sends it again at the next step. Numbers (step counter,
//! learning rate) never leave the host; what an update needs of them enters the program as
//! coefficients of shape `[1]`, computed for every call by
//! [`Optimizer::coefficients`](crate::optim::Optimizer::coefficients).
//!
//! # What the closure captures
//!
//! Captured values are not part of the key. Metrics and variables are meant to be captured: what a
//! step hands to them leaves the program and reaches them on the host after each call. Any other
//! captured value must stay the same. A few calls capture the step again and compare the graphs:
//! one that differs is another program, or [`Error::StepChanged`](crate::Error::StepChanged) if
//! calls before may have used the old value. Threads may call one step at once, each with metrics
//! and variables of its own: a call hands values to those that its own thread has captured. (Not
//! with several workers, whose exchanges must come in one order.)
//!
//! A new step is captured twice at once. A literal that differs between the two was drawn on the
//! host and would be the same in every step: [`Error::RandomOnHost`](crate::Error::RandomOnHost).
//!
//! # What replicas share
//!
//! One program serves all replicas. [`all_reduce`](crate::ReplicaContext::all_reduce) and the sum
//! of all gradients are operations of the graph ([`ops`]), as are `all_gather` and `broadcast`;
//! what a replica is can only be a tensor
//! ([`replica_id_tensor`](crate::ReplicaContext::replica_id_tensor)).

mod capture;
mod check;
mod effect;
mod exchange;
mod gradients;
mod guard;
mod key;
mod module;
mod program;
mod state;
mod tensor;

pub use capture::{Trace, TraceDevice, ops};
pub use key::{Fingerprint, StepGroup, StepKey};
pub use module::valid;
pub use program::{
    Argument, CapturedStep, DeviceTensor, Executable, InputRole, StepInput, StepOutput,
    StepProgram, Tracer,
};
pub use state::{Coefficients, Counters, HostState};
pub use tensor::{CapturedTensor, TensorSpec, without_autodiff};

pub(crate) use capture::{Input, Source, is_random, is_touch};
pub(crate) use check::{Check, DueCheck};
pub(crate) use effect::{
    Effect, HostSide, HostVariable, LeafValue, Receiver, ResultLeaf, Target,
    captured as captured_leaf,
};
pub(crate) use exchange::{combine, each, not_captured, of_replica};
pub(crate) use gradients::{CapturedTape, backward, of_type};
pub(crate) use guard::{Guard, Watched, choose, equals};
pub(crate) use module::walk_module;
pub(crate) use program::{Draws, NewProgram, OnDevice, StateChange};
pub(crate) use state::Waiting;
pub(crate) use tensor::{Tracked, TrackedGradients, captured, read_error, tracked};
