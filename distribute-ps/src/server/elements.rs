//! Element types: their names on the wire, and arithmetic on raw bytes.

use std::ops::{Add, Sub};

use burn::tensor::DType;
use half::{bf16, f16};

use crate::error::{PsError, Result};
use crate::server::finite::finite;
use crate::server::wide;
use crate::wire::Combine;

/// The types that a variable may have.
const TYPES: [DType; 11] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::U32,
    DType::U64,
];

/// Refuses a type that a variable cannot have.
pub(crate) fn check(dtype: DType) -> Result<()> {
    if TYPES.contains(&dtype) {
        Ok(())
    } else {
        Err(PsError::invalid(format!(
            "variables on parameter servers cannot have elements of type {dtype:?}; possible are \
             {}",
            TYPES.map(|known| known.name()).join(", ")
        )))
    }
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

/// `target op= other`, element by element; integers wrap around.
pub(crate) fn combine(dtype: DType, operation: Combine, target: &mut [u8], other: &[u8]) {
    macro_rules! arithmetic {
        ($($dtype:ident: $type:ty, $add:expr, $subtract:expr;)*) => {
            match (dtype, operation) {
                $(
                    (DType::$dtype, Combine::Add) => {
                        zip(target, other, <$type>::from_le_bytes, <$type>::to_le_bytes, $add);
                    }
                    (DType::$dtype, Combine::Subtract) => {
                        zip(target, other, <$type>::from_le_bytes, <$type>::to_le_bytes, $subtract);
                    }
                )*
                _ => {}
            }
        };
    }
    arithmetic! {
        F32: f32, Add::add, Sub::sub;
        F64: f64, Add::add, Sub::sub;
        F16: f16, Add::add, Sub::sub;
        BF16: bf16, Add::add, Sub::sub;
        I64: i64, i64::wrapping_add, i64::wrapping_sub;
        I32: i32, i32::wrapping_add, i32::wrapping_sub;
        I16: i16, i16::wrapping_add, i16::wrapping_sub;
        I8: i8, i8::wrapping_add, i8::wrapping_sub;
        U8: u8, u8::wrapping_add, u8::wrapping_sub;
        U32: u32, u32::wrapping_add, u32::wrapping_sub;
        U64: u64, u64::wrapping_add, u64::wrapping_sub;
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
