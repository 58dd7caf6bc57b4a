//! The signals that tell the launcher to end the job.

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};

/// Signals by which people and schedulers ask, and insist by repeating them.
const INSISTING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
/// Signals by which schedulers and limits announce the end. They ask once, however often they
/// come. (A limit of CPU time sends one every second.)
const ANNOUNCING: [i32; 7] = [
    SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
];

/// Announcing signals that only Linux has: SIGSTKFLT, SIGPWR, and all real-time signals that are
/// free for programs.
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
fn of_the_system() -> impl Iterator<Item = i32> {
    [16, 30].into_iter().chain(34..=64)
}

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn of_the_system() -> impl Iterator<Item = i32> {
    std::iter::empty()
}

/// Whether a second signal of this kind kills the processes.
pub fn insists(signal: i32) -> bool {
    INSISTING.contains(&signal)
}

/// All signals that tell the launcher to end the job.
pub fn all() -> impl Iterator<Item = i32> {
    INSISTING
        .into_iter()
        .chain(ANNOUNCING)
        .chain(of_the_system())
}

/// A signal's name for people.
pub fn name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => name.to_owned(),
        None => format!("signal {signal}"),
    }
}
