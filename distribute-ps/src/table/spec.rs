//! What a table is to be.

use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use distribute_core::optim::Optimizer;

use super::{EmbeddingTable, TableInitializer, variable_name};
use crate::error::{PsError, Result};
use crate::variable::{OptimizerSpec, VariableSpec};

/// What a table is to be: its size, its optimizer and its initial values.
///
/// ```
/// use distribute_core::Adam;
/// use distribute_ps::{TableInitializer, TableSpec};
///
/// let spec = TableSpec::new(50_000, 32, Adam::new(0.01));
/// let spec = spec.initializer(TableInitializer::normal(0.1, 42));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct TableSpec {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    optimizer: Arc<dyn Optimizer>,
    initializer: TableInitializer,
}

impl TableSpec {
    /// A table of this many rows with this many elements each, whose rows are updated by this
    /// optimizer. At first they come from the default [`TableInitializer`].
    pub fn new(rows: usize, width: usize, optimizer: impl Optimizer + 'static) -> Self {
        Self {
            rows,
            width,
            optimizer: Arc::new(optimizer),
            initializer: TableInitializer::default(),
        }
    }

    /// Sets the initial values.
    pub fn initializer(mut self, initializer: TableInitializer) -> Self {
        self.initializer = initializer;
        self
    }

    pub(crate) fn check(&self, table: &str) -> Result<()> {
        let [rows, width] = [self.rows, self.width];
        let bytes = rows
            .checked_mul(width)
            .and_then(|count| count.checked_mul(4));
        if rows == 0 || width == 0 || bytes.is_none() {
            return Err(PsError::invalid(format!(
                "table `{table}`: {rows} rows of {width} elements are not possible; it needs at \
                 least one of each"
            )));
        }
        self.initializer.check(table)
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        vec![self.rows, self.width]
    }

    /// As a variable of the servers.
    pub(crate) fn variable(&self, table: &str) -> VariableSpec {
        VariableSpec {
            name: variable_name(table),
            shape: self.shape(),
            dtype: DType::F32,
            optimizer: Some(OptimizerSpec::of(&*self.optimizer)),
        }
    }

    /// Gives a new table its initial values, one shard after the other.
    pub(crate) fn initialize(&self, table: &EmbeddingTable) -> Result<()> {
        let shards = table.variable.placement().shards.iter();
        for (number, shard) in shards.enumerate() {
            let rows = shard.offset..shard.offset + shard.rows;
            let values = self.initializer.values(&table.name, rows, self.width)?;
            let values = TensorData::new(values, [shard.rows, self.width]);
            let client = &table.servers.client;
            client.initialize_shard(&table.variable, number, values)?;
        }
        Ok(())
    }
}
