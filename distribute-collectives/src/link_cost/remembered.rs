//! Costs in a file that outlives the process, so that a job that starts again need not measure the
//! links that it has measured before.
//!
//! The file holds the group (its hosts and what carries the bytes, without ports, which change from
//! start to start) and the costs. It only saves time: whatever is wrong with it, the links are
//! measured, and all ranks measure unless every one of them remembers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::LinkCost;

/// What a file of this version begins with.
const MARK: &[u8] = b"distribute links 1\n";

/// The costs that were remembered for this group.
pub(crate) fn recall(path: &Path, group: &str) -> Option<LinkCost> {
    let expected = [MARK, group.as_bytes(), b"\n"].concat();
    // Costs are a few bytes; whatever is longer is another file.
    let most = expected.len() as u64 + 1024;
    let mut found = Vec::new();
    let file = File::open(path).ok()?;
    file.take(most).read_to_end(&mut found).ok()?;
    LinkCost::from_bytes(found.strip_prefix(&expected[..])?)
}

/// Remembers the costs of this group.
pub(crate) fn remember(path: &Path, group: &str, cost: LinkCost) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&[MARK, group.as_bytes(), b"\n", &cost.to_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn costs_are_those_of_the_same_group_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        let cost = LinkCost {
            latency: Duration::from_millis(50),
            ..LinkCost::default()
        };
        assert_eq!(recall(&path, "a b"), None);
        remember(&path, "a b", LinkCost::default()).unwrap();
        remember(&path, "a b", cost).unwrap();
        assert_eq!(recall(&path, "a b"), Some(cost));
        for other in ["", "a", "a b c", "a b\n"] {
            assert_eq!(recall(&path, other), None, "{other:?}");
        }
    }

    #[test]
    fn whatever_is_no_such_file_is_no_cost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        remember(&path, "a", LinkCost::default()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(recall(&path, "a"), None, "{length}");
        }
        std::fs::write(&path, [&whole[..], b"1"].concat()).unwrap();
        assert_eq!(recall(&path, "a"), None);
        assert_eq!(recall(folder.path(), "a"), None);
        assert!(remember(folder.path(), "a", LinkCost::default()).is_err());
    }
}
