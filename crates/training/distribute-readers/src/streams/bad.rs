//! Elements that cannot be read, skipped up to a number.

use distribute_pipeline::PipelineError;

/// How many messages are kept.
const KEPT: usize = 5;

/// The bad elements that a stream has skipped in this pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// What was wrong with the first five.
    pub messages: Vec<String>,
}

/// How many bad elements a stream may skip, and which it has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bad {
    pub(crate) limit: u64,
    pub(crate) skipped: Skipped,
}

impl Bad {
    /// Counts one, or gives the error back if there are too many.
    pub(crate) fn skip(&mut self, error: PipelineError) -> Result<(), PipelineError> {
        if self.skipped.count >= self.limit {
            return Err(error);
        }
        self.skipped.count += 1;
        if self.skipped.messages.len() < KEPT {
            self.skipped.messages.push(error.to_string());
        }
        Ok(())
    }

    /// Begins a pass, with the number of elements that were skipped before.
    pub(crate) fn start(&mut self, count: u64) {
        self.skipped = Skipped {
            count,
            messages: Vec::new(),
        };
    }
}
