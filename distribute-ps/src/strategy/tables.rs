//! Embedding tables on the servers.

use std::sync::Arc;

use super::updates::lock;
use super::{ParameterServerStrategy, VariableMaker};
use crate::error::{PsError, Result};
use crate::table::{EmbeddingTable, TableSpec};
use crate::variable::{VariableRef, VariableSpec};

impl ParameterServerStrategy {
    /// Makes an embedding table on the servers, cut by the strategy's partitioner, or finds it on
    /// a worker. What its lookups and gradients do is in [`table`](crate::table). Programs with a
    /// coordinator register it: [`Program::table`](crate::Program::table).
    ///
    /// # Errors
    /// [`PsError::VariableExists`]; on a worker [`PsError::UnknownVariable`] and
    /// [`PsError::Shape`]; [`PsError::InvalidArgument`] for a table without rows or columns and for
    /// initial values that are not possible; those of the servers, such as
    /// [`PsError::TooLarge`].
    pub fn table(&self, name: &str, spec: &TableSpec) -> Result<EmbeddingTable> {
        spec.check(name)?;
        let described = spec.variable(name);
        let variable = match &self.inner.maker {
            Some(maker) => self.make(&mut lock(maker), &described)?,
            None => self.find_table(&described)?,
        };
        let (client, updates) = (self.inner.client.clone(), Arc::clone(&self.inner.updates));
        let table = EmbeddingTable::new(name, client, updates, variable);
        if self.inner.maker.is_some() {
            spec.initialize(&table)?;
        }
        Ok(table)
    }

    fn make(&self, maker: &mut VariableMaker, spec: &VariableSpec) -> Result<VariableRef> {
        let partitioner = maker.partitioner.clone();
        let bytes = spec.dtype.size();
        let placement = maker
            .placement
            .place(&spec.shape, bytes, partitioner.as_deref())?;
        self.inner.client.create(spec, &placement)
    }

    fn find_table(&self, spec: &VariableSpec) -> Result<VariableRef> {
        let variable = self.inner.client.variable(&spec.name)?;
        match variable.shape() == spec.shape {
            true => Ok(variable),
            false => Err(PsError::Shape {
                op: "table",
                name: spec.name.clone(),
                expected: variable.shape().to_vec(),
                found: spec.shape.clone(),
            }),
        }
    }
}
