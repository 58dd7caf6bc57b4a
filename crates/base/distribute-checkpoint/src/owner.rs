//! Identifies the process that holds a directory, in a file for processes of any host.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// A process that holds a directory, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its id, on its host.
    pub process: u32,
    /// The name of its host, if it is known.
    pub host: Option<String>,
}

impl Holder {
    pub(super) fn new(process: u32, host: Option<String>) -> Self {
        Self { process, host }
    }

    /// Whether it is a process of this host, as far as names tell.
    fn is_here(&self) -> bool {
        self.host.is_none() || self.host == Some(host_name())
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.process == std::process::id() && self.is_here() {
            return f.write_str("another manager of this process");
        }
        write!(f, "process {}", self.process)?;
        match &self.host {
            Some(host) => write!(f, " on host {host}"),
            None => Ok(()),
        }
    }
}

/// Identifies a process across hosts, their restarts and the reuse of process ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) host: String,
    pub(super) process: u32,
    /// The boot id of the host; empty if it is not known.
    pub(super) boot: String,
    /// The namespace in which `process` is an id; empty if it is not known.
    pub(super) namespace: String,
    /// When the process was started, in the host's own units; empty if it is not known.
    pub(super) started: String,
}

impl Owner {
    /// This process.
    pub(super) fn this() -> Self {
        let process = std::process::id();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid")
            .ok()
            .map(|link| link.to_string_lossy().into_owned());
        Self {
            host: host_name(),
            process,
            boot: boot.trim().to_string(),
            namespace: namespace.unwrap_or_default(),
            started: started(process).unwrap_or_default(),
        }
    }

    pub(super) fn holder(&self) -> Holder {
        Holder::new(self.process, Some(self.host.clone()))
    }

    /// Whether both run on one kernel since its last start.
    pub(super) fn shares_kernel(&self, other: &Self) -> bool {
        !self.boot.is_empty() && self.boot == other.boot
    }

    /// Whether both have the same process namespace, so that one can look for the other.
    pub(super) fn sees(&self, other: &Self) -> bool {
        let known = !self.namespace.is_empty() && !other.started.is_empty();
        known && self.shares_kernel(other) && self.namespace == other.namespace
    }

    /// Whether a process that this one [sees](Self::sees) still runs.
    pub(super) fn is_alive(&self) -> bool {
        started(self.process).as_ref() == Some(&self.started)
    }
}

fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// When a process was started, if it runs: the 22nd field of its status.
fn started(process: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, which may have blanks and brackets, ends with the last bracket.
    let (_, after_name) = status.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    // A zombie holds no lock any more.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_another_one_with_its_id() {
        let own = Owner::this();
        assert!(own.sees(&own) && own.is_alive(), "{own:?}");
        let reused = Owner {
            started: "1".to_string(),
            ..own.clone()
        };
        assert!(own.sees(&reused) && !reused.is_alive());
        for other in [
            Owner {
                boot: "another".to_string(),
                ..own.clone()
            },
            Owner {
                namespace: "pid:[1]".to_string(),
                ..own.clone()
            },
            Owner::default(),
        ] {
            assert!(!own.sees(&other), "{other:?}");
        }
    }

    #[test]
    fn a_process_that_ended_and_was_not_waited_for_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let path = format!("/proc/{}/stat", child.id());
        let zombie = || fs::read_to_string(&path).unwrap().contains(") Z ");
        while !zombie() {
            std::thread::yield_now();
        }
        assert_eq!(started(child.id()), None);
        child.wait().unwrap();
    }

    #[test]
    fn a_holder_is_named_with_its_host() {
        let holder = |process, host: &str| Holder::new(process, Some(host.to_string()));
        assert_eq!(holder(7, "node3").to_string(), "process 7 on host node3");
        assert_eq!(Holder::new(7, None).to_string(), "process 7");
        let own = holder(std::process::id(), &host_name());
        assert_eq!(own.to_string(), "another manager of this process");
    }
}
