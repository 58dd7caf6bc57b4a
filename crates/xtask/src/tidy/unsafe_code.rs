//! `unsafe` stays in a few named files, and every use of it says why it is sound.

use proc_macro2::TokenTree;

use super::Problem;
use crate::tree::{RustFile, Tree};
use crate::{files, tokens};

/// Where `unsafe` may stand (a file, or a directory with a slash at the end), and why there.
const UNSAFE_MODULES: &[(&str, &str)] = &[
    (
        "distribute-cli/src/allocator.rs",
        "glibc's allocator is told to keep freed pages",
    ),
    (
        "distribute-collectives/src/in_process/shared_memory.rs",
        "the ranks of one process reduce each other's buffers where they lie, without a copy",
    ),
    (
        "distribute-collectives/src/grpc/raw.rs",
        "reads into memory that was never written, and asks the kernel what is unacknowledged",
    ),
    (
        "distribute-collectives/src/mpi/raw.rs",
        "MPI is a C library",
    ),
    (
        "distribute-collectives/src/nccl/raw/",
        "the CUDA driver and NCCL are C libraries, and device memory is known by its address",
    ),
    (
        "distribute-collectives/fake-nccl/",
        "the tests' stand-in for these two libraries has their C functions",
    ),
    (
        "distribute-collectives/tests/nccl/foreign.rs",
        "memory and a stream of somebody else, as a framework has them",
    ),
    (
        "distribute-collectives/tests/nccl_device.rs",
        "memory of a GPU under types that the host does not have, and the driver's own count of it",
    ),
    (
        "distribute-core/src/cuda/memory.rs",
        "NCCL is told where tensors of burn's CUDA backend have their elements",
    ),
    (
        "distribute-core/tests/device_reduce/memory.rs",
        "memory of the fake driver, handed to NCCL by its address as a GPU's is",
    ),
    (
        "distribute-collectives/src/shared_memory/in_place.rs",
        "the ranks of one host reduce buffers in the segment where they lie",
    ),
    (
        "distribute-collectives/src/shared_memory/inline.rs",
        "small inputs are reduced where the other ranks have put them",
    ),
    (
        "distribute-collectives/src/shared_memory/mailbox.rs",
        "segments are written and read in the mailbox's slots, without a copy",
    ),
    (
        "distribute-collectives/src/shared_memory/segment.rs",
        "maps memory that several processes share",
    ),
    (
        "distribute-collectives/src/shared_memory/windows.rs",
        "windows are reduced where the other ranks have put them",
    ),
    (
        "distribute-collectives/tests/allocations.rs",
        "a counting allocator shows that the all-reduce does not allocate after the first call",
    ),
    (
        "crates/distribute-launch/src/parent_death.rs",
        "a process asks the kernel, between fork and exec, to die with the launcher",
    ),
    (
        "distribute-ps/src/server/wide.rs",
        "optimizers are compiled a second time for processors with wide vectors",
    ),
    (
        "distribute-tpu-xla/src/pjrt/raw/",
        "PJRT plugins are shared libraries with a C API",
    ),
    (
        "distribute-core/tests/zero_copy.rs",
        "a counting allocator shows that gradients are not copied on their way",
    ),
];

/// Finds blocks and implementations with `unsafe` whose reason is not written right above.
pub fn safety_comment(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, file) in tree.rust.iter().filter(|(_, file)| !file.is_generated()) {
        let lines: Vec<&str> = file.text.lines().collect();
        let mut find = |rest: &[TokenTree]| {
            let line = tokens::line(rest);
            if is_promise(rest) && !has_reason(&lines, line) {
                let message = "write `// SAFETY: ` above it and why this is sound";
                problems.push(Problem::new("safety-comment", path, line, message));
            }
        };
        tokens::visit(&file.tokens, &mut find);
    }
    problems
}

/// Finds `unsafe` in files that [`UNSAFE_MODULES`] does not name, and rows that name no `unsafe`.
pub fn unsafe_module(tree: &Tree) -> Vec<Problem> {
    outside_modules(tree, UNSAFE_MODULES)
}

fn outside_modules(tree: &Tree, modules: &[(&str, &str)]) -> Vec<Problem> {
    let covers = |row: &str, path: &str| path == row || row.ends_with('/') && path.starts_with(row);
    let places: Vec<(&String, usize)> = tree
        .rust
        .iter()
        .filter_map(|(path, file)| Some((path, first_unsafe(file)?)))
        .collect();
    let mut problems = Vec::new();
    for (path, line) in &places {
        if !modules.iter().any(|(row, _)| covers(row, path)) {
            let message = "name this file and the reason in UNSAFE_MODULES, or do without unsafe";
            problems.push(Problem::new("unsafe-module", path, *line, message));
        }
    }
    // Rows of other workspaces' crates are not judged: the tests check small samples.
    for (row, _) in modules
        .iter()
        .filter(|(row, _)| tree.member_of(row).is_some())
    {
        if !places.iter().any(|(path, _)| covers(row, path)) {
            let message = "has no unsafe any more: remove its row from UNSAFE_MODULES";
            problems.push(Problem::new("unsafe-module", row, 1, message));
        }
    }
    problems
}

/// Finds crates that let `unsafe` slip in anywhere.
pub fn unsafe_lint(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for member in &tree.members {
        for root in [files::library_root(member), member.path("src/main.rs")] {
            let Some(file) = tree.rust.get(&root) else {
                continue;
            };
            if !file.syntax.attrs.iter().any(refuses_unsafe) {
                let message = "add `#![forbid(unsafe_code)]`, or `deny` where a module allows it";
                problems.push(Problem::new("unsafe-lint", &root, 1, message));
            }
        }
    }
    problems
}

fn refuses_unsafe(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let is_unsafe = |token| matches!(token, TokenTree::Ident(name) if name == "unsafe_code");
    (list.path.is_ident("forbid") || list.path.is_ident("deny"))
        && list.tokens.clone().into_iter().any(is_unsafe)
}

fn is_unsafe(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Ident(name) if name == "unsafe")
}

/// Whether these tokens begin with an `unsafe` by which the author promises something: a block or
/// an `impl`. An `unsafe fn` demands a promise from its caller instead.
fn is_promise(rest: &[TokenTree]) -> bool {
    match rest {
        [keyword, TokenTree::Ident(next), ..] => is_unsafe(keyword) && next == "impl",
        [keyword, next, ..] => is_unsafe(keyword) && tokens::is_brace(next),
        _ => false,
    }
}

fn first_unsafe(file: &RustFile) -> Option<usize> {
    let mut first = None;
    tokens::visit(&file.tokens, &mut |rest| {
        if first.is_none() && rest.first().is_some_and(is_unsafe) {
            first = Some(tokens::line(rest));
        }
    });
    first
}

/// Whether a comment with `SAFETY` stands above the statement that line `line` (from 1) is part
/// of, with only attributes and the statement's own lines between.
fn has_reason(lines: &[&str], line: usize) -> bool {
    if comment(lines[line - 1]).contains("SAFETY:") {
        return true;
    }
    let mut above = lines[..line - 1]
        .iter()
        .map(|line| line.trim())
        .rev()
        .peekable();
    let ends_statement = |line: &str| line.is_empty() || line.ends_with([';', '{', '}']);
    while above
        .next_if(|line| !line.starts_with("//") && !ends_statement(line))
        .is_some()
    {}
    above
        .take_while(|line| line.starts_with("//"))
        .any(|line| line.contains("SAFETY:"))
}

/// The comment at the end of a line.
fn comment(line: &str) -> &str {
    line.split_once("//").map_or("", |(_, comment)| comment)
}

#[cfg(test)]
mod tests {
    use super::{outside_modules, safety_comment, unsafe_lint, unsafe_module};
    use crate::tidy::testing::{fails, found, passes};
    use crate::tree::samples;

    #[test]
    fn unsafe_without_a_reason_fails() {
        for text in [
            "fn f() {\n    unsafe { g() }\n}",
            "fn f() {\n    let x = unsafe { g() };\n}",
            "// SAFETY: another statement.\nlet_it!();\nunsafe impl Send for A {}",
            "// A comment that gives no reason.\n\nunsafe impl Send for A {}",
            "// SAFETY: too far away.\n\nunsafe impl Send for A {}",
            "call! { // not the reason\n  { unsafe { g() } } }",
        ] {
            let line = text
                .lines()
                .position(|line| line.contains("unsafe"))
                .expect("there")
                + 1;
            fails(safety_comment, &[("a.rs", text)], &format!("a.rs:{line}"));
        }
    }

    #[test]
    fn unsafe_with_a_reason_passes() {
        for text in [
            "fn f() {\n    // SAFETY: `g` is fine\n    // here.\n    unsafe { g() }\n}",
            "fn f() {\n    // SAFETY: `g` is fine.\n    let x =\n        unsafe { g() };\n}",
            "// SAFETY: no pointer inside.\n#[cfg(unix)]\nunsafe impl Send for A {}",
            "fn f() { unsafe { g() } } // SAFETY: `g` is fine.",
            "/// # Safety\n/// `x` points somewhere.\nunsafe fn f(x: *const u8) {}",
            "fn f() { s(\"unsafe { g() }\") }",
        ] {
            passes(safety_comment, &[("a.rs", text)]);
        }
    }

    #[test]
    fn unsafe_stays_in_the_named_files() {
        let files = [("sample/src/a/b.rs", "\nunsafe fn f() {}")];
        let tree = samples::tree(&files);
        fails(unsafe_module, &files, "sample/src/a/b.rs:2");
        assert_eq!(outside_modules(&tree, &[("sample/src/a/b.rs", "")]), []);
        assert_eq!(outside_modules(&tree, &[("sample/src/a/", "")]), []);
        assert_eq!(outside_modules(&tree, &[("sample/src/a", "")]).len(), 2);
    }

    #[test]
    fn a_row_without_unsafe_is_a_problem() {
        let problems = outside_modules(&samples::tree(&[]), &[("sample/src/gone.rs", "")]);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].path, "sample/src/gone.rs");
    }

    #[test]
    fn a_crate_refuses_unsafe() {
        passes(
            unsafe_lint,
            &[("sample/src/lib.rs", "#![deny(missing_docs, unsafe_code)]")],
        );
        for text in ["", "#![forbid(missing_docs)]", "#![allow(unsafe_code)]"] {
            fails(
                unsafe_lint,
                &[("sample/src/lib.rs", text)],
                "sample/src/lib.rs:1",
            );
        }
        let both = [
            ("sample/src/lib.rs", ""),
            ("sample/src/main.rs", "fn main() {}"),
        ];
        assert_eq!(found(unsafe_lint, &both).len(), 2);
    }
}
