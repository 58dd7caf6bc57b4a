//! What the tests of fuzz targets share: seeds on disk, and a few changes of each.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name of a fuzz target (its folder in `crates/tools/fuzz/corpus`), and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Valid and invalid inputs that a crate makes with its own code, by the names of their files.
pub type Seeds = BTreeMap<&'static str, Vec<u8>>;

/// How many changes of each file a target is called with.
const CHANGES: u64 = 200;

/// Longer files are not changed: there are other ones, and a change of them takes longer.
const CHANGED_BYTES_MAX: usize = 4 << 10;

/// Compares the seeds with the files of the corpus, and calls the target with every file there and
/// with changes of it. With `DISTRIBUTE_WRITE_CORPUS=1` the seeds are written first, as after a
/// change of a format.
///
/// # Panics
/// If a seed is missing or another one, and if the target panics.
pub fn check((name, run): Target, seeds: &Seeds) {
    let folder = folder(name);
    for (seed, bytes) in seeds {
        let path = folder.join(seed);
        if std::env::var_os("DISTRIBUTE_WRITE_CORPUS").is_some() {
            let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, bytes));
            done(&path, written);
        }
        let found = done(&path, fs::read(&path));
        assert!(found == *bytes, "{} is another one", path.display());
    }
    let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    for entry in done(&folder, entries) {
        let path = entry.path();
        let bytes = done(&path, fs::read(&path));
        run(&bytes);
        if bytes.len() <= CHANGED_BYTES_MAX {
            (0..CHANGES).for_each(|number| run(&changed(&bytes, number)));
        }
    }
}

#[expect(clippy::panic, reason = "a test fails by a panic")]
fn done<T>(path: &Path, result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn folder(target: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    crates.join("fuzz/corpus").join(target)
}

/// One to four small changes, the same ones for the same number.
fn changed(bytes: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below(bytes.len() - at + 1).min(16);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.byte()),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            4 => bytes[at..end].fill([0, 1, 0x7f, 0x80, 0xff][random.below(5)]),
            _ => bytes[at..end.min(at + 1)].fill(random.byte()),
        }
    }
    bytes
}

/// Xorshift: good enough to choose places.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below another one, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 11) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_differ_and_come_again() {
        let bytes: Vec<u8> = (0..100).collect();
        let all = || (0..CHANGES).map(|number| changed(&bytes, number));
        let distinct: std::collections::BTreeSet<Vec<u8>> = all().collect();
        assert!(distinct.len() > 150, "{}", distinct.len());
        assert!(all().eq(all()));
        assert!((0..CHANGES).any(|number| !changed(&[], number).is_empty()));
    }
}
