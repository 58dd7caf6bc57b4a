//! `same-bits`: the step and the parameters in which two runs diverge.

use distribute_fit::{BitComparison, compare_bits};

use crate::events::line;
use crate::failure::Failure;
use crate::flags::SameBitsArgs;

/// The exit code for different runs.
const PARTED: u8 = 1;

/// Prints how the runs compare.
pub(super) fn run(args: &SameBitsArgs) -> Result<(), Failure> {
    let found = compare_bits(&args.first, &args.second).map_err(Failure::refused)?;
    match found {
        BitComparison::Equal {
            updates,
            last_step,
            parameters,
        } => line(&format!(
            "equal: {parameters} parameters after {updates} updates, the last one step {last_step}"
        )),
        BitComparison::Part {
            step,
            equal_until,
            parameters,
            of,
        } => {
            let before = match equal_until {
                Some(step) => format!("equal up to step {step}"),
                None => "nothing before it to compare".to_string(),
            };
            line(&format!(
                "the runs diverge at step {step} ({before}), in {} of {of} parameters:",
                parameters.len()
            ))?;
            line(&parameters.join("\n"))?;
            Err(Failure::already_printed(PARTED))
        }
        other => line(&format!("{other:?}")),
    }
}
