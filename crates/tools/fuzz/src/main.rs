//! All fuzz targets in one program: `DISTRIBUTE_FUZZ_TARGET` names the one that runs.
//!
//! A target fails by a panic, or by taking more memory than inputs of that length may cost.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes that every input may cost: buffers of a fixed size, and tables for as many ranks as a
/// record may name.
const MEMORY_MAX: usize = 4 << 20;
/// Bytes that each byte of an input may cost: one byte of a compressed file stands for up to 1032.
const MEMORY_PER_BYTE_MAX: usize = 8 << 10;

type Target = (&'static str, fn(&[u8]));

/// The targets of all crates.
const TARGETS: [&[Target]; 11] = [
    &distribute_blame::fuzzing::TARGETS,
    &distribute_checkpoint::fuzzing::TARGETS,
    &distribute_collectives::fuzzing::TARGETS,
    &distribute_fit::fuzzing::TARGETS,
    &distribute_keras::fuzzing::TARGETS,
    &distribute_launch::fuzzing::TARGETS,
    &distribute_net::fuzzing::TARGETS,
    &distribute_peers::fuzzing::TARGETS,
    &distribute_ps::fuzzing::TARGETS,
    &distribute_readers::fuzzing::TARGETS,
    &distribute_records::fuzzing::TARGETS,
];

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("DISTRIBUTE_FUZZ_TARGET").unwrap_or_default();
    let mut targets = TARGETS.into_iter().flatten();
    let found = targets.find(|(name, _)| *name == wanted);
    let (_, target) = found.unwrap_or_else(|| panic!("no target is named `{wanted}`"));
    *target
});

fuzz_target!(|bytes: &[u8]| {
    let target = *TARGET;
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    target(bytes);
    let taken = MEMORY.peak_usage().saturating_sub(before);
    let allowed = MEMORY_MAX + MEMORY_PER_BYTE_MAX * bytes.len();
    assert!(
        taken <= allowed,
        "{taken} bytes of memory for {} of input",
        bytes.len()
    );
});
