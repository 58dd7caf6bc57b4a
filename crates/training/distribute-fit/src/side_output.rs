//! What is written beside training, and never costs it.

use distribute_core::Result;

/// A file or directory that a callback writes into. Once it cannot be written a warning says so,
/// with the path and the cause, and training goes on without it.
#[derive(Debug)]
pub(crate) struct SideOutput<T> {
    output: Option<T>,
}

impl<T> SideOutput<T> {
    pub(crate) fn new(output: T) -> Self {
        let output = Some(output);
        Self { output }
    }

    /// There is none, or none any more.
    pub(crate) fn none() -> Self {
        Self { output: None }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.output.is_some()
    }

    /// Writes, if it can still be written. Gives the output back that has failed, to be tidied up.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut T) -> Result<()>) -> Option<T> {
        let output = self.output.as_mut()?;
        match write(output) {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "training goes on without this file");
                self.output.take()
            }
        }
    }
}

/// What there is at the start of a run. One that begins is refused if it cannot be opened, since
/// nothing is lost by that; one that goes on (`resumed`) is not.
pub(crate) fn opened<T>(opened: Result<T>, resumed: bool) -> Result<SideOutput<T>> {
    match opened {
        Ok(output) => Ok(SideOutput::new(output)),
        Err(error) if resumed => {
            tracing::warn!(%error, "training goes on without this file");
            Ok(SideOutput::none())
        }
        Err(error) => Err(error),
    }
}
