//! Turns the bytes of a file into values.

use half::f16;

use crate::array::Values;

/// A type in which IDX or NumPy files store values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// The order of the bytes of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endian {
    Big,
    Little,
}

impl Stored {
    /// Bytes of one value.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Stored::Bool | Stored::U8 | Stored::I8 => 1,
            Stored::U16 | Stored::I16 | Stored::F16 => 2,
            Stored::U32 | Stored::I32 | Stored::F32 => 4,
            Stored::U64 | Stored::I64 | Stored::F64 => 8,
        }
    }
}

fn convert<const N: usize, T>(raw: &[u8], endian: Endian, from: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, _) = raw.as_chunks::<N>();
    let value = |chunk: &[u8; N]| {
        let mut bytes = *chunk;
        if endian == Endian::Big {
            bytes.reverse();
        }
        from(bytes)
    };
    chunks.iter().map(value).collect()
}

/// The values, or the position of one that no type here can hold: see [`decode`].
pub(crate) type Decoded = Result<Values, usize>;

/// Decodes `raw`; bytes after the last whole value are ignored.
///
/// `Err` holds the position of a `u64` that no `i64` can hold.
pub(crate) fn decode(raw: Vec<u8>, stored: Stored, endian: Endian) -> Result<Values, usize> {
    Ok(match stored {
        Stored::U8 => Values::U8(raw),
        Stored::Bool => Values::I8(raw.into_iter().map(|byte| i8::from(byte != 0)).collect()),
        Stored::I8 => Values::I8(raw.into_iter().map(|byte| byte as i8).collect()),
        Stored::U16 => Values::I32(convert(&raw, endian, |b| u16::from_le_bytes(b).into())),
        Stored::I16 => Values::I16(convert(&raw, endian, i16::from_le_bytes)),
        Stored::U32 => Values::I64(convert(&raw, endian, |b| u32::from_le_bytes(b).into())),
        Stored::I32 => Values::I32(convert(&raw, endian, i32::from_le_bytes)),
        Stored::I64 => Values::I64(convert(&raw, endian, i64::from_le_bytes)),
        Stored::F16 => Values::F32(convert(&raw, endian, |b| f16::from_le_bytes(b).to_f32())),
        Stored::F32 => Values::F32(convert(&raw, endian, f32::from_le_bytes)),
        Stored::F64 => Values::F64(convert(&raw, endian, f64::from_le_bytes)),
        Stored::U64 => {
            let wide = convert(&raw, endian, u64::from_le_bytes);
            let narrow = |(at, value)| i64::try_from(value).map_err(|_| at);
            Values::I64(
                wide.into_iter()
                    .enumerate()
                    .map(narrow)
                    .collect::<Result<_, _>>()?,
            )
        }
    })
}
