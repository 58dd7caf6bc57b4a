//! Addresses, and the socket that a process listens on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::{NetError, Result};
use crate::security::{CLEAR_DATA, Security};
use crate::shortage::shortage;

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

/// A host as written in front of a port: an IPv6 address in brackets.
pub fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_string()
    }
}

/// The pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// When a wait is reported.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// How long to wait for something that may still come: a name that does not resolve yet, or an
/// address that this host does not have yet.
pub struct Patience<'a> {
    /// The end of waiting.
    pub until: Instant,
    /// Waits for this time; returns whether to go on.
    pub pause: &'a dyn Fn(Duration) -> bool,
}

impl Patience<'_> {
    /// Tries until it succeeds, fails for good (`false` beside the reason), or the patience is
    /// over.
    fn try_until<T>(
        &self,
        mut attempt: impl FnMut() -> std::result::Result<T, (String, bool)>,
    ) -> std::result::Result<T, String> {
        let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
        let mut has_said = false;
        loop {
            let (reason, may_come) = match attempt() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            if !may_come {
                return Err(reason);
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || !(self.pause)(pause.min(left)) {
                return Err(match begun.elapsed() {
                    waited if waited < PAUSE_MIN => reason,
                    waited => format!("{reason} (waited {waited:.1?})"),
                });
            }
            pause = (pause * 2).min(PAUSE_MAX);
            if begun.elapsed() > SAY_AFTER && !std::mem::replace(&mut has_said, true) {
                let left = left.as_secs();
                tracing::warn!("waits at most {left} s more for an address: {reason}");
            }
        }
    }

    /// The addresses of a name. The system's look-up cannot be cancelled; it goes on in the
    /// background when the patience is over.
    fn resolve(&self, host: &str, port: u16) -> std::result::Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            // No name service is asked, and so none is blamed.
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let name = host.to_string();
        let look_up = move || {
            let found = (name.as_str(), port).to_socket_addrs();
            let _no_receiver = sender.send(found.map(Iterator::collect));
        };
        let thread = std::thread::Builder::new().name("distribute-name".to_string());
        thread.spawn(look_up).map_err(|error| error.to_string())?;
        loop {
            match receiver.recv_timeout(PAUSE_MIN) {
                Ok(found) => return found.map_err(|error: io::Error| error.to_string()),
                Err(RecvTimeoutError::Disconnected) => return Err("no answer".to_string()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= self.until || !(self.pause)(PAUSE_MIN) {
                return Err("the name service does not answer".to_string());
            }
        }
    }
}

/// The address by which this host reaches another one, according to its routes. Nothing is sent.
///
/// # Errors
/// Why there is none: the name does not resolve, or there is no route. Waits for a name that may
/// still resolve.
pub fn local_ip_towards(
    address: &str,
    patience: &Patience<'_>,
) -> std::result::Result<IpAddr, String> {
    let (host, port) = split(address)?;
    patience.try_until(|| {
        let may_come = |reason: String| (reason, true);
        let resolved = patience
            .resolve(host, port)
            .map_err(|error| may_come(format!("{host} does not resolve: {error}")))?;
        let mut last = format!("{host} resolves to no address");
        for remote in resolved {
            let everywhere: IpAddr = match remote {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((everywhere, 0));
            match socket.and_then(|it| it.connect(remote).and_then(|()| it.local_addr())) {
                Ok(local) => return Ok(local.ip()),
                Err(error) => last = format!("this host has no way to {}: {error}", remote.ip()),
            }
        }
        Err(may_come(last))
    })
}

/// Why there is no connection to an address, and what to check: the port and the direction
/// where a firewall may be the cause.
pub fn why_unreachable(remote: SocketAddr, error: &io::Error) -> String {
    if let Some(shortage) = shortage(error) {
        return format!("cannot connect: {shortage}");
    }
    let port = remote.port();
    let firewall = format!(
        "a firewall? Let connections from this host to TCP port {port} of {} pass",
        remote.ip()
    );
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "no process listens there: connection refused".to_string()
        }
        io::ErrorKind::TimedOut => format!("no answer to the attempt to connect: {firewall}"),
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::PermissionDenied => {
            format!("cannot connect: {error}: no route, or {firewall}")
        }
        _ => format!("cannot connect: {error}"),
    }
}

/// A socket that is bound before the process can answer, so that no other process takes the
/// address in between.
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
    /// [`NetError::Address`] when the address does not resolve, is in use or is not one of this
    /// host; [`NetError::InvalidOption`] when it is no address at all, or is reachable from other
    /// hosts although `security` is not enough for that.
    pub fn bind(task: usize, address: &str, security: &Security) -> Result<BoundListener> {
        let patience = Patience {
            until: Instant::now(),
            pause: &|_| false,
        };
        let (host, port) = split(address).map_err(|reason| refuse_always(task, address, reason))?;
        let refuse = refusal(task, address);
        let resolved = (host, port)
            .to_socket_addrs()
            .map_err(|error| refuse(unresolved(&error)))?;
        let bound =
            patience.try_until(|| Self::bind_one(task, address, resolved.clone(), security));
        bound.map_err(refuse)?
    }

    /// Like [`bind`](Self::bind), but waits for the name of this host, which a name service may
    /// learn after the process has started, and for its address.
    ///
    /// # Errors
    /// As `bind`. An unresolved name or a missing address is an error when the patience is
    /// over.
    pub fn bind_patiently(
        task: usize,
        address: &str,
        security: &Security,
        patience: &Patience<'_>,
    ) -> Result<BoundListener> {
        let (host, port) = split(address).map_err(|reason| refuse_always(task, address, reason))?;
        let bound = patience.try_until(|| {
            let resolved = patience
                .resolve(host, port)
                .map_err(|error| (unresolved(&error), true))?;
            Self::bind_one(task, address, resolved.into_iter(), security)
        });
        bound.map_err(refusal(task, address))?
    }

    /// Listens at the first of these addresses that can be used. The outer error is a reason,
    /// with a flag whether an address may still become usable; an error that waiting cannot change
    /// is the inner one.
    fn bind_one(
        task: usize,
        address: &str,
        resolved: impl Iterator<Item = SocketAddr> + Clone,
        security: &Security,
    ) -> std::result::Result<Result<BoundListener>, (String, bool)> {
        if let (Some(open), Err(missing)) = (
            (resolved.clone()).find(|resolved| !resolved.ip().is_loopback()),
            security.allows_beyond_loopback(),
        ) {
            let reason = format!(
                "other hosts can reach {}, which needs {missing}; set them, use a loopback \
                 address, or ask for `insecure` by name",
                open.ip()
            );
            return Ok(Err(refuse_always(task, address, reason)));
        }
        let mut last = ("it resolves to no address".to_string(), true);
        for candidate in resolved {
            match TcpListener::bind(candidate).and_then(|s| Ok((s.local_addr()?, s))) {
                Ok((local, _)) if is_cut_off(local.ip()) => {
                    let down = "the loopback interface is down, so no process can connect; \
                                switch it on (`ip link set lo up`)";
                    last = (down.to_string(), true);
                }
                Ok((local, socket)) => {
                    // Now: other processes may connect before this one accepts.
                    #[cfg(feature = "tokio")]
                    {
                        crate::pacing::stop_pacing(&socket, local.ip());
                        crate::backlog::widen(&socket);
                    }
                    if let Some(text) = security.clear_text(local, CLEAR_DATA) {
                        tracing::warn!("{text}");
                    }
                    return Ok(Ok(BoundListener { socket, local }));
                }
                Err(error) => {
                    let may_come = error.kind() == io::ErrorKind::AddrNotAvailable;
                    last = (cannot_bind(task, &error), may_come);
                    // Another address of the same name would hide that the process exists already.
                    if error.kind() == io::ErrorKind::AddrInUse {
                        break;
                    }
                }
            }
        }
        Err(last)
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

fn refusal(task: usize, address: &str) -> impl Fn(String) -> NetError {
    let address = address.to_string();
    move |reason| NetError::Address {
        task,
        address: address.clone(),
        reason,
    }
}

/// The error for an address that waiting does not make usable.
fn refuse_always(task: usize, address: &str, reason: String) -> NetError {
    NetError::InvalidOption {
        what: format!("cannot use the address {address} of rank {task}: {reason}"),
    }
}

fn unresolved(error: &impl std::fmt::Display) -> String {
    format!("it does not resolve: {error}")
}

/// Whether it is a loopback address that cannot be reached, as in a network namespace without
/// an active interface. Connecting a datagram socket sends nothing.
fn is_cut_off(ip: IpAddr) -> bool {
    let connected = || UdpSocket::bind((ip, 0))?.connect((ip, 9));
    let unreachable = |error: io::Error| error.kind() == io::ErrorKind::NetworkUnreachable;
    ip.is_loopback() && connected().is_err_and(unreachable)
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
            Err(NetError::InvalidOption { what }) if what.contains(address) => what,
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
        let permanent = |address: &str| {
            let bound = BoundListener::bind(3, address, &Security::default());
            bound.unwrap_err().is_permanent()
        };
        // A port may become free; an invalid address stays invalid.
        assert!(!permanent(&taken.local_addr().to_string()));
        assert!(reason("localhost").contains("host:port") && permanent("localhost"));
        assert!(permanent("localhost:99999") && permanent("192.0.2.1:80"));
        // A loopback address is local in every network; this one is reserved for documentation.
        let open = Security::default().insecure();
        let error = BoundListener::bind(3, "192.0.2.1:80", &open)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not an address of this host"), "{error}");
    }

    /// Counts the pauses of a wait, and ends it after a number of them.
    fn pauses(count: &std::cell::Cell<usize>, most: usize) -> impl Fn(Duration) -> bool {
        move |time| {
            std::thread::sleep(time.min(Duration::from_millis(5)));
            count.set(count.get() + 1);
            count.get() < most
        }
    }

    #[test]
    fn names_and_addresses_that_may_still_come_are_waited_for() {
        let count = std::cell::Cell::new(0);
        let until = Instant::now() + Duration::from_secs(60);
        let open = Security::default().insecure();
        let wait = |address: &str, security: &Security| {
            count.set(0);
            let pause = pauses(&count, 5000);
            let short = Patience {
                until: until.min(Instant::now() + Duration::from_secs(1)),
                pause: &pause,
            };
            let refused = BoundListener::bind_patiently(3, address, security, &short);
            (refused.unwrap_err().to_string(), count.get())
        };
        let (text, pauses) = wait("no-such-host.invalid:80", &open);
        assert!(
            text.contains("does not resolve") && text.contains("waited"),
            "{text}"
        );
        assert!(pauses > 1);
        let (text, pauses) = wait("192.0.2.1:80", &open);
        assert!(
            text.contains("not an address of this host") && pauses > 1,
            "{text}"
        );
        // A lasting error is returned at once, after the look-up.
        let taken = BoundListener::bind(0, "127.0.0.1:0", &open).unwrap();
        let (text, _) = wait(&taken.local_addr().to_string(), &open);
        assert!(
            text.contains("in use") && !text.contains("waited"),
            "{text}"
        );
        let (text, _) = wait("192.0.2.1:80", &Security::default());
        assert!(
            text.contains("needs a token") && !text.contains("waited"),
            "{text}"
        );
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to() {
        let count = std::cell::Cell::new(0);
        let pause = pauses(&count, 3);
        let patience = Patience {
            until: Instant::now() + Duration::from_secs(60),
            pause: &pause,
        };
        let address = "no-such-host.invalid:80";
        assert!(
            BoundListener::bind_patiently(3, address, &Security::default(), &patience).is_err()
        );
        assert!(local_ip_towards(address, &patience).is_err());
    }

    #[test]
    fn the_address_towards_a_host_is_that_of_the_route() {
        let patience = Patience {
            until: Instant::now(),
            pause: &|_| false,
        };
        let towards = |address: &str| local_ip_towards(address, &patience);
        assert_eq!(
            towards("127.0.0.1:9"),
            Ok(IpAddr::from(Ipv4Addr::LOCALHOST))
        );
        assert!(towards("localhost:9").unwrap().is_loopback());
        assert!(towards("localhost").unwrap_err().contains("host:port"));
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
