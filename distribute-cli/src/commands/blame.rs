//! `blame`: which rank a hung group waited for, from the flight records that its ranks wrote.

use crate::events::line;
use crate::failure::Failure;
use crate::flags::BlameArgs;

/// Prints what the records of a directory say.
pub(super) fn run(args: &BlameArgs) -> Result<(), Failure> {
    let blame = distribute_blame::blame(&args.directory)?;
    line(blame.to_string().trim_end())
}
