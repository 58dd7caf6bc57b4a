//! The strategies under which a checkpoint is read.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command, Error, ValueEnum};

use super::StrategyName;

/// Offers the strategies that one process can read with. One that only `train` has is accepted
/// here too: what reads says then which to take in its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct StrategyOfReaders;

fn offered() -> impl Iterator<Item = PossibleValue> {
    let of_one_process = [
        StrategyName::Default,
        StrategyName::OneDevice,
        StrategyName::Mirrored,
        StrategyName::CentralStorage,
    ];
    of_one_process
        .into_iter()
        .filter_map(|name| name.to_possible_value())
}

impl TypedValueParser for StrategyOfReaders {
    type Value = StrategyName;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<StrategyName, Error> {
        let all = EnumValueParser::<StrategyName>::new();
        all.parse_ref(command, argument, value).or_else(|error| {
            // The error with the names that are offered.
            let offered = PossibleValuesParser::new(offered());
            offered.parse_ref(command, argument, value)?;
            Err(error)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(offered()))
    }
}
