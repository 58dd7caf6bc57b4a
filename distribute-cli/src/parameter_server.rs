//! The flags about parameter servers, and what they make of a program's options.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use distribute_ps::partitioners::MaxSizePartitioner;
use distribute_ps::{
    ClientOptions, CoordinatorOptions, NonFinite, RunOptions, Staleness, StalenessPolicy,
    WorkerOptions,
};

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Parameter servers (--strategy parameter-server)")]
pub(crate) struct ParameterServerArgs {
    /// The most updates between a worker's weights and its gradient [default: no bound]
    #[arg(long, value_name = "N")]
    pub(crate) max_staleness: Option<u64>,
    /// What happens at that bound [default: wait]
    #[arg(long, value_name = "NAME", requires = "max_staleness")]
    pub(crate) stale_gradients: Option<StaleGradients>,
    /// Update with the mean of so many gradients of one version, and drop later ones
    #[arg(long, value_name = "N", conflicts_with = "max_staleness",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) synchronous: Option<u32>,
    /// What happens to a gradient with NaN or infinity [default: refuse]
    #[arg(long, value_name = "NAME")]
    pub(crate) non_finite: Option<NonFiniteGradients>,
    /// The type of values and gradients on the wire; servers keep f32 [default: f32]
    #[arg(long, value_name = "NAME")]
    pub(crate) wire: Option<WireType>,
    /// Cut variables into shards of at most so many bytes [default: whole variables]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) shard_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StaleGradients {
    /// Faster workers wait for slower ones
    Wait,
    /// Gradients that are too old are left out
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NonFiniteGradients {
    /// Training ends with an error
    Refuse,
    /// They are applied
    Apply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WireType {
    F32,
    Bf16,
}

impl ParameterServerArgs {
    /// Names a flag that means nothing to another strategy.
    pub(crate) fn refuse_without_servers(&self) -> Result<(), Failure> {
        let given = [
            ("--max-staleness", self.max_staleness.is_some()),
            ("--stale-gradients", self.stale_gradients.is_some()),
            ("--synchronous", self.synchronous.is_some()),
            ("--non-finite", self.non_finite.is_some()),
            ("--wire", self.wire.is_some()),
            ("--shard-bytes", self.shard_bytes.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is for --strategy parameter-server"
            ))),
            None => Ok(()),
        }
    }

    fn client(&self) -> ClientOptions {
        let mut client = ClientOptions::default();
        client.bf16 = self.wire == Some(WireType::Bf16);
        client
    }

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
        options.client = self.client();
        options.run = self.run();
        if let Some(bytes) = self.shard_bytes {
            let bytes = usize::try_from(bytes)
                .map_err(|_| Failure::usage("--shard-bytes is beyond what memory holds"))?;
            let partitioner = MaxSizePartitioner::new(bytes, None)?;
            options.partitioner = Some(Arc::new(partitioner));
        }
        Ok(options)
    }

    /// Of a worker.
    pub(crate) fn worker_options(&self) -> WorkerOptions {
        let mut options = WorkerOptions::default();
        options.client = self.client();
        options
    }
}
