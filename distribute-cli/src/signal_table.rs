//! The meaning of each signal for a training process. docs/failures.md has the same table.

use std::ops::RangeInclusive;

use signal_hook::consts as signals;

/// The reaction of a process to a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// An order to end: the process saves and ends; a second order ends it at once.
    Order,
    /// A notice from a batch system, a limit or a power supply: the process saves and ends as after
    /// an order. Repeated notices never end it at once, because the system repeats the notice about
    /// processor time every second.
    Notice,
    /// Ignored: the failing call returns an error.
    Ignored,
    /// The system stops or continues the process.
    Pause,
    /// The process ends at once without saving: a crash, or a signal that cannot be caught.
    Fatal,
}

const ORDERS: [i32; 4] = [
    signals::SIGINT,
    signals::SIGTERM,
    signals::SIGHUP,
    signals::SIGQUIT,
];

const NOTICES: &[i32] = &[
    signals::SIGUSR1,
    signals::SIGUSR2,
    signals::SIGXCPU,
    signals::SIGALRM,
    signals::SIGVTALRM,
    signals::SIGPROF,
    signals::SIGIO,
    #[cfg(target_os = "linux")]
    libc::SIGPWR,
    #[cfg(target_os = "linux")]
    libc::SIGSTKFLT,
];

/// The real-time signals, which have no fixed meaning.
#[cfg(target_os = "linux")]
fn real_time() -> RangeInclusive<i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

#[cfg(not(target_os = "linux"))]
fn real_time() -> RangeInclusive<i32> {
    1..=0
}

impl Meaning {
    pub(crate) fn of(signal: i32) -> Self {
        match signal {
            signal if ORDERS.contains(&signal) => Self::Order,
            signal if NOTICES.contains(&signal) || real_time().contains(&signal) => Self::Notice,
            signals::SIGPIPE
            | signals::SIGXFSZ
            | signals::SIGCHLD
            | signals::SIGURG
            | signals::SIGWINCH => Self::Ignored,
            signals::SIGSTOP
            | signals::SIGTSTP
            | signals::SIGTTIN
            | signals::SIGTTOU
            | signals::SIGCONT => Self::Pause,
            _ => Self::Fatal,
        }
    }
}

/// The signals after which a process saves and ends, except signals that were ignored when it was
/// started (SIGHUP by `nohup`, SIGINT by a shell for background commands) and signals for which
/// another part of the process has a handler (a profiler).
pub(crate) fn saving() -> Vec<i32> {
    let taken = taken();
    let all = ORDERS.iter().chain(NOTICES).copied().chain(real_time());
    all.filter(|signal| taken >> (signal - 1) & 1 == 0)
        .collect()
}

/// One bit for each signal that is ignored or caught; 0 if the system does not report it.
fn taken() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
    };
    let [ignored, caught] = ["SigIgn:", "SigCgt:"].map(|name| mask(name).unwrap_or(0));
    ignored | caught
}

/// `SIGTERM`, or `SIGRTMIN+3`, as `kill -l` counts the real-time signals.
pub(crate) fn name(signal: i32) -> String {
    #[cfg(target_os = "linux")]
    match signal {
        libc::SIGPWR => return "SIGPWR".to_string(),
        libc::SIGSTKFLT => return "SIGSTKFLT".to_string(),
        _ => {}
    }
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => name.to_string(),
        None if real_time().contains(&signal) => {
            format!("SIGRTMIN+{}", signal - real_time().start())
        }
        None => format!("signal {signal}"),
    }
}

/// Makes writes beyond the limit for files (`ulimit -f`) fail with an error that names the file;
/// otherwise the system would end the process silently.
pub(crate) fn outlive_file_limits() {
    let unused = std::sync::Arc::default();
    // If this fails, the system's default remains.
    let _refused = signal_hook::flag::register(signals::SIGXFSZ, unused);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in docs/failures.md: the signals, and the reaction.
    fn documented() -> Vec<(Vec<String>, String)> {
        let text = include_str!("../../docs/failures.md");
        let (_, table) = text.split_once("| signal | what a process").unwrap();
        let rows = table.lines().skip(2);
        rows.map_while(|row| {
            let mut cells = row.strip_prefix("| ")?.split(" | ");
            let names = cells.next()?.split(", ").map(ToString::to_string);
            Some((names.collect(), cells.next()?.to_string()))
        })
        .collect()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_signal_is_in_the_documents_with_what_it_does() {
        let rows = documented();
        assert!(rows.len() >= 5, "{rows:?}");
        for signal in (1..32).chain(real_time()) {
            let name = if real_time().contains(&signal) {
                "SIGRTMIN to SIGRTMAX".to_string()
            } else {
                name(signal)
            };
            let named = |(names, _): &&(Vec<String>, String)| names.contains(&name);
            let (_, says) = rows.iter().find(named).unwrap_or_else(|| {
                panic!("{name} ({signal}) is not in the table of docs/failures.md")
            });
            let begins = match Meaning::of(signal) {
                Meaning::Order => "saves and ends; the second",
                Meaning::Notice => "saves and ends, however often",
                Meaning::Ignored => "goes on",
                Meaning::Pause => "stops",
                Meaning::Fatal => "ends at once",
            };
            assert!(says.starts_with(begins), "{name}: {says}");
        }
    }

    #[test]
    fn what_saves_is_an_order_or_a_notice_and_nothing_else_is() {
        let all: Vec<i32> = ORDERS.iter().chain(NOTICES).copied().collect();
        for signal in all.iter().copied().chain(real_time()) {
            assert!(matches!(
                Meaning::of(signal),
                Meaning::Order | Meaning::Notice
            ));
        }
        let can_be_caught = |signal: &i32| ![signals::SIGKILL, signals::SIGSTOP].contains(signal);
        assert!(saving().iter().all(can_be_caught));
    }
}
