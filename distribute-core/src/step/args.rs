//! How values are handed to a step: [`StepArgs`].

use std::fmt;
use std::sync::{Arc, Mutex};

use super::call::{Access, Call, Capture, CapturedState, Changes, check_state, host_states};
use crate::copies::EndOfRun;
use crate::error::check_count;
use crate::nest::{different_structure, without_autodiff};
use crate::notes::BatchFacts;
use crate::replicate::ReplicateExt;
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::trace::Fingerprint;
use crate::{Error, Mirrored, Nest, PerReplica, Replicate, Result};

/// What one replica's step receives of an argument that is lent for `'x`.
///
/// Half of [`StepArgs`]; the second parameter only says that `Self` lives for `'x`. It asks nothing
/// of the type of a batch or a state, so that an argument that lacks `Nest` or `Replicate` leaves
/// the compiler with one error, which names the trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no argument of a step",
    label = "not `&mut state`, a batch, a number, `Replicated(value)` or a tuple of these"
)]
pub trait StepArgument<'x, Lives = &'x Self> {
    /// What the step receives.
    type Item: Send;
}

/// What one replica's step receives of the arguments `A`.
pub type Item<'x, A> = <A as StepArgument<'x>>::Item;

/// The arguments of [`run`](crate::StrategyExt::run): a value of this kind, or a tuple of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no argument of a step",
    label = "not `&mut state`, a batch, a number, `Replicated(value)` or a tuple of these",
    note = "a batch that comes out of a dataset is a `Result`: hand it over with `?`, as `batch?`",
    note = "a batch that the program has made is cut into the replicas' parts first: \
            `PerReplica::new(parts)`; `distribute_dataset` does it for a dataset",
    note = "a model or a state is mirrored first, and then lent: \
            `let mut state = strategy.scope(|device| ..)?`, and `&mut state` or `&state`",
    note = "a value that is the same on every replica is wrapped: `Replicated(value)`"
)]
pub trait StepArgs: Args {}

/// What arguments do in a call, for [`StepArgs`] of this crate alone.
pub trait Args: for<'x> StepArgument<'x> + Sized {
    /// What holds the values that a step is lent while it is captured.
    type Lent;

    /// What holds the values that an evaluated step is lent in place of the caller's.
    type Kept: Default;

    /// The states that the step is lent.
    const STATES: States;

    /// Splits the argument into one item per local replica, and adds what is known of each one's
    /// batch; called once.
    ///
    /// # Errors
    /// [`Error::ReplicaCount`] for a per-replica value of another size,
    /// [`Error::MixedStrategies`] and [`Error::Poisoned`] for mirrored values.
    fn split<'x>(
        &'x mut self,
        kept: &'x mut Self::Kept,
        split: &mut Split<'_>,
    ) -> Result<Vec<Item<'x, Self>>>;

    /// Called when the step has run as it is and gone well, on all replicas.
    ///
    /// # Errors
    /// If it has left behind what the argument must not be.
    fn end_run(&mut self, end: &EndOfRun<'_>) -> Result<()> {
        let _ = end;
        Ok(())
    }

    /// Called when the step or the end of its run has failed: takes back what can be.
    ///
    /// # Errors
    /// If the argument has changed its structure.
    fn undo_run(&mut self) -> Result<()> {
        Ok(())
    }

    /// Hands the argument's tensors to a call of a compiled step, and names the rest.
    ///
    /// # Errors
    /// The errors of `split`, and [`Error::NotCompilable`] for values that a program cannot take.
    fn bind(&mut self, call: &mut Call<'_>) -> Result<()>;

    /// What a step that is captured receives: the argument with inputs in place of its tensors.
    ///
    /// # Errors
    /// If a part of it cannot be captured.
    fn capture<'x>(
        &'x mut self,
        lent: &'x mut Option<Self::Lent>,
        capture: &mut Capture,
    ) -> Result<Item<'x, Self>>;

    /// Declares what the captured step has made of what it was lent.
    ///
    /// # Errors
    /// If a tensor in it is not one of the capture.
    fn collect(lent: Self::Lent, capture: &mut Capture) -> Result<()> {
        let _ = (lent, capture);
        Ok(())
    }

    /// Takes over what the program has made of the argument.
    ///
    /// # Errors
    /// If the value does not fit any more.
    fn leave(&mut self, changes: &mut Changes<'_>) -> Result<()> {
        let _ = changes;
        Ok(())
    }
}

/// What the states are for that a step is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum States {
    /// There are none.
    None,
    /// All of them are shared: the step evaluates them, without autodiff.
    Shared,
    /// At least one is in training mode.
    Training,
}

impl States {
    /// Of all arguments together.
    const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Training, _) | (_, Self::Training) => Self::Training,
            (Self::Shared, _) | (_, Self::Shared) => Self::Shared,
            (Self::None, Self::None) => Self::None,
        }
    }
}

/// A run whose arguments are split.
#[derive(Debug)]
pub struct Split<'s> {
    pub(crate) strategy: &'s StrategyId,
    /// What is known of each local replica's batch.
    pub(crate) batches: &'s mut [BatchFacts],
    pub(crate) guard: &'s mut RunGuard,
    /// Whether the step is lent tensors without autodiff.
    pub(crate) is_evaluated: bool,
}

impl Split<'_> {
    /// Notes what is known of the parts of a batch that the replicas are handed.
    fn note_batch<T: Nest>(&mut self, batch: &PerReplica<T>) -> Result<()> {
        let (replicas, found) = (self.batches.len(), batch.values.len());
        check_count("a per-replica argument", replicas, found)?;
        for (part, facts) in batch.values.iter().zip(&mut *self.batches) {
            facts.add(part, batch.global_batch_size());
        }
        Ok(())
    }

    /// Takes autodiff off values that an evaluated step is handed.
    fn hand_over<T: Nest>(&self, mut values: Vec<T>) -> Vec<T> {
        if self.is_evaluated {
            values.iter_mut().for_each(|value| without_autodiff(value));
        }
        values
    }
}

/// Remembers the mirrored values a run may change, to mark them when it fails.
#[derive(Debug, Default)]
pub struct RunGuard {
    flags: Vec<Arc<Mutex<Option<String>>>>,
}

impl RunGuard {
    /// Marks every watched value as possibly different between replicas.
    pub(crate) fn poison(&self, cause: &Error) {
        for flag in &self.flags {
            *lock(flag) = Some(cause.to_string());
        }
    }
}

impl<'x, T: Send> StepArgument<'x> for &mut Mirrored<T> {
    type Item = &'x mut T;
}

impl<T: Replicate + Send> StepArgs for &mut Mirrored<T> {}

impl<T: Replicate + Send> Args for &mut Mirrored<T> {
    type Lent = CapturedState<T>;
    type Kept = ();

    const STATES: States = States::Training;

    fn split(&mut self, _: &mut (), split: &mut Split<'_>) -> Result<Vec<&mut T>> {
        if self.poisoned().is_some() {
            // A failed run has marked what it was given. If every copy counts its updates and the
            // counts agree, no copy was changed alone and the mark can go.
            let mut versions = self.copies.host.iter_mut().map(ReplicateExt::versions);
            let first = versions.next().flatten();
            if first.is_some() && versions.all(|version| version == first) {
                *lock(&self.poison) = None;
            }
        }
        check_state(self, split.strategy, split.batches.len())?;
        self.refresh()?;
        self.copies.begin_run()?;
        // One copy cannot differ from itself.
        if self.copies.host.len() > 1 {
            split.guard.flags.push(Arc::clone(&self.poison));
        }
        for (copy, facts) in self.copies.host.iter_mut().zip(&mut *split.batches) {
            facts.random = facts.random.or(copy.random_stream()?);
        }
        Ok(self.copies.host.iter_mut().collect())
    }

    fn end_run(&mut self, end: &EndOfRun<'_>) -> Result<()> {
        self.copies.end_run(end)
    }

    fn undo_run(&mut self) -> Result<()> {
        self.copies.undo_run()
    }

    fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
        let numbers = host_states(&mut self.copies.host[0])?;
        call.enter_state(self, numbers, true)
    }

    fn capture<'x>(
        &'x mut self,
        lent: &'x mut Option<CapturedState<T>>,
        capture: &mut Capture,
    ) -> Result<&'x mut T> {
        let state = capture.state(self, Access::Changed)?;
        Ok(&mut lent.insert(state).value)
    }

    fn collect(lent: CapturedState<T>, capture: &mut Capture) -> Result<()> {
        capture.collect_state(lent)
    }

    fn leave(&mut self, changes: &mut Changes<'_>) -> Result<()> {
        changes.apply(self)
    }
}

impl<'x, T: Sync> StepArgument<'x> for &Mirrored<T> {
    type Item = &'x T;
}

impl<T: Replicate + Sync> StepArgs for &Mirrored<T> {}

impl<T: Replicate + Sync> Args for &Mirrored<T> {
    type Lent = CapturedState<T>;
    type Kept = ();

    const STATES: States = States::Shared;

    fn split(&mut self, _: &mut (), split: &mut Split<'_>) -> Result<Vec<&T>> {
        check_state(self, split.strategy, split.batches.len())?;
        Ok(self.evaluated()?.iter().collect())
    }

    fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
        let numbers = host_states(&mut self.copies.first())?;
        call.enter_state(self, numbers, false)
    }

    fn capture<'x>(
        &'x mut self,
        lent: &'x mut Option<CapturedState<T>>,
        capture: &mut Capture,
    ) -> Result<&'x T> {
        let state = capture.state(self, Access::Evaluated)?;
        Ok(&lent.insert(state).value)
    }
}

/// Lends a step a mirrored value in training mode without letting it be changed: with autodiff and
/// dropout, and with batch normalization by the batch. For gradients without an update, and for
/// several passes with dropout. `&state` alone lends it in evaluation mode.
///
/// Each run is handed copies of its own, so running statistics stay as they are.
///
/// ```
/// use burn::nn::LinearConfig;
/// use distribute_core::{InTraining, MirroredStrategy, StrategyExt, Tensor};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let model = strategy.scope(|device| LinearConfig::new(2, 1).init(device))?;
/// let norms = strategy.run(InTraining::new(&model), |ctx, model| {
///     let loss = model.forward(Tensor::<2>::ones([1, 2], ctx.device())).sum();
///     ctx.gradient(&loss, model)?.global_norm()
/// })?;
/// assert!(norms.values().iter().all(|norm| *norm > 0.0));
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub struct InTraining<'a, T> {
    state: &'a Mirrored<T>,
    copies: Vec<T>,
}

impl<T: fmt::Debug + 'static> fmt::Debug for InTraining<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InTraining").field(self.state).finish()
    }
}

impl<'a, T> InTraining<'a, T> {
    /// The value, for one run.
    pub fn new(state: &'a Mirrored<T>) -> Self {
        let copies = Vec::new();
        Self { state, copies }
    }
}

impl<'x, T: Replicate + Sync> StepArgument<'x> for InTraining<'_, T> {
    type Item = &'x T;
}

impl<T: Replicate + Sync> StepArgs for InTraining<'_, T> {}

impl<T: Replicate + Sync> Args for InTraining<'_, T> {
    type Lent = CapturedState<T>;
    type Kept = ();

    const STATES: States = States::Training;

    fn split(&mut self, _: &mut (), split: &mut Split<'_>) -> Result<Vec<&T>> {
        check_state(self.state, split.strategy, split.batches.len())?;
        self.copies = self.state.copies.anew(self.state.values()?);
        Ok(self.copies.iter().collect())
    }

    fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
        call.fixed(format_args!("in training"));
        let mut state = self.state;
        state.bind(call)
    }

    fn capture<'x>(
        &'x mut self,
        lent: &'x mut Option<CapturedState<T>>,
        capture: &mut Capture,
    ) -> Result<&'x T> {
        let state = capture.state(self.state, Access::InTraining)?;
        Ok(&lent.insert(state).value)
    }
}

impl<'x, T: Send> StepArgument<'x> for PerReplica<T> {
    type Item = T;
}

impl<T: Nest + Send> StepArgs for PerReplica<T> {}

impl<T: Nest + Send> Args for PerReplica<T> {
    type Lent = ();
    type Kept = ();

    const STATES: States = States::None;

    fn split(&mut self, _: &mut (), split: &mut Split<'_>) -> Result<Vec<T>> {
        split.note_batch(self)?;
        Ok(split.hand_over(std::mem::take(&mut self.values)))
    }

    fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
        let size = self.global_batch_size();
        call.enter_batch(&mut self.values, size)
    }

    fn capture(&mut self, _: &mut Option<()>, capture: &mut Capture) -> Result<T> {
        let part = capture.own_part(&mut self.values)?;
        capture.batch(part, self.global_batch_size())
    }
}

impl<'x, T: Sync> StepArgument<'x> for &PerReplica<T> {
    type Item = &'x T;
}

impl<T: Nest + Clone + Sync> StepArgs for &PerReplica<T> {}

impl<T: Nest + Clone + Sync> Args for &PerReplica<T> {
    type Lent = T;
    type Kept = Vec<T>;

    const STATES: States = States::None;

    fn split<'x>(&'x mut self, kept: &'x mut Vec<T>, split: &mut Split<'_>) -> Result<Vec<&'x T>> {
        split.note_batch(self)?;
        if !split.is_evaluated {
            return Ok(self.values.iter().collect());
        }
        // The caller's own keep their autodiff.
        *kept = split.hand_over(self.values.clone());
        Ok(kept.iter().collect())
    }

    fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
        // The caller keeps its tensors, so their values are copied.
        call.enter_batch(&mut self.values.clone(), self.global_batch_size())
    }

    fn capture<'x>(&'x mut self, lent: &'x mut Option<T>, capture: &mut Capture) -> Result<&'x T> {
        let first = self.values.first().ok_or_else(different_structure)?;
        let part = capture.batch(first.clone(), self.global_batch_size())?;
        Ok(lent.insert(part))
    }
}

/// Hands a clone of the same value to every replica, as TensorFlow does with plain arguments.
///
/// In a step that is compiled its tensors are inputs of the program; its numbers are part of it.
#[derive(Debug, Clone, Copy)]
pub struct Replicated<T>(pub T);

impl<'x, T: Send> StepArgument<'x> for Replicated<T> {
    type Item = T;
}

impl<T: Nest + Clone + Send> StepArgs for Replicated<T> {}

impl<T: Nest + Clone + Send> Args for Replicated<T> {
    type Lent = ();
    type Kept = ();

    const STATES: States = States::None;

    fn split(&mut self, _: &mut (), split: &mut Split<'_>) -> Result<Vec<T>> {
        Ok(split.hand_over(vec![self.0.clone(); split.batches.len()]))
    }

    fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
        call.enter_same(&mut self.0)
    }

    fn capture(&mut self, _: &mut Option<()>, capture: &mut Capture) -> Result<T> {
        capture.bind(self.0.clone())
    }
}

macro_rules! same {
    ($($type:ty),*) => {$(
        impl<'x> StepArgument<'x> for $type {
            type Item = $type;
        }

        impl StepArgs for $type {}

        impl Args for $type {
            type Lent = ();
            type Kept = ();

            const STATES: States = States::None;

            fn split(&mut self, _: &mut (), split: &mut Split<'_>) -> Result<Vec<$type>> {
                Ok(vec![*self; split.batches.len()])
            }

            fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
                call.fixed(format_args!("{}={self:?}", stringify!($type)));
                Ok(())
            }

            fn capture(&mut self, _: &mut Option<()>, _: &mut Capture) -> Result<$type> {
                Ok(*self)
            }
        }
    )*};
}

same!((), bool, f32, f64, i32, i64, u64, usize);

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<'x, $($name: StepArgument<'x>),+> StepArgument<'x> for ($($name,)+) {
            type Item = ($(Item<'x, $name>,)+);
        }

        impl<$($name: StepArgs),+> StepArgs for ($($name,)+) {}

        impl<$($name: StepArgs),+> Args for ($($name,)+) {
            type Lent = ($(Option<$name::Lent>,)+);
            type Kept = ($($name::Kept,)+);

            const STATES: States = States::None$(.and($name::STATES))+;

            fn split<'x>(
                &'x mut self,
                kept: &'x mut Self::Kept,
                split: &mut Split<'_>,
            ) -> Result<Vec<Item<'x, Self>>> {
                let replicas = split.batches.len();
                let mut parts = ($(self.$index.split(&mut kept.$index, split)?.into_iter(),)+);
                let mut items = Vec::with_capacity(replicas);
                while items.len() < replicas {
                    items.push(($(next(&mut parts.$index, replicas)?,)+));
                }
                Ok(items)
            }

            fn end_run(&mut self, end: &EndOfRun<'_>) -> Result<()> {
                $(self.$index.end_run(end)?;)+
                Ok(())
            }

            fn undo_run(&mut self) -> Result<()> {
                $(self.$index.undo_run()?;)+
                Ok(())
            }

            fn bind(&mut self, call: &mut Call<'_>) -> Result<()> {
                $(self.$index.bind(call)?;)+
                Ok(())
            }

            fn capture<'x>(
                &'x mut self,
                lent: &'x mut Option<Self::Lent>,
                capture: &mut Capture,
            ) -> Result<Item<'x, Self>> {
                let lent = lent.get_or_insert_default();
                Ok(($(self.$index.capture(&mut lent.$index, capture)?,)+))
            }

            fn collect(lent: Self::Lent, capture: &mut Capture) -> Result<()> {
                $(lent.$index.map_or(Ok(()), |lent| $name::collect(lent, capture))?;)+
                Ok(())
            }

            fn leave(&mut self, changes: &mut Changes<'_>) -> Result<()> {
                $(self.$index.leave(changes)?;)+
                Ok(())
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);

fn next<T>(items: &mut impl Iterator<Item = T>, replicas: usize) -> Result<T> {
    items.next().ok_or(Error::ReplicaCount {
        what: "an argument",
        replicas,
        found: 0,
    })
}
