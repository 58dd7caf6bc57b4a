//! How much memory a process has.

use std::fmt::Display;

/// The memory of a process now, in bytes; `process` is its number, or `self`.
///
/// # Panics
/// If there is no such process.
pub fn resident_bytes(process: impl Display) -> usize {
    of(process, "VmRSS:")
}

/// The most memory that a process has had so far, in bytes; `process` is its number, or `self`.
///
/// # Panics
/// If there is no such process.
pub fn peak_bytes(process: impl Display) -> usize {
    of(process, "VmHWM:")
}

/// From now on the [peak](peak_bytes) counts anew.
///
/// # Panics
/// If there is no such process, or it is not this user's.
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn forget_peak(process: impl Display) {
    let file = format!("/proc/{process}/clear_refs");
    std::fs::write(&file, "5").unwrap_or_else(|error| panic!("{file}: {error}"));
}

#[expect(clippy::panic, reason = "a test fails by a panic")]
fn of(process: impl Display, name: &str) -> usize {
    let file = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = number.and_then(|text| text.parse::<usize>().ok());
    kib.unwrap_or_else(|| panic!("{file} does not say {name}")) * 1024
}
