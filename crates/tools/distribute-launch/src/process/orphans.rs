//! Processes whose parents have ended. Their new parent has to reap them: the system's first
//! process, or this process if it asks for that.
//!
//! It asks for that while processes are asked to end, to learn how a command ended after the
//! signal ended its script. At other times it would have to reap all background processes of a
//! command for as long as the job goes on. A launcher that is the first process of a container
//! always has to reap.

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

    use crate::process::{parse_pid, table};

    /// Sets whether this process becomes the parent of orphans from now on.
    pub fn adopt(is_wanted: bool) {
        // Without it a script that the signal ended counts as killed, whatever its command did.
        let _old_system = set_child_subreaper(is_wanted.then(getpid));
    }

    /// Reaps orphans that have ended, if this is the first process. `own` are children that
    /// are waited for elsewhere.
    pub fn reap(own: &[Pid]) {
        if getpid() != Pid::INIT {
            return;
        }
        for child in children().filter(|child| !own.contains(child)) {
            let entry = table::entry(child.as_raw_nonzero().get());
            if entry.is_some_and(|entry| entry.has_ended) {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
                let _gone = waitid(WaitId::Pid(child), options);
            }
        }
    }

    /// The children of all threads of this process.
    fn children() -> impl Iterator<Item = Pid> {
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
        let lists = threads
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| {
            let children: Vec<Pid> = list.split_whitespace().filter_map(parse_pid).collect();
            children
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use rustix::process::Pid;

    pub fn adopt(_is_wanted: bool) {}

    pub fn reap(_own: &[Pid]) {}
}

pub use system::{adopt, reap};
