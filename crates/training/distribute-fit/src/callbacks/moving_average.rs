//! Replaces the weights by their moving averages when training ends.

use distribute_core::{Error, Result};

use crate::snapshot::averaged;
use crate::{Callback, Control, Outcome};

/// Replaces the weights by their moving averages when training ends, unless it was interrupted and
/// is to be resumed (Keras: `fit` with an optimizer that has `use_ema`).
///
/// The optimizer must be in a [`MovingAverage`](distribute_core::optim::MovingAverage). Validation
/// between epochs uses the weights themselves. Checkpoints hold weights and averages;
/// [`averaged_weights`](crate::averaged_weights) reads the averages. If there is also an
/// [`EarlyStopping`](super::EarlyStopping) with `restore_best`, the callback that was added last
/// decides which weights stay.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApplyAverages;

impl Callback for ApplyAverages {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        if run.state.has_averages() {
            Ok(())
        } else {
            Err(Error::invalid(
                "ApplyAverages: the optimizer keeps no moving averages; put it into a \
                 `MovingAverage`, or leave the callback out",
            ))
        }
    }

    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        if *outcome == Outcome::Interrupted {
            return Ok(());
        }
        let parameters = averaged(&run.tensors()?)?;
        run.set_parameters(&parameters)
    }
}
