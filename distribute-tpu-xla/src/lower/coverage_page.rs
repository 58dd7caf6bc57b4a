//! The coverage table as a page of the documentation.

use std::fmt::Write;

use super::table::coverage;

/// The page `docs/tpu-coverage.md`, made from the table that dispatches.
pub fn coverage_markdown() -> String {
    let table = coverage();
    let covered = table.iter().filter(|c| c.covered).count();
    let mut page = format!(
        "# Operations that run on XLA\n\n\
         A step under `TpuStrategy` is captured once and lowered to StableHLO. It may use these\n\
         operations of burn; one that is not covered is an error that names it and where in the\n\
         model it came from. This page is generated from the table that dispatches.\n\n\
         {covered} of {} operations are covered. `Base` and `Numeric` operations are covered for\n\
         floats and integers alike, `Base` ones for booleans too.\n",
        table.len(),
    );
    let mut family = "";
    for row in &table {
        if row.family != family {
            family = row.family;
            // Writing to a string cannot fail.
            let _ = write!(
                page,
                "\n## {family}\n\n| operation | covered |\n|---|---|\n"
            );
        }
        let covered = if row.covered { "yes" } else { "no" };
        let _ = writeln!(page, "| `{}` | {covered} |", row.operation);
    }
    page
}
