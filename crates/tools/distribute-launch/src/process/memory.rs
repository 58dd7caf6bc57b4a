//! Memory that outlives workers: unnamed files for each place of a worker, held open by the
//! launcher. They are gone when the launcher ends, however it ends.

use std::io;
use std::path::PathBuf;

/// Where a worker finds its two files, separated as in `PATH`.
pub const MEMORY_VARIABLE: &str = "DISTRIBUTE_STATE_MEMORY";

/// The file in which a worker stores the measured cost of its links.
pub const LINK_MEMORY_VARIABLE: &str = "DISTRIBUTE_LINK_MEMORY";

/// The files of one place.
struct Place {
    state: [system::File; 2],
    links: system::File,
}

impl Place {
    fn new() -> io::Result<Option<Place>> {
        let state = system::file()?.zip(system::file()?);
        let files = state.zip(system::file()?);
        Ok(files.map(|((first, second), links)| Place {
            state: [first, second],
            links,
        }))
    }

    /// The values of the two variables.
    fn variables(&self) -> Option<[String; 2]> {
        let state = self.state.each_ref().map(system::path);
        let state = std::env::join_paths::<_, PathBuf>(state).ok()?;
        let links = system::path(&self.links).into_os_string();
        Some([state.into_string().ok()?, links.into_string().ok()?])
    }
}

/// The memory of all places of this host. It takes no more than what workers write into it.
#[derive(Default)]
pub struct StateMemory {
    /// Empty where there is none: a worker that wants it says so.
    places: Vec<Place>,
}

impl StateMemory {
    /// Makes the memory of `places` places, whether or not their command wants it, which the
    /// launcher cannot know. All places get memory or none: if file descriptors run out, the
    /// processes need the rest.
    pub fn new(places: usize) -> io::Result<StateMemory> {
        let places = (0..places).filter_map(|_| Place::new().transpose());
        Ok(StateMemory {
            places: places.collect::<io::Result<_>>()?,
        })
    }

    /// The variables of the worker in a place; none where there is no such memory.
    pub fn variables(&self, place: usize) -> Vec<(&'static str, String)> {
        let values = self.places.get(place).and_then(Place::variables);
        let names = [MEMORY_VARIABLE, LINK_MEMORY_VARIABLE];
        values.map_or_else(Vec::new, |values| names.into_iter().zip(values).collect())
    }

    /// Frees the memory of all other places: their workers are lost for good.
    pub fn keep(&self, places: &[usize]) {
        let all = self.places.iter().enumerate();
        let lost = all.filter(|(place, _)| !places.contains(place));
        let files = lost.flat_map(|(_, place)| &place.state);
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

    pub fn file() -> io::Result<Option<File>> {
        Ok(Some(memfd_create(
            "distribute-memory",
            MemfdFlags::CLOEXEC,
        )?))
    }

    /// The path by which processes of the same user can open the file, while the launcher lives.
    pub fn path(file: &File) -> PathBuf {
        PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            file.as_raw_fd()
        ))
    }

    pub fn empty(file: &File) {
        // On failure the memory stays until the launcher ends.
        let _ignored = ftruncate(file, 0);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::convert::Infallible;
    use std::io;
    use std::path::PathBuf;

    pub type File = Infallible;

    pub fn file() -> io::Result<Option<File>> {
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
    fn each_place_has_files_that_live_as_long_as_the_launcher() {
        let memory = StateMemory::new(2).unwrap();
        let paths = |place| {
            let [(_, state), (_, links)] = memory.variables(place).try_into().unwrap();
            let mut paths: Vec<PathBuf> = std::env::split_paths(&state).collect();
            paths.push(links.into());
            <[PathBuf; 3]>::try_from(paths).unwrap()
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
        // The cost of links is kept.
        assert_eq!(read, ["", "", "2", "3", "4", "5"]);
        assert_eq!(memory.variables(2), []);
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
