//! Element types: their names on the wire, and arithmetic on raw bytes.

use burn::tensor::DType;
use half::{bf16, f16};

use crate::error::{PsError, Result};
use crate::server::finite::finite;
use crate::server::wide;

/// The types that a variable may have, by name.
const TYPES: [(&str, DType); 11] = [
    ("f32", DType::F32),
    ("f64", DType::F64),
    ("f16", DType::F16),
    ("bf16", DType::BF16),
    ("i64", DType::I64),
    ("i32", DType::I32),
    ("i16", DType::I16),
    ("i8", DType::I8),
    ("u8", DType::U8),
    ("u32", DType::U32),
    ("u64", DType::U64),
];

/// The name of a type on the wire.
pub(crate) fn name(dtype: DType) -> Result<&'static str> {
    let found = TYPES.iter().find(|(_, known)| *known == dtype);
    found.map(|(name, _)| *name).ok_or_else(|| {
        PsError::invalid(format!(
            "variables on parameter servers cannot have elements of type {dtype:?}; possible are \
             {}",
            TYPES.map(|(name, _)| name).join(", ")
        ))
    })
}

/// The type of a name.
pub(crate) fn parse(name: &str) -> Option<DType> {
    let found = TYPES.iter().find(|(known, _)| *known == name);
    found.map(|(_, dtype)| *dtype)
}

/// Whether all elements are finite; integers always are.
pub(crate) fn all_finite(dtype: DType, bytes: &[u8]) -> bool {
    match dtype {
        DType::F32 => wide::all_finite(bytes),
        DType::F64 => finite::<f64, 8>(bytes, f64::from_le_bytes, f64::is_finite),
        DType::F16 => finite::<f16, 2>(bytes, f16::from_le_bytes, f16::is_finite),
        DType::BF16 => finite::<bf16, 2>(bytes, bf16::from_le_bytes, bf16::is_finite),
        _ => true,
    }
}

/// Whether all elements of a tensor are finite that is looked at piece by piece, in order. A piece
/// need not end where an element ends.
#[derive(Debug)]
pub(crate) struct FiniteCheck {
    dtype: DType,
    /// The begun element at the end of the last piece.
    begun: Vec<u8>,
    is_finite: bool,
}

impl FiniteCheck {
    pub(crate) fn new(dtype: DType) -> Self {
        Self {
            dtype,
            begun: Vec::new(),
            is_finite: true,
        }
    }

    pub(crate) fn look(&mut self, mut piece: &[u8]) {
        let size = self.dtype.size();
        if !self.begun.is_empty() {
            let (head, rest) = piece.split_at(piece.len().min(size - self.begun.len()));
            self.begun.extend_from_slice(head);
            piece = rest;
            if self.begun.len() < size {
                return;
            }
            self.is_finite &= all_finite(self.dtype, &self.begun);
            self.begun.clear();
        }
        let (whole, begun) = piece.split_at(piece.len() / size * size);
        self.is_finite &= all_finite(self.dtype, whole);
        self.begun.extend_from_slice(begun);
    }

    /// Whether all that was looked at is finite.
    pub(crate) fn is_finite(&self) -> bool {
        self.is_finite
    }
}

/// `f32` as bf16, to the nearest, ties to even.
pub(crate) fn narrow(bytes: &[u8]) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<4>();
    let narrow = |element: &[u8; 4]| bf16::from_f32(f32::from_le_bytes(*element)).to_le_bytes();
    elements.iter().flat_map(narrow).collect()
}

/// bf16 as `f32`, exactly.
pub(crate) fn widen(bytes: &[u8]) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<2>();
    let widen = |element: &[u8; 2]| bf16::from_le_bytes(*element).to_f32().to_le_bytes();
    elements.iter().flat_map(widen).collect()
}

/// What is done to a value with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combine {
    Add,
    Subtract,
}

/// `target op= other`, element by element; integers wrap around.
pub(crate) fn combine(dtype: DType, operation: Combine, target: &mut [u8], other: &[u8]) {
    macro_rules! arithmetic {
        ($type:ty, $add:expr, $subtract:expr) => {
            match operation {
                Combine::Add => zip(
                    target,
                    other,
                    <$type>::from_le_bytes,
                    <$type>::to_le_bytes,
                    $add,
                ),
                Combine::Subtract => zip(
                    target,
                    other,
                    <$type>::from_le_bytes,
                    <$type>::to_le_bytes,
                    $subtract,
                ),
            }
        };
    }
    macro_rules! float {
        ($type:ty) => {
            arithmetic!($type, |a: $type, b: $type| a + b, |a: $type, b: $type| a
                - b)
        };
    }
    macro_rules! integer {
        ($type:ty) => {
            arithmetic!($type, <$type>::wrapping_add, <$type>::wrapping_sub)
        };
    }
    match dtype {
        DType::F32 => float!(f32),
        DType::F64 => float!(f64),
        DType::F16 => float!(f16),
        DType::BF16 => float!(bf16),
        DType::I64 => integer!(i64),
        DType::I32 => integer!(i32),
        DType::I16 => integer!(i16),
        DType::I8 => integer!(i8),
        DType::U8 => integer!(u8),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        _ => {}
    }
}

fn zip<E, const N: usize>(
    target: &mut [u8],
    other: &[u8],
    read: impl Fn([u8; N]) -> E,
    write: impl Fn(E) -> [u8; N],
    operation: impl Fn(E, E) -> E,
) {
    let (target, _) = target.as_chunks_mut::<N>();
    let (other, _) = other.as_chunks::<N>();
    for (target, other) in target.iter_mut().zip(other) {
        *target = write(operation(read(*target), read(*other)));
    }
}

/// Divides floats by a count.
pub(crate) fn divide(dtype: DType, target: &mut [u8], count: usize) {
    match dtype {
        DType::F64 => {
            for element in target.as_chunks_mut::<8>().0 {
                *element = (f64::from_le_bytes(*element) / count as f64).to_le_bytes();
            }
        }
        DType::F32 => {
            for element in target.as_chunks_mut::<4>().0 {
                *element = (f32::from_le_bytes(*element) / count as f32).to_le_bytes();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_on_bytes_is_that_of_the_elements() {
        let bytes = |values: &[f32]| bytemuck::cast_slice::<f32, u8>(values).to_vec();
        let mut target = bytes(&[1.0, -2.0, 0.5]);
        combine(
            DType::F32,
            Combine::Add,
            &mut target,
            &bytes(&[0.5, 2.0, 1.0]),
        );
        assert_eq!(target, bytes(&[1.5, 0.0, 1.5]));
        combine(
            DType::F32,
            Combine::Subtract,
            &mut target,
            &bytes(&[1.0, 1.0, 1.5]),
        );
        assert_eq!(target, bytes(&[0.5, -1.0, 0.0]));
        let mut counter = 250_u8.to_le_bytes();
        combine(DType::U8, Combine::Add, &mut counter, &[10]);
        assert_eq!(counter, [4]);
    }

    #[test]
    fn nan_and_infinity_are_found_everywhere() {
        let mut values = vec![1.0_f32; 10_000];
        for index in [0, 4095, 4096, 9_999] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                values[index] = bad;
                assert!(!all_finite(DType::F32, bytemuck::cast_slice(&values)));
                values[index] = f32::MAX;
            }
        }
        assert!(all_finite(DType::F32, bytemuck::cast_slice(&values)));
        assert!(all_finite(DType::I32, bytemuck::cast_slice(&values)));
    }

    #[test]
    fn pieces_of_any_length_are_checked_as_the_whole() {
        let mut values = vec![1.0_f64; 16];
        for index in 0..=16 {
            if let Some(value) = values.get_mut(index) {
                *value = f64::NAN;
            }
            for length in 1..=20 {
                let mut check = FiniteCheck::new(DType::F64);
                let bytes: &[u8] = bytemuck::cast_slice(&values);
                bytes.chunks(length).for_each(|piece| check.look(piece));
                assert_eq!(check.is_finite(), index == 16, "{index} {length}");
            }
            values.fill(1.0);
        }
    }

    #[test]
    fn narrow_values_are_the_nearest_and_wide_ones_are_exact() {
        let values = [1.0_f32, 1.003, -3.0e38, 1.0e-40, f32::INFINITY];
        let there = narrow(bytemuck::cast_slice(&values));
        let back = widen(&there);
        for (value, back) in values.iter().zip(back.as_chunks::<4>().0) {
            assert_eq!(f32::from_le_bytes(*back), bf16::from_f32(*value).to_f32());
        }
    }
}
