//! Which compiled program a call of `run` needs.

use std::any::TypeId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

/// Identifies the program of a call: the step's type, the mirrored values it works on, the shapes
/// and element types of all tensors, and the values of plain numbers and of everything else that is
/// fixed at capture.
///
/// Two equal keys mean the same program. What a closure has captured cannot be part of it: a step
/// that captures a changing number keeps the number of its first call. That is why another training
/// state means another program: a second trial with the same code and other captured
/// hyper-parameters gets its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepKey {
    group: StepGroup,
    parts: Vec<String>,
}

/// A step together with the mirrored values that it works on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepGroup {
    step: TypeId,
    states: Vec<Identity>,
}

impl StepGroup {
    /// Whether one of the mirrored values is gone, so that the step cannot be called like this
    /// again.
    pub fn is_over(&self) -> bool {
        self.states.iter().any(|state| state.0.strong_count() == 0)
    }
}

/// The identity of a mirrored value, which no later value can have.
#[derive(Debug, Clone)]
struct Identity(Weak<()>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

impl StepKey {
    /// A key for a step of this type, without arguments yet.
    pub(crate) fn of<F>() -> Self {
        Self {
            group: StepGroup {
                step: typeid::of::<F>(),
                states: Vec::new(),
            },
            parts: Vec::new(),
        }
    }

    /// The key of the variant of a step that computes what this number tells.
    pub(crate) fn variant(&self, digest: u64) -> Self {
        let mut key = self.clone();
        key.fixed(format_args!("variant {digest:x}"));
        key
    }

    /// The step and its mirrored values: equal for all programs of one step.
    pub fn group(&self) -> &StepGroup {
        &self.group
    }

    /// The arguments in words, for messages.
    pub fn arguments(&self) -> String {
        self.parts.join(" ")
    }

    pub(crate) fn state(&mut self, identity: &Arc<()>) {
        self.group.states.push(Identity(Arc::downgrade(identity)));
    }
}

/// Collects what is fixed when a step is captured.
pub trait Fingerprint {
    /// Adds a value that the program depends on.
    fn fixed(&mut self, value: fmt::Arguments<'_>);

    /// Called for each tensor with the size of its first axis.
    fn rows(&mut self, rows: usize) {
        let _ = rows;
    }
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
