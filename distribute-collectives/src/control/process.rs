//! What the system says about a process of the same machine.
//!
//! The control threads of ranks hardly compute: one that could run and does not is kept from it by
//! others, however long it is silent. A dead process shows by its closed connections at once, and a
//! stopped one is not in this state.

use std::fs;
use std::path::Path;

use crate::control::generated::Announcement;

/// The name of the threads of the control plane.
pub(super) const THREAD_NAME: &str = "distribute-control";
/// The system keeps this many bytes of it.
const KEPT_BYTES: usize = 15;

/// The machine, since it was started, and the name space of this process' number; empty if the
/// system does not say.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match boot.trim() {
        "" => String::new(),
        boot => format!("{boot} {}", space.display()),
    }
}

/// Says in an announcement which process this is.
pub(super) fn announce(announcement: &mut Announcement) {
    announcement.process = std::process::id();
    announcement.machine = machine();
}

/// Whether a control thread of the process that `peer` announces waits for a processor, or runs.
/// False when it is this process or on another machine, or when the system does not tell.
pub(super) fn is_kept_from_running(own: &Announcement, peer: Option<&Announcement>) -> bool {
    let same_machine = |peer: &&Announcement| {
        let is_other = ![0, own.process].contains(&peer.process);
        is_other && !peer.machine.is_empty() && peer.machine == own.machine
    };
    peer.filter(same_machine)
        .is_some_and(|peer| has_runnable_control_thread(peer.process))
}

fn has_runnable_control_thread(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.any(|thread| is_runnable_control_thread(&thread.path()))
}

fn is_runnable_control_thread(thread: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(thread.join(file)).unwrap_or_default();
    let kept = &THREAD_NAME[..KEPT_BYTES];
    read("comm").trim_end() == kept && state_in(&read("stat")) == Some('R')
}

/// The state in `/proc/PID/stat`, behind the name in parentheses.
fn state_in(stat: &str) -> Option<char> {
    let (_, after) = stat.rsplit_once(") ")?;
    after.chars().next()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::testing::within_limit;

    #[test]
    fn the_state_stands_behind_any_name() {
        assert_eq!(state_in("17 (a) b) T 1 2"), Some('T'));
        assert_eq!(state_in("17 (distribute-contr) R 1 2"), Some('R'));
        assert_eq!(state_in("nonsense"), None);
    }

    #[test]
    fn a_control_thread_that_computes_is_seen_by_its_own_machine_only() {
        let mut peer = Announcement::default();
        announce(&mut peer);
        // As if this were another process of the machine.
        let own = Announcement {
            process: peer.process + 1,
            ..peer.clone()
        };
        if peer.machine.is_empty() {
            println!("SKIPPED: the system does not say which machine this is");
            return;
        }
        within_limit(move || kept_from_running(&peer, &own));
    }

    /// A thread of this process computes; `own` stands for another process of the machine.
    fn kept_from_running(peer: &Announcement, own: &Announcement) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spin = || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let named = std::thread::Builder::new().name(THREAD_NAME.to_string());
            named.spawn_scoped(scope, spin).unwrap();
            // The thread names itself when it begins.
            while !is_kept_from_running(own, Some(peer)) {
                std::thread::yield_now();
            }
            let elsewhere = Announcement {
                machine: "another".to_string(),
                ..own.clone()
            };
            assert!(!is_kept_from_running(&elsewhere, Some(peer)));
            assert!(!is_kept_from_running(peer, Some(peer)), "this process");
            assert!(!is_kept_from_running(own, Some(&Announcement::default())));
            assert!(!is_kept_from_running(own, None));
            over.store(true, Ordering::Relaxed);
        });
    }
}
