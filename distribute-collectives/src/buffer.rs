//! Element types, what they are accumulated in, and the typed views that operations work on.

use distribute_reductions::Arithmetic;
use half::{bf16, f16};

use crate::names::named_enum;

named_enum! {
    all: pub,
    /// The type of the elements of a buffer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum DType {
        /// IEEE 754 binary32.
        F32 => "f32",
        /// IEEE 754 binary64.
        F64 => "f64",
        /// IEEE 754 binary16.
        F16 => "f16",
        /// The upper half of a binary32.
        BF16 => "bf16",
        /// Signed 32-bit integer.
        I32 => "i32",
        /// Signed 64-bit integer.
        I64 => "i64",
        /// Unsigned 8-bit integer.
        U8 => "u8",
    }
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 => 1,
        }
    }
}

/// A Rust type that can be an element of a [`Buffer`]: `f32 f64 f16 bf16 i32 i64 u8`.
///
/// Sealed: the wire format of every element type is part of this crate.
pub trait Element: Arithmetic + sealed::Sealed {
    /// The tag of this type.
    const DTYPE: DType;

    /// The buffer's elements, or `None` when it holds another type.
    fn slice_of<'a>(buffer: &'a Buffer<'_>) -> Option<&'a [Self]> {
        (buffer.dtype() == Self::DTYPE).then(|| bytemuck::cast_slice(buffer.as_bytes()))
    }

    /// The buffer's elements for writing, or `None` when it holds another type.
    fn slice_of_mut<'a>(buffer: &'a mut Buffer<'_>) -> Option<&'a mut [Self]> {
        (buffer.dtype() == Self::DTYPE).then(|| bytemuck::cast_slice_mut(buffer.as_bytes_mut()))
    }

    /// Wraps a slice.
    fn buffer(slice: &mut [Self]) -> Buffer<'_>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A mutable view of one rank's elements, with their type as a tag.
///
/// Operations work in place on views, so nothing is copied into the library and out again.
#[derive(Debug)]
pub enum Buffer<'a> {
    /// `f32` elements.
    F32(&'a mut [f32]),
    /// `f64` elements.
    F64(&'a mut [f64]),
    /// `f16` elements.
    F16(&'a mut [f16]),
    /// `bf16` elements.
    BF16(&'a mut [bf16]),
    /// `i32` elements.
    I32(&'a mut [i32]),
    /// `i64` elements.
    I64(&'a mut [i64]),
    /// `u8` elements.
    U8(&'a mut [u8]),
}

/// Runs `$body` with `$slice` bound to the typed slice of a buffer.
macro_rules! with_slice {
    ($buffer:expr, $slice:ident => $body:expr) => {
        match $buffer {
            $crate::Buffer::F32($slice) => $body,
            $crate::Buffer::F64($slice) => $body,
            $crate::Buffer::F16($slice) => $body,
            $crate::Buffer::BF16($slice) => $body,
            $crate::Buffer::I32($slice) => $body,
            $crate::Buffer::I64($slice) => $body,
            $crate::Buffer::U8($slice) => $body,
        }
    };
}
pub(crate) use with_slice;

/// Runs `$body` with the type alias `$T` bound to the Rust type of a [`DType`].
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::buffer::with_dtype!(@ $dtype, $T, $body, F32 f32, F64 f64, F16 ::half::f16,
            BF16 ::half::bf16, I32 i32, I64 i64, U8 u8)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $($variant:ident $type:ty),+) => {
        match $dtype {
            $($crate::DType::$variant => {
                type $T = $type;
                $body
            })+
        }
    };
}
pub(crate) use with_dtype;

impl Buffer<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        with_slice!(self, slice => slice.len())
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        fn of<T: Element>(_: &[T]) -> DType {
            T::DTYPE
        }
        with_slice!(self, slice => of(slice))
    }

    /// Number of bytes.
    pub fn size_bytes(&self) -> usize {
        self.len() * self.dtype().size_bytes()
    }

    /// The elements as bytes, in the machine's byte order.
    pub fn as_bytes(&self) -> &[u8] {
        with_slice!(self, slice => bytemuck::cast_slice(slice))
    }

    /// The elements as bytes for writing.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        with_slice!(self, slice => bytemuck::cast_slice_mut(slice))
    }

    /// A view with a shorter lifetime; the original is usable again afterwards.
    pub(crate) fn reborrow(&mut self) -> Buffer<'_> {
        with_slice!(self, slice => Buffer::from(&mut **slice))
    }
}

macro_rules! element {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DTYPE: DType = DType::$variant;

            fn buffer(slice: &mut [Self]) -> Buffer<'_> {
                Buffer::$variant(slice)
            }
        }

        impl<'a> From<&'a mut [$type]> for Buffer<'a> {
            fn from(slice: &'a mut [$type]) -> Self {
                Buffer::$variant(slice)
            }
        }

        impl<'a> From<&'a mut Vec<$type>> for Buffer<'a> {
            fn from(values: &'a mut Vec<$type>) -> Self {
                Buffer::$variant(values)
            }
        }
    )*};
}

element! {
    f32 => F32,
    f64 => F64,
    f16 => F16,
    bf16 => BF16,
    i32 => I32,
    i64 => I64,
    u8 => U8,
}

/// Memory for `len` elements in words, so that it is aligned for every type. It grows when it is
/// too small.
pub(crate) fn in_words<T: bytemuck::Pod>(words: &mut Vec<u64>, len: usize) -> &mut [T] {
    let needed = (len * size_of::<T>()).div_ceil(size_of::<u64>());
    if words.len() < needed {
        words.resize(needed, 0);
    }
    &mut bytemuck::cast_slice_mut(words)[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_knows_its_type_and_size() {
        let mut values = vec![1.0_f64; 3];
        let mut buffer = Buffer::from(&mut values);
        assert_eq!(buffer.dtype(), DType::F64);
        assert_eq!((buffer.len(), buffer.size_bytes()), (3, 24));
        assert_eq!(buffer.reborrow().as_bytes_mut().len(), 24);
        assert!(f64::slice_of(&buffer).is_some() && i64::slice_of(&buffer).is_none());
    }

    #[test]
    fn sizes_agree_with_the_rust_types() {
        for dtype in DType::ALL {
            let size = with_dtype!(dtype, T => size_of::<T>());
            let tag = with_dtype!(dtype, T => T::DTYPE);
            assert_eq!((size, tag), (dtype.size_bytes(), dtype));
        }
    }
}
