//! Element types of buffers, and the Rust types that stand for them in host memory.

use std::fmt;

use half::{bf16, f16};

use super::error::{PjrtError, Result};

/// `PJRT_Buffer_Type`: what a buffer holds.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// A boolean, one byte in host memory.
    Pred,
    /// Signed, 8 bits.
    S8,
    /// Signed, 16 bits.
    S16,
    /// Signed, 32 bits.
    S32,
    /// Signed, 64 bits.
    S64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// bfloat16: the upper half of an [`F32`](Self::F32).
    Bf16,
    /// Two [`F32`](Self::F32).
    C64,
    /// Two [`F64`](Self::F64).
    C128,
    /// A type of the C API that this library does not move to or from host memory, by its number.
    Other(u32),
}

/// Number in the C API, name in StableHLO, bytes in host memory.
const TYPES: [(ElementType, &str, usize); 15] = [
    (ElementType::Pred, "i1", 1),
    (ElementType::S8, "i8", 1),
    (ElementType::S16, "i16", 2),
    (ElementType::S32, "i32", 4),
    (ElementType::S64, "i64", 8),
    (ElementType::U8, "ui8", 1),
    (ElementType::U16, "ui16", 2),
    (ElementType::U32, "ui32", 4),
    (ElementType::U64, "ui64", 8),
    (ElementType::F16, "f16", 2),
    (ElementType::F32, "f32", 4),
    (ElementType::F64, "f64", 8),
    (ElementType::Bf16, "bf16", 2),
    (ElementType::C64, "complex<f32>", 8),
    (ElementType::C128, "complex<f64>", 16),
];

impl ElementType {
    /// The type with this number in the C API.
    pub(super) fn from_number(number: u32) -> Self {
        let known = (number as usize)
            .checked_sub(1)
            .and_then(|index| TYPES.get(index));
        known.map_or(Self::Other(number), |row| row.0)
    }

    /// The number in the C API.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => TYPES
                .iter()
                .zip(1..)
                .find(|(row, _)| row.0 == known)
                .map_or(0, |(_, n)| n),
        }
    }

    /// Bytes of one element in host memory; none for types that are not moved to or from host
    /// memory.
    pub fn bytes(self) -> Option<usize> {
        TYPES.iter().find(|row| row.0 == self).map(|row| row.2)
    }
}

/// The name in StableHLO, such as `f32` and `i1`.
impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TYPES.iter().find(|row| row.0 == *self) {
            Some(row) => f.write_str(row.1),
            None => write!(f, "PJRT_Buffer_Type {}", self.number()),
        }
    }
}

/// Element type and shape of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayShape {
    /// What it holds.
    pub element_type: ElementType,
    /// The length of the array in each dimension; a scalar has none.
    pub dims: Vec<usize>,
}

impl ArrayShape {
    /// Bytes of the whole array in host memory.
    pub(super) fn host_bytes(&self) -> Result<usize> {
        let Self { element_type, dims } = self;
        let invalid = |what: String| Err(PjrtError::InvalidArgument(what));
        let Some(bytes) = element_type.bytes() else {
            return invalid(format!(
                "{element_type} has no form in host memory: cast it to another"
            ));
        };
        let product = dims
            .iter()
            .try_fold(bytes, |product, dim| product.checked_mul(*dim));
        // The C API counts with signed integers, each dimension too.
        let countable = |number: &usize| i64::try_from(*number).is_ok();
        match product
            .filter(countable)
            .filter(|_| dims.iter().all(countable))
        {
            Some(product) => Ok(product),
            None => invalid(format!("{dims:?} are more elements than fit into memory")),
        }
    }
}

/// As in StableHLO: `tensor<2x3xf32>`.
impl fmt::Display for ArrayShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for dim in &self.dims {
            write!(f, "{dim}x")?;
        }
        write!(f, "{}>", self.element_type)
    }
}

/// A Rust type whose slices are the form in host memory of a buffer's elements.
///
/// Sealed: the types are fixed by the C API.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// The element type of buffers of it.
    const TYPE: ElementType;

    /// The bytes of a slice, in the CPU's byte order.
    #[doc(hidden)]
    fn bytes_of(elements: &[Self]) -> &[u8];

    /// Makes `length` elements from the bytes that `fill` writes.
    #[doc(hidden)]
    fn filled(length: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Vec<Self>>;
}

/// Has `fill` write the memory. Unless the error says that nothing was copied or that the copy has
/// ended, the plugin may go on writing: then the memory is never freed.
fn fill_lent<T: bytemuck::Pod>(
    mut memory: Vec<T>,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<Vec<T>> {
    match fill(bytemuck::cast_slice_mut(&mut memory)) {
        Ok(()) => Ok(memory),
        Err(error) => {
            let ended = matches!(
                error,
                PjrtError::Plugin { .. } | PjrtError::InvalidArgument(_)
            );
            if !ended {
                std::mem::forget(memory);
            }
            Err(error)
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($type:ty => $element:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$element;

            fn bytes_of(elements: &[Self]) -> &[u8] {
                bytemuck::cast_slice(elements)
            }

            fn filled(
                length: usize,
                fill: impl FnOnce(&mut [u8]) -> Result<()>,
            ) -> Result<Vec<Self>> {
                let zero: Self = bytemuck::Zeroable::zeroed();
                fill_lent(vec![zero; length], fill)
            }
        }
    )*};
}

element!(
    i8 => S8, i16 => S16, i32 => S32, i64 => S64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64
);

impl sealed::Sealed for bool {}
impl Element for bool {
    const TYPE: ElementType = ElementType::Pred;

    fn bytes_of(elements: &[Self]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }

    fn filled(length: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Vec<Self>> {
        let bytes = fill_lent(vec![0_u8; length], fill)?;
        // Any byte but zero is true; a plugin's 255 must not become an invalid `bool`.
        Ok(bytes.into_iter().map(|byte| byte != 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        for number in 0..40 {
            assert_eq!(ElementType::from_number(number).number(), number);
        }
        assert_eq!(<f32 as Element>::TYPE.number(), 11);
        assert_eq!(<bf16 as Element>::TYPE.number(), 13);
        assert_eq!(<bool as Element>::TYPE.number(), 1);
        assert_eq!(ElementType::Other(16).bytes(), None);
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        let filled = bool::filled(3, |bytes| {
            bytes.copy_from_slice(&[0, 1, 255]);
            Ok(())
        });
        assert_eq!(filled, Ok(vec![false, true, true]));
    }
}
