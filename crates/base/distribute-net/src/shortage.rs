//! Recognizes what this process or this host lacks for a connection: then the other end is not
//! at fault, and waiting for it does not help.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// If an error of a socket or a file is about a shortage: what is lacking, and what to do.
pub fn shortage(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile).current;
            let limit = limit.map_or_else(String::new, |limit| format!(" (limit {limit})"));
            Some(format!(
                "this process has no file descriptors left{limit}: {error}; raise its limit, \
                 `ulimit -n`"
            ))
        }
        Errno::NFILE => Some(format!(
            "this host has no file descriptors left: {error}; end other processes, or raise its \
             limit (`sysctl fs.file-max`)"
        )),
        Errno::NOMEM | Errno::NOBUFS => Some(format!(
            "this host has no memory for connections left: {error}; end other processes, or give \
             it more"
        )),
        Errno::ADDRNOTAVAIL => Some(format!(
            "this host has no address or no free port for a connection there: {error}; give it \
             an address of that network, end other processes, or allow more ports (`sysctl \
             net.ipv4.ip_local_port_range`)"
        )),
        _ => None,
    }
}

/// Lets this process open `descriptors` more file descriptors, as far as the system allows: raises
/// the soft limit of their number when it is too low, at most to the hard one. Returns how many
/// more the process may open.
pub fn make_room(descriptors: u64) -> u64 {
    let open = open_descriptors();
    let limit = getrlimit(Resource::Nofile);
    let Some(soft) = limit.current else {
        return u64::MAX;
    };
    let wanted = open.saturating_add(descriptors);
    let raised = limit
        .maximum
        .map_or(wanted, |hard| hard.min(wanted))
        .max(soft);
    let changed = Rlimit {
        current: Some(raised),
        ..limit
    };
    let is_raised = raised > soft && setrlimit(Resource::Nofile, changed).is_ok();
    let limit = if is_raised { raised } else { soft };
    limit.saturating_sub(open)
}

/// The descriptors that are open now, or 0 where the system does not list them.
fn open_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

/// What is lacking now for a file or a socket. (The error of a name look-up does not tell.)
pub(crate) fn shortage_now() -> Option<String> {
    let probe = rustix::io::dup(io::stderr());
    probe.err().and_then(|error| shortage(&error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shortage_is_named_with_what_to_do() {
        let said = |errno: Errno| shortage(&errno.into()).unwrap_or_default();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or_default();
        let few = said(Errno::MFILE);
        assert!(
            few.contains(&format!("(limit {limit})")) || limit == 0,
            "{few}"
        );
        for (errno, advice) in [
            (Errno::MFILE, "`ulimit -n`"),
            (Errno::NFILE, "fs.file-max"),
            (Errno::NOMEM, "memory"),
            (Errno::NOBUFS, "memory"),
            (Errno::ADDRNOTAVAIL, "ip_local_port_range"),
        ] {
            assert!(said(errno).contains(advice), "{}", said(errno));
        }
        for errno in [Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::PIPE] {
            assert_eq!(shortage(&errno.into()), None);
        }
        assert_eq!(shortage(&io::ErrorKind::TimedOut.into()), None);
        assert_eq!(shortage_now(), None);
    }
}
