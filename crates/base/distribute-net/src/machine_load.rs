//! The load of this machine, and how much the control group of this process was throttled. A value
//! that the system does not report counts as no load.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The load since the previous sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Threads that run or could run now, on the whole machine.
    pub(crate) runnable: usize,
    /// Processors of the whole machine.
    pub(crate) processors: usize,
    /// The share of the time, from 0 to 1, in which the control group had no quota left.
    pub(crate) throttled: f64,
}

/// Samples the load of the machine.
#[derive(Debug)]
pub(crate) struct MachineLoad {
    processors: usize,
    /// The statistics of the control groups that may have a quota: the process' own and those
    /// above.
    quotas: Vec<Quota>,
    at: Instant,
}

/// A control group's statistics, and how long it had been throttled when they were last read.
#[derive(Debug)]
struct Quota {
    statistics: PathBuf,
    throttled: Duration,
}

impl Quota {
    fn new(statistics: PathBuf) -> Option<Quota> {
        let throttled = throttled_in(&fs::read_to_string(&statistics).ok()?);
        Some(Quota {
            statistics,
            throttled,
        })
    }

    /// How long it was throttled since the last call, summed over the processors.
    fn sample(&mut self) -> Duration {
        let Ok(text) = fs::read_to_string(&self.statistics) else {
            return Duration::ZERO;
        };
        let now = throttled_in(&text);
        let before = std::mem::replace(&mut self.throttled, now);
        now.saturating_sub(before)
    }
}

impl MachineLoad {
    pub(crate) fn of_this_process() -> MachineLoad {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let candidates = statistics_of(&groups);
        let online = fs::read_to_string("/sys/devices/system/cpu/online");
        MachineLoad {
            processors: online.map_or(0, |text| processors_in(&text)),
            quotas: candidates.into_iter().filter_map(Quota::new).collect(),
            at: Instant::now(),
        }
    }

    /// The load now, and since the last sample.
    pub(crate) fn sample(&mut self) -> Load {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        // A group is throttled together with the groups around it, which may have had a quota for
        // longer.
        let throttled = self.quotas.iter_mut().map(Quota::sample).max();
        let more = throttled.unwrap_or_default().as_secs_f64();
        self.at = now;
        let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Load {
            runnable: runnable_in(&loads),
            processors: self.processors,
            throttled: share(more, elapsed),
        }
    }
}

/// The share of a time span in which a group was stopped, from its throttled time summed over
/// all processors that it used.
fn share(throttled: f64, elapsed: f64) -> f64 {
    if throttled <= 0.0 || elapsed <= 0.0 {
        return 0.0;
    }
    let on_all = throttled / elapsed;
    on_all / on_all.ceil().max(1.0)
}

/// The fourth field of `/proc/loadavg`, `3/214`: without the thread that asks.
fn runnable_in(loads: &str) -> usize {
    let field = loads.split_whitespace().nth(3);
    let runnable = field.and_then(|field| field.split_once('/')?.0.parse::<usize>().ok());
    runnable.unwrap_or(0).saturating_sub(1)
}

/// A list as `0-3,8`.
fn processors_in(list: &str) -> usize {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.trim().split(',').filter_map(range).sum()
}

/// The throttled time in `cpu.stat`, in either version of control groups.
fn throttled_in(statistics: &str) -> Duration {
    let mut lines = statistics.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find_map(|(name, value)| match name {
        "throttled_usec" => value.parse().ok().map(Duration::from_micros),
        "throttled_time" => value.parse().ok().map(Duration::from_nanos),
        _ => None,
    });
    found.unwrap_or_default()
}

/// Where the statistics of the groups in `/proc/self/cgroup` can be, up to the root of each
/// hierarchy: the file systems are mounted where systemd and containers have them.
fn statistics_of(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let mounts: &[&str] = match controllers {
            "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            names if names.split(',').any(|name| name == "cpu") => {
                &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
            }
            _ => continue,
        };
        for mount in mounts {
            let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
            found.extend(ancestors.map(|group| Path::new(mount).join(group).join("cpu.stat")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_system_are_understood() {
        assert_eq!(runnable_in("2.28 1.24 0.51 130/214 4711\n"), 129);
        assert_eq!(runnable_in("0.00 0.00 0.00 1/98 4711"), 0);
        assert_eq!(runnable_in("nonsense"), 0);
        assert_eq!(processors_in("0-3,8,10-11\n"), 7);
        assert_eq!(processors_in("0"), 1);
        assert_eq!(processors_in("3-1"), 0);
        let version_2 = "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n";
        assert_eq!(throttled_in(version_2), Duration::from_micros(1500));
        let version_1 = "nr_periods 0\nthrottled_time 2500\n";
        assert_eq!(throttled_in(version_1), Duration::from_nanos(2500));
        assert_eq!(throttled_in(""), Duration::ZERO);
    }

    #[test]
    fn a_group_and_all_above_it_are_looked_at() {
        let paths = statistics_of("4:cpu,cpuacct:/a/b\n3:memory:/c\n0::/d\n");
        let expected = [
            "/sys/fs/cgroup/cpu/a/b/cpu.stat",
            "/sys/fs/cgroup/cpu/a/cpu.stat",
            "/sys/fs/cgroup/cpu/cpu.stat",
            "/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.stat",
            "/sys/fs/cgroup/cpu,cpuacct/a/cpu.stat",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.stat",
            "/sys/fs/cgroup/d/cpu.stat",
            "/sys/fs/cgroup/cpu.stat",
            "/sys/fs/cgroup/unified/d/cpu.stat",
            "/sys/fs/cgroup/unified/cpu.stat",
        ];
        assert_eq!(paths, expected.map(PathBuf::from));
    }

    #[test]
    fn a_quota_of_a_quarter_is_a_quarter_on_any_number_of_processors() {
        assert_eq!(share(0.75, 1.0), 0.75);
        assert_eq!(share(1.5, 1.0), 0.75);
        assert_eq!(share(0.0, 1.0), 0.0);
        assert_eq!(share(1.0, 0.0), 0.0);
    }

    #[test]
    fn a_group_around_that_was_throttled_before_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (own, around) = (folder.path().join("own"), folder.path().join("around"));
        fs::write(&own, "throttled_usec 5000000\n").unwrap();
        fs::write(&around, "throttled_usec 100000000\n").unwrap();
        let mut load = MachineLoad {
            processors: 1,
            quotas: [own.clone(), around]
                .into_iter()
                .filter_map(Quota::new)
                .collect(),
            at: Instant::now(),
        };
        fs::write(&own, "throttled_usec 5500000\n").unwrap();
        assert_eq!(
            load.quotas
                .iter_mut()
                .map(Quota::sample)
                .collect::<Vec<_>>(),
            [Duration::from_millis(500), Duration::ZERO]
        );
        fs::write(&own, "throttled_usec 9000000\n").unwrap();
        assert!(load.sample().throttled > 0.0);
    }

    #[test]
    fn this_machine_has_a_load() {
        let mut load = MachineLoad::of_this_process();
        let sample = load.sample();
        assert!(sample.processors >= 1, "{sample:?}");
        assert!((0.0..=1.0).contains(&sample.throttled), "{sample:?}");
    }
}
