//! The memory that a process may use on this host: the host's, or that of a container or of a job
//! of a scheduler, which Linux limits by control groups (cgroups), of either version.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Version 1 shows a number above this where no limit is set.
const NO_LIMIT: u64 = 1 << 60;

/// The memory limit of a control group, and how much of it is free.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryLimit {
    /// The most bytes that all processes of the group may use together.
    pub bytes: u64,
    /// Bytes that are free, or that hold cached file contents which the kernel can drop.
    pub free: u64,
    /// The folder of the group.
    pub group: PathBuf,
}

impl MemoryLimit {
    /// The tightest limit on this process: of its own group and those around it, the one that
    /// leaves the least memory free. `None` if there is no limit or it cannot be read.
    pub fn of_this_process() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    /// Like [`of_this_process`](Self::of_this_process), with the system's files below another root.
    fn below(root: &Path) -> Option<Self> {
        let groups = groups(root);
        let limits = groups.iter().filter_map(Group::limit);
        limits.min_by_key(|limit| (limit.free, limit.bytes))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.bytes as f64 / f64::from(1 << 20);
        write!(f, "{} is limited to {mib:.0} MiB", self.group.display())
    }
}

/// How often the kernel has killed a process of this control group because memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfMemory(Option<u64>);

impl OutOfMemory {
    pub(crate) fn now() -> Self {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Self {
        let groups = groups(root);
        let of_group = groups.first().and_then(Group::kills);
        // Groups that keep no count: take the count of the whole host.
        let host = fs::read_to_string(root.join("proc/vmstat")).ok();
        Self(of_group.or_else(|| number_after(&host?, "oom_kill")))
    }

    /// The explanation for a process that has been killed since, if memory ran out meanwhile.
    pub(crate) fn explained(self) -> Option<String> {
        self.explained_below(Path::new("/"))
    }

    fn explained_below(self, root: &Path) -> Option<String> {
        if Self::below(root).0? <= self.0? {
            return None;
        }
        let limit = MemoryLimit::below(root)
            .map_or_else(|| "that of the host".to_string(), |it| it.to_string());
        Some(format!(
            "distribute: most likely the kernel ended it because memory ran out, as it has ended a \
             process since this one began ({limit}): use fewer processes or replicas here, a \
             smaller batch or model, or allow more memory"
        ))
    }
}

/// A control group that limits the memory of this process.
struct Group {
    folder: PathBuf,
    files: Files,
}

/// The file names of one version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The key in `memory.stat` of cached file contents that were not used lately.
    reclaimable: &'static str,
    kills: &'static str,
}

const V2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file",
    kills: "memory.events",
};

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
    kills: "memory.oom_control",
};

impl Group {
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }

    fn limit(&self) -> Option<MemoryLimit> {
        let number = |file| self.read(file)?.trim().parse::<u64>().ok();
        let bytes = number(self.files.limit).filter(|bytes| *bytes < NO_LIMIT)?;
        let used = number(self.files.used).unwrap_or(0);
        let stat = self.read("memory.stat").unwrap_or_default();
        let again = number_after(&stat, self.files.reclaimable).unwrap_or(0);
        Some(MemoryLimit {
            bytes,
            free: bytes.saturating_sub(used.saturating_sub(again)),
            group: self.folder.clone(),
        })
    }

    fn kills(&self) -> Option<u64> {
        number_after(&self.read(self.files.kills)?, "oom_kill")
    }
}

/// The number in the line that begins with a word.
fn number_after(text: &str, word: &str) -> Option<u64> {
    let mut numbers = text.lines().filter_map(|line| line.split_once(' '));
    let (_, number) = numbers.find(|(name, _)| *name == word)?;
    number.trim().parse().ok()
}

/// The groups that may limit this process' memory, from its own group outwards.
fn groups(root: &Path) -> Vec<Group> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (own, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut all = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_v2 = number == "0" && controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((point, top)) = mounts.lines().find_map(|line| mount(line, is_v2)) else {
            continue;
        };
        // A container may see the tree from its own group on.
        let inside = Path::new(path)
            .strip_prefix(&top)
            .unwrap_or_else(|_| Path::new(path).strip_prefix("/").unwrap_or(Path::new("")));
        let point = root.join(point.strip_prefix("/").unwrap_or(&point));
        let folder = point.join(inside);
        let folder = if folder.is_dir() {
            folder
        } else {
            point.clone()
        };
        let around = folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&point));
        all.extend(around.map(|folder| Group {
            folder: folder.to_path_buf(),
            files: if is_v2 { V2 } else { V1 },
        }));
    }
    // If both versions are mounted, the one with the memory files counts.
    all.retain(|group| group.read(group.files.limit).is_some() || group.kills().is_some());
    all
}

/// The mount point of the groups in a line of `mountinfo`, and the group mounted there.
fn mount(line: &str, is_v2: bool) -> Option<(PathBuf, PathBuf)> {
    let (place, system) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (top, point) = (place.next()?, place.next()?);
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1)?);
    let found = if is_v2 {
        kind == "cgroup2"
    } else {
        kind == "cgroup" && options.split(',').any(|option| option == "memory")
    };
    found.then(|| (PathBuf::from(point), PathBuf::from(top)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    const MOUNT: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const MIB: u64 = 1 << 20;

    #[test]
    fn the_tightest_group_up_the_tree_is_the_limit() {
        let root = root(&[
            ("proc/self/cgroup", "0::/job/step/task\n"),
            ("proc/self/mountinfo", MOUNT),
            ("sys/fs/cgroup/job/memory.max", "83886080\n"),
            ("sys/fs/cgroup/job/memory.current", "52428800\n"),
            (
                "sys/fs/cgroup/job/memory.stat",
                "anon 1\ninactive_file 10485760\nfile 2\n",
            ),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/task/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/job/step/task/memory.current", "1048576\n"),
        ]);
        let limit = MemoryLimit::below(root.path()).unwrap();
        assert_eq!((limit.bytes, limit.free), (80 * MIB, 40 * MIB));
        assert!(
            limit
                .to_string()
                .ends_with("cgroup/job is limited to 80 MiB"),
            "{limit}"
        );
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_top() {
        let namespace = [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", MOUNT),
            ("sys/fs/cgroup/memory.max", "83886080\n"),
        ];
        let bound = [
            ("proc/self/cgroup", "0::/docker/abc\n"),
            (
                "proc/self/mountinfo",
                "1 2 0:3 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            ),
            ("sys/fs/cgroup/memory.max", "83886080\n"),
        ];
        let elsewhere = [
            ("proc/self/cgroup", "0::/not/seen/here\n"),
            ("proc/self/mountinfo", MOUNT),
            ("sys/fs/cgroup/memory.max", "83886080\n"),
        ];
        for files in [namespace, bound, elsewhere] {
            let root = root(&files);
            let limit = MemoryLimit::below(root.path()).unwrap();
            assert_eq!((limit.bytes, limit.free), (80 * MIB, 80 * MIB));
        }
    }

    #[test]
    fn version_1_has_limits_too_also_beside_version_2() {
        let files = |limit| {
            root(&[
                (
                    "proc/self/cgroup",
                    "4:cpu,memory:/job\n1:name=systemd:/\n0::/\n",
                ),
                (
                    "proc/self/mountinfo",
                    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", limit),
                (
                    "sys/fs/cgroup/memory/job/memory.usage_in_bytes",
                    "62914560\n",
                ),
                (
                    "sys/fs/cgroup/memory/job/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 20971520\n",
                ),
                (
                    "sys/fs/cgroup/memory/job/memory.oom_control",
                    "under_oom 0\noom_kill 3\n",
                ),
            ])
        };
        let root = files("83886080\n");
        let limit = MemoryLimit::below(root.path()).unwrap();
        assert_eq!((limit.bytes, limit.free), (80 * MIB, 40 * MIB));
        assert_eq!(OutOfMemory::below(root.path()), OutOfMemory(Some(3)));
        let without = files("9223372036854771712\n");
        assert_eq!(MemoryLimit::below(without.path()), None);
    }

    #[test]
    fn a_kill_is_explained_only_if_the_kernel_counted_one() {
        let root = root(&[
            ("proc/self/cgroup", "0::/job\n"),
            ("proc/self/mountinfo", MOUNT),
            ("sys/fs/cgroup/job/memory.max", "83886080\n"),
            (
                "sys/fs/cgroup/job/memory.events",
                "oom 7\noom_kill 2\noom_group_kill 9\n",
            ),
        ]);
        let before = OutOfMemory::below(root.path());
        assert_eq!(before.explained_below(root.path()), None);
        let events = root.path().join("sys/fs/cgroup/job/memory.events");
        fs::write(events, "oom 8\noom_kill 3\n").unwrap();
        let said = before.explained_below(root.path()).unwrap();
        assert!(said.contains("memory ran out"), "{said}");
        assert!(said.contains("is limited to 80 MiB"), "{said}");
    }

    #[test]
    fn the_host_counts_where_no_group_does() {
        let root = root(&[("proc/vmstat", "pgfault 5\noom_kill 4\n")]);
        let before = OutOfMemory::below(root.path());
        assert_eq!(before, OutOfMemory(Some(4)));
        fs::write(root.path().join("proc/vmstat"), "oom_kill 5\n").unwrap();
        let said = before.explained_below(root.path()).unwrap();
        assert!(said.contains("that of the host"), "{said}");
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(OutOfMemory::below(nothing.path()), OutOfMemory(None));
        assert_eq!(OutOfMemory(None).explained_below(root.path()), None);
        assert_eq!(MemoryLimit::below(nothing.path()), None);
    }
}
