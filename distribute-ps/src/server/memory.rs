//! The memory that payloads may have while they wait to be used: one budget of a server for all of
//! its connections.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the budget.
const UNIT: u64 = 4096;
/// The default is at most so much, and at least the second.
const DEFAULT_MAX: u64 = 4 << 30;
const DEFAULT_MIN: u64 = 64 << 20;

/// Bytes of payloads that all calls of a server hold together.
#[derive(Debug)]
pub(super) struct PayloadBudget {
    semaphore: Arc<Semaphore>,
    units: u32,
}

impl PayloadBudget {
    pub(super) fn new(bytes: u64) -> Self {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // More than the semaphore takes is no limit.
        let units = units.clamp(1, u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self {
            semaphore: Arc::new(Semaphore::new(units as usize)),
            units,
        }
    }

    /// Waits until this many bytes more may be held, for as long as the result lives. Those who ask
    /// get them in the order in which they ask; what is larger than the whole budget gets all of
    /// it.
    pub(super) async fn reserve(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT))
            .unwrap_or(u32::MAX)
            .min(self.units);
        self.semaphore.clone().acquire_many_owned(units).await.ok()
    }

    /// The free memory, in units.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.semaphore.available_permits()
    }
}

/// A quarter of the memory that this process may use, within bounds.
pub(super) fn default_budget() -> u64 {
    let usable = usable_bytes().unwrap_or(u64::MAX);
    (usable / 4).clamp(DEFAULT_MIN, DEFAULT_MAX)
}

/// The machine's memory, or less where a control group of this process has a limit.
fn usable_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_of(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups)
        .into_iter()
        .filter_map(|file| limit_of(&fs::read_to_string(file).ok()?));
    machine.into_iter().chain(limits).min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

/// A limit as a control group has it; none for `max`.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Where the limits of these groups are, of both versions, and of the groups above. Within a
/// container a path of the host is not there, but the root is the container's own group.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let own = Path::new(path.trim_start_matches('/'));
        files.extend(
            own.ancestors()
                .map(|it| Path::new(root).join(it).join(name)),
        );
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_containers_and_machines_are_read() {
        assert_eq!(
            total_of("MemFree: 1 kB\nMemTotal:  2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(total_of("nothing"), None);
        assert_eq!(limit_of("83886080\n"), Some(80 << 20));
        assert_eq!(limit_of("max\n"), None);
        let paths = limit_files("0::/a/b\n7:memory:/c\n3:cpu:/d\n");
        let files: Vec<_> = paths.iter().map(|file| file.to_str().unwrap()).collect();
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        assert_eq!(files, expected);
        assert!((DEFAULT_MIN..=DEFAULT_MAX).contains(&default_budget()));
    }

    #[test]
    fn a_request_that_is_too_large_gets_all_and_none_is_refused() {
        let budget = PayloadBudget::new(10 * UNIT);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let all = budget.reserve(u64::MAX).await;
            assert!(all.is_some());
            let mut next = Box::pin(budget.reserve(1));
            let waits = tokio::select! { biased; _ = &mut next => false, () = async {} => true };
            assert!(waits);
            drop(all);
            assert!(next.await.is_some());
            assert!(PayloadBudget::new(u64::MAX).reserve(0).await.is_some());
        });
    }
}
