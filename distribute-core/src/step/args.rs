//! How values are handed to a step: [`StepArgs`].

use std::sync::{Arc, Mutex};

use super::call::{check_state, read_numbers};
use super::{Call, Capture, CapturedState, Changes};
use crate::copies::EndOfRun;
use crate::error::check_count;
use crate::nest::different_structure;
use crate::replicate::ReplicateExt;
use crate::scope::BatchFacts;
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::trace::Fingerprint;
use crate::{Error, Mirrored, Nest, PerReplica, Replicate, Result};

/// What one replica's step receives of an argument that is lent for `'x`.
///
/// Half of [`StepArgs`]; the second parameter only says that `Self` lives for `'x`.
pub trait Lend<'x, Lives = &'x Self> {
    /// What the step receives.
    type Item: Send;
}

/// What one replica's step receives of the arguments `A`.
pub type Item<'x, A> = <A as Lend<'x>>::Item;

/// The arguments of [`run`](crate::StrategyExt::run): a value of this kind, or a tuple of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no argument of a step",
    label = "not `&mut state`, a batch, a number, `Replicated(value)` or a tuple of these",
    note = "a batch that comes out of a dataset is a `Result`: hand it over with `?`, as `batch?`",
    note = "a mirrored value is lent: `&mut state` or `&state`",
    note = "a value that is the same on every replica is wrapped: `Replicated(value)`"
)]
pub trait StepArgs: for<'x> Lend<'x> + Sized {
    /// The argument while a step is captured.
    type Captured;

    /// Splits the argument into one item per local replica; called once.
    ///
    /// # Errors
    /// [`Error::ReplicaCount`] for a per-replica value of another size,
    /// [`Error::MixedStrategies`] and [`Error::Poisoned`] for mirrored values.
    fn split(
        &mut self,
        strategy: &StrategyId,
        replicas: usize,
        poison: &mut PoisonOnError,
    ) -> Result<Vec<Item<'_, Self>>>;

    /// Hands the argument's tensors to a call of a compiled step, and names the rest.
    ///
    /// # Errors
    /// Those of `split`, and [`Error::NotCompilable`] for values that a program cannot take.
    fn enter(&mut self, call: &mut Call<'_>) -> Result<()>;

    /// The argument with inputs of a capture in place of its tensors; after `enter`.
    ///
    /// # Errors
    /// If a part of it cannot be captured.
    fn capture(&mut self, capture: &mut Capture) -> Result<Self::Captured>;

    /// What the captured step receives.
    ///
    /// # Errors
    /// If it was handed out already.
    fn captured_item(captured: &mut Self::Captured) -> Result<Item<'_, Self>>;

    /// Declares what the captured step has made of the argument.
    ///
    /// # Errors
    /// If a tensor in it is not one of the capture.
    fn collect(captured: &mut Self::Captured, capture: &mut Capture) -> Result<()> {
        let _ = (captured, capture);
        Ok(())
    }

    /// Takes over what a compiled step has made of the argument.
    ///
    /// # Errors
    /// If the value does not fit any more.
    fn leave(&mut self, changes: &mut Changes<'_>) -> Result<()> {
        let _ = changes;
        Ok(())
    }

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
}

/// Remembers the mirrored values a run may change, to mark them when it fails.
#[derive(Debug, Default)]
pub struct PoisonOnError {
    flags: Vec<Arc<Mutex<Option<String>>>>,
    /// For every replica what is known of its batch.
    pub(crate) batches: Vec<BatchFacts>,
}

impl PoisonOnError {
    /// Notes what is known of the parts that the replicas are handed.
    fn note_batch<T: Nest>(&mut self, batch: &PerReplica<T>) {
        let facts = BatchFacts::default;
        self.batches.resize_with(batch.values.len(), facts);
        for (part, facts) in batch.values.iter().zip(&mut self.batches) {
            facts.add(part, batch.global_batch_size());
        }
    }

    /// Marks every watched value as possibly different between replicas.
    pub(crate) fn poison(&self, cause: &Error) {
        for flag in &self.flags {
            *lock(flag) = Some(cause.to_string());
        }
    }
}

impl<'x, T: Replicate + Send> Lend<'x> for &mut Mirrored<T> {
    type Item = &'x mut T;
}

impl<T: Replicate + Send> StepArgs for &mut Mirrored<T> {
    type Captured = CapturedState<T>;

    fn split(
        &mut self,
        strategy: &StrategyId,
        replicas: usize,
        poison: &mut PoisonOnError,
    ) -> Result<Vec<&mut T>> {
        if self.poisoned().is_some() {
            // A failed run has marked what it was given. If every copy counts its updates and the
            // counts agree, no copy was changed alone and the mark can go.
            let mut versions = self.copies.host.iter_mut().map(ReplicateExt::versions);
            let first = versions.next().flatten();
            if first.is_some() && versions.all(|version| version == first) {
                *lock(&self.poison) = None;
            }
        }
        check_state(self, strategy, replicas)?;
        self.refresh()?;
        self.copies.begin_run()?;
        // One copy cannot differ from itself.
        if self.copies.host.len() > 1 {
            poison.flags.push(Arc::clone(&self.poison));
        }
        Ok(self.copies.host.iter_mut().collect())
    }

    fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
        let numbers = read_numbers(&mut self.copies.host[0])?;
        call.enter_state(self, numbers, true)
    }

    fn capture(&mut self, capture: &mut Capture) -> Result<CapturedState<T>> {
        capture.state(self, true)
    }

    fn captured_item(captured: &mut CapturedState<T>) -> Result<&mut T> {
        Ok(&mut captured.value)
    }

    fn collect(captured: &mut CapturedState<T>, capture: &mut Capture) -> Result<()> {
        capture.collect_state(captured)
    }

    fn leave(&mut self, changes: &mut Changes<'_>) -> Result<()> {
        changes.apply(self)
    }

    fn end_run(&mut self, end: &EndOfRun<'_>) -> Result<()> {
        self.copies.end_run(end)
    }

    fn undo_run(&mut self) -> Result<()> {
        self.copies.undo_run()
    }
}

impl<'x, T: Replicate + Sync> Lend<'x> for &Mirrored<T> {
    type Item = &'x T;
}

impl<T: Replicate + Sync> StepArgs for &Mirrored<T> {
    type Captured = CapturedState<T>;

    fn split(
        &mut self,
        strategy: &StrategyId,
        replicas: usize,
        _: &mut PoisonOnError,
    ) -> Result<Vec<&T>> {
        check_state(self, strategy, replicas)?;
        Ok(self.values()?.iter().collect())
    }

    fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
        let numbers = read_numbers(&mut self.copies.first())?;
        call.enter_state(self, numbers, false)
    }

    fn capture(&mut self, capture: &mut Capture) -> Result<CapturedState<T>> {
        capture.state(self, false)
    }

    fn captured_item(captured: &mut CapturedState<T>) -> Result<&T> {
        Ok(&captured.value)
    }
}

impl<'x, T: Nest + Send> Lend<'x> for PerReplica<T> {
    type Item = T;
}

impl<T: Nest + Send> StepArgs for PerReplica<T> {
    type Captured = Option<T>;

    fn split(
        &mut self,
        _: &StrategyId,
        replicas: usize,
        poison: &mut PoisonOnError,
    ) -> Result<Vec<T>> {
        check_count("a per-replica argument", replicas, self.values.len())?;
        poison.note_batch(self);
        Ok(std::mem::take(&mut self.values))
    }

    fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
        let size = self.global_batch_size();
        call.enter_batch(&mut self.values, size)
    }

    fn capture(&mut self, capture: &mut Capture) -> Result<Option<T>> {
        let part = capture.own_part(&mut self.values)?;
        capture.batch(part, self.global_batch_size()).map(Some)
    }

    fn captured_item(captured: &mut Option<T>) -> Result<T> {
        captured.take().ok_or_else(twice)
    }
}

impl<'x, T: Nest + Clone + Sync> Lend<'x> for &PerReplica<T> {
    type Item = &'x T;
}

impl<T: Nest + Clone + Sync> StepArgs for &PerReplica<T> {
    type Captured = T;

    fn split(
        &mut self,
        _: &StrategyId,
        replicas: usize,
        poison: &mut PoisonOnError,
    ) -> Result<Vec<&T>> {
        check_count("a per-replica argument", replicas, self.values.len())?;
        poison.note_batch(self);
        Ok(self.values.iter().collect())
    }

    fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
        // The caller keeps its tensors, so their values are copied.
        call.enter_batch(&mut self.values.clone(), self.global_batch_size())
    }

    fn capture(&mut self, capture: &mut Capture) -> Result<T> {
        let first = self.values.first().ok_or_else(different_structure)?;
        capture.batch(first.clone(), self.global_batch_size())
    }

    fn captured_item(captured: &mut T) -> Result<&T> {
        Ok(captured)
    }
}

/// Hands a clone of the same value to every replica, as TensorFlow does with plain arguments.
///
/// In a step that is compiled its tensors are inputs of the program; its numbers are part of it.
#[derive(Debug, Clone, Copy)]
pub struct Replicated<T>(pub T);

impl<'x, T: Nest + Clone + Send> Lend<'x> for Replicated<T> {
    type Item = T;
}

impl<T: Nest + Clone + Send> StepArgs for Replicated<T> {
    type Captured = Option<T>;

    fn split(&mut self, _: &StrategyId, replicas: usize, _: &mut PoisonOnError) -> Result<Vec<T>> {
        Ok(vec![self.0.clone(); replicas])
    }

    fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
        call.enter_same(&mut self.0)
    }

    fn capture(&mut self, capture: &mut Capture) -> Result<Option<T>> {
        capture.bind(self.0.clone()).map(Some)
    }

    fn captured_item(captured: &mut Option<T>) -> Result<T> {
        captured.take().ok_or_else(twice)
    }
}

macro_rules! same {
    ($($type:ty),*) => {$(
        impl<'x> Lend<'x> for $type {
            type Item = $type;
        }

        impl StepArgs for $type {
            type Captured = $type;

            fn split(
                &mut self,
                _: &StrategyId,
                replicas: usize,
                _: &mut PoisonOnError,
            ) -> Result<Vec<$type>> {
                Ok(vec![*self; replicas])
            }

            fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
                call.fixed(format_args!("{}={self:?}", stringify!($type)));
                Ok(())
            }

            fn capture(&mut self, _: &mut Capture) -> Result<$type> {
                Ok(*self)
            }

            fn captured_item(captured: &mut $type) -> Result<$type> {
                Ok(*captured)
            }
        }
    )*};
}

same!((), bool, f32, f64, i32, i64, u64, usize);

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<'x, $($name: StepArgs),+> Lend<'x> for ($($name,)+) {
            type Item = ($(Item<'x, $name>,)+);
        }

        impl<$($name: StepArgs),+> StepArgs for ($($name,)+) {
            type Captured = ($($name::Captured,)+);

            fn split(
                &mut self,
                strategy: &StrategyId,
                replicas: usize,
                poison: &mut PoisonOnError,
            ) -> Result<Vec<Item<'_, Self>>> {
                let mut parts = ($(self.$index.split(strategy, replicas, poison)?.into_iter(),)+);
                let mut items = Vec::with_capacity(replicas);
                while items.len() < replicas {
                    items.push(($(next(&mut parts.$index, replicas)?,)+));
                }
                Ok(items)
            }

            fn enter(&mut self, call: &mut Call<'_>) -> Result<()> {
                $(self.$index.enter(call)?;)+
                Ok(())
            }

            fn capture(&mut self, capture: &mut Capture) -> Result<Self::Captured> {
                Ok(($(self.$index.capture(capture)?,)+))
            }

            fn captured_item(captured: &mut Self::Captured) -> Result<Item<'_, Self>> {
                Ok(($($name::captured_item(&mut captured.$index)?,)+))
            }

            fn collect(captured: &mut Self::Captured, capture: &mut Capture) -> Result<()> {
                $($name::collect(&mut captured.$index, capture)?;)+
                Ok(())
            }

            fn leave(&mut self, changes: &mut Changes<'_>) -> Result<()> {
                $(self.$index.leave(changes)?;)+
                Ok(())
            }

            fn end_run(&mut self, end: &EndOfRun<'_>) -> Result<()> {
                $(self.$index.end_run(end)?;)+
                Ok(())
            }

            fn undo_run(&mut self) -> Result<()> {
                $(self.$index.undo_run()?;)+
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

fn twice() -> Error {
    Error::invalid("an argument of a captured step was handed out twice")
}
