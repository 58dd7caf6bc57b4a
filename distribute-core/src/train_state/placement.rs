//! Where the variables of a training state are, and how an update gets there: [`Placement`].

use std::collections::HashMap;
use std::sync::Arc;

use burn_capture::TensorId;

use super::{Applied, TrainState};
use crate::remote::RemoteState;
use crate::trace::{CapturedTensor, Trace};
use crate::{Gradients, ReplicaContext, Result};

/// Where the variables of a training state are, and how an update gets there: in every replica
/// ([`Mirrored`](super::apply::Mirrored)), in one ([`Central`](super::apply::Central)), in a step
/// that is captured ([`Captured`]), or in a store ([`Remote`](super::remote::Remote)).
pub(super) trait Placement<M>: Send + Sync {
    /// Reduces the gradients of all micro-batches over the replicas, and updates.
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        ctx: &ReplicaContext,
        gradients: Gradients,
    ) -> Result<Applied>;

    /// The same for a copy of the state.
    fn boxed(&self) -> Box<dyn Placement<M>>;

    /// The store that has tensors and slots, if they are elsewhere.
    fn store(&self) -> Option<&dyn RemoteState> {
        None
    }

    /// Takes over the newest values.
    fn refresh(&mut self, state: &mut TrainState<M>) -> Result<()> {
        let _ = state;
        Ok(())
    }

    /// The state's learning rate was set.
    fn set_learning_rate(&mut self, learning_rate: f64) {
        let _ = learning_rate;
    }

    /// Tells a store a learning rate that was set here.
    fn send_learning_rate(&mut self) -> Result<()> {
        Ok(())
    }

    /// What the capture of a step knows of the state.
    fn captured(&self) -> Option<&Captured> {
        None
    }

    /// [`captured`](Self::captured), to be changed.
    fn captured_mut(&mut self) -> Option<&mut Captured> {
        None
    }
}

impl<M> Clone for Box<dyn Placement<M>> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

/// Slots as they came in, in the dimensions of their parameters, by their flat views.
pub(super) type CapturedSlots = HashMap<TensorId, CapturedTensor>;

/// What a state knows while it is captured.
#[derive(Clone)]
pub(super) struct Captured {
    pub(super) trace: Arc<Trace>,
    /// Of the training states of the arguments, in order.
    pub(super) index: usize,
    /// The number of updates before the step.
    pub(super) first_step: u64,
    /// The learning rate that the step itself has set.
    pub(super) learning_rate: Option<f64>,
    pub(super) slots: CapturedSlots,
    /// A dynamic loss scale, once the step has used it.
    pub(super) loss_scale: Option<CapturedTensor>,
    /// Whether the program makes the update of the step, where it may leave it out.
    pub(super) applies: Option<CapturedTensor>,
}
