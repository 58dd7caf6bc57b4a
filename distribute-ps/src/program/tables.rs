//! Embedding tables of a program.

use super::Program;
use crate::coordinator::Table;
use crate::table::TableSpec;

impl Program {
    /// Registers an embedding table: [`StepRegistry::table`]. What is wrong with it is the error
    /// of [`run`](Self::run).
    ///
    /// [`StepRegistry::table`]: crate::StepRegistry::table
    pub fn table(&mut self, name: impl Into<String>, spec: TableSpec) -> Table {
        self.registered(name, |registry, name| registry.table(name, spec))
    }
}
