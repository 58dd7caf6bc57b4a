//! Arrays in host memory, and batches of them.

use serde::{Deserialize, Serialize};

use crate::{PipelineError, Result};

/// Values with a shape, in row-major order.
///
/// ```
/// use distribute_pipeline::Array;
///
/// let rows = vec![Array::from(vec![1, 2]), Array::from(vec![3, 4])];
/// let batch = Array::stack(rows)?;
/// assert_eq!((batch.shape(), batch.values()), (&[2, 2][..], &[1, 2, 3, 4][..]));
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts<T>")]
pub struct Array<T> {
    shape: Vec<usize>,
    values: Vec<T>,
}

/// An array as it is read, which may not fit together.
#[derive(Deserialize)]
struct Parts<T> {
    shape: Vec<usize>,
    values: Vec<T>,
}

impl<T> TryFrom<Parts<T>> for Array<T> {
    type Error = PipelineError;

    fn try_from(parts: Parts<T>) -> Result<Self> {
        Self::new(parts.values, parts.shape)
    }
}

impl<T> Array<T> {
    /// Values with a shape.
    ///
    /// # Errors
    /// If the shape has another number of values.
    pub fn new(values: Vec<T>, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if product(&shape) == Some(values.len()) {
            return Ok(Self { shape, values });
        }
        let what = format!("{} values have not the shape {shape:?}", values.len());
        Err(PipelineError::argument("array", what))
    }

    /// One value, of the shape `[]`.
    pub fn scalar(value: T) -> Self {
        Self {
            shape: Vec::new(),
            values: vec![value],
        }
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, in row-major order.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The values, in row-major order.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// The size of the first axis; 0 of a single value.
    pub fn length(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Arrays of the same shape as one array with a first axis more.
    ///
    /// # Errors
    /// [`PipelineError::Shapes`] if the shapes differ.
    pub fn stack(arrays: Vec<Self>) -> Result<Self> {
        let inner = arrays
            .first()
            .map(|array| array.shape.clone())
            .unwrap_or_default();
        let mut shape = vec![arrays.len()];
        shape.extend(&inner);
        let mut values = Vec::with_capacity(arrays.iter().map(|array| array.values.len()).sum());
        for (element, array) in arrays.into_iter().enumerate() {
            if array.shape != inner {
                return Err(PipelineError::Shapes {
                    stage: "batch",
                    first: inner,
                    element,
                    shape: array.shape,
                });
            }
            values.extend(array.values);
        }
        Ok(Self { shape, values })
    }

    /// The parts along the first axis: what [`stack`](Self::stack) made one array of.
    ///
    /// # Errors
    /// If it is a single value, or if there are more parts than fit into memory: an array without
    /// values may have an axis of any size.
    pub fn unstack(self) -> Result<Vec<Self>> {
        let Some((count, inner)) = self.shape.split_first() else {
            let what = "a single value has no elements; make batches first (`batch`)";
            return Err(PipelineError::argument("unbatch", what));
        };
        let each = product(inner).unwrap_or(0);
        let mut values = self.values.into_iter();
        let mut parts = Vec::new();
        let reserved = parts.try_reserve_exact(*count);
        reserved.map_err(|_| too_large("unbatch", &self.shape))?;
        parts.extend((0..*count).map(|_| Self {
            shape: inner.to_vec(),
            values: values.by_ref().take(each).collect(),
        }));
        Ok(parts)
    }
}

impl<T: Clone> Array<T> {
    /// Arrays of different lengths as one array with a first axis more, filled up with `padding` to
    /// `shape`, or else to the largest of them on each axis.
    ///
    /// # Errors
    /// [`PipelineError::TooLong`] if one does not fit into the shape, [`PipelineError::Shapes`] if
    /// they have different numbers of axes; also if it is too large for memory.
    pub fn padded(arrays: Vec<Self>, shape: Option<&[usize]>, padding: &T) -> Result<Self> {
        const STAGE: &str = "padded_batch";
        let first = arrays
            .first()
            .map(|array| array.shape.clone())
            .unwrap_or_default();
        let mut to = shape.map_or_else(|| vec![0; first.len()], <[usize]>::to_vec);
        for (element, array) in arrays.iter().enumerate() {
            if array.shape.len() != to.len() {
                let (stage, shape) = (STAGE, array.shape.clone());
                return Err(PipelineError::Shapes {
                    stage,
                    first,
                    element,
                    shape,
                });
            }
            let sizes = to.iter_mut().zip(&array.shape);
            match shape {
                None => sizes.for_each(|(size, own)| *size = (*size).max(*own)),
                Some(to) if sizes.into_iter().any(|(size, own)| own > size) => {
                    return Err(PipelineError::TooLong {
                        stage: STAGE,
                        element,
                        shape: array.shape.clone(),
                        padded: to.to_vec(),
                    });
                }
                Some(_) => {}
            }
        }
        let mut shape = vec![arrays.len()];
        shape.extend(&to);
        let Some(size) = product(&shape) else {
            return Err(too_large(STAGE, &shape));
        };
        let mut values = Vec::new();
        let reserved = values.try_reserve_exact(size);
        reserved.map_err(|_| too_large(STAGE, &shape))?;
        // Without values an axis may have any size, and there is nothing to fill.
        for array in arrays.iter().filter(|_| size > 0) {
            fill(&array.shape, &array.values, &to, padding, &mut values);
        }
        Ok(Self { shape, values })
    }
}

/// Appends `values` of `shape`, filled up to the shape `to`.
fn fill<T: Clone>(shape: &[usize], values: &[T], to: &[usize], padding: &T, into: &mut Vec<T>) {
    let (Some((own, inner)), Some((size, below))) = (shape.split_first(), to.split_first()) else {
        into.extend_from_slice(values);
        return;
    };
    let before = into.len();
    let each = product(inner).unwrap_or(0);
    for part in 0..*own {
        let part = values
            .get(part * each..(part + 1) * each)
            .unwrap_or_default();
        fill(inner, part, below, padding, into);
    }
    let all = size * product(below).unwrap_or(0);
    into.resize(before + all, padding.clone());
}

fn too_large(stage: &'static str, shape: &[usize]) -> PipelineError {
    let what = format!("an array of the shape {shape:?} is too large");
    PipelineError::argument(stage, what)
}

fn product(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_usize, |product, size| product.checked_mul(*size))
}

impl<T> From<Vec<T>> for Array<T> {
    fn from(values: Vec<T>) -> Self {
        Self {
            shape: vec![values.len()],
            values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_and_unstacks() {
        let rows: Vec<_> = (0..4)
            .map(|x| Array::new(vec![x, x + 1], [2, 1]).unwrap())
            .collect();
        let batch = Array::stack(rows.clone()).unwrap();
        assert_eq!(batch.shape(), [4, 2, 1]);
        assert_eq!(batch.unstack().unwrap(), rows);
        assert!(Array::scalar(1).unstack().is_err());
        let mixed = vec![Array::from(vec![1]), Array::from(vec![1, 2])];
        let error = Array::stack(mixed).unwrap_err().to_string();
        assert!(error.contains("[1], element 1 has shape [2]"), "{error}");
    }

    #[test]
    fn shapes_that_are_too_large_or_do_not_fit_are_errors() {
        let error = |result: Result<Array<i32>>| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("is too large"), "{error}");
        };
        let row = || vec![Array::from(vec![1])];
        error(Array::padded(row(), Some(&[usize::MAX]), &0));
        error(Array::padded(row(), Some(&[usize::MAX / 8]), &0));
        let empty = Array::<i32>::new(Vec::new(), [usize::MAX, 0]).unwrap();
        error(empty.clone().unstack().map(|mut parts| parts.remove(0)));
        let padded = Array::padded(vec![empty], None, &0).unwrap();
        assert_eq!(padded.shape(), [1, usize::MAX, 0]);

        let array = Array::new(vec![1, 2], [2, 1]).unwrap();
        let bytes = rmp_serde::to_vec(&array).unwrap();
        assert_eq!(rmp_serde::from_slice::<Array<i32>>(&bytes).unwrap(), array);
        let bytes = rmp_serde::to_vec(&([9, 9], [1, 2])).unwrap();
        let error = rmp_serde::from_slice::<Array<i32>>(&bytes).unwrap_err();
        assert!(error.to_string().contains("[9, 9]"), "{error}");
    }

    #[test]
    fn pads_every_axis() {
        let small = Array::new(vec![1, 2], [2, 1]).unwrap();
        let wide = Array::new(vec![3, 4, 5], [1, 3]).unwrap();
        let padded = Array::padded(vec![small, wide], None, &0).unwrap();
        assert_eq!(padded.shape(), [2, 2, 3]);
        assert_eq!(padded.values(), [1, 0, 0, 2, 0, 0, 3, 4, 5, 0, 0, 0]);
    }
}
