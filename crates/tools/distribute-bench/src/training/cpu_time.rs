//! Processor time of processes, from `/proc` where there is one.

use std::time::Duration;

/// User and system time that all threads of this process have used so far; `None` where the
/// operating system has no `/proc/self/schedstat` per task.
pub(super) fn process_cpu_time() -> Option<Duration> {
    cpu_time_of(std::process::id())
}

/// The same of another process. Threads of it that have ended do not count.
pub(super) fn cpu_time_of(process: u32) -> Option<Duration> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let path = task.ok()?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = std::fs::read_to_string(path) else {
            continue;
        };
        total += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(total))
}
