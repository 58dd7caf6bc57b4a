//! Addresses, and the socket that a process listens on.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use crate::error::{NetError, Result};
use crate::security::Security;

/// Host and port of an address `host:port`; an IPv6 host is in brackets.
///
/// # Errors
/// What is wrong with the address.
pub fn split(address: &str) -> std::result::Result<(&str, u16), String> {
    let form = || format!("{address:?} is not of the form host:port");
    let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(form)?,
        None if host.is_empty() || host.contains([':', '/']) => return Err(form()),
        None => host,
    };
    let port = port
        .parse()
        .map_err(|_| format!("{port:?} is not a port from 0 to 65535"))?;
    Ok((host, port))
}

/// A socket at an address where a process may listen, open before the process can answer so that
/// no other one gets the address in between.
#[derive(Debug)]
pub struct BoundListener {
    socket: TcpListener,
    local: SocketAddr,
}

impl BoundListener {
    /// Listens at the address of process `task` (`host:port`; port 0 takes a free one). Without a
    /// token and TLS only loopback addresses are allowed, see [`Security`].
    ///
    /// # Errors
    /// [`NetError::Address`] when the address does not resolve, is in use, is not one of
    /// this host, or is reachable from other hosts although `security` is not enough for that.
    pub fn bind(task: usize, address: &str, security: &Security) -> Result<BoundListener> {
        let refuse = |reason: String| NetError::Address {
            task,
            address: address.to_string(),
            reason,
        };
        let host_and_port = split(address).map_err(refuse)?;
        let resolved: Vec<SocketAddr> = host_and_port
            .to_socket_addrs()
            .map_err(|error| refuse(format!("it does not resolve: {error}")))?
            .collect();
        if let (Some(open), Err(missing)) = (
            resolved
                .iter()
                .find(|resolved| !resolved.ip().is_loopback()),
            security.allows_beyond_loopback(),
        ) {
            return Err(refuse(format!(
                "other hosts can reach {}, which needs {missing}; set them, use a loopback \
                 address, or ask for `insecure` by name",
                open.ip()
            )));
        }
        let mut last = "it resolves to no address".to_string();
        for candidate in resolved {
            match TcpListener::bind(candidate).and_then(|s| Ok((s.local_addr()?, s))) {
                Ok((local, socket)) => {
                    if let Some(text) = security.clear_text(local) {
                        tracing::warn!("{text}");
                    }
                    return Ok(BoundListener { socket, local });
                }
                Err(error) => {
                    last = cannot_bind(task, &error);
                    // Another address of the same name would hide that the process exists already.
                    if error.kind() == io::ErrorKind::AddrInUse {
                        break;
                    }
                }
            }
        }
        Err(refuse(last))
    }

    /// The address with the port that is in use.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The socket.
    pub fn into_socket(self) -> TcpListener {
        self.socket
    }
}

fn cannot_bind(task: usize, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "it is in use; perhaps another process of the job has rank {task}, or one of an \
             earlier job is still there"
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "it is not an address of this host; start rank {task} where its address is, or \
             correct the list of addresses"
        ),
        _ => format!("cannot listen: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{TlsIdentity, Token};

    fn reason(address: &str) -> String {
        match BoundListener::bind(3, address, &Security::default()) {
            Err(NetError::Address {
                task: 3,
                address: named,
                reason,
            }) if named == address => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_are_split_into_host_and_port() {
        assert_eq!(split("localhost:80"), Ok(("localhost", 80)));
        assert_eq!(split("[::1]:0"), Ok(("::1", 0)));
        for bad in [
            "",
            ":",
            "host",
            ":80",
            "host:",
            "host:65536",
            "::1:80",
            "[::1:80",
            "a/b:1",
        ] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_used_say_why() {
        let taken = BoundListener::bind(0, "127.0.0.1:0", &Security::default()).unwrap();
        assert_ne!(taken.local_addr().port(), 0);
        let text = reason(&taken.local_addr().to_string());
        assert!(text.contains("in use") && text.contains("rank 3"), "{text}");
        let text = reason("no-such-host.invalid:80");
        assert!(text.contains("does not resolve"), "{text}");
        assert!(reason("localhost").contains("host:port"));
        // A loopback address is local in every network; this one belongs to documentation.
        let open = Security::default().insecure();
        let error = BoundListener::bind(3, "192.0.2.1:80", &open)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not an address of this host"), "{error}");
    }

    #[test]
    fn nothing_listens_beyond_loopback_without_token_and_tls() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let text = reason(address);
            assert!(text.contains("needs a token and TLS"), "{text}");
        }
        let token = Token::new("0123456789abcdef").unwrap();
        let full = Security::default()
            .token(token)
            .tls(TlsIdentity::new("", "", ""));
        assert!(BoundListener::bind(3, "0.0.0.0:0", &full).is_ok());
        assert!(BoundListener::bind(3, "0.0.0.0:0", &Security::default().insecure()).is_ok());
    }
}
