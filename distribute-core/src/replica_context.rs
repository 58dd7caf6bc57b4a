//! What a step sees of its replica: [`ReplicaContext`].

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16, f16};
use burn_capture::CaptureBackend;
use distribute_collectives::{Buffer, CollectiveError, Communicator, CommunicatorExt, ReduceOp};

use crate::all_reduce_tensor::all_reduce_tensor;
use crate::board::Board;
use crate::cross_device::CrossDeviceOps;
use crate::gradients::Watched;
use crate::nest::different_structure;
use crate::packs::{self, Ready};
use crate::strategy::{Replica, VariablePlacement};
use crate::trace::{self, Trace, TraceError};
use crate::values::lock;
use crate::variable::Owner;
use crate::{
    DeviceReducer, DistributedVariable, Error, Gradients, LogicalDevice, Nest, PerReplica,
    ReplicaRng, Result, VariableOptions, VariableValue, WorkerGroup, host_reduce, scope,
};

/// How a replica reaches the others: those of its process, and through replica 0 of its process
/// those of other workers.
pub(crate) struct Link {
    /// Of the replicas of this process.
    pub(crate) communicator: Box<dyn Communicator>,
    pub(crate) workers: Option<WorkerGroup>,
    pub(crate) cross_device_ops: Arc<dyn CrossDeviceOps>,
    pub(crate) board: Arc<Board>,
    /// With those of this process, in the memory of their devices.
    pub(crate) devices: Option<Box<dyn DeviceReducer>>,
    /// How many differentiable calls were made; equal on all replicas.
    pub(crate) calls: u64,
}

impl Link {
    /// Reduces host buffers in place, as one operation per element type.
    pub(crate) fn all_reduce(&mut self, op: ReduceOp, tensors: &mut [TensorData]) -> Result<()> {
        let ops = Arc::clone(&self.cross_device_ops);
        let workers = self.workers.clone();
        self.by_type(tensors, |communicator, buffers| match &workers {
            None => ops.all_reduce(communicator, op, buffers),
            Some(workers) => workers.all_reduce(communicator, op, buffers),
        })
    }

    /// Whether gradients are reduced in the memory of the devices; the same on all replicas.
    fn reduces_on_device(&self) -> bool {
        let is_alone = self.communicator.world_size() == 1;
        match &self.workers {
            Some(workers) if is_alone => workers.has_device_reducer(),
            _ => self.devices.is_some(),
        }
    }

    /// Reduces flattened tensors in the memory of the devices (SUM): over the replicas of the
    /// process, by replica 0 over the workers, and back to the replicas.
    fn sum_tensors(&mut self, mut tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        if let Some(devices) = &mut self.devices {
            tensors = devices.all_reduce(ReduceOp::Sum, tensors)?;
        }
        let Some(workers) = &self.workers else {
            return Ok(tensors);
        };
        if self.communicator.rank() == 0 {
            tensors = workers.sum_tensors(tensors)?;
        }
        match &mut self.devices {
            Some(devices) => devices.broadcast(0, tensors),
            None => Ok(tensors),
        }
    }

    /// The lists of all replicas, in replica order.
    fn all_gather(&mut self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        match &self.workers {
            None => {
                let all = self.communicator.all_gather(mine)?;
                Ok(all.iter().map(<[i64]>::to_vec).collect())
            }
            Some(workers) => workers.all_gather(self.communicator.as_mut(), mine),
        }
    }

    /// Reduces host buffers in place on replica 0; those of the others are used up.
    fn reduce_to_host(&mut self, op: ReduceOp, tensors: &mut [TensorData]) -> Result<()> {
        self.by_type(tensors, |communicator, buffers| {
            Ok(communicator.reduce(op, 0, buffers)?)
        })
    }

    /// Calls an operation once per element type.
    pub(crate) fn by_type(
        &mut self,
        tensors: &mut [TensorData],
        mut call: impl FnMut(&mut dyn Communicator, &mut [Buffer<'_>]) -> Result<()>,
    ) -> Result<()> {
        let mut buffers = tensors
            .iter_mut()
            .map(as_buffer)
            .collect::<Result<Vec<_>>>()?;
        while let Some(dtype) = buffers.first().map(Buffer::dtype) {
            // A stable partition: the order of the buffers within a type is the caller's.
            let (mut same, rest): (Vec<_>, Vec<_>) =
                buffers.into_iter().partition(|b| b.dtype() == dtype);
            call(self.communicator.as_mut(), &mut same)?;
            buffers = rest;
        }
        Ok(())
    }

    /// Compares the shapes of what the replicas pass to a collective call, and a number that says
    /// which call it is. The communicator itself compares element counts, which `[2, 3]` and
    /// `[3, 2]` share. Gradients of a model skip this: their shapes are those of its parameters.
    pub(crate) fn check_shapes(&mut self, call: u64, leaves: &[TensorData]) -> Result<()> {
        let mut mine = vec![i64::try_from(call).map_err(Error::step)?];
        for size in leaves.iter().flat_map(|leaf| {
            let rank = std::iter::once(leaf.rank());
            rank.chain(leaf.shape().iter().copied())
        }) {
            mine.push(i64::try_from(size).map_err(Error::step)?);
        }
        let all = self.all_gather(&mine)?;
        let expected = &all[0];
        // Every replica compares the same lists, so all of them return the same error.
        match all.iter().find(|shapes| *shapes != expected) {
            Some(found) if found[0] != expected[0] => Err(Error::invalid(
                "all_reduce_tensor: the replicas' backward passes reached different calls; use \
                 the same results in the loss on every replica",
            )),
            Some(found) => Err(different_shapes(&expected[1..], &found[1..])),
            None => Ok(()),
        }
    }

    /// Compares which call the replicas make. It goes through the communicator, so a replica that
    /// is in a collective operation or has ended its step instead is found at once as well.
    fn check_call(&mut self, op: &'static str, detail: i64) -> Result<()> {
        let mut mine = vec![detail];
        mine.extend(op.bytes().map(i64::from));
        let all = self.all_gather(&mine)?;
        let name = |call: &[i64]| -> String {
            let letters = call
                .iter()
                .skip(1)
                .filter_map(|byte| u8::try_from(*byte).ok());
            letters.map(char::from).collect()
        };
        let expected = &all[0];
        match all.iter().position(|call| call != expected) {
            Some(replica) => Err(Error::invalid(format!(
                "the replicas made different cross-replica calls: {}({}) on replica 0, {}({}) on \
                 replica {replica}; every replica must make the same ones in the same order",
                name(expected),
                expected[0],
                name(&all[replica]),
                all[replica][0],
            ))),
            None => Ok(()),
        }
    }

    /// The number of the next differentiable call of this run.
    pub(crate) fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }
}

/// The replica a step is running on (TensorFlow: `tf.distribute.ReplicaContext`).
///
/// Only a step is handed one, so the operations that need all replicas to take part cannot be
/// called from anywhere else. All replicas must make the same cross-replica calls (`all_reduce`,
/// `all_gather`, `broadcast`, `merge_call`) in the same order; a replica that does not is named
/// in the error that the others get.
pub struct ReplicaContext {
    replica: Replica,
    local_id: usize,
    num_local: usize,
    num_replicas: usize,
    placement: VariablePlacement,
    link: Option<Arc<Mutex<Link>>>,
    /// The first failure of a collective call in a backward pass, which cannot return it.
    backward_failure: Arc<Mutex<Option<Error>>>,
    /// The capture, if the step is called once to be compiled.
    trace: Option<Arc<Trace>>,
    /// Rows of tables whose gradients are asked for beside those of a model.
    pub(crate) watched: Mutex<Vec<Watched>>,
    /// A context belongs to the thread of its replica.
    not_sync: PhantomData<Cell<()>>,
}

impl ReplicaContext {
    /// The context of a strategy with one replica.
    pub(crate) fn alone(replica: &Replica) -> Self {
        Self {
            replica: replica.clone(),
            local_id: 0,
            num_local: 1,
            num_replicas: 1,
            placement: VariablePlacement::Mirrored,
            link: None,
            backward_failure: Arc::default(),
            trace: None,
            watched: Mutex::default(),
            not_sync: PhantomData,
        }
    }

    /// The context of a step that is captured for all replicas.
    pub(crate) fn captured(replica: &Replica, trace: Arc<Trace>) -> Self {
        let mut context = Self::alone(replica);
        context.replica.device = trace.device().clone();
        context.num_replicas = trace.num_replicas();
        context.trace = Some(trace);
        context
    }

    pub(crate) fn linked(
        replica: &Replica,
        local_id: usize,
        num_local: usize,
        placement: VariablePlacement,
        link: Link,
    ) -> Self {
        let workers = link.workers.as_ref();
        let num_replicas = workers.map_or(num_local, WorkerGroup::num_replicas);
        let link = (num_replicas > 1).then(|| Arc::new(Mutex::new(link)));
        Self {
            replica: replica.clone(),
            local_id,
            num_local,
            num_replicas,
            placement,
            link,
            backward_failure: Arc::default(),
            trace: None,
            watched: Mutex::default(),
            not_sync: PhantomData,
        }
    }

    /// This replica's id among all replicas in sync, from 0
    /// (TensorFlow: `replica_id_in_sync_group`).
    ///
    /// In a step that is compiled for several replicas there is no such number: `run` returns an
    /// error, and [`replica_id_tensor`](Self::replica_id_tensor) is what can be used.
    pub fn replica_id(&self) -> usize {
        if let Some(trace) = &self.trace {
            trace.use_replica_id();
        }
        self.replica.id
    }

    /// This replica's id as a tensor of one element, also in a compiled step.
    pub fn replica_id_tensor(&self) -> Tensor<1, Int> {
        match &self.trace {
            Some(trace) => Tensor::from_primitive::<CaptureBackend>(trace.replica_id().0),
            None => Tensor::from_data(
                TensorData::new(vec![self.replica.id as i64], [1]),
                self.device(),
            ),
        }
    }

    /// The capture that this step is part of.
    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// Refuses a call that has no counterpart in a compiled step.
    pub(crate) fn refuse_captured(&self, what: &str) -> Result<()> {
        match &self.trace {
            None => Ok(()),
            Some(_) => Err(TraceError::unsupported(
                format!("`{what}`"),
                "return the value from the step and call the strategy's `gather` or `reduce`, or \
                 use `all_reduce`",
            )
            .into()),
        }
    }

    /// This replica's index in its process.
    pub fn local_id(&self) -> usize {
        self.local_id
    }

    /// The number of replicas whose gradients are summed, over all workers.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.num_replicas
    }

    /// The examples of a full global batch, if the step was handed a part of one that knows: what
    /// losses are divided by. Batches of `distribute-data` know, and those of
    /// [`fit`](crate::fit); others are told by [`PerReplica::of_global_batch`]. `None` also for
    /// parts of batches of different sizes.
    pub fn global_batch_size(&self) -> Option<usize> {
        crate::loss::global_batch_size().ok().flatten()
    }

    /// burn's device of this replica, with autodiff.
    pub fn device(&self) -> &Device {
        &self.replica.device
    }

    /// The name of this replica's device.
    pub fn logical_device(&self) -> LogicalDevice {
        self.replica.logical
    }

    /// Where training states keep their variables under this strategy.
    pub fn variable_placement(&self) -> VariablePlacement {
        self.placement
    }

    /// A random stream of this replica's own for one step.
    ///
    /// The stream depends on `seed`, `step` and the replica id alone: the same in every run and
    /// after a restart, and different on every replica. In a step that is compiled only
    /// [`dropout`](crate::dropout) can use it: the program makes the numbers, others in every step;
    /// what is drawn from it on the host is an error of that step. (burn's own generator is one per
    /// process, so replica threads would race for its numbers.)
    #[track_caller]
    pub fn rng(&self, seed: u64, step: u64) -> ReplicaRng {
        match &self.trace {
            // The program's random numbers are others in every step and on every replica; the
            // program itself is not.
            Some(trace) => {
                trace.use_step_for_random_numbers();
                ReplicaRng::captured(seed, trace, Location::caller())
            }
            None => ReplicaRng::new(seed, step, self.replica.id as u64),
        }
    }

    /// The gradients of `loss` with respect to the model's trainable parameters
    /// (TensorFlow: `GradientTape.gradient`).
    ///
    /// A parameter that the loss does not depend on has no gradient. The graph of the loss is
    /// used up; its value can still be read. Rows of tables that the step has looked up
    /// ([`watch_rows`](Self::watch_rows)) are among what the loss may depend on.
    ///
    /// # Errors
    /// If the loss is not one number, or was not computed on this replica's autodiff device.
    pub fn gradient<M: Module>(&self, loss: &Tensor<1>, model: &M) -> Result<Gradients> {
        let on_device = self.reduces_on_device();
        let watched = lock(&self.watched);
        let gradients = Gradients::compute(loss, model, &watched, on_device)?;
        drop(watched);
        self.check_backward()?;
        Ok(gradients)
    }

    /// Reduces a value over all replicas; every replica gets the result
    /// (TensorFlow: `ReplicaContext.all_reduce`). `Mean` divides by the number of replicas.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// [`Error::Shape`] on every replica if the values' shapes differ, another replica's failure,
    /// [`Error::DType`] for the mean of integers in an integer tensor, and for bool.
    pub fn all_reduce<T: Nest>(&self, op: ReduceOp, mut value: T) -> Result<T> {
        if let Some(trace) = &self.trace {
            trace::all_reduce(trace, op, &mut value)?;
            return Ok(value);
        }
        let mut leaves = value.take_leaves()?;
        if op == ReduceOp::Mean {
            for leaf in &mut leaves {
                if leaf.dtype().is_int() || leaf.dtype().is_uint() {
                    *leaf = host_reduce::to_f64(leaf);
                }
            }
        }
        if let Some(link) = &self.link {
            let mut link = lock(link);
            link.check_shapes(0, &leaves)?;
            link.all_reduce(op, &mut leaves)?;
        }
        value.put_leaves(leaves)?;
        Ok(value)
    }

    /// [`all_reduce`](Self::all_reduce) of host buffers, in place, as one operation per element
    /// type.
    pub(crate) fn all_reduce_data(&self, op: ReduceOp, tensors: &mut [TensorData]) -> Result<()> {
        match &self.link {
            None => Ok(()),
            Some(link) => lock(link).all_reduce(op, tensors),
        }
    }

    /// Whether gradients are reduced in the memory of the devices.
    pub(crate) fn reduces_on_device(&self) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| lock(link).reduces_on_device())
    }

    /// The reduction (SUM or MEAN) of flattened tensors over all replicas, in the memory of the
    /// devices.
    pub(crate) fn all_reduce_tensors(
        &self,
        op: ReduceOp,
        tensors: Vec<Tensor<1>>,
    ) -> Result<Vec<Tensor<1>>> {
        let Some(link) = &self.link else {
            return Ok(tensors);
        };
        let sums = lock(link).sum_tensors(tensors)?;
        #[allow(clippy::cast_precision_loss)]
        let replicas = self.num_replicas as f64;
        Ok(match op {
            ReduceOp::Mean => sums
                .into_iter()
                .map(|sum| sum.div_scalar(replicas))
                .collect(),
            _ => sums,
        })
    }

    /// Whether gradients travel between workers in packs.
    pub(crate) fn has_packs(&self) -> bool {
        self.workers().is_some_and(|workers| workers.has_packs())
    }

    /// The sum of host buffers over all replicas, pack by pack, last buffers first: `ready` is
    /// called for each run of buffers that is complete, while the next pack is under way.
    pub(crate) fn all_reduce_in_packs(
        &self,
        tensors: Vec<TensorData>,
        ready: Ready<'_>,
    ) -> Result<()> {
        match &self.link {
            None => ready(0..tensors.len(), tensors),
            Some(link) => packs::all_reduce(&mut lock(link), tensors, ready),
        }
    }

    /// Reduces host buffers onto replica 0, in place; the other replicas' are used up.
    pub(crate) fn reduce_data_to_host(
        &self,
        op: ReduceOp,
        tensors: &mut [TensorData],
    ) -> Result<()> {
        match &self.link {
            None => Ok(()),
            Some(link) => lock(link).reduce_to_host(op, tensors),
        }
    }

    /// [`all_reduce`](Self::all_reduce) of a tensor that gradients flow through: the gradient of
    /// the input is the all-reduce of the result's gradient with the same operation.
    ///
    /// The backward pass communicates too, so every replica must use the result in its loss, or
    /// none. SUM and MEAN only.
    ///
    /// # Errors
    /// As `all_reduce`; [`Error::InvalidArgument`] for other operations and on devices other than
    /// the CPU. A failure in the backward pass is returned by [`gradient`](Self::gradient), or at
    /// the end of the step.
    pub fn all_reduce_tensor<const D: usize>(
        &self,
        op: ReduceOp,
        tensor: Tensor<D>,
    ) -> Result<Tensor<D>> {
        if let Some(trace) = &self.trace {
            return trace::all_reduce_tensor(trace, op, &tensor);
        }
        match &self.link {
            Some(link) => all_reduce_tensor(op, tensor, link, &self.backward_failure),
            None => Ok(tensor),
        }
    }

    /// Returns the failure of a backward pass once.
    fn check_backward(&self) -> Result<()> {
        lock(&self.backward_failure).take().map_or(Ok(()), Err)
    }

    /// Concatenates a value over all replicas along `axis`, in replica order; every replica gets
    /// the result (TensorFlow: `ReplicaContext.all_gather`). Sizes along the axis may differ.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// [`Error::Shape`] if other dimensions differ, [`Error::Axis`] for scalars and axes out of
    /// range (negative ones too), [`Error::DType`] for bool, and another replica's failure.
    pub fn all_gather<T: Nest>(&self, mut value: T, axis: i64) -> Result<T> {
        if let Some(trace) = &self.trace {
            trace::all_gather(trace, &mut value, axis)?;
            return Ok(value);
        }
        let leaves = value.take_leaves()?;
        let workers = self.workers();
        let leaves = self.exchange("all_gather", axis, leaves, |mut lists| {
            if let Some(workers) = &workers {
                lists = workers.gather(&format!("all_gather over {axis}"), &lists)?;
            }
            let gathered = host_reduce::columns(lists)?
                .into_iter()
                .map(|column| host_reduce::gather(column, axis))
                .collect::<Result<Vec<_>>>()?;
            Ok(vec![gathered; self.num_local()])
        })?;
        value.put_leaves(leaves)?;
        Ok(value)
    }

    /// Gives every replica the value of replica `root`.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such replica; another replica's failure.
    pub fn broadcast<T: Nest>(&self, root: usize, mut value: T) -> Result<T> {
        if root >= self.num_replicas {
            return Err(Error::invalid(format!(
                "broadcast from replica {root}, but there are {} replicas",
                self.num_replicas
            )));
        }
        if let Some(trace) = &self.trace {
            trace::broadcast(trace, &mut value, root)?;
            return Ok(value);
        }
        let leaves = value.take_leaves()?;
        let detail = i64::try_from(root).map_err(Error::step)?;
        let workers = self.workers();
        let leaves = self.exchange("broadcast", detail, leaves, |mut lists| {
            if let Some(workers) = &workers {
                lists = workers.gather(&format!("broadcast from {root}"), &lists)?;
            }
            let chosen = lists.swap_remove(root);
            Ok(vec![chosen; self.num_local()])
        })?;
        value.put_leaves(leaves)?;
        Ok(value)
    }

    /// Leaves replica context: `merge` runs once, with all replicas' values, and its results go
    /// back to the replicas (TensorFlow: `ReplicaContext.merge_call`).
    ///
    /// `merge` runs on replica 0's thread, in cross-replica context: it may call `reduce` and
    /// `gather` and update variables, but not `run`. Blocks until all replicas have called it.
    ///
    /// # Errors
    /// What `merge` returns, on replica 0, and [`Error::Stopped`] with its text on the others;
    /// [`Error::ReplicaMissing`] if a replica ends its step without this call.
    pub fn merge_call<T, R>(
        &self,
        value: T,
        merge: impl FnOnce(PerReplica<T>) -> Result<PerReplica<R>>,
    ) -> Result<R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        self.exchange("merge_call", 0, value, |values| {
            let _cross_replica = scope::enter_merge();
            Ok(merge(PerReplica::new(values))?.into_values())
        })
    }

    /// Creates a variable inside a step, with replica 0's initial value in every copy; every
    /// replica gets a handle of the same variable. Blocks until all replicas have called it.
    ///
    /// # Errors
    /// Those of [`DistributedVariable::new`], and another replica's failure. With parameter servers
    /// variables are made outside of steps.
    pub fn variable<T: VariableValue + 'static>(
        &self,
        mut initial: T,
        options: VariableOptions,
    ) -> Result<DistributedVariable<T>> {
        self.refuse_captured("ctx.variable")?;
        let strategy = scope::current_strategy();
        if strategy.remote_store().is_some() {
            return Err(Error::invalid(
                "ctx.variable: with parameter servers variables are made outside of steps, by the \
                 coordinator's strategy, and steps use them",
            ));
        }
        let owner = Owner::of(&*strategy);
        let count = self.num_local();
        let workers = self.workers();
        self.exchange("variable", 0, initial.take()?, |mut values| {
            let mut initial = values.swap_remove(0);
            if let Some(workers) = &workers {
                workers.take_initial_value(&mut initial)?;
            }
            let variable = DistributedVariable::create(&owner, initial, options)?;
            Ok(vec![variable; count])
        })
    }

    /// Exchanges whole values between the replicas of this process; `join` runs once per process
    /// and may exchange more with other workers. `op` and `detail` (a root, an
    /// axis, a variable's number) say which call it is; replicas that differ in them all get an
    /// error instead of each other's values.
    pub(crate) fn exchange<T, R>(
        &self,
        op: &'static str,
        detail: i64,
        value: T,
        join: impl FnOnce(Vec<T>) -> Result<Vec<R>>,
    ) -> Result<R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        self.refuse_captured(op)?;
        let Some(link) = &self.link else {
            let results = join(vec![value])?;
            crate::values::count("the result of a merge_call", 1, results.len())?;
            return results.into_iter().next().ok_or_else(different_structure);
        };
        let board = {
            let mut link = lock(link);
            // Ends at once where another replica's step is over.
            link.board.check_finished(op, self.local_id)?;
            link.check_call(op, detail)?;
            Arc::clone(&link.board)
        };
        board.exchange(op, self.local_id, value, join)
    }

    /// The replicas of this process.
    pub(crate) fn num_local(&self) -> usize {
        self.num_local
    }

    /// The group of workers, if there are several.
    pub(crate) fn workers(&self) -> Option<WorkerGroup> {
        lock(self.link.as_ref()?).workers.clone()
    }

    /// Called once before the replicas of a run start.
    pub(crate) fn begin_run(&self) {
        if let Some(link) = &self.link {
            lock(link).board.begin_run();
        }
    }

    /// Called when this replica's step has ended well. The barrier makes a replica of this process
    /// that is still waiting for this one in a collective fail at once instead of at its deadline.
    /// There is none between workers: a step without collectives may run on one of them alone.
    pub(crate) fn finish_run(&self) -> Result<()> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        self.check_backward()?;
        let mut link = lock(link);
        link.board.finish(self.local_id);
        link.communicator.barrier().map_err(|error| match error {
            CollectiveError::Mismatch { .. } => Error::ReplicaMissing {
                op: "a collective call (apply_gradients, all_reduce, ...)",
                replica: self.replica_id(),
                why: "its step ended without making this call".to_string(),
            },
            other => other.into(),
        })
    }

    /// Called when this replica's step has failed.
    pub(crate) fn stop_others(&self, cause: &Error) {
        let Some(link) = &self.link else {
            return;
        };
        let link = lock(link);
        link.board.stop(cause);
        link.communicator.abort(&cause.to_string());
        if let Some(devices) = &link.devices {
            devices.abort(&cause.to_string());
        }
        if let Some(workers) = &link.workers {
            workers.abort(&cause.to_string());
        }
    }
}

impl fmt::Debug for ReplicaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaContext")
            .field("replica", &self.replica)
            .field("num_replicas", &self.num_replicas)
            .finish_non_exhaustive()
    }
}

/// The first difference between two replicas' lists of (rank, dimensions...).
fn different_shapes(expected: &[i64], found: &[i64]) -> Error {
    let (expected, found) = (shapes(expected), shapes(found));
    let differing = expected.iter().zip(&found).find(|(a, b)| a != b);
    match differing {
        Some((expected, found)) if expected.len() + found.len() > 0 => Error::Shape {
            op: "all_reduce: the replicas passed different shapes",
            expected: expected.clone(),
            found: found.clone(),
        },
        _ => different_structure(),
    }
}

fn shapes(mut encoded: &[i64]) -> Vec<Vec<usize>> {
    let mut shapes = Vec::new();
    while let Some((rank, rest)) = encoded.split_first() {
        let rank = usize::try_from(*rank).unwrap_or(0).min(rest.len());
        let (dimensions, rest) = rest.split_at(rank);
        let dimensions = dimensions
            .iter()
            .map(|size| usize::try_from(*size).unwrap_or(0));
        shapes.push(dimensions.collect());
        encoded = rest;
    }
    shapes
}

/// The typed view that the collectives work on; shares the tensor's storage.
pub(crate) fn as_buffer(data: &mut TensorData) -> Result<Buffer<'_>> {
    let dtype = data.dtype();
    let buffer = match dtype {
        DType::F32 => data.as_mut_slice::<f32>().map(Buffer::F32),
        DType::F64 => data.as_mut_slice::<f64>().map(Buffer::F64),
        DType::F16 => data.as_mut_slice::<f16>().map(Buffer::F16),
        DType::BF16 => data.as_mut_slice::<bf16>().map(Buffer::BF16),
        DType::I32 => data.as_mut_slice::<i32>().map(Buffer::I32),
        DType::I64 => data.as_mut_slice::<i64>().map(Buffer::I64),
        DType::U8 => data.as_mut_slice::<u8>().map(Buffer::U8),
        other => {
            return Err(Error::DType {
                op: "all_reduce",
                dtype: other.name().to_string(),
            });
        }
    };
    buffer.map_err(Error::step)
}
