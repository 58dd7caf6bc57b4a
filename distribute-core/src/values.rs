//! Values with one component per replica: [`PerReplica`] and [`Mirrored`].

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::tensor::Device;

use crate::copies::Copies;
use crate::replicate::{Replicate, ReplicateExt};
use crate::shown::{Shown, write_components};
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::{Error, Result};

/// One value per local replica, in replica order; the values may differ
/// (TensorFlow: `tf.distribute.DistributedValues`, `PerReplica`).
///
/// [`StrategyExt::run`](crate::StrategyExt::run) returns one; datasets yield them, as batches that
/// know the size of their global batch.
#[derive(Clone)]
pub struct PerReplica<T> {
    pub(crate) values: Vec<T>,
    global_batch_size: Option<usize>,
}

/// Compares the components.
impl<T: PartialEq> PartialEq for PerReplica<T> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

/// The components; tensors with their values (large ones: the first hundred).
impl<T: fmt::Debug + 'static> fmt::Debug for PerReplica<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerReplica ")?;
        let values = self.values.iter().map(Shown);
        f.debug_list().entries(values).finish()
    }
}

/// `PerReplica:{0: f32[1] [2.5], 1: f32[1] [4]}`, the components with their values.
impl<T: fmt::Debug + 'static> fmt::Display for PerReplica<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_components(f, "PerReplica", &self.values)
    }
}

impl<T> PerReplica<T> {
    /// Wraps one value per local replica, in replica order
    /// (TensorFlow: `experimental_distribute_values_from_function`).
    pub fn new(values: Vec<T>) -> Self {
        Self {
            values,
            global_batch_size: None,
        }
    }

    /// The replicas' parts of a global batch: `examples` is what a full one has, over all replicas
    /// of all workers. In a step that is handed them it is
    /// [`ReplicaContext::global_batch_size`](crate::ReplicaContext::global_batch_size), which
    /// losses are divided by.
    #[must_use]
    pub fn of_global_batch(mut self, examples: impl Into<Option<usize>>) -> Self {
        self.global_batch_size = examples.into();
        self
    }

    /// The examples of a full global batch, if the components are parts of one.
    pub fn global_batch_size(&self) -> Option<usize> {
        self.global_batch_size
    }

    /// The components in replica order (TensorFlow: `experimental_local_results`).
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The components in replica order, by value.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// Applies a function to every component.
    pub fn map<U>(self, function: impl FnMut(T) -> U) -> PerReplica<U> {
        PerReplica {
            values: self.values.into_iter().map(function).collect(),
            global_batch_size: self.global_batch_size,
        }
    }
}

impl<A, B> PerReplica<(A, B)> {
    /// Splits a per-replica pair into a pair of per-replica values.
    pub fn unzip(self) -> (PerReplica<A>, PerReplica<B>) {
        let size = self.global_batch_size;
        let (first, second) = self.values.into_iter().unzip();
        (
            PerReplica::new(first).of_global_batch(size),
            PerReplica::new(second).of_global_batch(size),
        )
    }
}

/// One copy of a value per local replica, kept equal by applying the same updates to each
/// (TensorFlow: `MirroredVariable`, here for whole models and training states).
///
/// Made by [`StrategyExt::scope`](crate::StrategyExt::scope). A step receives `&mut T` of its
/// own replica when `&mut Mirrored<T>` is passed to `run`, which is for training. When
/// `&Mirrored<T>` is passed it receives `&T` in evaluation mode: models as burn's `Module::valid`
/// makes them, without autodiff and dropout and with the running statistics, which it cannot
/// change. [`InTraining`](crate::InTraining) lends a `&T` in training mode.
///
/// Running statistics of a model (burn's `BatchNorm`) are the one thing that may differ between
/// the copies: a step with `&mut T` normalizes its own part of the batch and has its own; one with
/// `&T`, checkpoints and all other readers have the mean over the replicas (TensorFlow: variables
/// with `ON_READ` synchronization and `MEAN` aggregation). A replica without examples, and a run
/// that fails, leave them as they are.
///
/// Under a strategy that compiles steps the newest value is on the device after a step. It is
/// copied to the host only on request ([`primary`](Self::primary)).
pub struct Mirrored<T> {
    pub(crate) copies: Copies<T>,
    owner: StrategyId,
    pub(crate) poison: Arc<Mutex<Option<String>>>,
    /// Tells this value from others.
    pub(crate) identity: Arc<()>,
}

/// The host's part of each copy; tensors with their values (large ones: the first hundred).
impl<T: fmt::Debug + 'static> fmt::Debug for Mirrored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mirrored ")?;
        let copies = self.copies.shown().iter().map(Shown);
        f.debug_list().entries(copies).finish()
    }
}

/// `Mirrored:{0: .., 1: ..}`, the host's part of each copy with its values.
impl<T: fmt::Debug + 'static> fmt::Display for Mirrored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_components(f, "Mirrored", self.copies.shown())
    }
}

impl<T: Replicate> Mirrored<T> {
    /// Mirrors a value over the devices of the strategy `owner`.
    pub(crate) fn replicate(value: T, devices: &[Device], owner: StrategyId) -> Self {
        Self {
            copies: Copies::new(value, devices),
            owner,
            poison: Arc::default(),
            identity: Arc::default(),
        }
    }

    /// Changes replica 0's copy on the calling thread and copies the result to all others
    /// (loading a checkpoint). Clears a poisoning. Running statistics are the replicas' mean before
    /// the change, and equal on all replicas after it.
    ///
    /// # Errors
    /// The errors of [`primary`](Self::primary), before anything is changed, the errors of
    /// `change`, and [`Error::InvalidArgument`] for a layer that a training state cannot freeze or
    /// unfreeze now ([`TrainState`](crate::TrainState)).
    pub fn update<R>(&mut self, change: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let first = &mut self.host_values_mut()?[0];
        let result = change(first);
        let followed =
            first.parts(|path, part| part.follow_structure().map_err(|error| error.at(path)));
        self.copy_first();
        let result = result?;
        followed?;
        Ok(result)
    }

    /// Copies replica 0's value to all replicas and clears a poisoning. Replica 0's value is the
    /// host's older copy if the newest cannot be copied from the device. Running statistics become
    /// the mean of the replicas' own.
    pub fn resync(&mut self) {
        // What cannot be fetched is given up here, and only here.
        let _fetched = self.values().is_ok();
        self.copy_first();
    }

    fn copy_first(&mut self) {
        self.copies.copy_first();
        *lock(&self.poison) = None;
    }

    /// Replica 0's copy, for reading outside a step (saving, evaluation on one device). Running
    /// statistics (the moving statistics of a batch normalization), of which each replica has its
    /// own, are their mean over all replicas of all workers.
    ///
    /// Under a strategy that compiles steps the first call after a step copies the value from the
    /// device. If that fails the value is marked as [poisoned](Self::poisoned).
    ///
    /// # Errors
    /// [`Error::Fetch`] if the value cannot be copied from the device; never elsewhere.
    pub fn primary(&self) -> Result<&T> {
        Ok(&self.values()?[0])
    }

    /// All copies in replica order, with the mean of their running statistics.
    ///
    /// # Errors
    /// As [`primary`](Self::primary).
    pub fn values(&self) -> Result<&[T]> {
        self.copies.newest().map_err(|error| {
            let cause = error.to_string();
            tracing::error!("{cause}");
            *lock(&self.poison) = Some(cause.clone());
            Error::Fetch { cause }
        })
    }

    /// All copies in evaluation mode, which a step with `&Mirrored` is handed.
    pub(crate) fn evaluated(&self) -> Result<&[T]> {
        self.copies.evaluated(self.values()?)
    }

    /// Replica 0's copy; the others are dropped.
    ///
    /// # Errors
    /// As [`primary`](Self::primary).
    pub fn into_primary(mut self) -> Result<T> {
        self.values()?;
        self.copies.keep_fetched();
        Ok(self.copies.host.swap_remove(0))
    }

    /// All copies in replica order, to be changed.
    pub(crate) fn host_values_mut(&mut self) -> Result<&mut [T]> {
        self.values()?;
        Ok(self.copies.take_over())
    }
}

impl<T> Mirrored<T> {
    /// Replica 0's value as the host has it: its numbers (step counter, learning rate) are the
    /// newest, its tensors may be older than those on the device.
    pub fn host_metadata(&self) -> &T {
        &self.copies.host[0]
    }

    /// Changes the numbers of all host copies.
    pub(crate) fn for_each_host_metadata(&mut self, change: impl Fn(&mut T)) {
        self.copies.for_each_host_part(change);
    }

    /// Why the copies may differ, if a run that could change them failed.
    pub fn poisoned(&self) -> Option<String> {
        lock(&self.poison).clone()
    }

    pub(crate) fn check(&self, user: &StrategyId) -> Result<()> {
        self.owner.check_user(user)?;
        match self.poisoned() {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(()),
        }
    }
}
