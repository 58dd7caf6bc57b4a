//! Why records and messages cannot be read or written.

use std::fmt;
use std::io;

/// Which part of a record a file ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// The 12 bytes of its length. TensorFlow takes such a file for complete.
    Header,
    /// Its data, or the checksum behind them.
    Data,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "length",
            Self::Data => "data",
        })
    }
}

/// Why a file of records cannot be read or written. `record` counts from 0, `offset` is the byte
/// at which the record begins, behind the decompression.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The operating system's error.
    #[error("cannot {operation} `{file}`: {source}")]
    File {
        /// The file.
        file: String,
        /// What was tried.
        operation: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The length of a record and its checksum do not agree.
    #[error(
        "`{file}`: record {record} at byte {offset}: the checksum of its length is wrong{hint}"
    )]
    CorruptLength {
        /// The file.
        file: String,
        /// Which record.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// What the file looks like instead, if that is known.
        hint: &'static str,
    },
    /// The data of a record and their checksum do not agree.
    #[error(
        "`{file}`: record {record} at byte {offset}: the checksum of its data is wrong: the file \
         is damaged, copy or make it again, or skip bad records"
    )]
    CorruptData {
        /// The file.
        file: String,
        /// Which record.
        record: u64,
        /// Where it begins.
        offset: u64,
    },
    /// The file ends inside a record.
    #[error(
        "`{file}` ends in the {cut} of record {record}, which begins at byte {offset}: {found} of \
         {expected} bytes are there; it was not written or copied to its end"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Which record.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// The part it ends in.
        cut: Cut,
        /// How many bytes of the part are there.
        found: u64,
        /// How many it has.
        expected: u64,
    },
    /// A record is longer than the limit.
    #[error(
        "`{file}`: record {record} at byte {offset} has {bytes} bytes; the limit is {limit}, see \
         `max_record_bytes`"
    )]
    TooLong {
        /// The file.
        file: String,
        /// Which record.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The compression is damaged, or another one.
    #[error(
        "`{file}`: the {format} stream fails in record {record} at byte {offset} of the \
         decompressed bytes: {source}; it is damaged, or not compressed that way"
    )]
    Compressed {
        /// The file.
        file: String,
        /// `gzip` or `zlib`.
        format: &'static str,
        /// Which record.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// The decoder's reason.
        source: io::Error,
    },
    /// Something is behind the end of a zlib stream, which TensorFlow ignores.
    #[error(
        "`{file}`: bytes are left behind the zlib stream, which ends after record {record}: zlib \
         files cannot be joined, gzip files can"
    )]
    Behind {
        /// The file.
        file: String,
        /// How many records were read.
        record: u64,
    },
    /// The file is compressed, so no record of it can be read on its own.
    #[error(
        "`{file}` is compressed by {format}: its records can only be read one after another; write \
         it without compression, or read it as a stream"
    )]
    NotSeekable {
        /// The file.
        file: String,
        /// `gzip` or `zlib`.
        format: &'static str,
    },
    /// There is no such record.
    #[error("`{file}` has {count} records; there is no record {record}")]
    NoRecord {
        /// The file.
        file: String,
        /// The record that was asked for.
        record: usize,
        /// How many there are.
        count: usize,
    },
    /// The file is no longer the one that was indexed.
    #[error(
        "`{file}` has changed since it was opened: record {record} at byte {offset} is another \
         one; do not write to files that are read"
    )]
    Changed {
        /// The file.
        file: String,
        /// Which record.
        record: u64,
        /// Where it began.
        offset: u64,
    },
}

distribute_error::debug_as_message!(RecordError, MessageError);

impl RecordError {
    /// Whether the same file would be refused again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::File { source, .. } => distribute_error::lasts(source),
            _ => true,
        }
    }

    /// Whether only this record is bad, and the next one can be read.
    pub fn is_of_one_record(&self) -> bool {
        matches!(self, Self::CorruptData { .. })
    }
}

/// Bytes that are no message of protocol buffers.
#[derive(thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageError {
    /// They do not follow the wire format.
    #[error("no `{message}` message: the bytes end early, or are of another format")]
    Malformed {
        /// Which message was expected.
        message: &'static str,
    },
    /// The name of a feature is no text.
    #[error("the name of a feature in a `{message}` message is not UTF-8")]
    NotText {
        /// Which message was expected.
        message: &'static str,
    },
}
