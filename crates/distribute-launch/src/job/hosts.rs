use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{LaunchError, Result};

const SECRET_BYTES_MIN: usize = 16;
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// A job on several hosts: the launcher is run once on each, with the same options but
/// [`index`](Hosts::new) and what it starts there.
///
/// The launchers meet at an address of the first host, in its launcher: no process of the job has
/// to live for the others to find each other or to learn how the job ends. They know each other by
/// a secret that never crosses the network; what they tell each other is not encrypted.
#[derive(Clone)]
pub struct Hosts {
    pub(crate) address: SocketAddr,
    pub(crate) count: usize,
    pub(crate) index: usize,
    pub(crate) secret: Arc<[u8]>,
    pub(crate) own_address: Option<IpAddr>,
    pub(crate) is_insecure: bool,
    pub(crate) join_timeout: Duration,
}

impl Hosts {
    /// Host `index` of `count`. The launcher of host 0 listens at `address`, the others connect to
    /// it. All have the same `secret` of at least 16 bytes.
    pub fn new(address: SocketAddr, count: usize, index: usize, secret: impl AsRef<[u8]>) -> Hosts {
        Hosts {
            address,
            count,
            index,
            secret: secret.as_ref().into(),
            own_address: None,
            is_insecure: false,
            join_timeout: JOIN_TIMEOUT,
        }
    }

    /// Where the other hosts reach the processes of this one (default: the address by which this
    /// host reaches host 0).
    #[must_use]
    pub fn own_address(mut self, address: IpAddr) -> Hosts {
        self.own_address = Some(address);
        self
    }

    /// Allows an address beyond loopback (default: not), where others on the network can read and
    /// change what the launchers tell each other.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Hosts {
        self.is_insecure = insecure;
        self
    }

    /// How long to wait for all hosts (default: 5 minutes).
    #[must_use]
    pub fn join_timeout(mut self, timeout: Duration) -> Hosts {
        self.join_timeout = timeout;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let what = if self.index >= self.count {
            format!("host {} of {}: count hosts from 0", self.index, self.count)
        } else if self.secret.len() < SECRET_BYTES_MIN {
            let bytes = self.secret.len();
            format!("the secret has {bytes} bytes, it must have at least {SECRET_BYTES_MIN}")
        } else if !self.address.ip().is_loopback() && !self.is_insecure {
            let address = self.address;
            format!(
                "{address} is not a loopback address, and what the launchers tell each other is \
                 not encrypted: allow that (insecure), on a network that you trust"
            )
        } else {
            return Ok(());
        };
        Err(LaunchError::InvalidHosts { what })
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
