//! What is in a group: names, and the addresses of headers.

use super::Result;
use super::btree2;
use super::cursor::{Cursor, UNSET, text};
use super::file::File;
use super::fractal_heap::FractalHeap;
use super::message::{LINK, LINK_INFO, Object, SYMBOL_TABLE};

/// The deepest tree of a group that is read.
const MAX_LEVEL: u8 = 16;

impl<'a> File<'a> {
    /// The names in a group, each with the address of what it names.
    pub(crate) fn links(&self, group: &Object<'a>) -> Result<Vec<(String, u64)>> {
        let mut links = Vec::new();
        if let Some(body) = group.message(SYMBOL_TABLE) {
            let mut body = Cursor::new(body);
            let (tree, heap) = (body.u64()?, body.u64()?);
            let names = self.local_heap(heap)?;
            self.symbols(tree, MAX_LEVEL, names, &mut links)?;
        }
        for message in group.messages.iter().filter(|it| it.kind == LINK) {
            links.push(link(message.body)?);
        }
        if let Some(body) = group.message(LINK_INFO) {
            let mut body = Cursor::new(body);
            body.skip(1)?;
            let flags = body.u8()?;
            body.skip(if flags & 1 != 0 { 8 } else { 0 })?;
            let (heap, tree) = (body.u64()?, body.u64()?);
            if heap != UNSET && tree != UNSET {
                let heap = FractalHeap::open(self, heap)?;
                btree2::records(self, tree, &mut |record| {
                    let mut record = Cursor::new(record);
                    record.skip(4)?;
                    links.push(link(heap.object(self, record.rest())?)?);
                    Ok(())
                })?;
            }
        }
        Ok(links)
    }

    /// The names of a group of the old form.
    fn local_heap(&self, address: u64) -> Result<&'a [u8]> {
        let mut cursor = self.cursor(address, 32)?;
        cursor.signature(b"HEAP")?;
        cursor.skip(4)?;
        let length = cursor.size(8)?;
        cursor.skip(8)?;
        self.slice(cursor.u64()?, length)
    }

    /// The entries below a node of the tree of a group.
    fn symbols(
        &self,
        address: u64,
        levels: u8,
        names: &[u8],
        links: &mut Vec<(String, u64)>,
    ) -> Result<()> {
        let mut node = self.cursor(address, 24)?;
        node.signature(b"TREE")?;
        let (kind, level, count) = (node.u8()?, node.u8()?, node.size(2)?);
        if kind != 0 || level >= levels {
            return Err("a group has a tree of another kind".to_string());
        }
        let mut node = self.cursor(address.saturating_add(24), count * 16)?;
        for _ in 0..count {
            node.skip(8)?;
            let child = node.u64()?;
            if level > 0 {
                self.symbols(child, level, names, links)?;
            } else {
                self.symbol_node(child, names, links)?;
            }
        }
        Ok(())
    }

    fn symbol_node(
        &self,
        address: u64,
        names: &[u8],
        links: &mut Vec<(String, u64)>,
    ) -> Result<()> {
        let mut node = self.cursor(address, 8)?;
        node.signature(b"SNOD")?;
        node.skip(2)?;
        let count = node.size(2)?;
        let mut entries = self.cursor(address.saturating_add(8), count * 40)?;
        for _ in 0..count {
            let (name, header, kind) = (entries.size(8)?, entries.u64()?, entries.u32()?);
            entries.skip(20)?;
            let name = names.get(name..).ok_or("a name is not in the file")?;
            // The name is paid for, as it is copied: several entries may share a long one.
            let name = text(name);
            self.pay(name.len())?;
            if kind == 2 {
                return Err(refused(&name));
            }
            links.push((name, header));
        }
        Ok(())
    }
}

fn refused(name: &str) -> String {
    format!("`{name}` is a link to another place or file, which is not followed")
}

/// A link in a message.
fn link(body: &[u8]) -> Result<(String, u64)> {
    let mut body = Cursor::new(body);
    body.skip(1)?;
    let flags = body.u8()?;
    let kind = if flags & 8 != 0 { body.u8()? } else { 0 };
    body.skip(if flags & 4 != 0 { 8 } else { 0 })?;
    body.skip(usize::from(flags & 0x10 != 0))?;
    let length = body.size(1 << (flags & 3))?;
    let name = String::from_utf8_lossy(body.take(length)?).into_owned();
    match kind {
        0 => Ok((name, body.u64()?)),
        _ => Err(refused(&name)),
    }
}
