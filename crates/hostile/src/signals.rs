//! Signals as the programs of a terminal have them.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;

/// What this process starts from now on gets SIGHUP, SIGINT and SIGTERM as in a terminal. Whoever
/// starts tests in the background of a script, or with nohup, makes them ignore SIGINT or SIGHUP,
/// and with them all that they start.
///
/// A signal that is ignored stays ignored in what a process starts; one that is caught does not. So
/// this process catches what it ignores, and does nothing then.
///
/// # Errors
/// If the system does not tell what is ignored, or refuses.
pub fn as_in_a_terminal() -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.ok_or_else(|| io::Error::other("no mask of ignored signals"))?;
    for signal in [Signal::HUP, Signal::INT, Signal::TERM].map(Signal::as_raw) {
        if mask >> (signal - 1) & 1 == 1 {
            let unused = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, unused)?;
        }
    }
    Ok(())
}
