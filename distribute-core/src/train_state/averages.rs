//! Moving averages of the weights in the place of the weights.

use burn::module::Module;

use super::TrainState;
use crate::optim::AVERAGE;
use crate::parameters::{self, Parameter};
use crate::{Error, Result};

impl<M: Module + 'static> TrainState<M> {
    /// Whether the optimizer keeps moving averages of the weights
    /// ([`MovingAverage`](crate::optim::MovingAverage)).
    pub fn has_averages(&self) -> bool {
        self.optimizer.slots().contains(&AVERAGE)
    }

    /// Puts the moving averages in the place of the weights, which are lost (Keras:
    /// `finalize_variable_values`); averages and step stay. A weight that was never updated stays
    /// too. For all replicas: `state.update(|state| state.apply_averages())`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the optimizer keeps no averages or has them on parameter
    /// servers, and in a step that is compiled.
    pub fn apply_averages(&mut self) -> Result<()> {
        let slots = self.optimizer.slots();
        let Some(place) = slots.iter().position(|slot| *slot == AVERAGE) else {
            return Err(Error::invalid(format!(
                "apply_averages: the optimizer {} keeps no moving averages; put it into a \
                 `MovingAverage`",
                self.optimizer.name()
            )));
        };
        if self.is_remote() {
            return Err(Error::invalid(
                "apply_averages: weights and averages are on parameter servers; take the slot \
                 `average` of a checkpoint",
            ));
        }
        if self.placement.captured().is_some() {
            let instead = "call it between steps";
            return Err(Error::not_compilable("`apply_averages`", instead));
        }
        let mut averages = self
            .placement
            .slots()
            .tensors
            .iter()
            .map(|slots| slots.get(place));
        self.model = parameters::map(self.model.clone(), |parameter: Parameter<'_>| {
            if let Some(tensor) = parameter.tensor.trained()
                && let Some(Some(average)) = averages.next()
            {
                tensor.set_flat(average.clone());
            }
            Ok(())
        })?;
        Ok(())
    }
}
