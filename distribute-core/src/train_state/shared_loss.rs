//! One loss of several training states, with their loss scales.

use burn::module::Module;
use burn::tensor::Tensor;

use super::TrainState;
use crate::{Error, LossScale, ReplicaContext, Result};

/// What a state that shares its loss with others has of its loss scale.
trait Sharing {
    fn scale(&self) -> &LossScale;

    fn accumulation(&self) -> (usize, usize);

    fn is_captured(&self) -> bool;

    /// The loss will be multiplied by this scale.
    fn expect(&mut self, scale: LossScale);
}

impl<M> Sharing for TrainState<M> {
    fn scale(&self) -> &LossScale {
        &self.loss_scale
    }

    fn accumulation(&self) -> (usize, usize) {
        Self::accumulation(self)
    }

    fn is_captured(&self) -> bool {
        self.placement.captured().is_some()
    }

    fn expect(&mut self, scale: LossScale) {
        self.loss_scaled_by = Some(scale);
    }
}

/// The training states of one loss, for [`ReplicaContext::scale_loss`]: a tuple of 2 to 8, such as
/// `(&mut generator, &mut critic)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tuple of training states",
    label = "a loss is scaled for 2 to 8 states: `(&mut first, &mut second)`",
    note = "for one state use `state.scale_loss(&loss)`"
)]
pub trait TrainStates: ScaleLoss {}

/// What states do with the loss, for [`TrainStates`] of this crate alone.
pub trait ScaleLoss {
    /// The loss times the scale that the states agree on.
    ///
    /// # Errors
    /// If they cannot.
    fn scale_loss(self, loss: &Tensor<1>) -> Result<Tensor<1>>;
}

macro_rules! states {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Module + 'static),+> TrainStates for ($(&mut TrainState<$name>,)+) {}

        impl<$($name: Module + 'static),+> ScaleLoss for ($(&mut TrainState<$name>,)+) {
            fn scale_loss(self, loss: &Tensor<1>) -> Result<Tensor<1>> {
                scale(&mut [$(self.$index),+], loss)
            }
        }
    };
}

states!(A 0, B 1);
states!(A 0, B 1, C 2);
states!(A 0, B 1, C 2, D 3);
states!(A 0, B 1, C 2, D 3, E 4);
states!(A 0, B 1, C 2, D 3, E 4, F 5);
states!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
states!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

fn scale(states: &mut [&mut dyn Sharing], loss: &Tensor<1>) -> Result<Tensor<1>> {
    let mut scales: Vec<_> = states.iter().map(|state| state.scale().clone()).collect();
    let is_dynamic = scales.iter().any(LossScale::is_dynamic);
    if is_dynamic && states.iter().any(|state| state.is_captured()) {
        return Err(Error::not_compilable(
            "a dynamic loss scale of several states that share a loss",
            "take the same `LossScale::fixed(..)` for all of them",
        ));
    }
    let mut positions = states.iter().map(|state| state.accumulation());
    let first = positions.next();
    if is_dynamic && positions.any(|position| Some(position) != first) {
        return Err(Error::invalid(
            "scale_loss: states that share a loss and have a dynamic loss scale must be updated \
             together, and these accumulate different numbers of micro-batches; give all of them \
             the same `accumulate(n)`",
        ));
    }
    LossScale::agree(&mut scales)?;
    let factor = scales.first().map_or(1.0, LossScale::scale);
    for (state, scale) in states.iter_mut().zip(scales) {
        state.expect(scale);
    }
    if factor == 1.0 {
        Ok(loss.clone())
    } else {
        Ok(loss.clone().mul_scalar(factor))
    }
}

impl ReplicaContext {
    /// The loss of several states times the loss scale that they share: what
    /// [`gradients`](Self::gradients) of their models are taken of. For one state it is
    /// [`TrainState::scale_loss`].
    ///
    /// The states have no loss scale, the same fixed one, or a dynamic one each. Dynamic ones go on
    /// from the smallest of them with their next update, and so move together, but for one whose
    /// gradients alone are not finite: it skips its update and halves the scale, and the others
    /// follow with the next loss.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use distribute_core::LossScale;
    /// use distribute_core::prelude::*;
    ///
    /// #[derive(Replicate)]
    /// struct Pair(TrainState<Linear>, TrainState<Linear>);
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let mut pair = strategy.scope(|device| {
    ///     let layer = || LinearConfig::new(2, 2).init(device);
    ///     let state = || TrainState::new(layer(), Sgd::new(0.1));
    ///     let scaled = || state().with_loss_scale(LossScale::dynamic());
    ///     Pair(scaled(), scaled())
    /// })?;
    /// strategy.run(&mut pair, |ctx, pair| {
    ///     let inputs = Tensor::<2>::ones([3, 2], ctx.device());
    ///     let outputs = pair.1.model.forward(pair.0.model.forward(inputs));
    ///     let loss = ctx.mean_loss_of(outputs.mean(), 3.0)?;
    ///     let scaled = ctx.scale_loss(&loss, (&mut pair.0, &mut pair.1))?;
    ///     let (first, second) = ctx.gradients(&scaled, (&pair.0.model, &pair.1.model))?;
    ///     pair.0.apply_gradients(ctx, first)?;
    ///     pair.1.apply_gradients(ctx, second)
    /// })?;
    /// assert_eq!(pair.primary()?.1.loss_scale().good_steps(), 1);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if some of the scales are dynamic and others are not, if fixed
    /// ones differ, or if states with dynamic ones accumulate different numbers of micro-batches;
    /// [`Error::NotCompilable`] for dynamic ones in a step that is compiled.
    pub fn scale_loss<S: TrainStates>(&self, loss: &Tensor<1>, states: S) -> Result<Tensor<1>> {
        states.scale_loss(loss)
    }
}
