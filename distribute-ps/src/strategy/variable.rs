//! A variable of core that lives on the servers.

use std::sync::Arc;

use burn::tensor::TensorData;
use distribute_core::remote::{RemoteChange, RemoteVariable};
use distribute_core::{Error, Result};

use super::updates::Updates;
use crate::client::VariableClient;
use crate::error::PsError;
use crate::variable::VariableRef;

#[derive(Debug)]
pub(super) struct Variable {
    pub(super) client: VariableClient,
    pub(super) updates: Arc<Updates>,
    pub(super) variable: VariableRef,
}

impl RemoteVariable for Variable {
    fn read(&self) -> Result<TensorData> {
        Ok(self.client.read(self.variable.name())?)
    }

    fn change(&self, change: RemoteChange, value: TensorData) -> Result<()> {
        let (drawn, variable) = (self.updates.next()?, &self.variable);
        let id = drawn.id();
        let changed = match change {
            RemoteChange::Assign => self.client.assign(id, variable, value),
            RemoteChange::Add => self.client.assign_add(id, variable, value),
            RemoteChange::Sub => self.client.assign_sub(id, variable, value),
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
