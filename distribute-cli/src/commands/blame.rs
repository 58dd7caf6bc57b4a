//! `blame`: the rank for which a hung group waited, from the flight records of its ranks.

use crate::events::line;
use crate::failure::Failure;
use crate::flags::BlameArgs;

/// Prints the findings from the records of a directory.
pub(super) fn run(args: &BlameArgs) -> Result<(), Failure> {
    let blame = distribute_blame::blame(&args.directory)?;
    line(blame.to_string().trim_end())
}
