//! The strategies under which a checkpoint is read.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command, Error, ValueEnum};

use super::StrategyName;

/// Offers the strategies that work in one process. A strategy of `train` only is accepted, too: the
/// command then says which one to use instead.
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
            // The error with the offered names.
            let offered = PossibleValuesParser::new(offered());
            offered.parse_ref(command, argument, value)?;
            Err(error)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(offered()))
    }
}
