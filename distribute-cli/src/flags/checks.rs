//! The flags about errors of memory and processors that nothing reports.

use clap::Args;

use super::{StrategyName, positive_u64};
use crate::failure::Failure;

/// What replicas compare with each other.
#[derive(Debug, Args)]
#[command(next_help_heading = "Silent data corruption")]
pub(crate) struct CheckArgs {
    /// Compare the weights of all replicas every N updates; a wrong one is named, and not saved
    #[arg(long, value_name = "N", value_parser = positive_u64, allow_negative_numbers = true)]
    pub(crate) check_replicas: Option<u64>,
    /// Every N updates another replica computes the gradients of one again and compares the bits
    #[arg(long, value_name = "N", value_parser = positive_u64, allow_negative_numbers = true)]
    pub(crate) recompute: Option<u64>,
}

impl CheckArgs {
    /// The first flag that is given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("--check-replicas", self.check_replicas.is_some()),
            ("--recompute", self.recompute.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|it| it.0)
    }

    /// Refuses checks of replicas that a strategy does not have.
    pub(crate) fn refuse_for(&self, strategy: StrategyName) -> Result<(), Failure> {
        let why = match strategy {
            StrategyName::ParameterServer => "whose workers have one replica each, at other steps",
            StrategyName::Tpu => "whose steps are compiled",
            StrategyName::CentralStorage if self.check_replicas.is_some() => {
                return Err(Failure::usage(
                    "--check-replicas is not for --strategy central-storage, which has one copy of \
                     the weights; leave it out",
                ));
            }
            _ => return Ok(()),
        };
        let name = super::named(strategy).unwrap_or_default();
        match self.given() {
            Some(flag) => Err(Failure::usage(format!(
                "{flag} is not for --strategy {name}, {why}; leave it out"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses checks where there is one replica, and never another one: of a job with workers one
    /// may be left for a while.
    pub(crate) fn refuse_alone(
        &self,
        strategy: StrategyName,
        replicas: usize,
    ) -> Result<(), Failure> {
        let is_alone = replicas == 1 && strategy != StrategyName::MultiWorker;
        match self.given().filter(|_| is_alone) {
            Some(flag) => Err(Failure::usage(format!(
                "{flag} compares replicas, and there is one; add --replicas or workers, or leave \
                 it out"
            ))),
            None => Ok(()),
        }
    }
}
