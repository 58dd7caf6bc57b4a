//! Writes a file in the oldest form of HDF5: superblock 0, symbol tables, contiguous data sets of
//! 32-bit floats.

use std::collections::BTreeMap;

use super::SIGNATURE;
use crate::Weight;

/// Names in a node of symbols: twice the half that the superblock says.
const NAMES: usize = 8;

/// What is in a group.
#[derive(Debug, Default)]
pub(crate) struct Group<'a> {
    groups: BTreeMap<String, Group<'a>>,
    values: BTreeMap<String, &'a Weight>,
}

impl<'a> Group<'a> {
    /// The group of this path below this one, which is made if there is none.
    pub(crate) fn group(&mut self, path: &str) -> &mut Group<'a> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .fold(self, |group, name| {
                group.groups.entry(name.to_string()).or_default()
            })
    }

    /// Adds a data set.
    pub(crate) fn add(&mut self, name: impl Into<String>, values: &'a Weight) {
        self.values.insert(name.into(), values);
    }

    /// The most names that a group here or below has.
    fn most_names(&self) -> usize {
        let below = self.groups.values().map(Group::most_names);
        below.fold(self.groups.len() + self.values.len(), usize::max)
    }
}

/// The bytes of a file with this group as its first.
pub(crate) fn written(root: &Group<'_>) -> Vec<u8> {
    let mut writer = Writer {
        bytes: vec![0; 96],
        children: root.most_names().div_ceil(NAMES).next_multiple_of(2).max(4),
    };
    let root = writer.group(root);
    let end = writer.bytes.len() as u64;
    let mut start = Block::default();
    start.raw(SIGNATURE);
    // Versions of the superblock, of free space, of the root, reserved, of shared headers; the
    // sizes of addresses and lengths.
    start.raw(&[0, 0, 0, 0, 0, 8, 8, 0]);
    start.number(NAMES as u64 / 2, 2);
    start.number(writer.children as u64 / 2, 2);
    start.number(0, 4);
    // The base address, free space, the end, drivers.
    for address in [0, u64::MAX, end, u64::MAX] {
        start.number(address, 8);
    }
    start.number(0, 8);
    start.number(root.header, 8);
    start.number(1, 4);
    start.number(0, 4);
    start.number(root.tree, 8);
    start.number(root.heap, 8);
    writer.bytes[..96].copy_from_slice(&start.0);
    writer.bytes
}

/// Where a group was written.
struct Written {
    header: u64,
    tree: u64,
    heap: u64,
}

/// Bytes with numbers in them.
#[derive(Default)]
struct Block(Vec<u8>);

impl Block {
    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64, bytes: usize) {
        self.raw(&number.to_le_bytes()[..bytes]);
    }

    /// A message of a header.
    fn message(&mut self, kind: u64, body: &Block) {
        self.number(kind, 2);
        self.number(body.0.len().next_multiple_of(8) as u64, 2);
        self.number(0, 4);
        self.raw(&body.0);
        self.align();
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

struct Writer {
    bytes: Vec<u8>,
    /// The most children of a node of a tree.
    children: usize,
}

impl Writer {
    /// Appends a block at a multiple of 8.
    fn append(&mut self, block: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let address = self.bytes.len() as u64;
        self.bytes.extend_from_slice(block);
        address
    }

    fn header(&mut self, messages: &[(u64, Block)]) -> u64 {
        let mut body = Block::default();
        for (kind, message) in messages {
            body.message(*kind, message);
        }
        let mut header = Block::default();
        header.number(1, 2);
        header.number(messages.len() as u64, 2);
        header.number(1, 4);
        header.number(body.0.len() as u64, 8);
        header.raw(&body.0);
        self.append(&header.0)
    }

    fn group(&mut self, group: &Group<'_>) -> Written {
        let mut entries: BTreeMap<&str, (u64, Option<Written>)> = BTreeMap::new();
        for (name, inner) in &group.groups {
            let inner = self.group(inner);
            entries.insert(name, (inner.header, Some(inner)));
        }
        for (name, values) in &group.values {
            let header = self.values(values);
            entries.insert(name, (header, None));
        }
        // The heap begins with the empty name, which is less than all others.
        let mut names = Block(vec![0; 8]);
        let mut places = Vec::with_capacity(entries.len());
        for name in entries.keys() {
            places.push(names.0.len() as u64);
            names.raw(name.as_bytes());
            names.raw(&[0]);
            names.align();
        }
        let names = self.append(&names.0);
        let length = self.bytes.len() as u64 - names;
        let mut heap = Block::default();
        heap.raw(b"HEAP\0\0\0\0");
        heap.number(length, 8);
        // No free space: 1 stands for none.
        heap.number(1, 8);
        heap.number(names, 8);
        let heap = self.append(&heap.0);
        let tree = self.tree(&entries.into_values().collect::<Vec<_>>(), &places);
        let mut table = Block::default();
        table.number(tree, 8);
        table.number(heap, 8);
        let header = self.header(&[(0x11, table)]);
        Written { header, tree, heap }
    }

    /// The tree of a group, one node with nodes of symbols.
    fn tree(&mut self, entries: &[(u64, Option<Written>)], names: &[u64]) -> u64 {
        let mut tree = Block::default();
        let nodes = entries.len().div_ceil(NAMES);
        tree.raw(b"TREE\0\0");
        tree.number(nodes as u64, 2);
        tree.number(u64::MAX, 8);
        tree.number(u64::MAX, 8);
        tree.number(0, 8);
        for (entries, names) in entries.chunks(NAMES).zip(names.chunks(NAMES)) {
            let mut node = Block::default();
            node.raw(b"SNOD\x01\0");
            node.number(entries.len() as u64, 2);
            for ((header, inner), name) in entries.iter().zip(names) {
                node.number(*name, 8);
                node.number(*header, 8);
                // A group's tree and heap are repeated.
                node.number(u64::from(inner.is_some()), 8);
                let places = inner.as_ref().map_or((0, 0), |it| (it.tree, it.heap));
                node.number(places.0, 8);
                node.number(places.1, 8);
            }
            node.0.resize(8 + NAMES * 40, 0);
            let node = self.append(&node.0);
            tree.number(node, 8);
            tree.number(names.last().copied().unwrap_or_default(), 8);
        }
        tree.0.resize(24 + 8 * (2 * self.children + 1), 0);
        self.append(&tree.0)
    }

    fn values(&mut self, values: &Weight) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let address = self.bytes.len() as u64;
        let bytes = values.values.iter().flat_map(|value| value.to_le_bytes());
        self.bytes.extend(bytes);
        let mut space = Block::default();
        space.raw(&[1, values.shape.len() as u8, 0, 0, 0, 0, 0, 0]);
        for axis in &values.shape {
            space.number(*axis as u64, 8);
        }
        let mut datatype = Block::default();
        // A float with the sign in bit 31, of the IEEE's form.
        datatype.raw(&[0x11, 0x20, 31, 0]);
        datatype.number(4, 4);
        datatype.raw(&[0, 0, 32, 0, 23, 8, 0, 23]);
        datatype.number(127, 4);
        // Written when it is made, with no value for what was not written.
        let fill = Block(vec![2, 2, 0, 0]);
        let mut layout = Block::default();
        layout.raw(&[3, 1]);
        layout.number(
            if values.values.is_empty() {
                u64::MAX
            } else {
                address
            },
            8,
        );
        layout.number(4 * values.values.len() as u64, 8);
        self.header(&[
            (0x01, space),
            (0x03, datatype),
            (0x05, fill),
            (0x08, layout),
        ])
    }
}
