//! An array in host memory: a shape and its values in row-major order.

use std::collections::TryReserveError;

use crate::error::ReadError;

/// The values of an [`Array`], row major, in the type in which the file stores them.
///
/// Types without a variant are widened on reading: booleans to `I8`, `u16` to `I32`, `u32` and
/// `u64` to `I64`, half precision to `F32`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// Unsigned bytes, mostly pixels.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// 16-bit integers.
    I16(Vec<i16>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

/// Evaluates `$body` with `$v` bound to the vector inside, whatever its type is.
macro_rules! with_values {
    ($values:expr, $v:ident => $body:expr) => {
        match $values {
            $crate::Values::U8($v) => $body,
            $crate::Values::I8($v) => $body,
            $crate::Values::I16($v) => $body,
            $crate::Values::I32($v) => $body,
            #[allow(
                clippy::allow_attributes,
                clippy::unnecessary_cast,
                reason = "the other types need it"
            )]
            $crate::Values::I64($v) => $body,
            #[allow(
                clippy::allow_attributes,
                clippy::unnecessary_cast,
                reason = "the other types need it"
            )]
            $crate::Values::F32($v) => $body,
            $crate::Values::F64($v) => $body,
        }
    };
}
pub(crate) use with_values;

impl Values {
    /// The number of values.
    pub fn len(&self) -> usize {
        with_values!(self, v => v.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same in memory that has room for `count` values.
    pub(crate) fn reserved(mut self, count: u64) -> Result<Self, TryReserveError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        with_values!(&mut self, v => v.try_reserve_exact(count.saturating_sub(v.len())))?;
        Ok(self)
    }

    /// These values followed by the values of `more`, which have the same type.
    pub(crate) fn followed_by(mut self, more: Self) -> Result<Self, TryReserveError> {
        with_values!(&mut self, v => v.try_reserve(more.len()))?;
        match (&mut self, more) {
            (Values::U8(all), Values::U8(more)) => all.extend(more),
            (Values::I8(all), Values::I8(more)) => all.extend(more),
            (Values::I16(all), Values::I16(more)) => all.extend(more),
            (Values::I32(all), Values::I32(more)) => all.extend(more),
            (Values::I64(all), Values::I64(more)) => all.extend(more),
            (Values::F32(all), Values::F32(more)) => all.extend(more),
            (Values::F64(all), Values::F64(more)) => all.extend(more),
            // One file has one type.
            _ => {}
        }
        Ok(self)
    }

    /// The name of their type, as Rust has it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Values::U8(_) => "u8",
            Values::I8(_) => "i8",
            Values::I16(_) => "i16",
            Values::I32(_) => "i32",
            Values::I64(_) => "i64",
            Values::F32(_) => "f32",
            Values::F64(_) => "f64",
        }
    }

    /// Whether the values are integers.
    pub fn is_integer(&self) -> bool {
        !matches!(self, Values::F32(_) | Values::F64(_))
    }
}

/// Values with a shape, row major: the last axis varies fastest.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    shape: Vec<usize>,
    values: Values,
}

impl Array {
    /// Joins a shape and its values. An empty shape is a scalar: one value.
    ///
    /// # Errors
    /// [`ReadError::ShapeMismatch`] if the product of `shape` overflows or is not the number of
    /// values.
    pub fn new(shape: Vec<usize>, values: Values) -> Result<Self, ReadError> {
        if checked_product(&shape) != Some(values.len()) {
            return Err(ReadError::ShapeMismatch {
                shape,
                values: values.len(),
            });
        }
        Ok(Array { shape, values })
    }

    /// The extent of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, row major.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// These rows followed by the rows of another array; `None` if they have another shape or type.
    pub(crate) fn followed_by(self, other: Self) -> Option<Self> {
        let rows = self.rows().checked_add(other.rows())?;
        if self.row_shape() != other.row_shape() {
            return None;
        }
        let shape = [rows].iter().chain(self.row_shape()).copied().collect();
        let ((_, own), (_, others)) = (self.into_parts(), other.into_parts());
        let values = match (own, others) {
            (Values::U8(a), Values::U8(b)) => Values::U8([a, b].concat()),
            (Values::I8(a), Values::I8(b)) => Values::I8([a, b].concat()),
            (Values::I16(a), Values::I16(b)) => Values::I16([a, b].concat()),
            (Values::I32(a), Values::I32(b)) => Values::I32([a, b].concat()),
            (Values::I64(a), Values::I64(b)) => Values::I64([a, b].concat()),
            (Values::F32(a), Values::F32(b)) => Values::F32([a, b].concat()),
            (Values::F64(a), Values::F64(b)) => Values::F64([a, b].concat()),
            _ => return None,
        };
        Self::new(shape, values).ok()
    }

    /// Row `i` of the result is row `i` of every array, one behind the other, as `f32`: each value
    /// is divided by the number beside its array.
    ///
    /// # Errors
    /// [`ReadError::ShapeMismatch`] if the arrays have different numbers of rows.
    pub fn side_by_side(arrays: &[(&Self, f32)]) -> Result<Self, ReadError> {
        let rows = arrays.first().map_or(0, |(array, _)| array.rows());
        let width = arrays.iter().map(|(array, _)| array.row_len()).sum();
        if let Some((other, _)) = arrays.iter().find(|(array, _)| array.rows() != rows) {
            return Err(ReadError::ShapeMismatch {
                shape: vec![rows, other.row_len()],
                values: other.values.len(),
            });
        }
        let mut values = Vec::with_capacity(rows.saturating_mul(width));
        for row in 0..rows {
            for (array, divisor) in arrays {
                array.extend_row_f32(row, *divisor, &mut values);
            }
        }
        Self::new(vec![rows, width], Values::F32(values))
    }

    /// The extent of the first axis; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The shape of one row: all axes but the first.
    pub fn row_shape(&self) -> &[usize] {
        self.shape.get(1..).unwrap_or(&[])
    }

    /// The number of values in one row.
    pub fn row_len(&self) -> usize {
        self.row_shape().iter().product()
    }

    /// Takes the array apart into shape and values.
    pub fn into_parts(self) -> (Vec<usize>, Values) {
        (self.shape, self.values)
    }

    /// Appends row `row` to `out`, every value as `value as f32 / divisor`.
    ///
    /// # Panics
    /// If `row` is out of range: callers have checked it.
    pub(crate) fn extend_row_f32(&self, row: usize, divisor: f32, out: &mut Vec<f32>) {
        let range = row * self.row_len()..(row + 1) * self.row_len();
        match &self.values {
            Values::F32(v) if divisor == 1.0 => out.extend_from_slice(&v[range]),
            values => with_values!(values, v => {
                out.extend(v[range].iter().map(|&x| x as f32 / divisor));
            }),
        }
    }
}

impl Array {
    /// The first value that is not a finite `f32`: its row, its place in the row and itself.
    pub(crate) fn first_not_finite(&self) -> Option<(usize, usize, f64)> {
        let (position, value) = match &self.values {
            Values::F32(v) => {
                let position = v.iter().position(|x| !x.is_finite())?;
                (position, f64::from(v[position]))
            }
            Values::F64(v) => {
                let position = v.iter().position(|x| !(*x as f32).is_finite())?;
                (position, v[position])
            }
            _ => return None,
        };
        let row_len = self.row_len().max(1);
        Some((position / row_len, position % row_len, value))
    }
}

/// The product of the extents, or `None` if it overflows. As in NumPy, the extents beside a zero
/// must not overflow either, so the product of any part of the shape is safe too.
pub(crate) fn checked_product(shape: &[usize]) -> Option<usize> {
    let product = shape.iter().try_fold(1usize, |product, &extent| {
        product.checked_mul(extent.max(1))
    })?;
    Some(if shape.contains(&0) { 0 } else { product })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_must_hold_exactly_its_values() {
        let values = || Values::I16(vec![1, 2, 3, 4, 5, 6]);
        let array = Array::new(vec![3, 2], values()).unwrap();
        assert_eq!(
            (array.rows(), array.row_len(), array.row_shape()),
            (3, 2, &[2][..])
        );
        let max = usize::MAX;
        for shape in [vec![], vec![5], vec![6, 0], vec![max, 2]] {
            let error = Array::new(shape.clone(), values()).unwrap_err();
            assert!(
                matches!(error, ReadError::ShapeMismatch { .. }),
                "{shape:?}"
            );
        }
        assert_eq!(Array::new(vec![], Values::U8(vec![7])).unwrap().rows(), 1);
        assert_eq!(
            Array::new(vec![0, max], Values::U8(vec![]))
                .unwrap()
                .row_len(),
            max
        );
        assert!(Array::new(vec![0, max, 2], Values::U8(vec![])).is_err());
    }

    #[test]
    fn rows_of_several_arrays_stand_behind_each_other() {
        let one = Array::new(vec![2, 1, 2], Values::U8(vec![255, 0, 51, 102])).unwrap();
        let two = Array::new(vec![2], Values::I64(vec![7, 8])).unwrap();
        let both = Array::side_by_side(&[(&one, 255.0), (&two, 1.0)]).unwrap();
        let expected = vec![1.0, 0.0, 7.0, 0.2, 0.4, 8.0];
        assert_eq!(both, Array::new(vec![2, 3], Values::F32(expected)).unwrap());
        let short = Array::new(vec![1], Values::I64(vec![7])).unwrap();
        assert!(Array::side_by_side(&[(&one, 1.0), (&short, 1.0)]).is_err());
    }

    #[test]
    fn rows_are_divided_not_multiplied() {
        let bytes: Vec<u8> = (0..=255).collect();
        let array = Array::new(vec![2, 128], Values::U8(bytes)).unwrap();
        let mut out = Vec::new();
        array.extend_row_f32(1, 255.0, &mut out);
        array.extend_row_f32(0, 255.0, &mut out);
        let expected: Vec<f32> = (128..256).chain(0..128).map(|x| x as f32 / 255.0).collect();
        assert_eq!(out, expected);
    }
}
