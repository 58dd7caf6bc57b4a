//! TensorFlow's own parser of `Example` messages (`example_proto_fast_parsing.cc`), which accepts
//! other bytes than protocol buffers do: only `Example` itself may have unknown fields, a map's
//! entry has its name and value once each, a list is packed as a whole or not at all, and a length
//! that is longer than what is left ends there.

use crate::{DType, Values};

/// Bytes up to a limit, as `CodedInputStream`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream<'a>(pub(crate) &'a [u8]);

/// Field numbers with wire types.
pub(crate) const FIRST: u8 = 1 << 3 | 2;
pub(crate) const SECOND: u8 = 2 << 3 | 2;
const THIRD: u8 = 3 << 3 | 2;
const FIRST_VARINT: u8 = 1 << 3;
const FIRST_FIXED32: u8 = 1 << 3 | 5;

impl<'a> Stream<'a> {
    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn tag(&mut self, tag: u8) -> bool {
        let found = self.0.first() == Some(&tag);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn varint(&mut self) -> Option<u64> {
        let mut fields = crate::wire::Fields(self.0);
        let number = fields.varint().ok()?;
        self.0 = fields.0;
        Some(number)
    }

    /// What a length and the bytes behind it are, or as many as there are.
    pub(crate) fn limited(&mut self) -> Option<Self> {
        let length = self.length()?;
        let (inner, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        Some(Self(inner))
    }

    /// A length and all its bytes.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn length(&mut self) -> Option<usize> {
        // The upper bits of a length are dropped.
        Some(self.varint()? as u32 as usize)
    }

    /// Skips a field that is not known, with its tag.
    pub(crate) fn skip_field(&mut self) -> Option<()> {
        let skipped = match self.varint()? & 7 {
            0 => return self.varint().map(drop),
            1 => 8,
            2 => return self.limited().map(drop),
            5 => 4,
            _ => return None,
        };
        self.0 = self.0.split_at_checked(skipped)?.1;
        Some(())
    }
}

/// The name and the feature of all entries of an example's maps, in their order. None if the bytes
/// are no message.
pub(crate) fn entries(bytes: &[u8]) -> Option<Vec<(&[u8], Raw<'_>)>> {
    let mut stream = Stream(bytes);
    let mut found = Vec::new();
    while !stream.is_at_end() {
        if !stream.tag(FIRST) {
            stream.skip_field()?;
            continue;
        }
        let mut features = stream.limited()?;
        while !features.is_at_end() {
            if !features.tag(FIRST) {
                return None;
            }
            let mut entry = features.limited()?;
            let (key, value) = if entry.tag(FIRST) {
                let key = entry.bytes()?;
                (key, entry.tag(SECOND).then(|| entry.bytes())??)
            } else if entry.tag(SECOND) {
                let value = entry.bytes()?;
                (entry.tag(FIRST).then(|| entry.bytes())??, value)
            } else {
                return None;
            };
            if !entry.is_at_end() {
                return None;
            }
            found.push((key, Raw(value)));
        }
    }
    Some(found)
}

/// The bytes of a feature.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

/// The first field of a feature is not one of the three lists.
pub(crate) struct UnknownKind;

impl<'a> Raw<'a> {
    /// The kind of its list; none if it has no list.
    pub(crate) fn dtype(self) -> Result<Option<DType>, UnknownKind> {
        match self.0.first() {
            None => Ok(None),
            Some(&FIRST) => Ok(Some(DType::Bytes)),
            Some(&SECOND) => Ok(Some(DType::Float32)),
            Some(&THIRD) => Ok(Some(DType::Int64)),
            Some(_) => Err(UnknownKind),
        }
    }

    /// The values of its first list, of which the kind is known.
    pub(crate) fn values(self, dtype: DType) -> Option<Values> {
        let mut stream = Stream(self.0.get(1..)?);
        let list = stream.limited()?;
        match dtype {
            DType::Bytes => bytes(list).map(Values::Bytes),
            DType::Float32 => floats(list).map(Values::Float32),
            DType::Int64 => ints(list).map(Values::Int64),
        }
    }
}

fn bytes(mut list: Stream<'_>) -> Option<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    while !list.is_at_end() {
        if !list.tag(FIRST) {
            return None;
        }
        values.push(list.bytes()?.to_vec());
    }
    Some(values)
}

fn floats(mut list: Stream<'_>) -> Option<Vec<f32>> {
    let mut values = Vec::new();
    if list.is_at_end() {
        return Some(values);
    }
    if list.tag(FIRST) {
        let packed = list.limited()?;
        let (whole, _) = packed.0.as_chunks();
        values.extend(whole.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        return Some(values);
    }
    for field in list.0.as_chunks::<5>().0 {
        let [FIRST_FIXED32, value @ ..] = field else {
            return None;
        };
        values.push(f32::from_le_bytes(*value));
    }
    // A part of a value, without a whole one before it.
    let known = list.0.first() == Some(&FIRST_FIXED32);
    known.then_some(values)
}

fn ints(mut list: Stream<'_>) -> Option<Vec<i64>> {
    let mut values = Vec::new();
    if list.tag(FIRST) {
        let mut packed = list.limited()?;
        while !packed.is_at_end() {
            values.push(packed.varint()?.cast_signed());
        }
        return Some(values);
    }
    while !list.is_at_end() {
        if !list.tag(FIRST_VARINT) {
            return None;
        }
        values.push(list.varint()?.cast_signed());
    }
    Some(values)
}
