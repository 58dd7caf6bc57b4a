//! Which strategy is current on this thread (TensorFlow: `tf.distribute.get_strategy`).
//!
//! This is the only thread-local state of the library. It is set for the duration of
//! [`scope`](crate::StrategyExt::scope), [`within`](crate::StrategyExt::within) and a step. It is
//! read by [`current_strategy`](crate::current_strategy), so that library code can adapt to the
//! strategy it is called under without having it passed in, and by [`loss`](crate::loss), where
//! functions that average losses learn the size of the global batch and say what they divided by.

mod notes;

use std::cell::RefCell;
use std::sync::Arc;

use crate::strategy::StrategyId;
use crate::trace::Trace;
use crate::{Error, Result, Strategy};

pub use notes::LossDivisor;
pub(crate) use notes::{BatchFacts, StepNotes};

thread_local! {
    static STACK: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

struct Entry {
    strategy: Arc<dyn Strategy>,
    in_step: bool,
    /// The capture that the step is part of.
    trace: Option<Arc<Trace>>,
    notes: StepNotes,
}

impl Entry {
    fn new(strategy: Arc<dyn Strategy>, in_step: bool) -> Self {
        Self {
            strategy,
            in_step,
            trace: None,
            notes: StepNotes::default(),
        }
    }
}

/// Reads or changes the notes of the step that runs on this thread; `None` outside of one.
pub(crate) fn with_step<R>(visit: impl FnOnce(&mut StepNotes) -> R) -> Option<R> {
    STACK.with_borrow_mut(|stack| {
        let step = stack.iter_mut().rev().find(|entry| entry.in_step)?;
        Some(visit(&mut step.notes))
    })
}

/// The strategy whose scope or step is running on this thread.
pub(crate) fn innermost_strategy() -> Option<Arc<dyn Strategy>> {
    STACK.with_borrow(|stack| stack.last().map(|entry| Arc::clone(&entry.strategy)))
}

/// Whether a strategy's scope or step is running on this thread
/// (TensorFlow: `tf.distribute.has_strategy`).
pub fn has_strategy() -> bool {
    innermost_strategy().is_some_and(|strategy| !strategy.id().is_default())
}

/// Whether the calling code runs inside a step
/// (TensorFlow: `tf.distribute.in_cross_replica_context` is its opposite within a scope).
pub fn in_step() -> bool {
    STACK.with_borrow(|stack| stack.last().is_some_and(|entry| entry.in_step))
}

/// Removes its entry when dropped, also while a panic unwinds.
pub(crate) struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        STACK.with_borrow_mut(|stack| {
            stack.pop();
        });
    }
}

/// Makes a strategy current for a scope on this thread.
///
/// TensorFlow's rules: the default strategy's scope and step change nothing, so any scope may open
/// in the first and its own in the second; other strategies nest in themselves only.
pub(crate) fn enter_scope(strategy: Arc<dyn Strategy>) -> Result<Entered> {
    let inner = strategy.id();
    STACK.with_borrow(|stack| match stack.last() {
        Some(top) if top.in_step && !(top.strategy.id().is_default() && inner.is_default()) => {
            Err(inside_step(&inner, "scope"))
        }
        top => check_nested(top, &inner),
    })?;
    Ok(enter(Entry::new(strategy, false)))
}

fn enter(entry: Entry) -> Entered {
    STACK.with_borrow_mut(|stack| stack.push(entry));
    Entered(())
}

/// Strategies nest in themselves and in the default strategy only.
fn check_nested(outer: Option<&Entry>, inner: &StrategyId) -> Result<()> {
    match outer.map(|outer| outer.strategy.id()) {
        Some(outer) if !outer.is_default() => outer.check_user(inner),
        _ => Ok(()),
    }
}

/// Refuses a `run` inside a step, also inside its `merge_call`, and inside another strategy's
/// scope.
pub(crate) fn check_run(id: &StrategyId) -> Result<()> {
    STACK.with_borrow(|stack| {
        if stack.iter().any(|entry| entry.in_step) {
            return Err(inside_step(id, "run"));
        }
        check_nested(stack.last(), id)
    })
}

/// Refuses a call that belongs into cross-replica context inside a step.
pub(crate) fn check_cross_replica(id: &StrategyId, what: &'static str) -> Result<()> {
    match in_step() {
        true => Err(inside_step(id, what)),
        false => Ok(()),
    }
}

fn inside_step(id: &StrategyId, what: &'static str) -> Error {
    let strategy = id.to_string();
    Error::InsideStep { strategy, what }
}

/// The strategy whose step is running on this thread.
pub(crate) fn step_strategy() -> Option<StrategyId> {
    STACK.with_borrow(|stack| {
        let step = stack.iter().rev().find(|entry| entry.in_step)?;
        Some(step.strategy.id())
    })
}

/// Makes the running step's strategy current in cross-replica context, for a `merge_call`.
pub(crate) fn enter_merge() -> Option<Entered> {
    Some(enter(Entry::new(innermost_strategy()?, false)))
}

/// Makes a strategy current for one replica's step on this thread.
pub(crate) fn enter_step(strategy: Arc<dyn Strategy>) -> Entered {
    enter(Entry::new(strategy, true))
}

/// Makes a strategy current for a step that is captured on this thread.
pub(crate) fn enter_capture(strategy: Arc<dyn Strategy>, trace: Arc<Trace>) -> Entered {
    enter(Entry {
        trace: Some(trace),
        ..Entry::new(strategy, true)
    })
}

/// The capture that is under way on this thread.
pub(crate) fn trace() -> Option<Arc<Trace>> {
    STACK.with_borrow(|stack| stack.last()?.trace.clone())
}
