//! B-trees of version 2: the records of dense links and attributes, and of chunks.

use super::Result;
use super::cursor::{UNSET, bytes_up_to};
use super::file::File;

/// Signature, version, kind and checksum of a node.
const FRAME: usize = 10;
/// The deepest tree that is read.
const MAX_DEPTH: u16 = 16;

/// The sizes of a tree's nodes.
struct Sizes {
    node: usize,
    record: usize,
    /// How many bytes a number of records has.
    count: usize,
    /// For each depth, how many bytes the number of all records below a node of it has.
    below: Vec<usize>,
}

/// Calls `each` with every record of the tree at an address.
pub(super) fn records<'a>(
    file: &File<'a>,
    address: u64,
    each: &mut dyn FnMut(&'a [u8]) -> Result<()>,
) -> Result<()> {
    let mut header = file.cursor(address, 34)?;
    header.signature(b"BTHD")?;
    header.skip(2)?;
    let (node, record, depth) = (header.size(4)?, header.size(2)?, header.u16()?);
    header.skip(2)?;
    let (root, count) = (header.u64()?, header.size(2)?);
    if root == UNSET {
        return Ok(());
    }
    if depth > MAX_DEPTH || record == 0 || node < FRAME + record {
        return Err("a tree has nodes of another kind".to_string());
    }
    let sizes = Sizes::of(node, record, depth)?;
    sizes.walk(file, root, count, depth, each)
}

impl Sizes {
    fn of(node: usize, record: usize, depth: u16) -> Result<Self> {
        let leaf = (node - FRAME) / record;
        let count = bytes_up_to(leaf as u64);
        let mut below = vec![0];
        let mut all = leaf as u64;
        for _ in 0..depth {
            let pointer = 8 + count + below[below.len() - 1];
            let inner = node.checked_sub(FRAME + pointer);
            let most = inner.ok_or("a tree has too small nodes")? / (record + pointer);
            let most = most as u64;
            all = (most + 1).saturating_mul(all).saturating_add(most);
            below.push(bytes_up_to(all));
        }
        Ok(Self {
            node,
            record,
            count,
            below,
        })
    }

    fn walk<'a>(
        &self,
        file: &File<'a>,
        address: u64,
        count: usize,
        depth: u16,
        each: &mut dyn FnMut(&'a [u8]) -> Result<()>,
    ) -> Result<()> {
        let used = count.saturating_mul(self.record);
        if used > self.node {
            return Err("a node of a tree has too many records".to_string());
        }
        let Some(below) = depth.checked_sub(1) else {
            let mut node = file.cursor(address, 6 + used)?;
            node.signature(b"BTLF")?;
            node.skip(2)?;
            return node.rest().chunks_exact(self.record).try_for_each(each);
        };
        // The number of all records below stands there only if the children have children.
        let all = if below > 0 {
            self.below[usize::from(below)]
        } else {
            0
        };
        let pointers = (count + 1) * (8 + self.count + all);
        let mut node = file.cursor(address, 6 + used + pointers)?;
        node.signature(b"BTIN")?;
        node.skip(2)?;
        let mut records = node.take(used)?.chunks_exact(self.record);
        for _ in 0..=count {
            let (child, number) = (node.u64()?, node.size(self.count)?);
            node.skip(all)?;
            self.walk(file, child, number, below, each)?;
            records.next().map_or(Ok(()), &mut *each)?;
        }
        Ok(())
    }
}
