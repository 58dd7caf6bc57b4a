//! Some rows of a large tensor, as sparse gradients are.

use burn::tensor::{DType, TensorData};
use distribute_collectives::ReduceOp;

use crate::nest::different_structure;
use crate::{Error, Result, WorkerGroup, host_reduce};

/// Rows of a dense tensor: row `i` of `values` belongs at `indices[i]` of axis 0, and rows with
/// one index add up (TensorFlow: `tf.IndexedSlices`).
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedSlices {
    values: TensorData,
    indices: Vec<usize>,
    dense_shape: Vec<usize>,
}

impl IndexedSlices {
    /// Rows of shape `dense_shape[1..]`, stacked in `values`.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not one row of that shape per index,
    /// [`Error::InvalidArgument`] for an index outside of the dense tensor.
    pub fn new(
        values: TensorData,
        indices: Vec<usize>,
        dense_shape: impl Into<Vec<usize>>,
    ) -> Result<Self> {
        let dense_shape = dense_shape.into();
        let mut expected = dense_shape.clone();
        let Some(rows) = expected.first_mut() else {
            return Err(Error::invalid(
                "indexed slices of a scalar: there are no rows",
            ));
        };
        let dense_rows = std::mem::replace(rows, indices.len());
        if values.shape()[..] != expected[..] {
            return Err(Error::shape("indexed slices", &expected, values.shape()));
        }
        if let Some(index) = indices.iter().find(|index| **index >= dense_rows) {
            return Err(Error::invalid(format!(
                "indexed slices: index {index} in a tensor of {dense_rows} rows"
            )));
        }
        Ok(Self {
            values,
            indices,
            dense_shape,
        })
    }

    /// The rows.
    pub fn values(&self) -> &TensorData {
        &self.values
    }

    /// Where each row belongs.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// The shape of the dense tensor.
    pub fn dense_shape(&self) -> &[usize] {
        &self.dense_shape
    }

    /// The slices of all replicas of all workers, from the slices of this worker's replicas.
    pub(crate) fn gather(
        workers: &WorkerGroup,
        op: ReduceOp,
        slices: Vec<Self>,
    ) -> Result<Vec<Self>> {
        let lists = slices
            .into_iter()
            .map(Self::into_tensors)
            .collect::<Result<Vec<_>>>()?;
        let all = workers.gather(&format!("reduce_slices {op}"), &lists)?;
        all.into_iter().map(Self::from_tensors).collect()
    }

    fn into_tensors(self) -> Result<Vec<TensorData>> {
        let counts = |counts: Vec<usize>| -> Result<TensorData> {
            let wide: Result<Vec<i64>, _> = counts.into_iter().map(i64::try_from).collect();
            let wide = wide.map_err(Error::internal)?;
            let count = wide.len();
            Ok(TensorData::new(wide, [count]))
        };
        let (indices, shape) = (counts(self.indices)?, counts(self.dense_shape)?);
        Ok(vec![self.values, indices, shape])
    }

    fn from_tensors(tensors: Vec<TensorData>) -> Result<Self> {
        let counts = |data: &TensorData| -> Result<Vec<usize>> {
            let narrow: Result<_, _> = data.iter::<i64>().map(usize::try_from).collect();
            narrow.map_err(Error::internal)
        };
        match <[TensorData; 3]>::try_from(tensors) {
            Ok([values, indices, shape]) => Self::new(values, counts(&indices)?, counts(&shape)?),
            Err(_) => Err(different_structure()),
        }
    }

    /// The dense tensor: rows with one index added up, all others zero.
    ///
    /// # Errors
    /// [`Error::DType`] for bool.
    pub fn to_dense(&self) -> Result<TensorData> {
        let elements: usize = self.dense_shape.iter().product();
        let width = elements / self.dense_shape[0].max(1);
        host_reduce::scatter_sum(&self.values, &self.indices, width, &self.dense_shape)
    }

    pub(crate) fn reduce(op: ReduceOp, slices: Vec<Self>) -> Result<Self> {
        if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
            let what = format!("indexed slices: SUM or MEAN, not {op}");
            return Err(Error::invalid(what));
        }
        let first = slices.first().ok_or_else(different_structure)?;
        let dense_shape = first.dense_shape.clone();
        if let Some(other) = slices.iter().find(|other| other.dense_shape != dense_shape) {
            let op = "reduce of indexed slices";
            return Err(Error::shape(op, &dense_shape, &other.dense_shape));
        }
        let replicas = slices.len();
        let mut values = Vec::with_capacity(replicas);
        let mut indices = Vec::new();
        for mut slice in slices {
            indices.append(&mut slice.indices);
            values.push(slice.values);
        }
        let mut values = host_reduce::gather(values, 0)?;
        if op == ReduceOp::Mean {
            if !values.dtype().is_float() {
                values = values.convert_dtype(DType::F64);
            }
            values = host_reduce::divide(values, replicas)?;
        }
        Self::new(values, indices, dense_shape)
    }
}
