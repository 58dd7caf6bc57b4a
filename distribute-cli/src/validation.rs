//! The callbacks of the flags about validation, which watch a value.

use distribute_fit::callbacks::{EarlyStopping, ReduceLrOnPlateau};

use crate::failure::Failure;
use crate::flags::ValidationArgs;

/// The value that is watched by default.
const MONITOR: &str = "val_loss";

impl ValidationArgs {
    /// Refuses flags that have no effect.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.early_stopping.is_some() || self.reduce_lr_on_plateau.is_some() {
            return Ok(());
        }
        let given = [
            ("--monitor", self.monitor.is_some()),
            ("--min-delta", self.min_delta.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} says what --early-stopping and --reduce-lr-on-plateau look at; add one of \
                 them"
            ))),
            None => Ok(()),
        }
    }

    fn monitor(&self) -> &str {
        self.monitor.as_ref().map_or(MONITOR, |monitor| &monitor.0)
    }

    pub(crate) fn stopping(&self) -> Option<EarlyStopping> {
        let stopping = EarlyStopping::new(self.monitor())
            .patience(self.early_stopping?)
            .min_delta(self.min_delta.unwrap_or(0.0))
            .restore_best(self.restore_best);
        let start = self.start_from_epoch.unwrap_or(0);
        Some(stopping.start_from_epoch(usize::try_from(start).unwrap_or(usize::MAX)))
    }

    pub(crate) fn plateau(&self) -> Option<ReduceLrOnPlateau> {
        let flag = self.reduce_lr_on_plateau?;
        let plateau = ReduceLrOnPlateau::new(self.monitor())
            .factor(flag.factor)
            .patience(flag.patience);
        Some(match self.min_delta {
            Some(min_delta) => plateau.min_delta(min_delta),
            None => plateau,
        })
    }
}
