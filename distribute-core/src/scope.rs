//! Which strategy is current on this thread (TensorFlow: `tf.distribute.get_strategy`).
//!
//! This is the only thread-local state of the library. It is set for the duration of
//! [`scope`](crate::StrategyExt::scope), [`within`](crate::StrategyExt::within), a step and its
//! `merge_call`. All who read it:
//!
//! - [`current_strategy`](crate::current_strategy), [`has_strategy`](crate::has_strategy) and
//!   [`in_step`](crate::in_step), for library code that adapts to the strategy it is called under
//!   without having it passed in: the reductions of loss objects, for example;
//! - `run`, `scope`, `reduce`, `gather`, the making of variables and changes of metrics and
//!   variables outside of a step, which are errors in the wrong context;
//! - variables that a step uses: a context whose step has ended is an error;
//! - [`dropout`](crate::dropout), which is handed no context and must know a captured step;
//! - [`SyncBatchNorm`](crate::SyncBatchNorm), whose forward pass is called as that of burn's layer;
//! - [`loss::notes_of_running_step`](crate::loss::notes_of_running_step): loss objects and
//!   `AverageLoss::without_context`, which have no context, find the notes of the step's there.

use std::cell::RefCell;
use std::sync::Arc;

use burn::module::ParamId;

use crate::notes::StepNotes;
use crate::replica::Peers;
use crate::strategy::StrategyId;
use crate::trace::Trace;
use crate::{Error, ReplicaContext, Result, Strategy};

thread_local! {
    static STACK: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

struct Entry {
    strategy: Arc<dyn Strategy>,
    step: Option<Step>,
}

/// What is found of a step by code that is not handed its context.
#[derive(Clone)]
pub(crate) struct Step {
    notes: Arc<StepNotes>,
    peers: Arc<dyn Peers>,
    num_replicas: usize,
}

impl Step {
    /// How the other replicas are reached.
    pub(crate) fn peers(&self) -> &dyn Peers {
        &*self.peers
    }

    /// The number of replicas, over all workers.
    pub(crate) fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// The step fails with this error of a layer, of which this is a parameter; the other replicas
    /// are stopped at once.
    pub(crate) fn fail(&self, error: Error, layer: Option<ParamId>) {
        self.peers.stop_others(&error);
        self.notes.fail(error, layer);
    }
}

/// The step that runs on this thread; `None` outside of one, and in a `merge_call`.
pub(crate) fn running_step() -> Option<Step> {
    STACK.with_borrow(|stack| stack.last()?.step.clone())
}

/// The notes of the step that runs on this thread; `None` outside of one.
pub(crate) fn step_notes() -> Option<Arc<StepNotes>> {
    STACK.with_borrow(|stack| {
        let mut steps = stack.iter().rev().filter_map(|entry| entry.step.as_ref());
        steps.next().map(|step| Arc::clone(&step.notes))
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
    STACK.with_borrow(|stack| stack.last().is_some_and(|entry| entry.step.is_some()))
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
        Some(top)
            if top.step.is_some() && !(top.strategy.id().is_default() && inner.is_default()) =>
        {
            Err(inside_step(&inner, "scope"))
        }
        top => check_nested(top, &inner),
    })?;
    Ok(enter(strategy, None))
}

fn enter(strategy: Arc<dyn Strategy>, step: Option<Step>) -> Entered {
    STACK.with_borrow_mut(|stack| stack.push(Entry { strategy, step }));
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
        if stack.iter().any(|entry| entry.step.is_some()) {
            return Err(inside_step(id, "run"));
        }
        check_nested(stack.last(), id)
    })
}

/// Refuses a call that belongs into cross-replica context inside a step.
pub(crate) fn check_cross_replica(id: &StrategyId, what: &'static str) -> Result<()> {
    if in_step() {
        Err(inside_step(id, what))
    } else {
        Ok(())
    }
}

fn inside_step(id: &StrategyId, what: &'static str) -> Error {
    let strategy = id.to_string();
    Error::InsideStep { strategy, what }
}

/// The strategy whose step is running on this thread.
pub(crate) fn step_strategy() -> Option<StrategyId> {
    STACK.with_borrow(|stack| {
        let step = stack.iter().rev().find(|entry| entry.step.is_some())?;
        Some(step.strategy.id())
    })
}

/// Makes the running step's strategy current in cross-replica context, for a `merge_call`.
pub(crate) fn enter_merge() -> Option<Entered> {
    Some(enter(innermost_strategy()?, None))
}

/// Makes a strategy current for one replica's step on this thread, or for a step that is captured.
pub(crate) fn enter_step(strategy: Arc<dyn Strategy>, ctx: &ReplicaContext) -> Entered {
    let step = Step {
        notes: Arc::clone(ctx.notes_handle()),
        peers: Arc::clone(ctx.peers_handle()),
        num_replicas: ctx.num_replicas_in_sync(),
    };
    enter(strategy, Some(step))
}

/// The capture that is under way on this thread.
pub(crate) fn trace() -> Option<Arc<Trace>> {
    STACK.with_borrow(|stack| stack.last()?.step.as_ref()?.peers.capture().cloned())
}
