//! TFRecord files, by number and as a stream.

use std::fs::File;
use std::path::PathBuf;

use distribute_pipeline::{PipelineError, Result, Source, State, Stream};
use distribute_records::{Compression, RecordError, RecordIndex, RecordReader};

use super::bad::{Bad, Skipped};
use super::input::Place;

/// The records of several plain TFRecord files, one file after the other, by their numbers.
///
/// Opening reads the lengths of all records and jumps over their data. For compressed files there
/// is [`TfRecordStream`].
#[derive(Debug)]
pub struct TfRecordSource {
    files: Vec<(PathBuf, RecordIndex)>,
    /// How many records there are up to the end of each file.
    ends: Vec<u64>,
}

impl TfRecordSource {
    /// Finds the records of files, in the order of the files.
    ///
    /// # Errors
    /// [`PipelineError::Other`] of a [`RecordError`]: of the first file that cannot be read, is cut
    /// off, damaged in a length, or compressed.
    pub fn open(files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Result<Self> {
        let open = |path: PathBuf| match RecordIndex::open(&path) {
            Ok(index) => Ok((path, index)),
            Err(error) => Err(PipelineError::other(error)),
        };
        let files = files.into_iter().map(Into::into).map(open);
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut end = 0;
        let lengths = files.iter().map(|(_, index)| index.len() as u64);
        let ends = lengths.map(|length| {
            end += length;
            end
        });
        let ends = ends.collect();
        Ok(Self { files, ends })
    }

    /// The number of the file that has a record, and the record's number in it.
    fn place(&self, index: u64) -> Option<(&PathBuf, &RecordIndex, usize)> {
        let number = self.ends.partition_point(|end| *end <= index);
        let (path, file) = self.files.get(number)?;
        let start = self.ends[number] - file.len() as u64;
        Some((path, file, (index - start) as usize))
    }
}

impl Source for TfRecordSource {
    type Item = Vec<u8>;

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: u64) -> Result<Vec<u8>> {
        let Some((_, file, record)) = self.place(index) else {
            return Err(PipelineError::OutOfRange {
                stage: "tfrecord",
                index,
                len: self.len(),
            });
        };
        file.read(record).map_err(PipelineError::other)
    }

    fn file(&self, _: u64, index: u64) -> Option<PathBuf> {
        self.place(index).map(|(path, ..)| path.clone())
    }
}

const STAGE: &str = "tfrecord";

/// The records of TFRecord files, plain or compressed, one file after the other (TensorFlow:
/// `tf.data.TFRecordDataset`).
///
/// Its state is a file, a record and a place in the file: a plain file is not read again up to
/// there, a compressed one is decompressed again. A file whose length has changed since is refused.
#[derive(Debug)]
#[must_use]
pub struct TfRecordStream {
    place: Place,
    compression: Option<Compression>,
    limit: Option<u64>,
    bad: Bad,
    reader: Option<RecordReader<File>>,
}

impl TfRecordStream {
    /// The records of these files; each file's first bytes say how it is compressed.
    pub fn new(files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            place: Place::new(files),
            compression: None,
            limit: None,
            bad: Bad::default(),
            reader: None,
        }
    }

    /// All files are compressed in this way (TensorFlow: `compression_type`).
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Longer records are errors; the default limit is 1 GiB.
    pub fn max_record_bytes(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Skips damaged records of a pass up to a number, counts them and goes on; behind a length
    /// that is damaged or a file that is cut off it goes on with the next file. A missing file is
    /// always an error.
    pub fn skip_bad(mut self, limit: u64) -> Self {
        self.bad.limit = limit;
        self
    }

    /// The records that were skipped in this pass.
    pub fn skipped(&self) -> &Skipped {
        &self.bad.skipped
    }

    fn open(&mut self) -> Result<bool, RecordError> {
        let Some(path) = self.place.path() else {
            return Ok(false);
        };
        let mut reader = RecordReader::open(path, self.compression)?;
        if let Some(limit) = self.limit {
            reader = reader.max_record_bytes(limit);
        }
        reader.resume(self.place.element, self.place.offset)?;
        self.reader = Some(reader);
        Ok(true)
    }

    /// The next record; none at the end of a file.
    fn read(&mut self) -> Result<Option<Vec<u8>>, RecordError> {
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        let mut data = Vec::new();
        let found = reader.read(&mut data);
        (self.place.element, self.place.offset) = (reader.record(), reader.offset());
        found.map(|found| found.then_some(data))
    }

    fn next_file(&mut self) {
        self.reader = None;
        self.place.go_to_file(self.place.file + 1);
    }
}

impl Stream for TfRecordStream {
    type Item = Vec<u8>;

    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if self.reader.is_none() && !self.open().map_err(PipelineError::other)? {
                return Ok(None);
            }
            match self.read() {
                Ok(Some(data)) => {
                    self.place.last = Some(self.place.file);
                    return Ok(Some(data));
                }
                Ok(None) => self.next_file(),
                Err(error @ RecordError::File { .. }) => return Err(PipelineError::other(error)),
                Err(error) => {
                    let goes_on = error.is_of_one_record();
                    self.bad.skip(PipelineError::other(error))?;
                    if !goes_on {
                        self.next_file();
                    }
                }
            }
        }
    }

    super::input::of_files!(STAGE, reader);
}
