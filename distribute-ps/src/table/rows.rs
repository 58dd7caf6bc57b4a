//! Rows that were looked up.

use burn::tensor::{DType, Int, Tensor, TensorData};
use distribute_core::remote::RemoteRows;
use distribute_core::{Error, ReplicaContext, Result};

/// Rows of a table, as a step looked them up: one for each id that was asked for.
#[derive(Debug, Clone)]
pub struct Rows {
    rows: RemoteRows,
    /// The distinct rows.
    values: TensorData,
    /// The place of each id's row among them.
    places: Vec<i64>,
    /// Of the ids.
    shape: Vec<usize>,
}

impl Rows {
    pub(super) fn new(
        rows: RemoteRows,
        values: TensorData,
        places: Vec<i64>,
        shape: Vec<usize>,
    ) -> Self {
        Self {
            rows,
            values,
            places,
            shape,
        }
    }

    /// The distinct rows' ids, ascending: these rows were pulled, and their gradients are pushed.
    pub fn distinct_ids(&self) -> &[u64] {
        &self.rows.ids
    }

    /// The shape of the lookup: that of the ids, then the table's width.
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape.push(self.width());
        shape
    }

    fn width(&self) -> usize {
        self.values.shape()[1]
    }

    /// The rows as a tensor on the replica's device, `[ids..., width]`: `D` is one more than the
    /// dimensions of the ids. The gradients of a loss that depends on it are gradients of the
    /// table's rows too, and `apply_gradients` sends them; `detach` it where they are not wanted.
    ///
    /// Each call makes a tensor of its own; their gradients add up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of dimensions, and in a compiled step.
    pub fn tensor<const D: usize>(&self, ctx: &ReplicaContext) -> Result<Tensor<D>> {
        let shape = self.shape();
        let Ok(shape) = <[usize; D]>::try_from(shape.as_slice()) else {
            return Err(Error::invalid(format!(
                "lookup in `{}`: the rows have the shape {shape:?}, that is {} dimensions; ask for \
                 them with `tensor::<{}>`, not `tensor::<{D}>`",
                self.rows.table,
                shape.len(),
                shape.len(),
            )));
        };
        let leaf = ctx.watch_rows(self.rows.clone(), self.values.clone())?;
        if self.places.is_empty() {
            // Nothing of it has a gradient. burn's `reshape` takes a 0 for "as before".
            let nothing = TensorData::new(Vec::<f32>::new(), shape);
            let nothing = Tensor::from_data(nothing, (ctx.device(), DType::F32));
            return Ok(nothing.set_require_grad(ctx.device().is_autodiff()));
        }
        let places = TensorData::new(self.places.clone(), [self.places.len()]);
        let places = Tensor::<1, Int>::from_data(places, ctx.device());
        Ok(leaf.select(0, places).reshape(shape))
    }

    /// The rows in host memory, `[ids..., width]`.
    ///
    /// # Errors
    /// If the rows are not `f32`, the type of a table's rows.
    pub fn to_data(&self) -> Result<TensorData> {
        let width = self.width();
        let distinct = self.values.as_slice::<f32>().map_err(Error::internal)?;
        let row = |place: &i64| {
            let begin = usize::try_from(*place).unwrap_or(0) * width;
            &distinct[begin..begin + width]
        };
        let values: Vec<f32> = self.places.iter().flat_map(row).copied().collect();
        Ok(TensorData::new(values, self.shape()))
    }
}
