//! The file: where its structures are, and what may be read of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::cursor::{Cursor, UNSET};
use super::{Result, SIGNATURE};

/// How often the whole file may be read as structures: links, headers, heaps.
const READS: usize = 64;
/// What may be read of every file, however small.
const FREE_BYTES: usize = 1 << 16;
/// Deflate expands nothing more than this.
const EXPANSION: usize = 1032;

/// Where the objects of a collection of the global heap are, by their numbers.
type Collection = BTreeMap<u32, (usize, usize)>;

/// A file in memory.
#[derive(Debug)]
pub(crate) struct File<'a> {
    /// From the base address on.
    bytes: &'a [u8],
    root: u64,
    /// The bytes of structures that may still be read.
    structures: Cell<usize>,
    /// The bytes of values that may still be made.
    values: Cell<usize>,
    collections: RefCell<BTreeMap<u64, Collection>>,
}

impl<'a> File<'a> {
    /// Finds the first group.
    ///
    /// # Errors
    /// What is wrong with the file, also below.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self> {
        // Behind a block of the user, whose length is a power of two.
        let mut start = 0;
        while !bytes
            .get(start..)
            .is_some_and(|rest| rest.starts_with(SIGNATURE))
        {
            start = (start * 2).max(512);
            if start >= bytes.len() {
                return Err("it is no HDF5 file".to_string());
            }
        }
        let bytes = &bytes[start..];
        let mut cursor = Cursor::new(&bytes[SIGNATURE.len()..]);
        let version = cursor.u8()?;
        let root = match version {
            0 | 1 => old_root(&mut cursor, version)?,
            2 | 3 => {
                sizes(&mut cursor)?;
                // The file's flags, the base address, the extension and the end of the file.
                cursor.skip(1 + 3 * 8)?;
                cursor.u64()?
            }
            _ => return Err(format!("superblock {version} of HDF5 is not known here")),
        };
        Ok(Self {
            bytes,
            root,
            structures: Cell::new(READS.saturating_mul(bytes.len()).saturating_add(FREE_BYTES)),
            values: Cell::new(
                EXPANSION
                    .saturating_mul(bytes.len())
                    .saturating_add(FREE_BYTES),
            ),
            collections: RefCell::default(),
        })
    }

    /// The address of the group in which all others are.
    pub(crate) fn root_address(&self) -> u64 {
        self.root
    }

    /// Bytes of a structure.
    pub(super) fn slice(&self, address: u64, length: usize) -> Result<&'a [u8]> {
        // A structure without bytes costs something too.
        let left = self.structures.get().checked_sub(length.max(8));
        let left = left.ok_or("its structures lead in circles")?;
        self.structures.set(left);
        self.raw(address, length)
    }

    /// Bytes of values, which [`pay`](Self::pay) has paid for.
    pub(super) fn raw(&self, address: u64, length: usize) -> Result<&'a [u8]> {
        let start = usize::try_from(address).ok();
        let end = start.and_then(|start| start.checked_add(length));
        let range = start.zip(end).and_then(|(a, b)| self.bytes.get(a..b));
        range.ok_or_else(|| match address {
            UNSET => "a structure was never written".to_string(),
            _ => format!(
                "it ends before byte {}: it was not written or copied to the end",
                address.saturating_add(length as u64)
            ),
        })
    }

    /// All bytes from an address on, for a structure whose length stands in it.
    pub(super) fn cursor(&self, address: u64, length: usize) -> Result<Cursor<'a>> {
        self.slice(address, length).map(Cursor::new)
    }

    /// Takes bytes of values off the budget.
    pub(super) fn pay(&self, bytes: usize) -> Result<()> {
        let left = self.values.get().checked_sub(bytes);
        self.values
            .set(left.ok_or("its data sets are said to be larger than such a file can hold")?);
        Ok(())
    }

    /// An object of the global heap, in which texts of any length are.
    pub(super) fn global(&self, address: u64, number: u32) -> Result<&'a [u8]> {
        let mut known = self.collections.borrow_mut();
        let collection = match known.entry(address) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(self.collection(address)?)
            }
        };
        let found = collection.get(&number).copied();
        let (at, length) = found.ok_or("a text is not in the heap that it should be in")?;
        self.slice(at as u64, length)
    }

    fn collection(&self, address: u64) -> Result<Collection> {
        let mut cursor = self.cursor(address, 16)?;
        cursor.signature(b"GCOL")?;
        cursor.skip(4)?;
        let length = cursor.size(8)?;
        let mut cursor = self.cursor(address, length)?;
        cursor.skip(16)?;
        let mut found = Collection::new();
        while cursor.rest().len() >= 16 {
            let at = address + (length - cursor.rest().len()) as u64 + 16;
            let number = u32::from(cursor.u16()?);
            cursor.skip(6)?;
            let size = cursor.size(8)?;
            // What is free ends the collection.
            if number == 0 {
                break;
            }
            found.insert(number, (at as usize, size));
            let padded = size.checked_next_multiple_of(8);
            cursor.skip(padded.ok_or("a text has no end")?.min(cursor.rest().len()))?;
        }
        Ok(found)
    }
}

/// The address of the first group in a superblock of version 0 or 1.
fn old_root(cursor: &mut Cursor<'_>, version: u8) -> Result<u64> {
    cursor.skip(4)?;
    sizes(cursor)?;
    // Sizes of nodes, flags; version 1 has two sizes more.
    cursor.skip(if version == 0 { 9 } else { 13 })?;
    // The base address, free space, the end of the file, drivers; the root's name.
    cursor.skip(5 * 8)?;
    cursor.u64()
}

/// Addresses and lengths have eight bytes.
fn sizes(cursor: &mut Cursor<'_>) -> Result<()> {
    let (addresses, lengths) = (cursor.u8()?, cursor.u8()?);
    if (addresses, lengths) == (8, 8) {
        return Ok(());
    }
    Err(format!(
        "its addresses have {addresses} bytes and its lengths {lengths}, where h5py writes 8"
    ))
}
