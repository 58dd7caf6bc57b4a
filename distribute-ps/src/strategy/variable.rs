//! A variable of core that lives on the servers.

use std::sync::Arc;

use burn::tensor::TensorData;
use distribute_core::Result;
use distribute_core::remote::{RemoteChange, RemoteVariable};

use super::updates::Updates;
use crate::client::VariableClient;
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
        let (id, variable) = (self.updates.next()?, &self.variable);
        match change {
            RemoteChange::Assign => self.client.assign(id, variable, value)?,
            RemoteChange::Add => self.client.assign_add(id, variable, value)?,
            RemoteChange::Sub => self.client.assign_sub(id, variable, value)?,
        };
        Ok(())
    }
}
