//! Memory for the training state of workers that outlives them: two files without a name for each
//! place of a worker, which the launcher holds. They are gone with it, however it ends.

use std::io;
use std::path::PathBuf;

/// Where a worker finds its two files, separated as in `PATH`.
pub const MEMORY_VARIABLE: &str = "DISTRIBUTE_STATE_MEMORY";

/// The memory of all places of this host. It takes no more than what workers write into it.
#[derive(Default)]
pub struct StateMemory {
    /// Empty where there is none: a worker that wants it says so.
    places: Vec<[system::File; 2]>,
}

impl StateMemory {
    /// For so many places, whether or not their command wants it, which the launcher cannot know.
    /// All or none: where file descriptors run out, the processes need those that are left.
    pub fn new(places: usize) -> io::Result<StateMemory> {
        let places = (0..places).filter_map(|_| system::pair().transpose());
        Ok(StateMemory {
            places: places.collect::<io::Result<_>>()?,
        })
    }

    /// The value of the variable for the worker in a place; none where there is no such memory.
    pub fn variable(&self, place: usize) -> Option<String> {
        let files = self.places.get(place)?;
        let paths = files.each_ref().map(system::path);
        let paths = std::env::join_paths::<_, PathBuf>(paths).ok()?;
        paths.into_string().ok()
    }

    /// Gives the memory of all other places back: their workers are lost for good.
    pub fn keep(&self, places: &[usize]) {
        let all = self.places.iter().enumerate();
        let lost = all.filter(|(place, _)| !places.contains(place));
        let files = lost.flat_map(|(_, files)| files);
        files.for_each(system::empty);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::path::PathBuf;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    pub type File = OwnedFd;

    pub fn pair() -> io::Result<Option<[File; 2]>> {
        let file = || memfd_create("distribute-state", MemfdFlags::CLOEXEC);
        Ok(Some([file()?, file()?]))
    }

    /// By which processes of the same user open it, as long as the launcher lives.
    pub fn path(file: &File) -> PathBuf {
        PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            file.as_raw_fd()
        ))
    }

    pub fn empty(file: &File) {
        // What stays is memory that nobody reads, until the launcher ends.
        let _ignored = ftruncate(file, 0);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::convert::Infallible;
    use std::io;
    use std::path::PathBuf;

    pub type File = Infallible;

    pub fn pair() -> io::Result<Option<[File; 2]>> {
        Ok(None)
    }

    pub fn path(file: &File) -> PathBuf {
        match *file {}
    }

    pub fn empty(file: &File) {
        match *file {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_place_has_two_files_that_live_as_long_as_the_launcher() {
        let memory = StateMemory::new(2).unwrap();
        let paths = |place| {
            let variable = memory.variable(place).unwrap();
            let paths: Vec<PathBuf> = std::env::split_paths(&variable).collect();
            <[PathBuf; 2]>::try_from(paths).unwrap()
        };
        let all = [paths(0), paths(1)].concat();
        for (number, path) in all.iter().enumerate() {
            fs::File::options().write(true).open(path).unwrap();
            fs::write(path, number.to_string()).unwrap();
        }
        memory.keep(&[1]);
        let read: Vec<String> = all
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        assert_eq!(read, ["", "", "2", "3"]);
        assert_eq!(memory.variable(2), None);
        let names: Vec<PathBuf> = all
            .iter()
            .map(|path| fs::read_link(path).unwrap())
            .collect();
        drop(memory);
        for (path, name) in all.iter().zip(names) {
            assert_ne!(fs::read_link(path).ok(), Some(name.clone()));
            assert!(!name.exists(), "nothing is left of {}", name.display());
        }
    }
}
