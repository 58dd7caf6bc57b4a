//! [`ParameterServerStrategy`]: states and variables on servers, the rest as on one device.
//!
//! What its scope builds lives on the parameter servers, under the names of checkpoints
//! (`model/conv1.weight`), placed by TensorFlow's rule ([`placement`](crate::placement)). The
//! coordinator's strategy makes the variables; a worker's finds them by their names. A training
//! state in a step is a copy: the newest values are pulled before every run, and
//! `apply_gradients` pushes gradients. Checkpoints of the state hold what checkpoints of every
//! other strategy hold.
//!
//! ```no_run
//! use burn::nn::LinearConfig;
//! use distribute_core::{Adam, StrategyExt, TrainState};
//! use distribute_ps::{ClientOptions, ParameterServerStrategy, RunOptions};
//!
//! let servers = ["127.0.0.1:7000", "127.0.0.1:7001"];
//! let strategy = ParameterServerStrategy::connect(
//!     &servers,
//!     ClientOptions::default(),
//!     RunOptions::default(),
//!     None,
//! )?;
//! let state = strategy.scope(|device| {
//!     TrainState::new(LinearConfig::new(4, 2).init(device), Adam::new(1e-3))
//! })?;
//! # Ok::<(), distribute_core::Error>(())
//! ```

mod state;
mod tables;
mod variable;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::partitioners::Partitioner;
use burn::tensor::TensorData;
use distribute_core::optim::Optimizer;
use distribute_core::remote::{
    Pushed, RemoteSpec, RemoteState, RemoteStore, RemoteTensor, RemoteVariable, RowGradients,
};
use distribute_core::{
    InputContext, LogicalDevice, Replica, ReplicaStep, Strategy, StrategyId, run_on_calling_thread,
};

use crate::client::{ClientOptions, VariableClient};
use crate::error::Result;
use crate::placement::RoundRobin;
use crate::push::Servers;
use crate::update::{RunId, RunOptions};
use crate::update_ids::{UpdateSource, Updates};
use crate::variable::{OptimizerSpec, VariableRef, VariableSpec};
use parking_lot::Mutex;
use state::{State, on_server};
use variable::Variable;

/// Trains with variables on parameter servers (TensorFlow:
/// `tf.distribute.ParameterServerStrategy`). See [`strategy`](self).
///
/// One replica is in sync: gradients of different workers are not summed but applied one after the
/// other. It works on the coordinator as on a worker. A cheap handle: clones are the same strategy.
#[derive(Clone)]
#[must_use]
pub struct ParameterServerStrategy {
    inner: Arc<StrategyInner>,
    /// The name of what this handle creates.
    name: Option<Arc<str>>,
    /// Whether data that this handle distributes is divided between the workers.
    divides: bool,
}

struct StrategyInner {
    servers: Servers,
    /// Makes variables; a worker's strategy has none, it finds them.
    maker: Option<Mutex<VariableMaker>>,
    /// How many variables without a name were asked for.
    unnamed: Mutex<usize>,
    /// Whether a state was made: the checkpoints of the first one hold the embedding tables.
    has_state: AtomicBool,
    replica: [Replica; 1],
    input: InputContext,
    id: StrategyId,
}

struct VariableMaker {
    placement: RoundRobin,
    partitioner: Option<Arc<dyn Partitioner>>,
}

impl ParameterServerStrategy {
    /// Connects to servers and begins a run on them: a program that trains without other workers.
    /// `options` has the bound on staleness, the synchronous mode and what is done with NaN. With a
    /// partitioner large variables are cut into shards.
    ///
    /// # Errors
    /// The errors of [`VariableClient::connect`] and [`VariableClient::attach`].
    pub fn connect<A: AsRef<str>>(
        servers: &[A],
        client: ClientOptions,
        options: RunOptions,
        partitioner: Option<Arc<dyn Partitioner>>,
    ) -> Result<Self> {
        let client = VariableClient::connect(servers, client)?;
        let run = RunId::random()?;
        client.attach(run, options)?;
        let updates = Updates::alone(run, client.clone());
        Self::making(client, updates, partitioner)
    }

    /// The coordinator's strategy, in a run that `client` is attached to: its scope makes the
    /// variables. With a partitioner large ones are cut into shards.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] without servers; [`PsError::System`] without random numbers.
    ///
    /// [`PsError::InvalidArgument`]: crate::PsError::InvalidArgument
    /// [`PsError::System`]: crate::PsError::System
    pub fn coordinator(
        client: VariableClient,
        run: RunId,
        partitioner: Option<Arc<dyn Partitioner>>,
    ) -> Result<Self> {
        let updates = Updates::new(run)?;
        Self::making(client, updates, partitioner)
    }

    fn making(
        client: VariableClient,
        updates: Updates,
        partitioner: Option<Arc<dyn Partitioner>>,
    ) -> Result<Self> {
        let maker = VariableMaker {
            placement: RoundRobin::new(client.num_servers())?,
            partitioner,
        };
        let input = InputContext::default();
        Ok(Self::new(client, updates, Some(maker), input))
    }

    /// A worker's strategy, in a run that `client` takes part in: its scope finds the variables
    /// that the coordinator has made, by name or by the order of creation.
    ///
    /// # Errors
    /// [`PsError::System`] without random numbers.
    ///
    /// [`PsError::System`]: crate::PsError::System
    pub fn worker(client: VariableClient, run: RunId, input: InputContext) -> Result<Self> {
        Ok(Self::new(client, Updates::new(run)?, None, input))
    }

    fn new(
        client: VariableClient,
        updates: Updates,
        maker: Option<VariableMaker>,
        input: InputContext,
    ) -> Self {
        let inner = StrategyInner {
            servers: Servers {
                client,
                updates: Arc::new(updates),
            },
            maker: maker.map(Mutex::new),
            unnamed: Mutex::new(0),
            has_state: AtomicBool::new(false),
            replica: [Replica::new(0, LogicalDevice::cpu(0))],
            input: InputContext {
                num_replicas_in_sync: 1,
                ..input
            },
            id: StrategyId::new("parameter-server", 1),
        };
        Self {
            inner: Arc::new(inner),
            name: None,
            divides: true,
        }
    }

    /// The same strategy; what its handle creates has this name: a second state of a program, or
    /// variables that are found whatever the order of creation.
    pub fn named(&self, name: &str) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            name: Some(name.into()),
            divides: self.divides,
        }
    }

    /// The same strategy; data that its handle distributes is whole on every worker, instead of
    /// being divided between them.
    pub fn undivided(&self) -> Self {
        Self {
            divides: false,
            ..self.clone()
        }
    }

    /// Until the guard is dropped, updates are identified by this source: the updates of one
    /// closure. Otherwise they belong to no closure.
    pub fn within_closure(&self, source: UpdateSource) -> ClosureGuard {
        let updates = &self.inner.servers.updates;
        updates.enter(source);
        ClosureGuard(Arc::clone(updates))
    }

    /// The connections to the servers.
    pub fn variables(&self) -> &VariableClient {
        &self.inner.servers.client
    }

    /// The name of a variable that was not given one: its number in the order of creation.
    fn variable_name(&self) -> String {
        match &self.name {
            Some(name) => format!("variable/{name}"),
            None => {
                let mut unnamed = self.inner.unnamed.lock();
                *unnamed += 1;
                format!("variable/{}", *unnamed - 1)
            }
        }
    }

    /// What stands before the names of a state's tensors: nothing, or `generator/`.
    fn prefix(&self, path: &str) -> String {
        match (&self.name, path) {
            (None, "") => String::new(),
            (None, path) => format!("{path}/"),
            (Some(name), "") => format!("{name}/"),
            (Some(name), path) => format!("{name}.{path}/"),
        }
    }

    /// Makes a variable on the servers, or finds it.
    fn take(
        &self,
        name: String,
        value: &TensorData,
        optimizer: Option<&dyn Optimizer>,
    ) -> Result<VariableRef> {
        let spec = VariableSpec {
            name,
            shape: value.shape().to_vec(),
            dtype: value.dtype(),
            optimizer: optimizer.map(OptimizerSpec::of),
        };
        let Some(maker) = &self.inner.maker else {
            return self.find("scope", &spec);
        };
        let variable = self.make(maker, &spec)?;
        self.inner
            .servers
            .client
            .initialize(&variable, value.clone())?;
        Ok(variable)
    }

    /// Makes a variable, which has no value yet.
    fn make(&self, maker: &Mutex<VariableMaker>, spec: &VariableSpec) -> Result<VariableRef> {
        let VariableMaker {
            placement,
            partitioner,
        } = &mut *maker.lock();
        let bytes = spec.dtype.size();
        let placement = placement.place(&spec.shape, bytes, partitioner.as_deref())?;
        self.inner.servers.client.create(spec, &placement)
    }

    fn find(&self, op: &'static str, spec: &VariableSpec) -> Result<VariableRef> {
        let variable = self.inner.servers.client.variable(&spec.name)?;
        variable.check(op, variable.shape(), spec.dtype, &spec.shape)?;
        Ok(variable)
    }

    fn take_tensor(&self, prefix: &str, tensor: &RemoteTensor, spec: &RemoteSpec<'_>) -> Taken {
        let optimizer = spec.optimizer.filter(|_| tensor.is_trained);
        let name = format!("{prefix}{}", tensor.name);
        Ok(self.take(name, &on_server(&tensor.value)?, optimizer)?)
    }
}

type Taken = distribute_core::Result<VariableRef>;

/// While it is there, updates belong to a closure. See
/// [`within_closure`](ParameterServerStrategy::within_closure).
#[derive(Debug)]
#[must_use = "updates belong to the closure until this is dropped"]
pub struct ClosureGuard(Arc<Updates>);

impl Drop for ClosureGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl RemoteStore for ParameterServerStrategy {
    fn state(&self, spec: RemoteSpec<'_>) -> distribute_core::Result<Arc<dyn RemoteState>> {
        let prefix = self.prefix(spec.path);
        let tensors = spec.tensors.iter();
        let variables = tensors
            .map(|tensor| self.take_tensor(&prefix, tensor, &spec))
            .collect::<distribute_core::Result<Vec<_>>>()?;
        let servers = self.inner.servers.clone();
        let is_first = !self.inner.has_state.swap(true, Ordering::SeqCst);
        let state = State::new(servers, prefix, variables, &spec);
        Ok(Arc::new(state.with_tables(is_first)))
    }

    fn variable(&self, initial: &TensorData) -> distribute_core::Result<Arc<dyn RemoteVariable>> {
        let variable = self.take(self.variable_name(), initial, None)?;
        Ok(Arc::new(Variable {
            servers: self.inner.servers.clone(),
            variable,
        }))
    }

    fn push_rows(&self, rows: Vec<RowGradients>) -> distribute_core::Result<Pushed> {
        let servers = &self.inner.servers;
        let pushed = servers.row_gradients(rows)?;
        let counted = pushed.0.len();
        servers.push(pushed, counted)
    }
}

impl Strategy for ParameterServerStrategy {
    fn replicas(&self) -> &[Replica] {
        &self.inner.replica
    }

    fn input_context(&self) -> InputContext {
        if self.divides {
            self.inner.input
        } else {
            InputContext::default()
        }
    }

    fn id(&self) -> StrategyId {
        self.inner.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    /// As in TensorFlow, every aggregation is that of a plain variable.
    fn distributes_variables(&self) -> bool {
        false
    }

    fn remote_store(&self) -> Option<&dyn RemoteStore> {
        Some(self)
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> distribute_core::Result<()> {
        run_on_calling_thread(self.handle(), &self.inner.replica[0], step)
    }
}

impl fmt::Debug for ParameterServerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParameterServerStrategy")
            .field("servers", &self.inner.servers.client.num_servers())
            .field("makes_variables", &self.inner.maker.is_some())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
