//! Where the chunks of a data set are: the indexes of HDF5 1.6 and 1.10.

use super::Result;
use super::btree2;
use super::cursor::{Cursor, UNSET};
use super::extent::{Extent, MAX_RANK, product};
use super::file::File;

/// The deepest tree that is read.
const MAX_LEVEL: u8 = 16;

/// The chunks of a data set.
#[derive(Debug)]
pub(super) struct Chunks {
    /// The values of a chunk on each axis.
    pub(super) axes: Vec<usize>,
    index: Index,
    address: u64,
}

#[derive(Debug)]
enum Index {
    /// A tree of version 1.
    Tree,
    /// One chunk; its length in the file and its filters, if it has some.
    Single(Option<(usize, u32)>),
    /// One chunk after the other.
    Implicit,
    FixedArray,
    /// A tree of version 2.
    NewTree,
}

/// One chunk.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The place of its first value on each axis.
    pub(super) start: Vec<usize>,
    pub(super) address: u64,
    /// Its bytes in the file.
    pub(super) length: usize,
    /// The filters that were not applied.
    pub(super) left_out: u32,
}

type Each<'a> = dyn FnMut(Chunk) -> Result<()> + 'a;

impl Chunks {
    /// In a layout of version 3.
    pub(super) fn old(layout: &mut Cursor<'_>) -> Result<Self> {
        let rank = usize::from(layout.u8()?);
        let address = layout.u64()?;
        let axes = sizes(layout, rank, 4)?;
        Ok(Self {
            axes,
            index: Index::Tree,
            address,
        })
    }

    /// In a layout of version 4.
    pub(super) fn new(layout: &mut Cursor<'_>) -> Result<Self> {
        let (flags, rank) = (layout.u8()?, usize::from(layout.u8()?));
        let width = usize::from(layout.u8()?);
        let axes = sizes(layout, rank, width)?;
        let index = match layout.u8()? {
            1 if flags & 2 != 0 => Index::Single(Some((layout.size(8)?, layout.u32()?))),
            1 => Index::Single(None),
            2 => Index::Implicit,
            3 => {
                layout.skip(1)?;
                Index::FixedArray
            }
            5 => {
                layout.skip(6)?;
                Index::NewTree
            }
            _ => {
                return Err(
                    "it can grow, in the newest form of HDF5, which is not read here".to_string(),
                );
            }
        };
        Ok(Self {
            axes,
            index,
            address: layout.u64()?,
        })
    }
}

/// The sizes of a chunk; the last one is that of a value.
fn sizes(layout: &mut Cursor<'_>, rank: usize, width: usize) -> Result<Vec<usize>> {
    if !(1..=MAX_RANK + 1).contains(&rank) {
        return Err(format!("its chunks have {rank} axes"));
    }
    let axes = (0..rank).map(|_| layout.size(width));
    let mut axes = axes.collect::<Result<Vec<_>>>()?;
    axes.pop();
    Ok(axes)
}

/// Calls `each` with every chunk that was written; `length` are the bytes of one without filters.
pub(super) fn each(
    file: &File<'_>,
    chunks: &Chunks,
    extent: &Extent,
    length: usize,
    each: &mut Each<'_>,
) -> Result<()> {
    if chunks.address == UNSET {
        return Ok(());
    }
    let grid = Grid::of(&chunks.axes, extent);
    match chunks.index {
        Index::Tree => tree(file, chunks.address, MAX_LEVEL, chunks.axes.len(), each),
        Index::Single(filtered) => {
            let (length, left_out) = filtered.unwrap_or((length, 0));
            each(Chunk {
                start: vec![0; chunks.axes.len()],
                address: chunks.address,
                length,
                left_out,
            })
        }
        Index::Implicit => {
            for number in 0..grid.count()? {
                let before = number.saturating_mul(length) as u64;
                each(Chunk {
                    start: grid.start(number),
                    address: chunks.address.saturating_add(before),
                    length,
                    left_out: 0,
                })?;
            }
            Ok(())
        }
        Index::FixedArray => fixed_array(file, chunks.address, &grid, length, each),
        Index::NewTree => new_tree(file, chunks, length, each),
    }
}

/// The chunks below a node of a tree of version 1.
fn tree(file: &File<'_>, address: u64, levels: u8, rank: usize, each: &mut Each<'_>) -> Result<()> {
    let mut node = file.cursor(address, 24)?;
    node.signature(b"TREE")?;
    let (kind, level, count) = (node.u8()?, node.u8()?, node.size(2)?);
    if kind != 1 || level >= levels {
        return Err("its chunks have a tree of another kind".to_string());
    }
    let key = 8 + 8 * (rank + 1);
    let mut node = file.cursor(address.saturating_add(24), count * (key + 8))?;
    for _ in 0..count {
        let (length, left_out) = (node.size(4)?, node.u32()?);
        let start = (0..rank).map(|_| node.size(8));
        let start = start.collect::<Result<Vec<_>>>()?;
        node.skip(8)?;
        let address = node.u64()?;
        if level > 0 {
            tree(file, address, level, rank, each)?;
        } else {
            each(Chunk {
                start,
                address,
                length,
                left_out,
            })?;
        }
    }
    Ok(())
}

/// The chunks of a tree of version 2.
fn new_tree(file: &File<'_>, chunks: &Chunks, length: usize, each: &mut Each<'_>) -> Result<()> {
    let rank = chunks.axes.len();
    btree2::records(file, chunks.address, &mut |record| {
        let filtered = record.len().checked_sub(8 + 8 * rank);
        let filtered = filtered.ok_or("its chunks have a tree of another kind")?;
        let mut record = Cursor::new(record);
        let address = record.u64()?;
        let (length, left_out) = match filtered.checked_sub(4) {
            None => (length, 0),
            Some(width) => (record.size(width)?, record.u32()?),
        };
        let start = chunks.axes.iter().map(|axis| {
            let scaled = record.size(8)?;
            let start = scaled.checked_mul(*axis);
            start.ok_or_else(|| "a chunk is behind the end".to_string())
        });
        each(Chunk {
            start: start.collect::<Result<_>>()?,
            address,
            length,
            left_out,
        })
    })
}

/// The chunks of an array of fixed length, which may be in pages.
fn fixed_array(
    file: &File<'_>,
    address: u64,
    grid: &Grid,
    length: usize,
    each: &mut Each<'_>,
) -> Result<()> {
    let mut header = file.cursor(address, 28)?;
    header.signature(b"FAHD")?;
    header.skip(2)?;
    let (width, page_bits, count) = (header.size(1)?, header.u8()?, header.size(8)?);
    let block = header.u64()?;
    if block == UNSET {
        return Ok(());
    }
    if width < 8 || page_bits > 32 || count > grid.count()? {
        return Err("its chunks have an array of another kind".to_string());
    }
    let mut start = file.cursor(block, 14)?;
    start.signature(b"FADB")?;
    let of_page = 1usize << page_bits;
    let pages = count.div_ceil(of_page);
    let paged = count > of_page;
    // The bits of the pages that were written, and a checksum; a page ends with another one.
    let bitmap = if paged { pages.div_ceil(8) } else { 0 };
    let written = file.slice(block.saturating_add(14), bitmap)?;
    let mut at = block.saturating_add(14 + bitmap as u64 + if paged { 4 } else { 0 });
    for page in 0..pages {
        let entries = of_page.min(count - page * of_page);
        let bytes = entries.saturating_mul(width);
        let is_written = !paged || written[page / 8] & 0x80 >> (page % 8) != 0;
        if is_written {
            let mut entry = file.cursor(at, bytes)?;
            for number in 0..entries {
                let address = entry.u64()?;
                let (length, left_out) = match width.checked_sub(12) {
                    None => (length, 0),
                    Some(width) => (entry.size(width)?, entry.u32()?),
                };
                if address != UNSET {
                    each(Chunk {
                        start: grid.start(page * of_page + number),
                        address,
                        length,
                        left_out,
                    })?;
                }
            }
        }
        at = at.saturating_add(bytes as u64 + 4);
    }
    Ok(())
}

/// The chunks on each axis, and what one has there.
struct Grid {
    counts: Vec<usize>,
    axes: Vec<usize>,
}

impl Grid {
    fn of(axes: &[usize], extent: &Extent) -> Self {
        let sizes = extent.axes.iter().zip(axes);
        Self {
            counts: sizes.map(|(size, chunk)| size.div_ceil(*chunk)).collect(),
            axes: axes.to_vec(),
        }
    }

    fn count(&self) -> Result<usize> {
        product(&self.counts)
    }

    /// The place of a chunk's first value.
    fn start(&self, mut number: usize) -> Vec<usize> {
        let mut start = vec![0; self.axes.len()];
        for (axis, place) in start.iter_mut().enumerate().rev() {
            let count = self.counts[axis].max(1);
            *place = (number % count).saturating_mul(self.axes[axis]);
            number /= count;
        }
        start
    }
}
