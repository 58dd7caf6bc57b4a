//! Headers of groups and data sets: lists of messages, in the forms of version 1 and 2.

use super::Result;
use super::cursor::Cursor;
use super::file::File;

pub(super) const DATASPACE: u16 = 0x01;
pub(super) const LINK_INFO: u16 = 0x02;
pub(super) const DATATYPE: u16 = 0x03;
pub(super) const OLD_FILL: u16 = 0x04;
pub(super) const FILL: u16 = 0x05;
pub(super) const LINK: u16 = 0x06;
pub(super) const EXTERNAL: u16 = 0x07;
pub(super) const LAYOUT: u16 = 0x08;
pub(super) const FILTERS: u16 = 0x0b;
pub(super) const ATTRIBUTE: u16 = 0x0c;
const CONTINUATION: u16 = 0x10;
pub(super) const SYMBOL_TABLE: u16 = 0x11;
pub(super) const ATTRIBUTE_INFO: u16 = 0x15;

/// One message of a header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    /// Whether the body is only a reference to the message of another header.
    pub(super) shared: bool,
    pub(super) body: &'a [u8],
}

/// The form of a header's messages.
#[derive(Debug, Clone, Copy)]
enum Form {
    Old,
    New { ordered: bool },
}

/// A group or a data set: the messages of its header.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    pub(super) messages: Vec<Message<'a>>,
}

impl<'a> Object<'a> {
    /// The body of the first message of a kind.
    pub(super) fn message(&self, kind: u16) -> Option<&'a [u8]> {
        let mut messages = self.messages.iter();
        messages
            .find(|message| message.kind == kind)
            .map(|it| it.body)
    }

    /// Whether it holds values, and not links.
    pub(crate) fn is_dataset(&self) -> bool {
        self.message(LAYOUT).is_some()
    }
}

impl<'a> File<'a> {
    /// The group in which all others are.
    pub(crate) fn root(&self) -> Result<Object<'a>> {
        self.object(self.root_address())
    }

    /// The group or data set at this address.
    pub(crate) fn object(&self, address: u64) -> Result<Object<'a>> {
        header(self, address)
    }
}

/// The header at an address.
fn header<'a>(file: &File<'a>, address: u64) -> Result<Object<'a>> {
    let mut start = file.cursor(address, 16)?;
    let is_new = start.take(4)? == b"OHDR";
    let (form, mut blocks) = if is_new {
        new_block(file, address)?
    } else {
        let mut start = file.cursor(address, 16)?;
        let version = start.u8()?;
        if version != 1 {
            return Err(format!("a header has the version {version}"));
        }
        start.skip(7)?;
        let length = start.size(4)?;
        (Form::Old, vec![file.slice(address + 16, length)?])
    };
    let mut messages = Vec::new();
    while let Some(block) = blocks.pop() {
        let mut cursor = Cursor::new(block);
        while let Some(message) = message(&mut cursor, form)? {
            if message.kind == CONTINUATION {
                let mut body = Cursor::new(message.body);
                let (address, length) = (body.u64()?, body.size(8)?);
                let block = file.slice(address, length)?;
                blocks.push(match form {
                    Form::Old => block,
                    Form::New { .. } => continued(block)?,
                });
            } else {
                messages.push(message);
            }
        }
    }
    Ok(Object { messages })
}

/// The messages of a continued header of version 2, between signature and checksum.
fn continued(block: &[u8]) -> Result<&[u8]> {
    let inner = block
        .strip_prefix(b"OCHK")
        .and_then(|rest| rest.split_last_chunk::<4>());
    let (inner, _) = inner.ok_or("a header goes on where there is no OCHK")?;
    Ok(inner)
}

/// The first block of a header of version 2.
fn new_block<'a>(file: &File<'a>, address: u64) -> Result<(Form, Vec<&'a [u8]>)> {
    // Times, numbers of attributes and the length are 28 bytes at most, which a header may lack.
    let mut start = file.cursor(address, 6)?;
    start.skip(5)?;
    let flags = start.u8()?;
    let times = if flags & 0x20 != 0 { 16 } else { 0 };
    let numbers = if flags & 0x10 != 0 { 4 } else { 0 };
    let width = 1usize << (flags & 3);
    let before = 6 + times + numbers + width;
    let mut start = file.cursor(address, before)?;
    start.skip(before - width)?;
    let length = start.size(width)?;
    let block = file.slice(address.saturating_add(before as u64), length)?;
    let ordered = flags & 4 != 0;
    Ok((Form::New { ordered }, vec![block]))
}

/// The next message, if there is room for one.
fn message<'a>(cursor: &mut Cursor<'a>, form: Form) -> Result<Option<Message<'a>>> {
    let (kind, length, flags) = match form {
        Form::Old => {
            if cursor.rest().len() < 8 {
                return Ok(None);
            }
            let (kind, length, flags) = (cursor.u16()?, cursor.size(2)?, cursor.u8()?);
            cursor.skip(3)?;
            (kind, length, flags)
        }
        Form::New { ordered } => {
            let prefix = if ordered { 6 } else { 4 };
            if cursor.rest().len() < prefix {
                return Ok(None);
            }
            let (kind, length, flags) = (cursor.u8()?, cursor.size(2)?, cursor.u8()?);
            cursor.skip(prefix - 4)?;
            (u16::from(kind), length, flags)
        }
    };
    Ok(Some(Message {
        kind,
        shared: flags & 2 != 0,
        body: cursor.take(length)?,
    }))
}
