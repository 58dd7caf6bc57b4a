//! The flags about parameter servers.

use clap::{Args, ValueEnum};

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Parameter servers (--strategy parameter-server)")]
pub(crate) struct ParameterServerArgs {
    /// Maximum number of updates between a worker's pull and its push [default: no limit]
    #[arg(long, value_name = "N")]
    pub(crate) max_staleness: Option<u64>,
    /// Behaviour at that limit [default: wait]
    #[arg(long, value_name = "NAME", requires = "max_staleness")]
    pub(crate) stale_gradients: Option<StaleGradients>,
    /// Update with the mean of N gradients of the same version, and drop later ones
    #[arg(long, value_name = "N", conflicts_with = "max_staleness",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) synchronous: Option<u32>,
    /// Treatment of gradients with NaN or infinity [default: refuse]
    #[arg(long, value_name = "NAME")]
    pub(crate) non_finite: Option<NonFiniteGradients>,
    /// Divide variables into shards of at most N bytes [default: whole variables]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) shard_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StaleGradients {
    /// Faster workers wait for slower ones
    Wait,
    /// Gradients that are too old are dropped
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NonFiniteGradients {
    /// Training ends with an error
    Refuse,
    /// They are applied
    Apply,
}

impl ParameterServerArgs {
    /// Refuses flags that have no effect with another strategy.
    pub(crate) fn refuse_without_servers(&self) -> Result<(), Failure> {
        let given = [
            ("--max-staleness", self.max_staleness.is_some()),
            ("--stale-gradients", self.stale_gradients.is_some()),
            ("--synchronous", self.synchronous.is_some()),
            ("--non-finite", self.non_finite.is_some()),
            ("--shard-bytes", self.shard_bytes.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is for --strategy parameter-server"
            ))),
            None => Ok(()),
        }
    }
}
