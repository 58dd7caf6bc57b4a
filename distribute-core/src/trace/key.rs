//! Which compiled program a call of `run` needs.

use std::any::TypeId;
use std::fmt;

use super::TensorSpec;

/// Identifies the program of a call: the step's type, the shapes and element types of all
/// tensors, and the values of plain numbers and of everything else that is fixed at capture.
///
/// Two equal keys mean the same program. What a closure has captured is not part of it, as in
/// TensorFlow: a step that captures a changing number keeps the number of its first call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepKey {
    step: TypeId,
    parts: Vec<String>,
}

impl StepKey {
    /// A key for a step of this type, without arguments yet.
    pub(crate) fn of<F>() -> Self {
        Self {
            step: typeid::of::<F>(),
            parts: Vec::new(),
        }
    }

    /// The step's type: equal for all programs of one step.
    pub fn step(&self) -> TypeId {
        self.step
    }

    /// The arguments in words, for messages.
    pub fn arguments(&self) -> String {
        self.parts.join(" ")
    }

    pub(crate) fn tensor(&mut self, spec: &TensorSpec) {
        self.fixed(format_args!("{spec}"));
    }
}

/// Collects what is fixed when a step is captured.
pub trait Fingerprint {
    /// Adds a value that the program depends on.
    fn fixed(&mut self, value: fmt::Arguments<'_>);
}

impl Fingerprint for StepKey {
    fn fixed(&mut self, value: fmt::Arguments<'_>) {
        self.parts.push(value.to_string());
    }
}

impl Fingerprint for Vec<String> {
    fn fixed(&mut self, value: fmt::Arguments<'_>) {
        self.push(value.to_string());
    }
}
