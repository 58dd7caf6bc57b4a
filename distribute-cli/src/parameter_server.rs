//! What the flags about parameter servers make of a program's options.

use std::sync::Arc;

use distribute_ps::partitioners::MaxSizePartitioner;
use distribute_ps::{CoordinatorOptions, NonFinite, RunOptions, Staleness, StalenessPolicy};

use crate::failure::Failure;
use crate::flags::{NonFiniteGradients, ParameterServerArgs, StaleGradients};

impl ParameterServerArgs {
    fn run(&self) -> RunOptions {
        let mut run = RunOptions::default();
        run.staleness = self.max_staleness.map(|bound| Staleness {
            bound,
            policy: match self.stale_gradients {
                Some(StaleGradients::Refuse) => StalenessPolicy::Refuse,
                _ => StalenessPolicy::Wait,
            },
        });
        run.synchronous = self.synchronous.map(|count| count as usize);
        run.non_finite = match self.non_finite {
            Some(NonFiniteGradients::Apply) => NonFinite::Apply,
            _ => NonFinite::Refuse,
        };
        run
    }

    /// Of the chief.
    pub(crate) fn coordinator_options(&self) -> Result<CoordinatorOptions, Failure> {
        let mut options = CoordinatorOptions::default();
        options.run = self.run();
        if let Some(bytes) = self.shard_bytes {
            let bytes = usize::try_from(bytes)
                .map_err(|_| Failure::usage("--shard-bytes is beyond what memory holds"))?;
            let partitioner = MaxSizePartitioner::new(bytes, None)?;
            options.partitioner = Some(Arc::new(partitioner));
        }
        Ok(options)
    }
}
