//! A variable of core that lives on the servers.

use burn::tensor::TensorData;
use distribute_core::remote::{RemoteChange, RemoteVariable};
use distribute_core::{Error, Result};

use crate::error::PsError;
use crate::push::Servers;
use crate::variable::VariableRef;

#[derive(Debug)]
pub(super) struct Variable {
    pub(super) servers: Servers,
    pub(super) variable: VariableRef,
}

impl RemoteVariable for Variable {
    fn read(&self) -> Result<TensorData> {
        Ok(self.servers.client.read(self.variable.name())?)
    }

    fn change(&self, change: RemoteChange, value: TensorData) -> Result<()> {
        let Servers { client, updates } = &self.servers;
        let (drawn, variable) = (updates.next()?, &self.variable);
        let id = drawn.id();
        let changed = match change {
            RemoteChange::Assign => client.assign(id, variable, value),
            RemoteChange::Add => client.assign_add(id, variable, value),
            RemoteChange::Sub => client.assign_sub(id, variable, value),
        };
        changed.map(drop).map_err(of_variable)
    }
}

/// What a variable of any other strategy fails with for the same value.
fn of_variable(error: PsError) -> Error {
    match error {
        PsError::Shape {
            op,
            expected,
            found,
            ..
        } => Error::Shape {
            op,
            expected,
            found,
        },
        PsError::DType { op, found, .. } => Error::DType { op, dtype: found },
        other => other.into(),
    }
}
