//! Averages of the weights in their place, when training ends.

use distribute_core::{Error, Result};

use crate::snapshot::averaged;
use crate::{Callback, Control, Outcome};

/// Puts the moving averages of the weights in their place when training ends, unless it was
/// interrupted and goes on later (Keras: `fit` with an optimizer that has `use_ema`).
///
/// For an optimizer in a [`MovingAverage`](distribute_core::optim::MovingAverage). Validation
/// between epochs is of the weights themselves, and checkpoints hold both
/// ([`averaged_weights`](crate::averaged_weights) reads the averages of one). Beside
/// [`EarlyStopping`](super::EarlyStopping) with `restore_best` the callback that is added last
/// decides.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApplyAverages;

impl Callback for ApplyAverages {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        match run.state.has_averages() {
            true => Ok(()),
            false => Err(Error::invalid(
                "ApplyAverages: the optimizer keeps no moving averages; put it into a \
                 `MovingAverage`, or leave the callback out",
            )),
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
