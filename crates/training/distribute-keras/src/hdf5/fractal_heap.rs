//! Fractal heaps, in which dense links and attributes are.

use super::Result;
use super::btree2;
use super::cursor::{Cursor, UNSET, bytes_up_to};
use super::file::File;

/// A heap, and where its blocks are.
pub(super) struct FractalHeap {
    /// The width of the numbers of an object's place and length.
    offset_bytes: usize,
    length_bytes: usize,
    id_bytes: usize,
    /// The tree of objects that are too large for a block.
    large: u64,
    table: Table,
    root: u64,
    /// The rows of the root; none if the root is itself a block of objects.
    rows: usize,
}

/// The doubling table: rows of blocks, each row from the second on with blocks of twice the size.
struct Table {
    width: usize,
    first: u64,
    /// The rows of blocks that hold objects; blocks of later rows hold tables.
    direct_rows: usize,
}

impl FractalHeap {
    pub(super) fn open(file: &File<'_>, address: u64) -> Result<Self> {
        let mut header = file.cursor(address, 142)?;
        header.signature(b"FRHP")?;
        header.skip(1)?;
        let (id_bytes, filters) = (header.size(2)?, header.u16()?);
        if filters != 0 {
            return Err("it has compressed names or attributes".to_string());
        }
        header.skip(1)?;
        let largest = u64::from(header.u32()?);
        header.skip(8)?;
        let large = header.u64()?;
        header.skip(10 * 8)?;
        let (width, first, largest_block) = (header.size(2)?, header.u64()?, header.u64()?);
        let bits = header.size(2)?;
        header.skip(2)?;
        let (root, rows) = (header.u64()?, header.size(2)?);
        let is_usual = first.is_power_of_two()
            && largest_block.is_power_of_two()
            && width.is_power_of_two()
            && first <= largest_block
            && (1..=64).contains(&bits);
        if !is_usual {
            return Err("a heap has blocks of another kind".to_string());
        }
        let blocks = (largest_block.ilog2() as usize).div_ceil(8);
        Ok(Self {
            offset_bytes: bits.div_ceil(8),
            length_bytes: blocks.min(bytes_up_to(largest)),
            id_bytes,
            large,
            table: Table {
                width,
                first,
                direct_rows: (largest_block.ilog2() - first.ilog2()) as usize + 2,
            },
            root,
            rows,
        })
    }

    /// The object of this identifier, which may have bytes behind it.
    pub(super) fn object<'a>(&self, file: &File<'a>, id: &'a [u8]) -> Result<&'a [u8]> {
        let mut id = Cursor::new(Cursor::new(id).take(self.id_bytes)?);
        let kind = id.u8()?;
        match kind >> 4 & 3 {
            0 => {
                let offset = id.number(self.offset_bytes)?;
                let length = id.size(self.length_bytes)?;
                let address = self.place(file, offset)?;
                file.slice(address, length)
            }
            1 => self.large(file, id),
            2 => id.take(usize::from(kind & 15) + 1),
            _ => Err("a heap has an object of another kind".to_string()),
        }
    }

    /// An object that has a place of its own.
    fn large<'a>(&self, file: &File<'a>, mut id: Cursor<'a>) -> Result<&'a [u8]> {
        if id.rest().len() >= 16 {
            return file.slice(id.u64()?, id.size(8)?);
        }
        let number = id.number(id.rest().len().min(8))?;
        let mut found = None;
        btree2::records(file, self.large, &mut |record| {
            let mut record = Cursor::new(record);
            let (address, length) = (record.u64()?, record.size(8)?);
            if record.u64()? == number {
                found = Some((address, length));
            }
            Ok(())
        })?;
        let (address, length) = found.ok_or("a large attribute is not in the file")?;
        file.slice(address, length)
    }

    /// The address of a place in the heap.
    fn place(&self, file: &File<'_>, mut offset: u64) -> Result<u64> {
        let (mut block, mut rows) = (self.root, self.rows);
        // A table has fewer rows than the one that it is in.
        while rows > 0 {
            let (row, column, within) = self.table.find(offset)?;
            if row >= rows {
                return Err("an object is behind the end of its heap".to_string());
            }
            let before = 4 + 1 + 8 + self.offset_bytes;
            let mut start = file.cursor(block, 4)?;
            start.signature(b"FHIB")?;
            let at = before + (row * self.table.width + column) * 8;
            block = file.cursor(block.saturating_add(at as u64), 8)?.u64()?;
            offset = within;
            rows = match row.checked_sub(self.table.direct_rows) {
                None => 0,
                Some(_) => self.table.rows_below(row).min(rows - 1),
            };
        }
        if block == UNSET {
            return Err("a block of a heap was never written".to_string());
        }
        Ok(block.saturating_add(offset))
    }
}

impl Table {
    /// The size of the blocks of a row.
    fn size(&self, row: usize) -> u64 {
        let doubled = row.saturating_sub(1).min(63) as u32;
        self.first.saturating_mul(1 << doubled)
    }

    /// The row and the column of the block in which a place is, and the place in the block.
    fn find(&self, offset: u64) -> Result<(usize, usize, u64)> {
        let mut start = 0u64;
        for row in 0..64 {
            let size = self.size(row);
            let end = start.saturating_add(size.saturating_mul(self.width as u64));
            if offset < end {
                let column = (offset - start) / size;
                return Ok((row, column as usize, (offset - start) % size));
            }
            start = end;
        }
        Err("an object is behind the end of its heap".to_string())
    }

    /// The rows of a table that is a block of this row.
    fn rows_below(&self, row: usize) -> usize {
        let first_row = self.first.saturating_mul(self.width as u64);
        (self.size(row).ilog2() as usize + 1).saturating_sub(first_row.ilog2() as usize)
    }
}
