//! Functions fit on a screen: at most 70 lines from the opening to the closing brace.

use proc_macro2::{Group, TokenTree};

use super::Problem;
use crate::tokens;
use crate::tree::Tree;

const LINES_MAX: usize = 70;

/// Finds functions that are too long; tests and functions inside macros count too.
pub fn function_length(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, file) in tree.rust.iter().filter(|(_, file)| !file.is_generated()) {
        tokens::visit(&file.tokens, &mut |tokens| {
            let Some((name, body)) = function(tokens) else {
                return;
            };
            let first = body.span_open().start().line;
            let lines = body.span_close().end().line - first + 1;
            if lines > LINES_MAX {
                let message = format!("`{name}` has {lines} lines, the limit is {LINES_MAX}");
                problems.push(Problem::new("function-length", path, first, message));
            }
        });
    }
    problems
}

/// The name and the body of the function that these tokens begin with. Read from tokens, since
/// functions inside a macro (`proptest!`) are in no syntax tree.
fn function(tokens: &[TokenTree]) -> Option<(String, &Group)> {
    let [
        TokenTree::Ident(keyword),
        TokenTree::Ident(name),
        signature @ ..,
    ] = tokens
    else {
        return None;
    };
    if keyword != "fn" {
        return None;
    }
    let mut previous = None;
    for token in signature {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ';' => return None,
            // Braces after `<` or `=` are the value of a const generic parameter.
            TokenTree::Group(group) if tokens::is_brace(token) && !opens_value(previous) => {
                return Some((name.to_string(), group));
            }
            _ => previous = Some(token),
        }
    }
    None
}

fn opens_value(previous: Option<&TokenTree>) -> bool {
    let opens = |token: &TokenTree| ['<', '='].iter().any(|mark| tokens::is_punct(token, *mark));
    previous.is_some_and(opens)
}

#[cfg(test)]
mod tests {
    use super::function_length;
    use crate::tidy::testing::{fails, passes};

    /// A function of so many lines, braces included, below `head`.
    fn function(head: &str, lines: usize) -> String {
        format!("{head} {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn seventy_lines_pass() {
        passes(function_length, &[("a.rs", &function("fn f()", 70))]);
        passes(
            function_length,
            &[("a.rs", &function("fn f()", 70).repeat(2))],
        );
    }

    #[test]
    fn seventy_one_lines_fail() {
        fails(
            function_length,
            &[("a.rs", &function("\nfn f()", 71))],
            "a.rs:2",
        );
        let text = function("trait T { type A; fn no_body(); fn f() -> A<{ 3 }>", 71) + "}";
        fails(function_length, &[("a.rs", &text)], "a.rs:1");
    }

    #[test]
    fn functions_inside_a_macro_count() {
        let text = |lines| format!("proptest! {{\n{}}}", function("fn f(a in 0..3)", lines));
        passes(function_length, &[("a.rs", &text(70))]);
        fails(function_length, &[("a.rs", &text(71))], "a.rs:2");
    }

    #[test]
    fn generated_code_passes() {
        let text = format!("// @generated\n{}", function("fn f()", 71));
        passes(function_length, &[("a.rs", &text)]);
    }
}
