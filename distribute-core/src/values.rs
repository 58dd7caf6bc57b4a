//! Values with one component per replica: [`PerReplica`] and [`Mirrored`], and how they are
//! handed to a step ([`StepArgs`]).

use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::Device;

use crate::strategy::StrategyId;
use crate::{Error, Result, WorkerGroup, module_tensors};

/// One value per local replica, in replica order; the values may differ
/// (TensorFlow: `tf.distribute.DistributedValues`, `PerReplica`).
///
/// [`StrategyExt::run`](crate::StrategyExt::run) returns one; datasets yield them.
#[derive(Debug, Clone, PartialEq)]
pub struct PerReplica<T> {
    values: Vec<T>,
}

impl<T> PerReplica<T> {
    /// Wraps one value per local replica, in replica order
    /// (TensorFlow: `experimental_distribute_values_from_function`).
    pub fn new(values: Vec<T>) -> Self {
        Self { values }
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
        PerReplica::new(self.values.into_iter().map(function).collect())
    }
}

impl<A, B> PerReplica<(A, B)> {
    /// Splits a per-replica pair into a pair of per-replica values.
    pub fn unzip(self) -> (PerReplica<A>, PerReplica<B>) {
        let (first, second) = self.values.into_iter().unzip();
        (PerReplica::new(first), PerReplica::new(second))
    }
}

/// A value that can be built once and copied to every replica.
///
/// Every burn module is one, and so are `TrainState`, numbers' and metrics' types of this crate.
/// For other structs use `#[derive(Replicate)]`.
pub trait Replicate: Sized {
    /// A copy for a replica on `device`. Parameters keep their ids and become leaves of their
    /// own in the autodiff graph; their storage is shared until one side is changed.
    fn replicate(&self, device: &Device) -> Self;

    /// Takes over the value of another replica, keeping what is this replica's own (the sums of
    /// micro-batches that were not exchanged yet).
    fn sync_from(&mut self, primary: &Self, device: &Device) {
        *self = primary.replicate(device);
    }

    /// Takes over the chief's value, when the strategy's scope has built one on every worker.
    ///
    /// The tensors of modules are taken over. Numbers are not: compute them the same way on all
    /// workers. A type that says nothing here can be used with one worker only.
    ///
    /// # Errors
    /// [`Error::DifferentModels`] if a worker's value has other tensors than the chief's.
    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        let _ = workers;
        Err(Error::invalid(format!(
            "`{}` cannot be sent from the chief to the other workers: implement \
             `Replicate::take_from_chief` for it, or derive `Replicate`",
            std::any::type_name::<Self>()
        )))
    }

    /// A number that changes with every update, if the value counts them. When a run fails and
    /// all replicas report the same number, the copies are known to be equal still.
    fn version(&self) -> Option<u64> {
        None
    }
}

impl<M: Module> Replicate for M {
    fn replicate(&self, device: &Device) -> Self {
        self.clone().fork(device)
    }

    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        let (names, mut tensors) = module_tensors::take(self)?;
        workers.take_from_chief(&names, &mut tensors)?;
        *self = module_tensors::put(self.clone(), tensors)?;
        Ok(())
    }
}

/// One copy of a value per local replica, kept equal by applying the same updates to each
/// (TensorFlow: `MirroredVariable`, here for whole models and training states).
///
/// Made by [`StrategyExt::scope`](crate::StrategyExt::scope). A step receives `&mut T` of its
/// own replica when `&mut Mirrored<T>` is passed to `run`, and `&T` when `&Mirrored<T>` is.
#[derive(Debug)]
pub struct Mirrored<T> {
    values: Vec<T>,
    devices: Vec<Device>,
    owner: StrategyId,
    poison: Arc<Mutex<Option<String>>>,
}

impl<T: Replicate> Mirrored<T> {
    /// Mirrors a value over the devices of the strategy `owner`.
    pub(crate) fn replicate(value: T, devices: &[Device], owner: StrategyId) -> Self {
        let mut values = Vec::with_capacity(devices.len());
        values.extend(devices.iter().skip(1).map(|device| value.replicate(device)));
        values.insert(0, value);
        Self {
            values,
            devices: devices.to_vec(),
            owner,
            poison: Arc::default(),
        }
    }

    /// Changes replica 0's copy on the calling thread and copies the result to all others
    /// (loading a checkpoint, setting a learning rate). Clears a poisoning.
    pub fn update<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.values[0]);
        self.resync();
        result
    }

    /// Copies replica 0's value to all replicas and clears a poisoning.
    pub fn resync(&mut self) {
        for index in 1..self.values.len() {
            let (primary, others) = self.values.split_at_mut(1);
            others[index - 1].sync_from(&primary[0], &self.devices[index]);
        }
        *lock(&self.poison) = None;
    }
}

impl<T> Mirrored<T> {
    /// Replica 0's copy, for reading outside a step (saving, evaluation on one device).
    pub fn primary(&self) -> &T {
        &self.values[0]
    }

    /// All copies in replica order.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Replica 0's copy; the others are dropped.
    pub fn into_primary(mut self) -> T {
        self.values.swap_remove(0)
    }

    /// Why the copies may differ, if a run that could change them failed.
    pub fn poisoned(&self) -> Option<String> {
        lock(&self.poison).clone()
    }

    fn check(&self, user: &StrategyId) -> Result<()> {
        if self.owner != *user {
            return Err(Error::MixedStrategies {
                owner: self.owner.to_string(),
                user: user.to_string(),
            });
        }
        match self.poisoned() {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(()),
        }
    }
}

/// What `run` does with the arguments when it starts and when it fails.
pub trait StepArgs: Sized {
    /// What one replica's step receives.
    type Item: Send;

    /// Splits the argument into one item per local replica.
    ///
    /// # Errors
    /// [`Error::ReplicaCount`] for a per-replica value of another size,
    /// [`Error::MixedStrategies`] and [`Error::Poisoned`] for mirrored values.
    fn split(
        self,
        strategy: &StrategyId,
        replicas: usize,
        watch: &mut Watch,
    ) -> Result<Split<Self>>;
}

/// One item per local replica.
pub type Split<A> = Vec<<A as StepArgs>::Item>;

/// Remembers the mirrored values a run may change, to mark them when it fails.
#[derive(Debug, Default)]
pub struct Watch {
    flags: Vec<Arc<Mutex<Option<String>>>>,
}

impl Watch {
    /// Marks every watched value as possibly different between replicas.
    pub(crate) fn poison(&self, cause: &Error) {
        for flag in &self.flags {
            *lock(flag) = Some(cause.to_string());
        }
    }
}

impl<'a, T: Replicate + Send> StepArgs for &'a mut Mirrored<T> {
    type Item = &'a mut T;

    fn split(
        self,
        strategy: &StrategyId,
        replicas: usize,
        watch: &mut Watch,
    ) -> Result<Vec<&'a mut T>> {
        // A failed run marks what it was given. If every copy counts its updates and the counts
        // agree, no copy was changed alone and the mark can go.
        let versions: Vec<_> = self.values.iter().map(Replicate::version).collect();
        if versions[0].is_some() && versions.iter().all(|version| *version == versions[0]) {
            *lock(&self.poison) = None;
        }
        self.check(strategy)?;
        count("a mirrored argument", replicas, self.values.len())?;
        // One copy cannot differ from itself.
        if self.values.len() > 1 {
            watch.flags.push(Arc::clone(&self.poison));
        }
        Ok(self.values.iter_mut().collect())
    }
}

impl<'a, T: Sync> StepArgs for &'a Mirrored<T> {
    type Item = &'a T;

    fn split(self, strategy: &StrategyId, replicas: usize, _: &mut Watch) -> Result<Vec<&'a T>> {
        self.check(strategy)?;
        count("a mirrored argument", replicas, self.values.len())?;
        Ok(self.values.iter().collect())
    }
}

impl<T: Send> StepArgs for PerReplica<T> {
    type Item = T;

    fn split(self, _: &StrategyId, replicas: usize, _: &mut Watch) -> Result<Vec<T>> {
        count("a per-replica argument", replicas, self.values.len())?;
        Ok(self.values)
    }
}

impl<'a, T: Sync> StepArgs for &'a PerReplica<T> {
    type Item = &'a T;

    fn split(self, _: &StrategyId, replicas: usize, _: &mut Watch) -> Result<Vec<&'a T>> {
        count("a per-replica argument", replicas, self.values.len())?;
        Ok(self.values.iter().collect())
    }
}

/// Hands a clone of the same value to every replica, as TensorFlow does with plain arguments.
#[derive(Debug, Clone, Copy)]
pub struct Same<T>(pub T);

impl<T: Clone + Send> StepArgs for Same<T> {
    type Item = T;

    fn split(self, _: &StrategyId, replicas: usize, _: &mut Watch) -> Result<Vec<T>> {
        Ok(vec![self.0; replicas])
    }
}

macro_rules! same {
    ($($type:ty),*) => {$(
        impl StepArgs for $type {
            type Item = $type;

            fn split(
                self,
                _: &StrategyId,
                replicas: usize,
                _: &mut Watch,
            ) -> Result<Vec<$type>> {
                Ok(vec![self; replicas])
            }
        }
    )*};
}

same!((), bool, f32, f64, i32, i64, u64, usize);

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: StepArgs),+> StepArgs for ($($name,)+) {
            type Item = ($($name::Item,)+);

            fn split(
                self,
                strategy: &StrategyId,
                replicas: usize,
                watch: &mut Watch,
            ) -> Result<Vec<Self::Item>> {
                let mut parts = ($(self.$index.split(strategy, replicas, watch)?.into_iter(),)+);
                let mut items = Vec::with_capacity(replicas);
                while items.len() < replicas {
                    items.push(($(next(&mut parts.$index, replicas)?,)+));
                }
                Ok(items)
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

pub(crate) fn count(what: &'static str, replicas: usize, found: usize) -> Result<()> {
    if replicas == found {
        Ok(())
    } else {
        Err(Error::ReplicaCount {
            what,
            replicas,
            found,
        })
    }
}

/// Locks, also after a panic elsewhere: the data behind these locks is valid at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
