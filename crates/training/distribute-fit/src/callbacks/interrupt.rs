//! Ends training on request, for example on Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distribute_core::Result;

use crate::{Callback, Control, EpochRecord, Outcome};

/// Ends training with [`Outcome::Interrupted`] when its flag is set: the running step is finished,
/// [`ModelCheckpoint`](super::ModelCheckpoint) saves the state, and a resumed run continues exactly
/// there. The flag is read after every batch, also while validating.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use distribute_fit::callbacks::Interrupt;
///
/// let interrupt = Interrupt::default();
/// let flag = interrupt.flag();
/// // In the handler of Ctrl-C:
/// flag.store(true, Ordering::Relaxed);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
}

impl Interrupt {
    /// Watches a flag of the program's own.
    pub fn new(flag: Arc<AtomicBool>) -> Self {
        Self { flag }
    }

    /// The flag; set it from any thread or from a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    fn check(&self, run: &mut Control<'_>) -> Result<()> {
        if self.flag.load(Ordering::Relaxed) {
            run.stop(Outcome::Interrupted);
        }
        Ok(())
    }
}

impl Callback for Interrupt {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.check(run)
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.check(run)
    }

    fn on_validation_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.check(run)
    }

    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.check(run)
    }
}
