//! Libraries do not write to the terminal: they return values, and the caller decides.

use super::Problem;
use crate::tree::Tree;
use crate::{files, tokens};

const MACROS: [&str; 4] = ["print", "println", "eprint", "eprintln"];
/// Crates whose job is to write to the terminal.
const PRINTING_CRATES: [&str; 3] = ["distribute-cli", "examples", "xtask"];

/// Finds output to the terminal in the libraries, outside their tests, benches and examples.
pub fn print(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_library = |name: &str| !PRINTING_CRATES.contains(&name);
    for member in tree
        .members
        .iter()
        .filter(|member| is_library(&member.name))
    {
        for path in files::library_files(tree, member) {
            let Some(file) = tree.rust.get(&path) else {
                continue;
            };
            tokens::visit_outside_tests(&file.tokens, &mut |rest| {
                if let Some(name) = tokens::macro_call(rest, &MACROS) {
                    let message = format!("`{name}!` in a library: return the text, or log it");
                    problems.push(Problem::new("print", &path, tokens::line(rest), message));
                }
            });
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::print;
    use crate::tidy::testing::{fails, passes};

    const PRINTS: &str = "fn f() {\n    println!(\"x\");\n}";

    #[test]
    fn output_in_a_library_fails() {
        fails(
            print,
            &[("sample/src/lib.rs", PRINTS)],
            "sample/src/lib.rs:2",
        );
        let files = [("sample/src/lib.rs", "mod a;"), ("sample/src/a.rs", PRINTS)];
        fails(print, &files, "sample/src/a.rs:2");
    }

    #[test]
    fn output_in_tests_and_programs_passes() {
        let test_module = format!("#[cfg(test)]\nmod tests {{ {PRINTS} }}");
        passes(print, &[("sample/src/lib.rs", &test_module)]);
        let files = [
            ("sample/src/lib.rs", "#[cfg(test)]\nmod a;"),
            ("sample/src/a.rs", PRINTS),
        ];
        passes(print, &files);
        passes(print, &[("sample/src/main.rs", PRINTS)]);
        passes(print, &[("sample/tests/a.rs", PRINTS)]);
        let manifest = ("sample/Cargo.toml", "[package]\nname = \"distribute-cli\"");
        passes(print, &[manifest, ("sample/src/lib.rs", PRINTS)]);
    }

    #[test]
    fn documented_examples_pass() {
        let text = "/// ```\n/// println!(\"x\");\n/// ```\nfn f() {}";
        passes(print, &[("sample/src/lib.rs", text)]);
    }
}
