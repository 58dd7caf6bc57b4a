//! Steps whose values go through host memory: alone, or with other replicas over a [`Link`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use burn::tensor::{DType, TensorData};
use distribute_collectives::{CollectiveError, ReduceOp};

use super::calls;
use super::differentiable::{Differentiable, HostLink};
use super::link::Link;
use super::local_exchange::LocalExchange;
use super::log::Log;
use super::peers::{OnReduced, Peers};
use super::turns::{Turn, Turning, Waiting};
use crate::gradients::Flags;
use crate::nest::at_leaf;
use crate::sync::lock;
use crate::{Error, Gradients, Nest, Result, WorkerGroup, host_reduce};

/// The one replica of a strategy.
pub(crate) struct Alone;

impl Peers for Alone {
    fn all_reduce(&self, op: ReduceOp, value: &mut dyn Nest) -> Result<()> {
        let leaves = prepared(op, value)?;
        value.put_leaves(leaves)
    }

    fn all_gather(&self, value: &mut dyn Nest, axis: i64) -> Result<()> {
        let leaves = value.take_leaves()?;
        value.put_leaves(host_reduce::concatenate(vec![leaves], axis)?)
    }

    fn broadcast(&self, value: &mut dyn Nest, _: usize) -> Result<()> {
        let leaves = value.take_leaves()?;
        value.put_leaves(leaves)
    }

    fn all_reduce_tensor(&self, _: ReduceOp, _: &mut dyn Differentiable) -> Result<()> {
        Ok(())
    }

    fn all_reduce_gradients(&self, _: ReduceOp, _: &mut Gradients) -> Result<()> {
        Ok(())
    }

    fn gather_numbers(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        Ok(vec![mine.to_vec()])
    }
}

/// Several replicas.
pub(crate) struct HostPeers {
    /// Backward passes need it too.
    shared: Arc<HostLink>,
    pub(super) local_id: usize,
    pub(super) num_local: usize,
    exchange: Arc<LocalExchange>,
    /// How many differentiable calls were made; equal on all replicas.
    calls: AtomicU64,
}

impl HostPeers {
    /// Of the replica `local_id` of `num_local` in this process; `turn` if it shares its device.
    pub(crate) fn new(
        link: Box<dyn Link>,
        local_id: usize,
        num_local: usize,
        exchange: Arc<LocalExchange>,
        turn: Option<Turn>,
    ) -> Self {
        let (way, backward) = (Turning::new(link, turn), Mutex::default());
        Self {
            shared: Arc::new(HostLink { way, backward }),
            local_id,
            num_local,
            exchange,
            calls: AtomicU64::new(0),
        }
    }

    /// The link, for calls that wait for other replicas, see [`Turning::waiting`].
    pub(super) fn waiting(&self) -> Waiting<'_> {
        self.shared.way.waiting()
    }

    /// The group of workers, if there are several.
    pub(super) fn workers(&self) -> Option<&WorkerGroup> {
        self.shared.way.link.workers()
    }

    /// Whole values of all replicas, one list of leaves each, and what one of them makes of them.
    fn join(
        &self,
        op: &'static str,
        detail: i64,
        call: &str,
        value: &mut dyn Nest,
        join: impl FnOnce(Vec<Vec<TensorData>>) -> Result<Vec<TensorData>>,
    ) -> Result<()> {
        let leaves = value.take_leaves()?;
        self.compare(op, detail)?;
        let joined = |lists: Vec<_>| {
            let all = match self.workers() {
                Some(workers) => workers.gather(call, &lists)?,
                None => lists,
            };
            Ok(vec![join(all)?; self.num_local])
        };
        let waiting = self.waiting();
        let leaves = self.exchange.exchange(op, self.local_id, leaves, joined)?;
        drop(waiting);
        value.put_leaves(leaves)
    }

    /// Compares which call the replicas make.
    fn compare(&self, op: &'static str, detail: i64) -> Result<()> {
        // Ends at once where another replica's step is over.
        self.exchange.check_finished(op, self.local_id)?;
        calls::compare(&self.waiting(), op, detail)
    }

    /// What this replica says with its gradients: one of a process speaks for all.
    pub(super) fn signals(&self) -> Vec<f32> {
        let mut signals = self.workers().map_or_else(Vec::new, WorkerGroup::signals);
        if self.local_id != 0 {
            signals.fill(0.0);
        }
        signals
    }

    /// What all workers say together.
    pub(super) fn receive(&self, signals: &[f32]) {
        if let Some(workers) = self.workers() {
            workers.receive(signals);
        }
    }
}

impl Peers for HostPeers {
    fn all_reduce(&self, op: ReduceOp, value: &mut dyn Nest) -> Result<()> {
        let mut leaves = prepared(op, value)?;
        let link = self.waiting();
        let at = |index, error| at_leaf(value, index, error);
        calls::compare_shapes(&link, 0, &leaves, at)?;
        link.all_reduce(op, &mut leaves)?;
        drop(link);
        value.put_leaves(leaves)
    }

    fn all_gather(&self, value: &mut dyn Nest, axis: i64) -> Result<()> {
        let call = format!("all_gather over {axis}");
        self.join("all_gather", axis, &call, value, |lists| {
            host_reduce::concatenate(lists, axis)
        })
    }

    fn broadcast(&self, value: &mut dyn Nest, root: usize) -> Result<()> {
        let detail = i64::try_from(root).map_err(Error::internal)?;
        let call = format!("broadcast from {root}");
        self.join("broadcast", detail, &call, value, |mut lists| {
            Ok(lists.swap_remove(root))
        })
    }

    fn all_reduce_tensor(&self, op: ReduceOp, tensor: &mut dyn Differentiable) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        tensor.all_reduce(op, call, &self.shared)
    }

    fn all_reduce_gradients(&self, op: ReduceOp, gradients: &mut Gradients) -> Result<()> {
        let mut buffers = gradients.take_buffers(&self.signals())?;
        self.waiting().all_reduce_gradients(op, &mut buffers)?;
        let mut flags = Flags::default();
        gradients.put_buffers(0..buffers.len(), buffers, &mut flags)?;
        self.receive(&flags.take_signals());
        Ok(())
    }

    fn sum_gradients(&self, gradients: &mut Gradients, on_reduced: OnReduced<'_>) -> Result<()> {
        let buffers = gradients.take_buffers(&self.signals())?;
        let mut flags = Flags::default();
        self.waiting().sum_in_packs(buffers, &mut |range, pack| {
            let _held = self.turn().map(Turn::hold);
            let range = gradients.put_buffers(range, pack, &mut flags)?;
            self.receive(&flags.take_signals());
            on_reduced(range, gradients)
        })
    }

    fn reduce_gradients(&self, gradients: &mut Gradients) -> Result<()> {
        let mut buffers = gradients.take_buffers(&self.signals())?;
        self.waiting().reduce(&mut buffers)?;
        if self.local_id == 0 {
            gradients.put_buffers(0..buffers.len(), buffers, &mut Flags::default())?;
        }
        Ok(())
    }

    fn local_exchange(&self, op: &'static str, detail: i64) -> Result<Option<Arc<LocalExchange>>> {
        self.compare(op, detail)?;
        Ok(Some(Arc::clone(&self.exchange)))
    }

    fn gather_numbers(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        self.waiting().all_gather(mine)
    }

    fn begin_log(&self) {
        self.shared.way.noted.begin();
    }

    fn take_log(&self) -> Log {
        self.shared.way.noted.take()
    }

    fn take_initial_value(&self, initial: &mut TensorData) -> Result<()> {
        match self.workers() {
            Some(workers) => {
                let _waiting = self.waiting();
                workers.take_initial_value(initial)
            }
            None => Ok(()),
        }
    }

    fn turn(&self) -> Option<&Turn> {
        self.shared.way.turn.as_ref()
    }

    fn check_backward(&self) -> Result<()> {
        lock(&self.shared.backward).take().map_or(Ok(()), Err)
    }

    fn begin_run(&self) {
        self.exchange.begin_run();
        if let Some(turn) = self.turn() {
            turn.begin_run();
        }
    }

    /// The barrier makes a replica of this process that is still waiting for this one in a
    /// collective fail at once instead of at its deadline. There is none between workers: a step
    /// without collectives may run on one of them alone.
    fn finish_run(&self, id: usize) -> Result<()> {
        self.check_backward()?;
        drop(self.take_log());
        self.exchange.finish(self.local_id);
        self.waiting().barrier().map_err(|error| match error {
            CollectiveError::Mismatch { .. } => Error::ReplicaMissing {
                op: "a collective call (apply_gradients, all_reduce, ...)",
                replica: id,
                why: "its step ended without making this call".to_string(),
            },
            other => other.into(),
        })
    }

    fn stop_others(&self, cause: &Error) {
        drop(self.take_log());
        self.exchange.stop(cause);
        self.shared.way.link.abort(&cause.to_string());
    }
}

/// The leaves of a value that is about to be reduced: the mean of integers is a float.
fn prepared(op: ReduceOp, value: &mut dyn Nest) -> Result<Vec<TensorData>> {
    let mut leaves = value.take_leaves()?;
    let is_integer = |leaf: &&mut TensorData| leaf.dtype().is_int() || leaf.dtype().is_uint();
    if op == ReduceOp::Mean {
        let integers = leaves.iter_mut().filter(is_integer);
        integers.for_each(|leaf| *leaf = leaf.clone().convert_dtype(DType::F64));
    }
    Ok(leaves)
}
