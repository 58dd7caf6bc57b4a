//! `unsafe` stays in a few named files, and every crate's root refuses it elsewhere. That every use
//! says why it is sound, clippy finds.

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
        "distribute-collectives/src/in_process/peer_buffers.rs",
        "the ranks of one process reduce each other's buffers where they lie, without a copy",
    ),
    (
        "distribute-collectives/src/in_process/raw_buffer.rs",
        "the address and the length of such a buffer",
    ),
    (
        "distribute-collectives/src/shared_memory/model_segment.rs",
        "the models' stand-in for the segment has its functions",
    ),
    (
        "distribute-collectives/src/grpc/lent_bytes.rs",
        "HTTP/2 owns what it sends, and a caller lends its bytes for one call only",
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
        "memory and a stream of another library, as a framework has them",
    ),
    (
        "distribute-collectives/tests/nccl_device.rs",
        "memory of a GPU under types that the CPU does not have, and the driver's own count of it",
    ),
    (
        "crates/training/distribute-cuda/src/gpus/libraries.rs",
        "asks burn's bindings whether the system's loader finds the C libraries",
    ),
    (
        "crates/training/distribute-cuda/src/gpus/memory.rs",
        "NCCL is told where tensors of burn's CUDA backend have their elements",
    ),
    (
        "distribute-core/tests/device_reduce/memory.rs",
        "memory of the fake driver, handed to NCCL by its address as a GPU's is",
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
        "crates/tools/hostile/src/bin/network-switch/tap.rs",
        "makes a TAP device, for which the kernel has only an ioctl",
    ),
    (
        "crates/tools/distribute-launch/src/process/parent_death.rs",
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
        "distribute-core/tests/memory/counting.rs",
        "an allocator counts what steps take, and shows that gradients are not copied",
    ),
];

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

/// What the roots of libraries and programs deny or forbid. Clippy then finds where it is done;
/// tests, examples and benches may print and panic.
const ROOT_LINTS: [&str; 4] = [
    "unsafe_code",
    "clippy::expect_used",
    "clippy::panic",
    "clippy::unwrap_used",
];
const LIBRARY_LINTS: [&str; 2] = ["clippy::print_stderr", "clippy::print_stdout"];

/// Finds crates that let `unsafe`, a panic or, in a library, output to the terminal slip in.
pub fn root_lints(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for member in &tree.members {
        let library = files::library_root(member);
        for root in files::program_roots(tree, member) {
            let Some(file) = tree.rust.get(&root) else {
                continue;
            };
            let denied: String = file.syntax.attrs.iter().filter_map(denied).collect();
            let mut lints = ROOT_LINTS.to_vec();
            if root == library {
                lints.extend(LIBRARY_LINTS);
            }
            lints.retain(|lint| !denied.split(',').any(|denied| denied == *lint));
            if !lints.is_empty() {
                let message = format!("add `#![deny({})]`", lints.join(", "));
                problems.push(Problem::new("root-lints", &root, 1, message));
            }
        }
    }
    problems
}

/// The lints that an attribute denies or forbids, with a comma behind each.
fn denied(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::List(list) = &attribute.meta else {
        return None;
    };
    let refuses = list.path.is_ident("forbid") || list.path.is_ident("deny");
    let lints: String = list.tokens.to_string().split_whitespace().collect();
    refuses.then(|| lints + ",")
}

fn is_unsafe(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Ident(name) if name == "unsafe")
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

#[cfg(test)]
mod tests {
    use super::{outside_modules, root_lints, unsafe_module};
    use crate::tidy::testing::{fails, passes};
    use crate::tree::samples;

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

    const PANICS: &str = "clippy::expect_used, clippy::panic, clippy::unwrap_used";
    const PRINTS: &str = "clippy::print_stderr, clippy::print_stdout";

    #[test]
    fn a_crate_refuses_unsafe_panics_and_output() {
        let sound = format!("#![forbid(unsafe_code)]\n#![deny({PANICS}, {PRINTS})]");
        passes(root_lints, &[("sample/src/lib.rs", &sound)]);
        for without in [
            "forbid(unsafe_code)",
            "clippy::panic,",
            "clippy::print_stdout",
        ] {
            let text = sound.replace(without, "allow(dead_code)");
            fails(
                root_lints,
                &[("sample/src/lib.rs", &text)],
                "sample/src/lib.rs:1",
            );
        }
    }

    #[test]
    fn a_program_may_print() {
        let program = format!("#![deny(unsafe_code, {PANICS})]\nfn main() {{}}");
        for root in ["sample/src/main.rs", "sample/src/bin/b.rs"] {
            passes(root_lints, &[(root, &program)]);
            fails(root_lints, &[(root, "fn main() {}")], &format!("{root}:1"));
        }
    }
}
