//! The memory that this process may use.

use distribute_launch::MemoryLimit;
use serde_json::{Value, json};

/// Bytes of main memory: the host's, or the limit of a container or a scheduler if it is lower.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) available: u64,
    /// The limit, if it is lower than the host's memory.
    limit: Option<MemoryLimit>,
}

impl Memory {
    /// `None` if the system does not report it.
    pub(crate) fn of_this_process() -> Option<Self> {
        let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
        let host = Self::of_host(&meminfo)?;
        Some(host.within(MemoryLimit::of_this_process()))
    }

    /// From the text of `/proc/meminfo`, whose numbers are KiB.
    fn of_host(meminfo: &str) -> Option<Self> {
        let bytes = |key: &str| {
            let line = meminfo
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(Self {
            total: bytes("MemTotal")?,
            available: bytes("MemAvailable")?,
            limit: None,
        })
    }

    fn within(self, limit: Option<MemoryLimit>) -> Self {
        match limit.filter(|limit| limit.bytes < self.total) {
            Some(limit) => Self {
                total: limit.bytes,
                available: self.available.min(limit.free),
                limit: Some(limit),
            },
            None => self,
        }
    }

    /// Free and total memory, with the name of the limit.
    pub(crate) fn text(&self) -> String {
        let (available, total) = (size(self.available), size(self.total));
        match &self.limit {
            Some(limit) => {
                let group = limit.group.display();
                format!("{available} of {total} free (the limit of the cgroup {group})")
            }
            None => format!("{available} of {total} free"),
        }
    }

    /// The folder of the cgroup that sets the limit, if one does.
    pub(crate) fn limited_by(&self) -> Value {
        json!(self.limit.as_ref().map(|limit| &limit.group))
    }
}

/// With the largest unit that it fills.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        Some((name, shift)) => format!("{:.1} {name}", bytes as f64 / f64::from(1 << shift)),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kib() {
        let meminfo = "MemTotal:        2048 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB\n";
        let memory = Memory::of_host(meminfo).unwrap();
        assert_eq!((memory.total, memory.available), (2_097_152, 1_048_576));
        assert_eq!(memory.within(None).text(), "1.0 MiB of 2.0 MiB free");
        assert!(Memory::of_host("MemTotal: much").is_none());
    }

    #[test]
    fn sizes_have_the_largest_unit_that_they_fill() {
        for (bytes, text) in [(80 << 20, "80.0 MiB"), (3 << 29, "1.5 GiB"), (7, "7 bytes")] {
            assert_eq!(size(bytes), text);
        }
    }
}
