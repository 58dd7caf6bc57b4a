//! What a program is lowered for: its inputs, its key and its compiler.

use std::collections::{HashMap, HashSet};

use distribute_core::burn_internals::ir::TensorId;

use crate::stablehlo::Precision;

/// A tensor of the graph that the program gets from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphInput {
    /// The tensor.
    pub tensor: TensorId,
    /// The output that takes over its memory: the new value of a state, for example. It must have
    /// the same shape and element type.
    pub donated_to: Option<TensorId>,
}

impl GraphInput {
    /// An input whose memory the caller keeps.
    pub fn new(tensor: TensorId) -> Self {
        Self {
            tensor,
            donated_to: None,
        }
    }

    /// An input whose memory is reused for an output.
    pub fn donated(tensor: TensorId, output: TensorId) -> Self {
        Self {
            tensor,
            donated_to: Some(output),
        }
    }
}

/// Where the random operations of a step get their key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RandomKey {
    /// Nowhere: a random operation is an error.
    #[default]
    None,
    /// From a parameter that the program has after all inputs: `tensor<2xui32>`.
    Parameter,
    /// From an input of the graph: integers, of which the lower 32 bits of the first two count (a
    /// single one of 64 bits counts as two).
    Input(TensorId),
}

/// The compiler that gets the program. The programs of all targets mean the same; they use the
/// forms of operations that the target compiles well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// Any compiler: XLA's for CPUs, for example.
    #[default]
    Any,
    /// The TPU's.
    Tpu,
}

impl Target {
    /// The target for a PJRT platform, by the name that its plugin says.
    pub fn of_platform(name: &str) -> Self {
        if name.eq_ignore_ascii_case("tpu") {
            Self::Tpu
        } else {
            Self::Any
        }
    }
}

/// How a graph is lowered.
#[derive(Clone, Debug)]
pub struct LowerOptions {
    /// The name of the module.
    pub name: String,
    /// How many devices run the program.
    pub num_replicas: usize,
    /// The key of random operations.
    pub random_key: RandomKey,
    /// What tensors of the graph are called in the model, for errors: parameters (`conv1.weight`),
    /// or results of layers. An operation without a name is described by the named tensors that it
    /// was computed from.
    pub names: HashMap<TensorId, String>,
    /// The compiler that gets the program.
    pub target: Target,
    /// How exactly matrix products and convolutions of f32 are computed on a TPU.
    pub precision: Precision,
    /// Inputs that the host sends anew in every call. On a TPU the program takes them in the
    /// dimensions in which the step reads them, which [`Program::inputs`] says: an image that
    /// arrives as a row of numbers is stored in another order there, and would be moved once more
    /// in every step.
    ///
    /// [`Program::inputs`]: crate::stablehlo::Program::inputs
    pub host_inputs: HashSet<TensorId>,
    /// Whether the program takes its identity as a last input, `tensor<1x2xui32>`, and gathers
    /// the identities of all replicas as its last output, `[replica, 2]`, by which the processes
    /// notice that they run different programs.
    pub checks_program_identity: bool,
}

impl Default for LowerOptions {
    fn default() -> Self {
        Self {
            name: "step".into(),
            num_replicas: 1,
            random_key: RandomKey::None,
            names: HashMap::new(),
            target: Target::Any,
            precision: Precision::Highest,
            host_inputs: HashSet::new(),
            checks_program_identity: false,
        }
    }
}
