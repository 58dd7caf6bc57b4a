//! What burn does not make for programs is named in one module, with tests for its texts.

use proc_macro2::TokenTree;

use super::Problem;
use crate::tokens;
use crate::tree::Tree;

const INTERNALS: [&str; 4] = ["burn_ir", "burn_capture", "burn_backend", "burn_router"];
/// The module, and a crate that core does not depend on, nor the other way round.
const ALLOWED: [&str; 2] = [
    "distribute-core/src/burn_internals/",
    "crates/training/distribute-kernels/",
];

/// Finds names of burn's internal crates elsewhere.
pub fn burn_internal(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let files = tree.rust.iter();
    for (path, file) in files.filter(|(path, _)| !ALLOWED.iter().any(|it| path.starts_with(it))) {
        tokens::visit(&file.tokens, &mut |rest| {
            if let [TokenTree::Ident(name), ..] = rest
                && INTERNALS.iter().any(|internal| name == internal)
            {
                let message = format!("take `{name}` from `distribute_core::burn_internals`");
                problems.push(Problem::new("burn", path, tokens::line(rest), message));
            }
        });
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{ALLOWED, burn_internal};
    use crate::tidy::testing::{fails, passes};

    #[test]
    fn burns_internals_are_named_in_one_module() {
        let text = "use burn_ir::OperationIr;";
        fails(burn_internal, &[("a/src/b.rs", text)], "a/src/b.rs:1");
        for folder in ALLOWED {
            passes(burn_internal, &[(&format!("{folder}mod.rs"), text)]);
        }
        passes(
            burn_internal,
            &[("a/src/b.rs", "use burn::tensor::Tensor;")],
        );
    }
}
