//! What this process or this host lacks for a connection: that is no fault of the other end, and
//! waiting for the other end does not help.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// What is lacking, and what to do, if this is what an error of a socket or a file says.
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

/// What is lacking now for a file or a socket. A look-up of a name does not say so.
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
