//! Settings of a check.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distribute_net::security::Security;

use crate::clock::{self, Clock};
use crate::error::{PeersError, Result};
use crate::facts::Facts;

/// Says a line to a person while the check waits.
pub(crate) type Note = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of one process of a check. All processes must have the same number of addresses and the
/// same token.
#[derive(Clone)]
#[must_use]
pub struct PeersOptions {
    pub(crate) rank: usize,
    pub(crate) addresses: Vec<Option<String>>,
    pub(crate) name: String,
    pub(crate) own_host: Option<String>,
    pub(crate) own_port: u16,
    pub(crate) security: Security,
    pub(crate) timeout: Duration,
    pub(crate) facts: Facts,
    pub(crate) clock: Clock,
    pub(crate) note: Note,
}

impl fmt::Debug for PeersOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersOptions")
            .field("rank", &self.rank)
            .field("addresses", &self.addresses)
            .field("security", &self.security)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl PeersOptions {
    /// Rank `rank` of the processes that listen at these addresses (`host:port`). That of rank 0
    /// must be there, as the processes meet at it. A process whose address is `None` listens where
    /// it reaches rank 0 from and tells rank 0.
    pub fn new(
        rank: usize,
        addresses: impl IntoIterator<Item = Option<impl Into<String>>>,
    ) -> Self {
        let addresses = addresses.into_iter();
        Self {
            rank,
            addresses: addresses.map(|it| it.map(Into::into)).collect(),
            name: format!("rank {rank}"),
            own_host: None,
            own_port: 0,
            security: Security::default(),
            timeout: Duration::from_secs(60),
            facts: Facts::default(),
            clock: clock::of_this_host(),
            note: Arc::new(|_| {}),
        }
    }

    /// The task that this process is, such as `worker 1`, for the report.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The host under which the others reach this process, where its address is not listed
    /// (default: the address from which it reaches rank 0).
    pub fn own_host(mut self, host: Option<String>) -> Self {
        self.own_host = host;
        self
    }

    /// The port of this process, where its address is not listed (default 0: any free one).
    pub fn own_port(mut self, port: u16) -> Self {
        self.own_port = port;
        self
    }

    /// Token and certificates, as the job has them.
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// How long to wait for the others (default 60 s). After that the check goes on without those
    /// that have not come.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What this process says of itself and its host.
    pub fn facts(mut self, facts: Facts) -> Self {
        self.facts = facts;
        self
    }

    /// The clock of this host, in nanoseconds since 1970 (default: the system's).
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// What is called with a line for a person while the check waits (default: nothing is said).
    pub fn note(mut self, note: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.note = Arc::new(note);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let size = self.addresses.len();
        let what = if self.rank >= size {
            format!("rank {} is not below the {size} addresses", self.rank)
        } else if self.addresses.first().is_none_or(Option::is_none) {
            "the address of rank 0 is needed: it is where the processes meet".to_string()
        } else if self.timeout.is_zero() {
            "the time to wait for the others is above 0".to_string()
        } else {
            return Ok(());
        };
        Err(PeersError::InvalidOption { what })
    }

    /// The address of rank 0.
    pub(crate) fn leader(&self) -> &str {
        self.addresses
            .first()
            .and_then(Option::as_deref)
            .unwrap_or_default()
    }
}
