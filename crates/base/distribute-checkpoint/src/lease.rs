//! A lease: a file beside a lock that names the holder of a directory and shows that it is alive.
//! It is for file systems whose locks do not reach other hosts, or that have no locks.
//!
//! The holder rewrites the file every [`RENEWAL`], so that its modification time comes from the
//! file system's own clock. Another process compares that time with the time of a file that it has
//! just written there, so clocks of two hosts are never compared.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::owner::Owner;

/// How often a holder renews its lease.
pub(super) const RENEWAL: Duration = Duration::from_secs(5);
/// A lease that was not renewed for this long may be taken over.
pub(super) const VALID_FOR: Duration = Duration::from_secs(30);
/// The greatest size of a valid lease.
pub(super) const MAX_BYTES: u64 = 4096;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    /// Tells the leases of one process apart.
    pub(super) id: String,
    pub(super) owner: Owner,
    /// The directory in which it was written; older leases lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) directory: Option<DirectoryId>,
}

/// Tells a directory from a copy of it, on one host while that runs: device and inode
/// number.
pub(super) type DirectoryId = (u64, u64);

impl Lease {
    /// Whether it was copied into this directory together with the rest.
    pub(super) fn is_of_another(&self, directory: Option<DirectoryId>) -> bool {
        match (self.directory, directory) {
            (Some(written), Some(found)) => written != found,
            _ => false,
        }
    }

    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// 32 hexadecimal digits that cannot be guessed and taken first.
pub(super) fn random_id() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::from)?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}

/// What the lock shows when a lease is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locking {
    /// This process has the lock, and the lock excludes every process that can reach the file.
    Conclusive,
    /// This process has the lock, but another host's process may have one too.
    PerHost,
    /// There are no locks.
    None,
}

/// Whether the owner of a lease of this age holds the directory. `owner` is `None` if the lease
/// cannot be read.
pub(super) fn is_held(
    owner: Option<&Owner>,
    age: Option<Duration>,
    own: &Owner,
    locking: Locking,
    is_alive: impl FnOnce(&Owner) -> bool,
) -> bool {
    // A lease whose time is further in the future is not being renewed.
    if age.is_none_or(|age| age >= VALID_FOR) {
        return false;
    }
    match owner {
        // Locks also exclude each other within one process.
        Some(owner) if owner == own => locking == Locking::None,
        Some(owner) if own.sees(owner) => is_alive(owner),
        // In another container the lock is of the same kernel.
        Some(owner) if own.shares_kernel(owner) => locking == Locking::None,
        _ => locking != Locking::Conclusive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(boot: &str, namespace: &str, process: u32) -> Owner {
        Owner {
            host: format!("host of {boot}"),
            process,
            boot: boot.to_string(),
            namespace: namespace.to_string(),
            started: "100".to_string(),
        }
    }

    const FRESH: Option<Duration> = Some(Duration::from_secs(6));

    #[test]
    fn who_holds_follows_from_lock_lease_and_process() {
        use Locking::{Conclusive, None as NoLocks, PerHost};
        let own = owner("a", "1", 7);
        let (neighbour, container) = (owner("a", "1", 8), owner("a", "2", 7));
        let elsewhere = owner("b", "1", 7);
        for (lease, locking, alive, held) in [
            (Some(&own), Conclusive, true, false),
            (Some(&own), PerHost, true, false),
            (Some(&own), NoLocks, true, true),
            // A lock that does not exclude processes of the same host is useless.
            (Some(&neighbour), Conclusive, true, true),
            (Some(&neighbour), NoLocks, true, true),
            (Some(&neighbour), Conclusive, false, false),
            (Some(&neighbour), NoLocks, false, false),
            (Some(&container), Conclusive, false, false),
            (Some(&container), PerHost, false, false),
            (Some(&container), NoLocks, false, true),
            (Some(&elsewhere), Conclusive, false, false),
            (Some(&elsewhere), PerHost, false, true),
            (Some(&elsewhere), NoLocks, false, true),
            (None, Conclusive, false, false),
            (None, PerHost, false, true),
            (None, NoLocks, false, true),
        ] {
            let found = is_held(lease, FRESH, &own, locking, |_| alive);
            assert_eq!(found, held, "{lease:?} {locking:?} {alive}");
            for age in [None, Some(VALID_FOR)] {
                assert!(!is_held(lease, age, &own, locking, |_| alive), "{lease:?}");
            }
        }
    }

    #[test]
    fn a_lease_that_is_renewed_is_never_old() {
        assert!(RENEWAL * 4 < VALID_FOR, "four renewals may fail");
    }

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let lease = Lease {
            id: "0".repeat(32),
            owner: Owner::this(),
            directory: Some((u64::MAX, u64::MAX)),
        };
        let bytes = lease.encode().unwrap();
        assert!((bytes.len() as u64) < MAX_BYTES);
        assert_eq!(Lease::decode(&bytes).as_ref(), Some(&lease));
        let older = Lease {
            directory: None,
            ..lease
        };
        let without = older.encode().unwrap();
        assert!(
            !String::from_utf8(without.clone())
                .unwrap()
                .contains("directory")
        );
        assert_eq!(Lease::decode(&without), Some(older));
        assert_eq!(Lease::decode(b""), None);
        assert_eq!(Lease::decode(&bytes[..20]), None);
    }
}
