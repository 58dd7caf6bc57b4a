use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use distribute_net::security::Security;
use distribute_net::tls::TlsSettings;

use crate::error::{LaunchError, Result};

const JOIN_TIMEOUT: Duration = Duration::from_secs(300);
const TIMEOUT: Duration = Duration::from_secs(12);
/// The option for how long to wait for hosts.
pub(crate) const JOIN_TIMEOUT_OPTION: &str = "Hosts::join_timeout";
/// The option for how long to wait for hosts in an elastic job.
pub(crate) const SHRINK_AFTER_OPTION: &str = "Job::shrink_after";
/// How many launchers connect to one launcher.
const ARITY: usize = 16;
/// A shorter timeout would take a busy host for a lost one.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// A job on several hosts: the launcher is run once on each, with the same options but
/// [`index`](Hosts::new) and what it starts there.
///
/// The launcher of the first host listens at an address where all launchers meet. No process of
/// the job has to live for the launchers to find each other or to learn how the job ends. The
/// launchers know each other by a token that never crosses the network; their messages are
/// encrypted if they have certificates.
#[derive(Clone)]
pub struct Hosts {
    pub(crate) address: SocketAddr,
    pub(crate) count: usize,
    pub(crate) index: usize,
    pub(crate) security: Security,
    pub(crate) own_address: Option<IpAddr>,
    pub(crate) is_forwarded: bool,
    pub(crate) lacking: Lacking,
    pub(crate) join_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) arity: usize,
    /// Where this launcher's own port is from, if others connect to it.
    pub(crate) ports: Option<RangeInclusive<u16>>,
}

/// The last resource that this process lacked for connections of other launchers.
#[derive(Clone, Default)]
pub(crate) struct Lacking(Arc<Mutex<Option<String>>>);

impl Lacking {
    pub(crate) fn note(&self, why: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    pub(crate) fn noted(&self) -> Option<String> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.clone()
    }
}

impl Hosts {
    /// Host `index` of `count`. The launcher of host 0 listens at `address`, the others connect to
    /// it. `security` has the same token on all of them. An address beyond loopback needs
    /// certificates too, unless it is [insecure](Security::insecure): a certificate must name the
    /// address of its host, that of host 0 also `address`.
    pub fn new(address: SocketAddr, count: usize, index: usize, security: Security) -> Hosts {
        Hosts {
            address,
            count,
            index,
            security,
            own_address: None,
            is_forwarded: false,
            lacking: Lacking::default(),
            join_timeout: JOIN_TIMEOUT,
            timeout: TIMEOUT,
            arity: ARITY,
            ports: None,
        }
    }

    /// Where the other hosts reach the processes of this one (default: the address by which this
    /// host reaches host 0).
    #[must_use]
    pub fn own_address(mut self, address: IpAddr) -> Hosts {
        self.own_address = Some(address);
        self
    }

    /// The others reach host 0 under another address than the one where it listens, such as that of
    /// a gateway: host 0 does not insist on the address that they have dialled.
    #[must_use]
    pub fn forwarded(mut self) -> Hosts {
        self.is_forwarded = true;
        self
    }

    /// How long to wait for all hosts (default: 5 minutes), at first and for one that was lost, as
    /// long as restarts are left.
    #[must_use]
    pub fn join_timeout(mut self, timeout: Duration) -> Hosts {
        self.join_timeout = timeout;
        self
    }

    /// How long the launcher of a host may be out of reach of that of host 0, the same on all of
    /// them (default: 12 s): meanwhile the processes go on, if they reach each other. After that,
    /// or up to half of the time later, the host is lost, and the job starts again if restarts are
    /// left. At least 1 s; not shorter than the time after which the processes give each other up.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Hosts {
        self.timeout = timeout.max(TIMEOUT_MIN);
        self
    }

    /// How many launchers at most connect to one launcher (default: 16; at least 1; give the same
    /// on all hosts). The launchers of a job with more other hosts than this are a tree with host 0
    /// at its root: each of them listens at a port of its own, one of
    /// [`Job::ports`](crate::Job::ports) if there is such a range, and connects to the one that
    /// host 0 names.
    #[must_use]
    pub fn arity(mut self, arity: usize) -> Hosts {
        self.arity = arity.max(1);
        self
    }

    /// Where this launcher's own port is from.
    pub(crate) fn ports(mut self, ports: Option<RangeInclusive<u16>>) -> Hosts {
        self.ports = ports;
        self
    }

    /// The error for launchers that did not come, or could not connect.
    pub(crate) fn missing(&self, missing: Vec<usize>) -> LaunchError {
        match self.lacking.noted() {
            Some(why) => LaunchError::Rendezvous {
                address: self.address,
                source: io::Error::other(format!(
                    "no launcher of the hosts {missing:?} (counted from 0) was let in, as {why}"
                )),
            },
            None => LaunchError::HostsMissing { missing },
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let (address, security) = (self.address, &self.security);
        let own = self.own_address;
        let is_several = self.count > 1;
        let what = if address.port() == 0 {
            format!(
                "the launchers cannot meet at {address} (--rendezvous): 0 is no port; name one \
                 from 1 to 65535"
            )
        } else if address.ip().is_unspecified() && self.index > 0 {
            format!(
                "this host cannot connect to {address} (--rendezvous): name the address of host 0"
            )
        } else if address.ip().is_unspecified() && is_several && own.is_none() {
            format!(
                "host 0 listens at all its addresses ({address}, --rendezvous), so it is \
                 unknown by which one the others reach its processes: name that one, or add the \
                 address of this host (--host-address)"
            )
        } else if let Some(own) = own.filter(IpAddr::is_unspecified) {
            format!("{own} is no address of this host for the others (--host-address): name one")
        } else if let Some(own) = own.filter(|own| own.is_loopback() && self.is_beyond_loopback()) {
            format!(
                "other hosts cannot reach the processes of this one at {own} (--host-address), \
                 and the job has {} hosts: name an address by which they can",
                self.count
            )
        } else if self.index >= self.count {
            format!("host {} of {}: count hosts from 0", self.index, self.count)
        } else if !security.has_token() {
            "the launchers of several hosts need a common token: give all of them the same one"
                .to_owned()
        } else if !address.ip().is_loopback() && security.allows_beyond_loopback().is_err() {
            return Err(LaunchError::NotEncrypted { address });
        } else {
            return self.tls().map(drop);
        };
        Err(LaunchError::InvalidHosts { what })
    }

    /// Whether the hosts are more than one machine: the launchers do not meet on a loopback
    /// address.
    fn is_beyond_loopback(&self) -> bool {
        self.count > 1 && !self.address.ip().is_loopback()
    }

    /// The address that this launcher dials to join: host 0's. If host 0 listens at all addresses,
    /// its own launcher dials its own address.
    pub(crate) fn dialled(&self) -> SocketAddr {
        match self.own_address {
            Some(own) if self.address.ip().is_unspecified() => (own, self.address.port()).into(),
            _ => self.address,
        }
    }

    /// The TLS settings of the connections; `None` if they are not encrypted.
    pub(crate) fn tls(&self) -> Result<Option<TlsSettings>> {
        let settings = self.security.tls_settings();
        settings.map_err(|error| LaunchError::InvalidHosts {
            what: error.to_string(),
        })
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Hosts");
        shown.field("address", &self.address);
        shown.field("count", &self.count);
        shown.field("index", &self.index);
        shown.finish_non_exhaustive()
    }
}
