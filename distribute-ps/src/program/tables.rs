//! Embedding tables of a program.

use super::Program;
use crate::table::{Table, TableSpec};
use crate::worker::{Resource, SharedValue};

impl Program {
    /// Registers an embedding table: [`StepRegistry::table`]. What is wrong with it is the error
    /// of [`run`](Self::run).
    ///
    /// [`StepRegistry::table`]: crate::StepRegistry::table
    pub fn table(&mut self, name: impl Into<String>, spec: TableSpec) -> Table {
        let name = name.into();
        self.registry
            .table(name.clone(), spec)
            .unwrap_or_else(|error| {
                self.wrong.get_or_insert(error);
                SharedValue::new(Resource::named(name))
            })
    }
}
