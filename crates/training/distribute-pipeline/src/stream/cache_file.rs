//! Elements that are read once, in a file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{SavedItem, Stream};
use crate::{Cardinality, PipelineError, Result, State};

const STAGE: &str = "cache_file";

/// The first bytes of a file; the last one is the version.
const HEADER: &[u8; 8] = b"PIPCACH\x01";

/// The length that marks the end, in place of an element's.
const END: u64 = u64::MAX;

/// [`Stream::cache_file`]: the elements of epoch 0. The file appears when a pass has ended, under
/// another name before, and is read from then on, by later runs too: remove it when the data or
/// the stages before it change. A state holds the place in the file, and nothing is read again.
#[derive(Debug)]
#[must_use]
pub struct CacheFile<S> {
    input: S,
    path: PathBuf,
    limit: u64,
    /// Whether this pass reads its input from the first element on, and so may be kept.
    fills: bool,
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    /// Nothing has been read in this pass.
    Fresh,
    /// The input is read, and written if there is a file for it.
    Input(Option<Writer>),
    /// The file is read.
    File(Box<Reader>),
}

/// A file in the making, which is removed if it is not finished.
#[derive(Debug)]
struct Writer {
    /// Empty once the file has its own name.
    path: PathBuf,
    file: Option<BufWriter<File>>,
    bytes: u64,
}

#[derive(Debug)]
struct Reader {
    file: BufReader<File>,
    /// The place of the next element in the file, and the file's size.
    place: u64,
    size: u64,
}

impl<S> CacheFile<S> {
    pub(super) fn new(input: S, path: PathBuf) -> Self {
        Self {
            input,
            path,
            limit: u64::MAX,
            fills: true,
            mode: Mode::Fresh,
        }
    }

    /// The most bytes that the file may take: more is an error.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }
}

fn failed(path: &Path, source: io::Error) -> PipelineError {
    PipelineError::Io {
        stage: STAGE,
        path: path.into(),
        source: Arc::new(source),
    }
}

fn damaged(path: &Path, what: &str) -> PipelineError {
    let what = format!("{what}; remove it, and it is written again");
    failed(path, io::Error::new(io::ErrorKind::InvalidData, what))
}

/// A file next to `path` that is only this writer's: other streams, threads and machines may write
/// the same cache at the same time.
fn create(path: &Path) -> Result<(PathBuf, File)> {
    let mut number = 0_u64;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.{number}.tmp", std::process::id()));
        let path = PathBuf::from(name);
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            // Of another stream, of a process with the same number in another container, or of one
            // that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(failed(&path, error)),
        }
    }
}

impl Writer {
    fn new(path: &Path) -> Result<Self> {
        let (path, file) = create(path)?;
        let mut writer = Self {
            path,
            file: Some(BufWriter::new(file)),
            bytes: 0,
        };
        writer.write(HEADER)?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        file.write_all(bytes)
            .map_err(|error| failed(&self.path, error))
    }

    fn add<T: SavedItem>(&mut self, item: &T, limit: u64) -> Result<()> {
        let bytes = rmp_serde::to_vec(item).map_err(|error| PipelineError::Item {
            stage: STAGE.into(),
            what: "saved",
            message: error.to_string(),
        })?;
        if self.bytes.saturating_add(bytes.len() as u64) > limit {
            let what = format!("the elements take more than the {limit} bytes that are allowed");
            return Err(PipelineError::argument(STAGE, what));
        }
        self.write(&(bytes.len() as u64).to_le_bytes())?;
        self.write(&bytes)
    }

    fn finish(mut self, path: &Path) -> Result<()> {
        self.write(&END.to_le_bytes())?;
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let file = file
            .into_inner()
            .map_err(|error| failed(&self.path, error.into_error()))?;
        file.sync_all().map_err(|error| failed(&self.path, error))?;
        std::fs::rename(&self.path, path).map_err(|error| failed(path, error))?;
        // The name is free for others now, and so nothing is removed.
        self.path.clear();
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Reader {
    /// The file, if there is one, at a place.
    fn open(path: &Path, place: u64) -> Result<Option<Self>> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path, error)),
        };
        let mut header = [0; HEADER.len()];
        let read = file.read_exact(&mut header);
        if read.is_err() || &header != HEADER {
            return Err(damaged(
                path,
                "this is no cache of a pipeline, or one of another version",
            ));
        }
        let size = file.metadata().map_err(|error| failed(path, error))?.len();
        file.seek(SeekFrom::Start(place))
            .map_err(|error| failed(path, error))?;
        let file = BufReader::new(file);
        Ok(Some(Self { file, place, size }))
    }

    fn next<T: SavedItem>(&mut self, path: &Path) -> Result<Option<T>> {
        let mut length = [0; 8];
        let read = self.file.read_exact(&mut length);
        read.map_err(|_| damaged(path, "the file is cut off"))?;
        let length = u64::from_le_bytes(length);
        if length == END {
            // The end is read again when it is asked for again.
            let back = self.file.seek_relative(-8);
            back.map_err(|error| failed(path, error))?;
            return Ok(None);
        }
        let end = self.place.saturating_add(8).saturating_add(length);
        let fits = end <= self.size;
        let mut bytes = match usize::try_from(length) {
            Ok(length) if fits => vec![0; length],
            _ => return Err(damaged(path, "an element is longer than the file")),
        };
        let read = self.file.read_exact(&mut bytes);
        read.map_err(|_| damaged(path, "the file is cut off"))?;
        self.place = end;
        let item = rmp_serde::from_slice(&bytes);
        item.map(Some)
            .map_err(|error| damaged(path, &format!("it has other elements: {error}")))
    }
}

impl<S: Stream<Item: SavedItem>> CacheFile<S> {
    /// A pass that had an error is not whole, and leaves no file.
    fn read_input(&mut self) -> Result<Option<S::Item>> {
        self.read_and_keep().inspect_err(|_| {
            self.mode = Mode::Input(None);
            self.fills = false;
        })
    }

    fn read_and_keep(&mut self) -> Result<Option<S::Item>> {
        let item = self.input.next()?;
        if let Mode::Input(writer) = &mut self.mode {
            match (&item, writer.as_mut()) {
                (Some(item), Some(open)) => open.add(item, self.limit)?,
                (None, Some(_)) => {
                    if let Some(open) = writer.take() {
                        open.finish(&self.path)?;
                    }
                }
                (_, None) => {}
            }
        }
        Ok(item)
    }

    /// The file if it is there, else the input.
    fn open(&mut self) -> Result<()> {
        self.mode = match Reader::open(&self.path, HEADER.len() as u64)? {
            Some(reader) => Mode::File(Box::new(reader)),
            None if self.fills => Mode::Input(Some(Writer::new(&self.path)?)),
            None => Mode::Input(None),
        };
        Ok(())
    }
}

impl<S: Stream<Item: SavedItem>> Stream for CacheFile<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        if matches!(self.mode, Mode::Fresh) {
            self.open()?;
        }
        match &mut self.mode {
            Mode::File(reader) => reader.next(&self.path),
            _ => self.read_input(),
        }
    }

    fn start(&mut self, _epoch: u64) -> Result<()> {
        self.mode = Mode::Fresh;
        self.fills = true;
        self.input.start(0)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE);
        match &self.mode {
            Mode::Fresh => Ok(state.number(0)),
            Mode::File(reader) => Ok(state.number(reader.place)),
            Mode::Input(_) => Ok(state.number(1).inner(self.input.state()?)),
        }
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        match state.number()? {
            0 => self.start(0)?,
            1 => {
                self.input.restore(state.inner()?)?;
                // The elements before it are not in the file.
                self.fills = false;
                self.mode = Mode::Input(None);
            }
            place => match Reader::open(&self.path, place)? {
                Some(reader) if place <= reader.size => self.mode = Mode::File(Box::new(reader)),
                Some(_) => return Err(state.fault("the file is shorter than before")),
                None => {
                    let error = io::Error::from(io::ErrorKind::NotFound);
                    return Err(failed(&self.path, error));
                }
            },
        }
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    super::as_input!(check);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, contract, range};

    fn stream(path: &Path) -> CacheFile<impl Stream<Item = i64>> {
        range(0..9)
            .shuffle(1)
            .stream()
            .filter(|x| x % 4 > 0)
            .cache_file(path)
    }

    #[test]
    fn keeps_the_contract_before_and_after_the_file_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let mut first = stream(&path);
        let all: Vec<_> = first.elements().map(Result::unwrap).collect();
        assert!(path.exists());
        contract::check_stream(|| stream(&path)).unwrap();
        contract::check_stream(|| stream(&path).repeat(2)).unwrap();
        // Nothing of the input is read.
        let mut cached = range(0..0).stream().map(|x| x).cache_file(&path);
        assert!(cached.elements().map(Result::unwrap).eq(all));
    }

    #[test]
    fn a_pass_that_is_left_leaves_no_file_and_can_be_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let mut first = stream(&path);
        let started: Vec<_> = first.elements().take(3).map(Result::unwrap).collect();
        let state = first.state().unwrap();
        drop(first);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut restored = stream(&path);
        restored.restore(&state).unwrap();
        let rest = restored.elements().map(Result::unwrap).collect();
        let all = [started, rest].concat();
        restored.start(1).unwrap();
        assert!(restored.elements().map(Result::unwrap).eq(all));
        assert!(path.exists());
    }

    #[test]
    fn several_streams_write_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        // What a killed process with the same number has left.
        for number in 0..3 {
            let left = format!("cache.{}.{number}.tmp", std::process::id());
            std::fs::write(folder.path().join(left), b"left").unwrap();
        }
        let (mut long, mut short) = (stream(&path), stream(&path));
        let first = long.next().unwrap();
        let all: Vec<_> = short.elements().map(Result::unwrap).collect();
        assert_eq!(first, Some(all[0]));
        assert!(long.elements().map(Result::unwrap).eq(all[1..].to_vec()));
        long.start(1).unwrap();
        assert!(long.elements().map(Result::unwrap).eq(all));
        let left = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(left.count(), 4);
    }

    #[test]
    fn a_pass_with_errors_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let fails = |x: i64| (x != 4).then_some(x).ok_or("four");
        let mut failing = range(0..9).stream().try_map(fails).cache_file(&path);
        let mut small = range(0..9).stream().cache_file(&path).max_bytes(40);
        for epoch in 0..2 {
            failing.start(epoch).unwrap();
            let items: Vec<_> = failing.elements().collect();
            assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 8);
            small.start(epoch).unwrap();
            assert!(small.elements().any(|item| item.is_err()));
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn limits_and_damage_are_errors_that_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let mut small = stream(&path).max_bytes(20);
        assert!(small.elements().any(|item| item.is_err()));
        std::fs::write(&path, b"something else").unwrap();
        let error = stream(&path).next().unwrap_err().to_string();
        assert!(
            error.contains("remove it") && error.contains("cache"),
            "{error}"
        );
        std::fs::write(
            &path,
            [&HEADER[..], &[255, 0, 0, 0, 0, 0, 0, 0, 1]].concat(),
        )
        .unwrap();
        assert!(stream(&path).next().is_err());
        let nowhere = folder.path().join("no/folder/cache");
        let error = stream(&nowhere).next().unwrap_err().to_string();
        assert!(error.contains("check the path"), "{error}");
        // A disk that is full.
        #[cfg(target_os = "linux")]
        {
            let full = failed(Path::new("x"), io::Error::from(io::ErrorKind::StorageFull));
            assert!(full.to_string().contains("free space"), "{full}");
        }
    }
}
