//! Reading and writing at places known only when the program runs.

use super::builder::{Builder, Value, ensure, i64_array, plain_list};
use super::elementwise::Binary;
use super::error::Result;
use super::types::TensorType;

/// Where a gather reads. Names and meaning are StableHLO's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatherDimensions {
    /// Dimensions of the result that come from the slices.
    pub offset_dims: Vec<usize>,
    /// Dimensions of the operand whose slices have size one and are dropped.
    pub collapsed_slice_dims: Vec<usize>,
    /// The dimension of the operand that each entry of an index vector is for.
    pub start_index_map: Vec<usize>,
    /// The dimension of the indices that holds the index vectors.
    pub index_vector_dim: usize,
}

/// Where a scatter writes. Names and meaning are StableHLO's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScatterDimensions {
    /// Dimensions of the updates that belong to a window.
    pub update_window_dims: Vec<usize>,
    /// Dimensions of the operand whose windows have size one and are missing in the updates.
    pub inserted_window_dims: Vec<usize>,
    /// The dimension of the operand that each entry of an index vector is for.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// The dimension of the indices that holds the index vectors.
    pub index_vector_dim: usize,
}

/// How a scatter combines the existing element with the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Update {
    /// The update replaces it. Where several updates meet, any of them may win.
    Assign,
    /// The two are combined.
    Combine(Binary),
}

impl Builder {
    /// Reads slices of `x` at the places that `indices` name. An index outside is moved to the
    /// nearest one inside.
    ///
    /// # Errors
    /// The dimensions do not fit together.
    pub fn gather(
        &mut self,
        x: &Value,
        indices: &Value,
        dims: &GatherDimensions,
        slice_sizes: &[usize],
    ) -> Result<Value> {
        let operands = [x, indices];
        let within = |l: &[usize]| l.iter().all(|d| *d < x.rank());
        let vector = indices
            .dims()
            .get(dims.index_vector_dim)
            .copied()
            .unwrap_or(1);
        let kept: Vec<usize> = (0..x.rank())
            .filter(|d| !dims.collapsed_slice_dims.contains(d))
            .collect();
        let valid = slice_sizes.len() == x.rank()
            && indices.element().is_integer()
            && slice_sizes.iter().zip(x.dims()).all(|(s, d)| s <= d)
            && within(&dims.collapsed_slice_dims)
            && within(&dims.start_index_map)
            && dims
                .collapsed_slice_dims
                .iter()
                .all(|d| slice_sizes[*d] == 1)
            && dims.start_index_map.len() == vector
            && dims.offset_dims.len() == kept.len();
        ensure(valid, "gather", &operands, || {
            format!("slices of {slice_sizes:?} by {dims:?} do not fit")
        })?;
        let mut offsets = kept.iter().map(|d| slice_sizes[*d]);
        let mut batch = batch_dims(indices, dims.index_vector_dim);
        let rank = offsets.len() + batch.len();
        let result: Vec<usize> = (0..rank)
            .map(|d| {
                if dims.offset_dims.contains(&d) {
                    offsets.next().unwrap_or(1)
                } else {
                    batch.next().unwrap_or(1)
                }
            })
            .collect();
        let attributes = format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = {}, \
             start_index_map = {}, index_vector_dim = {}>, slice_sizes = {}, \
             indices_are_sorted = false",
            plain_list(&dims.offset_dims),
            plain_list(&dims.collapsed_slice_dims),
            plain_list(&dims.start_index_map),
            dims.index_vector_dim,
            i64_array(slice_sizes),
        );
        let ty = x.ty().with_dims(result);
        Ok(self.emit_one("gather", &operands, &attributes, &[], ty))
    }

    /// `x` with updates at the places that `indices` name. An update that would reach outside is
    /// left out.
    ///
    /// # Errors
    /// The dimensions do not fit together.
    pub fn scatter(
        &mut self,
        x: &Value,
        indices: &Value,
        updates: &Value,
        dims: &ScatterDimensions,
        update: Update,
    ) -> Result<Value> {
        let operands = [x, indices, updates];
        let within = |l: &[usize], rank: usize| l.iter().all(|d| *d < rank);
        let vector = indices
            .dims()
            .get(dims.index_vector_dim)
            .copied()
            .unwrap_or(1);
        let window = &dims.update_window_dims;
        let scattered: Vec<usize> = (0..updates.rank())
            .filter(|d| !window.contains(d))
            .map(|d| updates.dims()[d])
            .collect();
        let valid = updates.element() == x.element()
            && indices.element().is_integer()
            && within(window, updates.rank())
            && within(&dims.inserted_window_dims, x.rank())
            && within(&dims.scatter_dims_to_operand_dims, x.rank())
            && window.len() + dims.inserted_window_dims.len() == x.rank()
            && dims.scatter_dims_to_operand_dims.len() == vector
            && batch_dims(indices, dims.index_vector_dim).eq(scattered);
        ensure(valid, "scatter", &operands, || {
            format!("{dims:?} do not fit")
        })?;
        let scalar = TensorType::scalar(x.element());
        let region = self.region(&[scalar.clone(), scalar], |b, args| {
            Ok(vec![match update {
                Update::Assign => args[1].clone(),
                Update::Combine(op) => b.binary(op, &args[0], &args[1])?,
            }])
        })?;
        let attributes = format!(
            "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {}, \
             inserted_window_dims = {}, scatter_dims_to_operand_dims = {}, \
             index_vector_dim = {}>, indices_are_sorted = false, unique_indices = false",
            plain_list(window),
            plain_list(&dims.inserted_window_dims),
            plain_list(&dims.scatter_dims_to_operand_dims),
            dims.index_vector_dim,
        );
        let ty = x.ty().clone();
        Ok(self.emit_one("scatter", &operands, &attributes, &[region], ty))
    }
}

/// The dimensions of the indices without the dimension of the index vectors.
fn batch_dims(indices: &Value, vector: usize) -> impl ExactSizeIterator<Item = usize> {
    let dims: Vec<usize> = indices
        .dims()
        .iter()
        .enumerate()
        .filter(|(d, _)| *d != vector)
        .map(|(_, size)| *size)
        .collect();
    dims.into_iter()
}
