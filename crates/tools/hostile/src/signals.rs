//! Signals as the programs of a terminal have them.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;

/// Every Rust program ignores it, and its children get the default again.
const PIPE: i32 = Signal::PIPE.as_raw();
/// Standard signals: of the others, some belong to the C library.
const STANDARD: std::ops::RangeInclusive<i32> = 1..=31;

/// What this process starts from now on gets all signals as in a terminal. Tests that a script
/// starts in the background ignore SIGINT and SIGQUIT, those under nohup SIGHUP, and so does
/// whatever they start.
///
/// A signal that is ignored stays ignored in what a process starts; one that is caught does not. So
/// this process catches what it ignores, and does nothing then.
///
/// # Errors
/// If the system does not tell what is ignored, or refuses.
pub fn as_in_a_terminal() -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| io::Error::other("no mask of ignored signals"))?;
    let is_ignored = |signal: &i32| mask >> (signal - 1) & 1 == 1;
    for signal in STANDARD.filter(|signal| *signal != PIPE).filter(is_ignored) {
        let unused = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, unused)?;
    }
    Ok(())
}
