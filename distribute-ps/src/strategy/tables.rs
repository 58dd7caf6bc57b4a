//! Embedding tables on the servers.

use super::ParameterServerStrategy;
use crate::error::Result;
use crate::table::{EmbeddingTable, TableSpec};

impl ParameterServerStrategy {
    /// Makes an embedding table on the servers, cut by the strategy's partitioner, or finds it on
    /// a worker. What its lookups and gradients do is in [`table`](crate::table). Programs with a
    /// coordinator register it: [`Program::table`](crate::Program::table).
    ///
    /// # Errors
    /// [`PsError::VariableExists`]; on a worker [`PsError::UnknownVariable`] and
    /// [`PsError::Shape`]; [`PsError::InvalidArgument`] for a table without rows or columns and for
    /// initial values that are not possible; the errors of the servers, such as
    /// [`PsError::TooLarge`].
    ///
    /// [`PsError::VariableExists`]: crate::PsError::VariableExists
    /// [`PsError::UnknownVariable`]: crate::PsError::UnknownVariable
    /// [`PsError::Shape`]: crate::PsError::Shape
    /// [`PsError::InvalidArgument`]: crate::PsError::InvalidArgument
    /// [`PsError::TooLarge`]: crate::PsError::TooLarge
    pub fn table(&self, name: &str, spec: &TableSpec) -> Result<EmbeddingTable> {
        spec.check(name)?;
        let described = spec.variable(name);
        let variable = match &self.inner.maker {
            Some(maker) => self.make(maker, &described)?,
            None => self.find("table", &described)?,
        };
        let table = EmbeddingTable::new(name, self.inner.servers.clone(), variable);
        if self.inner.maker.is_some() {
            spec.initialize(&table)?;
        }
        Ok(table)
    }
}
