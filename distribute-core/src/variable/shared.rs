//! What all handles of a variable share: its options, and its value where it lives.

use std::sync::{Arc, Mutex};

use burn::tensor::TensorData;

use super::update::Update;
use super::{VariableAggregation, VariableKind, VariableOptions, VariableSynchronization};
use crate::remote::{RemoteChange, RemoteVariable};
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::trace::TensorSpec;
use crate::{Error, Leaf, Result, Strategy, VariablePlacement, strategy};

/// What the strategy makes of the options.
fn kind(
    strategy: &(impl Strategy + ?Sized),
    synchronization: VariableSynchronization,
) -> VariableKind {
    let is_central = strategy.variable_placement() == VariablePlacement::Central;
    let is_plain =
        !strategy.distributes_variables() || is_central && strategy.num_replicas_in_sync() == 1;
    match synchronization {
        _ if is_plain => VariableKind::Plain,
        _ if is_central => VariableKind::Aggregating,
        VariableSynchronization::OnRead => VariableKind::SyncOnRead,
        _ => VariableKind::Mirrored,
    }
}

fn check(owner: &StrategyId, initial: &TensorData, options: VariableOptions) -> Result<()> {
    if options.synchronization == VariableSynchronization::None {
        let strategy = owner.to_string();
        return Err(Error::UnsupportedSynchronization { strategy });
    }
    if options.aggregation == VariableAggregation::Mean && !initial.dtype().is_float() {
        let dtype = initial.dtype().name().to_string();
        return Err(Error::MeanOfIntegers { dtype });
    }
    Ok(())
}

pub struct Shared {
    pub(super) kind: VariableKind,
    pub(super) options: VariableOptions,
    pub(super) owner: StrategyId,
    pub(super) replicas: usize,
    /// Of the value.
    pub(super) spec: TensorSpec,
    pub(super) home: Home,
    /// The strategy's, if it compiles steps: it compares them with their programs after a use of a
    /// variable outside of a step.
    compiling: Option<Arc<dyn Strategy>>,
}

/// Where the value lives.
pub enum Home {
    /// In this process.
    Here(Copies),
    /// On a parameter server.
    Store(Arc<dyn RemoteVariable>),
}

/// The copies in this process: one, or one per local replica.
pub struct Copies(Vec<Mutex<Stored>>);

/// One copy, and how many updates it took: equal numbers mean equal mirrored copies.
#[derive(Clone)]
struct Stored {
    data: TensorData,
    version: u64,
}

impl Shared {
    pub(super) fn new(
        strategy: &(impl Strategy + ?Sized),
        initial: TensorData,
        mut options: VariableOptions,
        store: Option<Arc<dyn RemoteVariable>>,
    ) -> Result<Self> {
        let owner = strategy.id();
        let kind = kind(strategy, options.synchronization);
        if kind != VariableKind::Plain {
            check(&owner, &initial, options)?;
        }
        if kind == VariableKind::Mirrored {
            options.synchronization = VariableSynchronization::OnWrite;
        }
        let on_read = options.synchronization == VariableSynchronization::OnRead;
        options.trainable.get_or_insert(!on_read);
        let copies = match kind {
            VariableKind::Plain | VariableKind::Aggregating => 1,
            _ => strategy.replicas().len(),
        };
        let shared = Self {
            kind,
            options,
            owner,
            replicas: strategy.num_replicas_in_sync(),
            spec: TensorSpec::of(&initial),
            home: store.map_or_else(|| Home::Here(Copies::new(copies, initial)), Home::Store),
            compiling: strategy.tracer().map(|_| strategy.handle()),
        };
        shared.used_outside();
        Ok(shared)
    }

    /// Steps may go on with another variable than this one.
    pub(super) fn used_outside(&self) {
        if let Some(strategy) = &self.compiling {
            strategy::used_outside(&**strategy);
        }
    }

    /// Whether an update in a step needs no other replica.
    pub(super) fn is_local(&self) -> bool {
        let is_own = matches!(self.kind, VariableKind::Plain | VariableKind::SyncOnRead);
        is_own || self.replicas == 1
    }

    /// Replaces each copy by a function of it; equal ones by one result.
    pub(super) fn update(
        &self,
        mut change: impl FnMut(TensorData) -> Result<TensorData>,
    ) -> Result<()> {
        let mut change = |data| {
            let result = change(data)?;
            self.check_value("update", &TensorSpec::of(&result))?;
            Ok(result)
        };
        match &self.home {
            Home::Store(store) => store.change(RemoteChange::Assign, change(store.read()?)?),
            Home::Here(copies) => {
                self.used_outside();
                self.check_versions(copies, "update")?;
                let changed = match self.kind {
                    VariableKind::SyncOnRead => copies.0.len(),
                    _ => 1,
                };
                let old = (0..changed).map(|replica| copies.read(replica));
                copies.replace(&old.map(change).collect::<Result<Vec<_>>>()?);
                Ok(())
            }
        }
    }

    /// A value of the host that fits.
    pub(super) fn fitting(&self, update: Update, value: &mut dyn Leaf) -> Result<TensorData> {
        let value = value.take()?;
        self.check_value(update.name(), &TensorSpec::of(&value))?;
        Ok(value)
    }

    pub(super) fn check_value(&self, op: &'static str, value: &TensorSpec) -> Result<()> {
        if value.shape != self.spec.shape {
            return Err(Error::shape(op, &self.spec.shape, &value.shape));
        }
        if value.dtype != self.spec.dtype {
            return Err(Error::invalid(format!(
                "{op}: the variable holds {} elements and the value {}; cast the value first",
                self.spec.dtype.name(),
                value.dtype.name()
            )));
        }
        Ok(())
    }

    /// Finds copies of a mirrored variable that a failed run left behind. Copies of an on-read
    /// variable may take different numbers of updates.
    pub(super) fn check_versions(&self, copies: &Copies, op: &'static str) -> Result<()> {
        if self.kind != VariableKind::Mirrored {
            return Ok(());
        }
        let mut versions = copies.0.iter().map(|copy| lock(copy).version);
        let first = versions.next();
        if versions.any(|version| Some(version) != first) {
            return Err(Error::Diverged { op });
        }
        Ok(())
    }
}

impl Copies {
    fn new(count: usize, initial: TensorData) -> Self {
        let first = Stored {
            data: initial,
            version: 0,
        };
        Self((0..count).map(|_| Mutex::new(first.clone())).collect())
    }

    pub(super) fn all(&self) -> Vec<TensorData> {
        let copies = self.0.iter();
        copies.map(|copy| lock(copy).data.clone()).collect()
    }

    /// The copy that a replica reads.
    fn of(&self, replica: usize) -> &Mutex<Stored> {
        &self.0[if self.0.len() == 1 { 0 } else { replica }]
    }

    pub(super) fn read(&self, replica: usize) -> TensorData {
        lock(self.of(replica)).data.clone()
    }

    /// Updates the copy that a replica reads.
    pub(super) fn apply(&self, replica: usize, update: Update, value: &TensorData) -> Result<()> {
        let mut copy = lock(self.of(replica));
        update.apply(&mut copy.data, value)?;
        copy.version += 1;
        Ok(())
    }

    /// Updates all copies, which have taken equally many updates then.
    pub(super) fn apply_all(&self, update: Update, value: &TensorData) -> Result<()> {
        for replica in 0..self.0.len() {
            self.apply(replica, update, value)?;
        }
        let versions = self.0.iter().map(|copy| lock(copy).version);
        let latest = versions.max().unwrap_or(0);
        for copy in &self.0 {
            lock(copy).version = latest;
        }
        Ok(())
    }

    /// Replaces each copy by its result, or all by the only one.
    fn replace(&self, results: &[TensorData]) {
        for (copy, result) in self.0.iter().zip(results.iter().cycle()) {
            let mut copy = lock(copy);
            copy.data = result.clone();
            copy.version += 1;
        }
    }
}
