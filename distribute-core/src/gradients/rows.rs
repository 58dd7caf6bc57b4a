//! Gradients of rows of tables that live on parameter servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Gradients as BurnGradients, Tensor, TensorData};

use super::Gradients;
use crate::{Error, Result};

/// What a copy has of a tensor: how often each of its parts had been changed. Empty for nothing.
pub type RemoteVersion = Vec<u64>;

/// Some rows of a table in a [`RemoteStore`](crate::remote::RemoteStore), as they were looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRows {
    /// The table's name in the store.
    pub table: Arc<str>,
    /// Which rows: ascending, each once.
    pub ids: Arc<[u64]>,
    /// The version of the table's parts at which they were looked up.
    pub base: RemoteVersion,
}

/// The gradient of some rows of a table (TensorFlow: the `tf.IndexedSlices` of an
/// `embedding_lookup`, with each row once).
#[derive(Debug, Clone, PartialEq)]
pub struct RowGradients {
    /// Which rows, of which table.
    pub rows: RemoteRows,
    /// One row per id: `[ids, width]`, of `f32`.
    pub values: TensorData,
}

impl RowGradients {
    /// Adds the gradients of other rows of the same table; the older base counts.
    fn add(&mut self, other: Self) -> Result<()> {
        let width = check(&self.rows, &self.values)?;
        if check(&other.rows, &other.values)? != width {
            let expected = [other.rows.ids.len(), width];
            let found = other.values.shape();
            return Err(Error::shape("gradients of rows", &expected, found));
        }
        let mut sum: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for part in [&*self, &other] {
            let values = part.values.as_slice::<f32>().map_err(Error::internal)?;
            for (at, id) in part.rows.ids.iter().enumerate() {
                let row = &values[at * width..(at + 1) * width];
                match sum.get_mut(id) {
                    Some(sum) => sum.iter_mut().zip(row).for_each(|(sum, one)| *sum += one),
                    None => drop(sum.insert(*id, row.to_vec())),
                }
            }
        }
        let (ids, sum): (Vec<_>, Vec<_>) = sum.into_iter().unzip();
        let bases = self.rows.base.iter_mut().zip(&other.rows.base);
        bases.for_each(|(mine, theirs)| *mine = (*mine).min(*theirs));
        self.values = TensorData::new(sum.concat(), [ids.len(), width]);
        self.rows.ids = ids.into();
        Ok(())
    }
}

/// The width of rows, one of `f32` per id.
fn check(rows: &RemoteRows, values: &TensorData) -> Result<usize> {
    if values.dtype() != DType::F32 {
        return Err(Error::dtype("rows of a table (f32 only)", values.dtype()));
    }
    match values.shape()[..] {
        [count, width] if count == rows.ids.len() => Ok(width),
        _ => {
            let expected = [rows.ids.len(), values.shape().last().copied().unwrap_or(1)];
            Err(Error::shape("rows of a table", &expected, values.shape()))
        }
    }
}

/// Rows that a step has looked up: a leaf of the graph.
pub(crate) struct Watched {
    rows: RemoteRows,
    leaf: Tensor<2>,
}

impl Watched {
    /// Makes rows a leaf of the graph.
    ///
    /// # Errors
    /// For values that are not rows of `f32`, one for each id.
    pub(crate) fn new(rows: RemoteRows, values: TensorData, device: &Device) -> Result<Self> {
        check(&rows, &values)?;
        let leaf = Tensor::<2>::from_data(values, (device, DType::F32));
        // A step that evaluates has no gradients.
        let leaf = leaf.set_require_grad(device.is_autodiff());
        Ok(Self { rows, leaf })
    }

    /// The leaf.
    pub(crate) fn leaf(&self) -> Tensor<2> {
        self.leaf.clone()
    }

    /// Moves the rows' gradient out, if the loss depends on them.
    pub(super) fn take(&self, from: &mut BurnGradients) -> Result<Option<RowGradients>> {
        let rows = self.rows.clone();
        let values = match self.leaf.grad_remove(from) {
            Some(gradient) => gradient.try_into_data().map_err(Error::internal)?,
            // No rows at all have a gradient, whatever the graph says.
            None if rows.ids.is_empty() => TensorData::new(Vec::<f32>::new(), self.leaf.shape()),
            None => return Ok(None),
        };
        Ok(Some(RowGradients { rows, values }))
    }
}

impl Gradients {
    /// The gradients of rows of tables, one entry for each table that the loss depends on.
    pub fn row_gradients(&self) -> &[RowGradients] {
        &self.rows
    }

    /// The same, for changing them in place. Shapes and ids stay as they are.
    pub fn row_gradients_mut(&mut self) -> impl Iterator<Item = &mut TensorData> {
        self.rows.iter_mut().map(|rows| &mut rows.values)
    }

    /// The gradients of rows, by value.
    pub(crate) fn into_rows(self) -> Vec<RowGradients> {
        self.rows
    }

    /// Adds to the gradients of a table.
    pub(super) fn add_rows(&mut self, rows: RowGradients) -> Result<()> {
        let mut all = self.rows.iter_mut();
        match all.find(|known| known.rows.table == rows.rows.table) {
            Some(known) => known.add(rows),
            None => {
                check(&rows.rows, &rows.values)?;
                self.rows.push(rows);
                Ok(())
            }
        }
    }

    /// Where gradients of rows would get lost.
    pub(crate) fn refuse_rows(&self, what: &str) -> Result<()> {
        match self.rows.first() {
            None => Ok(()),
            Some(first) => Err(Error::invalid(format!(
                "the gradients include gradients of rows of `{}`, which {what} cannot take: hand \
                 them to `apply_gradients` of a state on parameter servers, or to \
                 `ctx.apply_row_gradients`",
                first.rows.table
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;

    use super::*;

    fn of(table: &str, ids: &[u64], values: &[f32], base: &[u64]) -> RowGradients {
        RowGradients {
            rows: RemoteRows {
                table: table.into(),
                ids: ids.into(),
                base: base.to_vec(),
            },
            values: TensorData::new(values.to_vec(), [ids.len(), 2]),
        }
    }

    fn none() -> Gradients {
        Gradients::none(&Vec::<Param<Tensor<1>>>::new()).unwrap()
    }

    #[test]
    fn rows_of_one_table_add_up_and_others_are_kept_apart() {
        let mut sum = none();
        let first = of("a", &[1, 4, 9], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[7, 2]);
        let second = of("a", &[0, 4], &[10.0, 20.0, 30.0, 40.0], &[3, 5]);
        let other = of("b", &[4], &[0.5, 0.5], &[1]);
        for rows in [first, other.clone(), second] {
            let mut gradients = none();
            gradients.add_rows(rows).unwrap();
            sum.accumulate(gradients).unwrap();
        }
        let values = [10.0, 20.0, 1.0, 2.0, 33.0, 44.0, 5.0, 6.0];
        let expected = of("a", &[0, 1, 4, 9], &values, &[3, 2]);
        assert_eq!(sum.row_gradients(), [expected, other]);
    }

    #[test]
    fn the_norm_counts_rows_and_clipping_scales_them() {
        let mut gradients = none();
        gradients.add_rows(of("a", &[3], &[3.0, 0.0], &[])).unwrap();
        gradients.add_rows(of("b", &[0], &[0.0, 4.0], &[])).unwrap();
        assert_eq!(gradients.clip_by_global_norm(1.0).unwrap(), 5.0);
        let norm = gradients.global_norm().unwrap();
        assert!((norm - 1.0).abs() < 1e-6, "{norm}");
    }

    #[test]
    fn rows_of_other_widths_or_types_are_refused() {
        let mut gradients = none();
        gradients.add_rows(of("a", &[3], &[3.0, 0.0], &[])).unwrap();
        let mut wider = of("a", &[3], &[3.0, 0.0], &[]);
        wider.values = TensorData::new(vec![1.0_f32; 3], [1, 3]);
        let error = gradients.add_rows(wider).unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
        let mut few = of("c", &[3, 4], &[0.0; 4], &[]);
        few.values = TensorData::new(vec![1.0_f32; 2], [1, 2]);
        let error = gradients.add_rows(few).unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
        let mut wide = of("d", &[3], &[3.0, 0.0], &[]);
        wide.values = TensorData::new(vec![1.0_f64; 2], [1, 2]);
        let error = gradients.add_rows(wide).unwrap_err();
        assert!(matches!(error, Error::DType { .. }), "{error}");
    }

    #[test]
    fn a_step_does_not_return_gradients_of_rows_by_halves() {
        use crate::Nest;
        let mut gradients = none();
        gradients.add_rows(of("a", &[3], &[3.0, 0.0], &[])).unwrap();
        let error = gradients.take_leaves().unwrap_err().to_string();
        assert!(error.contains("`a`"), "{error}");
    }
}
