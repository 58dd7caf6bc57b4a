//! The values of a data set, wherever and however they are stored.

use super::Result;
use super::chunk_index::{self, Chunk, Chunks};
use super::cursor::{Cursor, UNSET};
use super::datatype::Datatype;
use super::extent::{Extent, product};
use super::file::File;
use super::filters::Filters;
use super::message::{DATASPACE, DATATYPE, EXTERNAL, FILL, FILTERS, LAYOUT, OLD_FILL, Object};
use crate::Weight;

impl<'a> File<'a> {
    /// The numbers of a data set.
    pub(crate) fn numbers(&self, object: &Object<'a>) -> Result<Weight> {
        let part = |kind, what: &str| {
            let found = object.message(kind);
            found.ok_or_else(|| format!("it has no {what}"))
        };
        let typed = object.messages.iter().find(|it| it.kind == DATATYPE);
        if typed.is_some_and(|message| message.shared) {
            return Err("its type is that of another object".to_string());
        }
        if object.message(EXTERNAL).is_some() {
            return Err("its values are in another file".to_string());
        }
        let datatype = Datatype::read(part(DATATYPE, "type")?)?;
        if datatype.size == 0 {
            return Err("it holds no numbers".to_string());
        }
        let extent = Extent::read(part(DATASPACE, "shape")?)?;
        let length = extent.elements()?.checked_mul(datatype.size);
        let length = length.ok_or("it has more values than any memory")?;
        self.pay(length)?;
        let stored = Stored {
            extent: &extent,
            datatype,
            length,
            fill: fill(object)?,
            filters: match object.message(FILTERS) {
                Some(body) => Filters::read(body)?,
                None => Filters::default(),
            },
        };
        let bytes = self.bytes_of(part(LAYOUT, "layout")?, &stored)?;
        let bfloat16 = self.text(object, "dtype");
        let bfloat16 = bfloat16.is_ok_and(|dtype| dtype.as_deref() == Some("bfloat16"));
        Ok(Weight {
            values: datatype.numbers(&bytes, bfloat16)?,
            shape: extent.axes,
        })
    }

    /// The bytes of the values, in order.
    fn bytes_of(&self, layout: &'a [u8], stored: &Stored<'_>) -> Result<Vec<u8>> {
        let mut layout = Cursor::new(layout);
        let (version, class) = (layout.u8()?, layout.u8()?);
        if !(3..=4).contains(&version) {
            return Err(format!("its values are stored in the layout {version}"));
        }
        match class {
            0 => {
                let length = layout.size(2)?;
                let bytes = layout.take(length)?.get(..stored.length);
                Ok(bytes.ok_or("it has fewer values than its shape")?.to_vec())
            }
            1 => match layout.u64()? {
                UNSET => Ok(stored.filled()),
                address => self.raw(address, stored.length).map(<[u8]>::to_vec),
            },
            2 => {
                let chunks = if version == 3 {
                    Chunks::old(&mut layout)?
                } else {
                    Chunks::new(&mut layout)?
                };
                self.chunked(&chunks, stored)
            }
            _ => Err("its values are in other data sets".to_string()),
        }
    }

    fn chunked(&self, chunks: &Chunks, stored: &Stored<'_>) -> Result<Vec<u8>> {
        let size = stored.datatype.size;
        let of_chunk = product(&chunks.axes)?.checked_mul(size);
        let of_chunk = of_chunk.ok_or("a chunk has more values than any memory")?;
        if chunks.axes.len() != stored.extent.axes.len() || chunks.axes.contains(&0) {
            return Err("its chunks have other axes than it has".to_string());
        }
        let mut bytes = stored.filled();
        if bytes.is_empty() {
            return Ok(bytes);
        }
        chunk_index::each(self, chunks, stored.extent, of_chunk, &mut |chunk| {
            self.pay(of_chunk)?;
            let length = if stored.filters.is_empty() {
                of_chunk
            } else {
                chunk.length
            };
            let raw = self.slice(chunk.address, length)?;
            let values = stored.filters.undone(raw, chunk.left_out, of_chunk, size)?;
            copy(
                &values,
                &chunks.axes,
                &chunk,
                stored.extent,
                size,
                &mut bytes,
            );
            Ok(())
        })?;
        Ok(bytes)
    }
}

/// What is known of the values that are stored.
struct Stored<'a> {
    extent: &'a Extent,
    datatype: Datatype,
    /// In bytes.
    length: usize,
    /// The value of places that were never written.
    fill: Option<&'a [u8]>,
    filters: Filters,
}

impl Stored<'_> {
    /// Values of which none was written.
    fn filled(&self) -> Vec<u8> {
        match self.fill {
            Some(value) if value.len() == self.datatype.size => {
                let values = self.length / self.datatype.size.max(1);
                value.repeat(values)
            }
            _ => vec![0; self.length],
        }
    }
}

/// The value of places that were never written.
fn fill<'a>(object: &Object<'a>) -> Result<Option<&'a [u8]>> {
    if let Some(body) = object.message(FILL) {
        let mut body = Cursor::new(body);
        let version = body.u8()?;
        let defined = if version < 3 {
            body.skip(2)?;
            body.u8()? != 0
        } else {
            body.u8()? & 0x20 != 0
        };
        let defined = defined || version == 1;
        let length = if defined { body.size(4)? } else { 0 };
        return Ok(Some(body.take(length)?).filter(|value| !value.is_empty()));
    }
    let old = object.message(OLD_FILL).map(|body| {
        let mut body = Cursor::new(body);
        let length = body.size(4)?;
        body.take(length)
    });
    old.transpose()
}

/// Puts the values of a chunk in their places, row by row; a chunk may stand over the edge.
fn copy(
    values: &[u8],
    axes: &[usize],
    chunk: &Chunk,
    extent: &Extent,
    size: usize,
    bytes: &mut [u8],
) {
    let rank = axes.len();
    let Some(last) = rank.checked_sub(1) else {
        let length = bytes.len().min(values.len());
        bytes[..length].copy_from_slice(&values[..length]);
        return;
    };
    let outside = chunk
        .start
        .iter()
        .zip(&extent.axes)
        .any(|(at, end)| at >= end);
    if outside {
        return;
    }
    let width = axes[last].min(extent.axes[last] - chunk.start[last]) * size;
    let mut place = vec![0; last];
    for row in values.chunks_exact(axes[last] * size) {
        let mut target = Some(0usize);
        for (axis, place) in place.iter().enumerate() {
            let at = chunk.start[axis] + place;
            target = target.filter(|_| at < extent.axes[axis]);
            target = target.map(|target| target * extent.axes[axis] + at);
        }
        if let Some(target) = target {
            let start = (target * extent.axes[last] + chunk.start[last]) * size;
            bytes[start..start + width].copy_from_slice(&row[..width]);
        }
        for axis in (0..last).rev() {
            place[axis] += 1;
            if place[axis] < axes[axis] {
                break;
            }
            place[axis] = 0;
        }
    }
}
