//! Attributes of groups and data sets.

use super::Result;
use super::btree2;
use super::cursor::{Cursor, UNSET, text};
use super::datatype::Datatype;
use super::extent::Extent;
use super::file::File;
use super::fractal_heap::FractalHeap;
use super::message::{ATTRIBUTE, ATTRIBUTE_INFO, Object};

/// An attribute whose value has not been read yet.
struct Attribute<'a> {
    name: String,
    datatype: &'a [u8],
    extent: &'a [u8],
    data: &'a [u8],
}

impl<'a> File<'a> {
    /// The texts of an attribute: one, or a list; `None` if there is no such attribute.
    ///
    /// Keras splits a list that is longer than a header into several attributes, whose names end
    /// with 0, 1 and so on.
    pub(crate) fn texts(&self, object: &Object<'a>, name: &str) -> Result<Option<Vec<String>>> {
        let found = self.attributes(object)?;
        let texts = |name: &str| {
            let found = found.iter().find(|attribute| attribute.name == name);
            found.map(|attribute| {
                let texts = self.attribute_texts(attribute);
                texts.map_err(|what| format!("the attribute {name}: {what}"))
            })
        };
        if let Some(whole) = texts(name) {
            return whole.map(Some);
        }
        let parts = (0..).map_while(|part| texts(&format!("{name}{part}")));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok((!parts.is_empty()).then(|| parts.concat()))
    }

    /// One text; `None` if there is no such attribute.
    pub(crate) fn text(&self, object: &Object<'a>, name: &str) -> Result<Option<String>> {
        let texts = self.texts(object, name)?;
        Ok(texts.map(|texts| texts.concat()))
    }

    fn attribute_texts(&self, attribute: &Attribute<'a>) -> Result<Vec<String>> {
        let count = Extent::read(attribute.extent)?.elements()?;
        if count == 0 {
            // A list of nothing has the type of numbers.
            return Ok(Vec::new());
        }
        let datatype = Datatype::read(attribute.datatype)?;
        let length = count.checked_mul(datatype.size);
        let data = length.and_then(|length| attribute.data.get(..length));
        let data = data.ok_or("it ends too early")?;
        self.pay(data.len())?;
        datatype.texts(self, data)
    }

    fn attributes(&self, object: &Object<'a>) -> Result<Vec<Attribute<'a>>> {
        let mut found = Vec::new();
        for message in object.messages.iter().filter(|it| it.kind == ATTRIBUTE) {
            if !message.shared {
                found.extend(attribute(message.body)?);
            }
        }
        if let Some(body) = object.message(ATTRIBUTE_INFO) {
            let mut body = Cursor::new(body);
            body.skip(1)?;
            let flags = body.u8()?;
            body.skip(if flags & 1 != 0 { 2 } else { 0 })?;
            let (heap, tree) = (body.u64()?, body.u64()?);
            if heap != UNSET && tree != UNSET {
                let heap = FractalHeap::open(self, heap)?;
                btree2::records(self, tree, &mut |record| {
                    found.extend(attribute(heap.object(self, record)?)?);
                    Ok(())
                })?;
            }
        }
        Ok(found)
    }
}

/// An attribute in a message; `None` if its type is that of another object.
fn attribute(body: &[u8]) -> Result<Option<Attribute<'_>>> {
    let mut body = Cursor::new(body);
    let (version, flags) = (body.u8()?, body.u8()?);
    let (name, datatype, extent) = (body.size(2)?, body.size(2)?, body.size(2)?);
    let align = match version {
        1 => 8,
        2 => 1,
        3 => {
            body.skip(1)?;
            1
        }
        _ => return Err(format!("an attribute has the version {version}")),
    };
    let mut part = |length| {
        let taken = body.take(length)?;
        body.align(align)?;
        Ok::<_, String>(taken)
    };
    let name = text(part(name)?);
    let (datatype, extent) = (part(datatype)?, part(extent)?);
    Ok((version == 1 || flags & 3 == 0).then(|| Attribute {
        name,
        datatype,
        extent,
        data: body.rest(),
    }))
}
