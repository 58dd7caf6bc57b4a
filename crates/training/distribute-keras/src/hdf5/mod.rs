//! HDF5 files, as far as Keras and h5py write them: groups of both forms, data sets of numbers,
//! and attributes.
//!
//! The reader takes a file of superblock 0 to 3, symbol tables, link messages and dense links,
//! contiguous, compact and chunked data sets with their gzip, shuffle and checksum filters, and
//! attributes in headers, in dense storage and in the global heap ("HDF5 File Format
//! Specification", version 3.0). What it does not read it names. The writer makes files of
//! superblock 0, which every version of HDF5 reads.
//!
//! A file may come from anyone. Every structure that is read is paid for from a budget that grows
//! with the length of the file, and so are the values, of which a file cannot hold more than
//! deflate expands it to. So no file makes the reader go round in circles or take memory without
//! end.

mod attributes;
mod btree2;
mod chunk_index;
mod cursor;
mod dataset;
mod datatype;
mod extent;
mod file;
mod filters;
mod fractal_heap;
mod links;
mod message;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub(crate) use file::File;
pub(crate) use message::Object;
pub(crate) use write::{Group, written};

/// What a file that begins as HDF5 does begins with.
pub(crate) const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";

/// What is wrong with a file, for a message that names the file.
type Result<T> = std::result::Result<T, String>;

/// The text of an attribute, if there is one.
pub(crate) type Text = Result<Option<String>>;
