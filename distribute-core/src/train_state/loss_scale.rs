//! The loss scale of a training state.

use burn::module::Module;
use burn::tensor::Tensor;

use super::TrainState;
use crate::{Applied, Error, Gradients, LossScale, Result, trace};

impl<M> TrainState<M> {
    /// Trains with a loss scale (Keras: the optimizer inside a `LossScaleOptimizer`). Every step
    /// passes its loss through [`scale_loss`](Self::scale_loss), and
    /// [`apply_gradients`](Self::apply_gradients) divides the summed gradients by the scale before
    /// it clips them. `Fit` does both.
    ///
    /// A dynamic scale is in checkpoints, and the same on all replicas. It needs all gradients
    /// before the first parameter is updated, so they do not travel in packs while others are
    /// applied. In a compiled step it is an input of the program, which finds by itself whether the
    /// summed gradients are finite; one step makes one update then. States on parameter servers
    /// have none: no process sees the sum of all gradients there.
    ///
    /// ```
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::Tensor;
    /// # use distribute_core::{Adam, DefaultStrategy, LossScale, StrategyExt, TrainState};
    /// let strategy = DefaultStrategy::new();
    /// let mut state = strategy.scope(|device| {
    ///     TrainState::new(LinearConfig::new(4, 1).init(device), Adam::new(1e-3))
    ///         .with_loss_scale(LossScale::dynamic())
    /// })?;
    /// strategy.run(&mut state, |ctx, state: &mut TrainState<Linear>| {
    ///     let ones = Tensor::<2>::ones([8, 4], ctx.device());
    ///     let loss = state.model.forward(ones).mean();
    ///     let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
    ///     state.apply_gradients(ctx, gradients).map(drop)
    /// })?;
    /// assert_eq!(state.primary()?.loss_scale().good_steps(), 1);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    pub fn with_loss_scale(mut self, loss_scale: LossScale) -> Self {
        self.loss_scale = loss_scale;
        self
    }

    /// The loss scale: 1 unless it was [set](Self::with_loss_scale).
    ///
    /// In a step that is compiled a dynamic one has the numbers of the time of the capture: ask
    /// outside of steps, and use [`scale_loss`](Self::scale_loss) inside.
    pub fn loss_scale(&self) -> &LossScale {
        if self.loss_scale.is_dynamic()
            && let Some(captured) = self.placement.captured()
        {
            captured.trace.read_loss_scale();
        }
        &self.loss_scale
    }

    /// The loss times the loss scale (Keras: `LossScaleOptimizer.scale_loss`): what the gradients
    /// for [`apply_gradients`](Self::apply_gradients) are taken of. With a scale of 1 it is the
    /// loss.
    pub fn scale_loss(&mut self, loss: &Tensor<1>) -> Tensor<1> {
        self.loss_scaled_by = Some(self.loss_scale.clone());
        if self.loss_scale.is_dynamic()
            && let Some(captured) = self.placement.captured_mut()
        {
            let scale = captured.loss_scale();
            let scale = match trace::tracked(loss) {
                Some(_) => scale.tracked(false),
                None => scale.float(),
            };
            return loss.clone() * trace::of_type(scale, loss.dtype());
        }
        if self.loss_scale.is_one() {
            loss.clone()
        } else {
            loss.clone().mul_scalar(self.loss_scale.scale())
        }
    }

    /// What the loss of the gradients was multiplied by. Refuses gradients of a loss that was not,
    /// which would be too small.
    pub(super) fn take_loss_scale(&mut self) -> Result<Option<LossScale>> {
        let scaled_by = self.loss_scaled_by.take();
        if scaled_by.is_some() || self.loss_scale.is_one() {
            Ok(scaled_by)
        } else {
            Err(Error::invalid(
                "apply_gradients: the state has a loss scale, and the loss was not multiplied by \
                 it; take the gradients of `state.scale_loss(&loss)`",
            ))
        }
    }

    /// Divides summed gradients by the loss scale and clips them. False if they are not to be
    /// applied.
    pub(super) fn prepare(&mut self, gradients: &mut Gradients) -> Result<bool> {
        // Not before all replicas have come this far, so that they stay alike if one has not.
        if let Some(scaled_by) = self.loss_scaled_by.take() {
            self.loss_scale = scaled_by;
        }
        let applies = self.loss_scale.unscale(gradients)?;
        if let (true, Some(clip)) = (applies, self.clip) {
            gradients.apply_clip(clip)?;
        }
        Ok(applies)
    }

    /// Whether an update begins only when all gradients have arrived.
    pub(super) fn needs_all_gradients(&self) -> bool {
        self.clip.is_some() || !self.loss_scale.is_one()
    }

    /// An update that was skipped takes back what the run has moved the running statistics by, as
    /// servers do with gradients that they leave out.
    pub(super) fn settle_statistics(&mut self, applied: Applied) -> Result<()>
    where
        M: Module,
    {
        if self.statistics_before.is_empty() {
            return Ok(());
        }
        match applied {
            Applied::Skipped => {
                let before = self.statistics_before.clone();
                self.statistics.write(&self.model, before)
            }
            _ => {
                self.statistics_before = self.statistics.read(&self.model);
                Ok(())
            }
        }
    }

    /// The updates so far, also the skipped ones.
    pub(super) fn attempts(&self) -> u64 {
        self.step + self.loss_scale.skipped_steps()
    }
}
