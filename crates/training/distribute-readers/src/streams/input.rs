//! The bytes of a file that may be gzip-compressed, and which of several files is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use distribute_pipeline::{PipelineError, Result, State, StateReader};
use flate2::bufread::MultiGzDecoder;

/// An open file, plain or by gzip as its first bytes say.
pub(crate) enum Input {
    Plain(BufReader<File>),
    Gzip(BufReader<MultiGzDecoder<BufReader<File>>>),
}

impl Input {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
        if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            let decoder = MultiGzDecoder::new(file);
            return Ok(Self::Gzip(BufReader::new(decoder)));
        }
        Ok(Self::Plain(file))
    }

    /// Passes over bytes; in a plain file without reading them.
    pub(crate) fn pass(&mut self, bytes: u64) -> io::Result<()> {
        let passed = match self {
            Self::Plain(file) => {
                let jump = i64::try_from(bytes).unwrap_or(i64::MAX);
                file.seek(SeekFrom::Current(jump)).map(|_| bytes)
            }
            Self::Gzip(file) => io::copy(&mut file.take(bytes), &mut io::sink()),
        };
        match passed? {
            passed if passed == bytes => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(to),
            Self::Gzip(file) => file.read(to),
        }
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Plain(file) => file.fill_buf(),
            Self::Gzip(file) => file.fill_buf(),
        }
    }

    fn consume(&mut self, bytes: usize) {
        match self {
            Self::Plain(file) => file.consume(bytes),
            Self::Gzip(file) => file.consume(bytes),
        }
    }
}

pub(crate) fn unreadable(stage: &'static str, path: &Path, source: io::Error) -> PipelineError {
    PipelineError::Io {
        stage,
        path: path.to_path_buf(),
        source: Arc::new(source),
    }
}

/// The methods of a stream of files that have to do with its `place` and what is `bad`; the fields
/// are of the open file.
macro_rules! of_files {
    ($stage:expr, $($open:ident),+) => {
        fn start(&mut self, _: u64) -> Result<()> {
            $(self.$open = None;)+
            self.place.go_to_file(0);
            self.place.last = None;
            self.bad.start(0);
            Ok(())
        }

        fn state(&self) -> Result<State> {
            self.place.state($stage, self.bad.skipped.count)
        }

        fn restore(&mut self, state: &State) -> Result<()> {
            $(self.$open = None;)+
            let skipped = self.place.restore($stage, state)?;
            self.bad.start(skipped);
            Ok(())
        }

        fn file(&self) -> Option<PathBuf> {
            self.place.last_file()
        }
    };
}
pub(super) use of_files;

/// Which file is read, and where in it the next element is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) files: Vec<PathBuf>,
    /// The index of the file; at the end, the number of files.
    pub(crate) file: usize,
    /// How many elements of the file were read, bad ones too.
    pub(crate) element: u64,
    /// Where the next one begins, behind the decompression.
    pub(crate) offset: u64,
    /// The file of the last element.
    pub(crate) last: Option<usize>,
}

impl Place {
    pub(crate) fn new(files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            files: files.into_iter().map(Into::into).collect(),
            file: 0,
            element: 0,
            offset: 0,
            last: None,
        }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.files.get(self.file).map(PathBuf::as_path)
    }

    pub(crate) fn last_file(&self) -> Option<PathBuf> {
        self.files.get(self.last?).cloned()
    }

    pub(crate) fn go_to_file(&mut self, file: usize) {
        (self.file, self.element, self.offset) = (file, 0, 0);
    }

    /// The length of the file that is being read, by which a change is noticed; 0 at a beginning.
    fn size(&self, stage: &'static str) -> Result<u64> {
        match self.path() {
            Some(path) if self.offset > 0 => path
                .metadata()
                .map(|metadata| metadata.len())
                .map_err(|source| unreadable(stage, path, source)),
            _ => Ok(0),
        }
    }

    pub(crate) fn state(&self, stage: &'static str, skipped: u64) -> Result<State> {
        let numbers = [self.file as u64, self.element, self.offset, skipped];
        let state = numbers.into_iter().fold(State::new(stage), State::number);
        Ok(state.number(self.size(stage)?))
    }

    /// Goes to a place; the number of elements that were skipped before it.
    pub(crate) fn restore(&mut self, stage: &'static str, state: &State) -> Result<u64> {
        let mut read: StateReader<'_> = state.read(stage)?;
        self.file = read.number_to(self.files.len() as u64)? as usize;
        self.last = None;
        (self.element, self.offset) = (read.count()?, read.count()?);
        let (skipped, size) = (read.number()?, read.number()?);
        if size != self.size(stage)? {
            let path = self.path().unwrap_or(Path::new("")).display();
            return Err(read.fault(format!(
                "`{path}` has another length than when the state was saved; do not write to files \
                 that are read"
            )));
        }
        read.finish()?;
        Ok(skipped)
    }
}
