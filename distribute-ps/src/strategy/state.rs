//! A training state on the servers.

use std::collections::BTreeMap;

use burn::tensor::{DType, TensorData};
use distribute_core::checkpoint::{OptimizerSlots, check_slot_names};
use distribute_core::remote::{
    Pushed, RemoteSpec, RemoteState, RemoteValues, RemoteVersion, RowGradients,
};
use distribute_core::{Error, Result};

use crate::error::PsError;
use crate::push::{Servers, step_of};
use crate::table::{add, add_slots, add_tables, slots_in, take_tables};
use crate::update::{Gradient, Versions};
use crate::variable::{Snapshot, VariableRef};

#[derive(Debug)]
pub(super) struct State {
    servers: Servers,
    /// Before the names of all variables.
    prefix: String,
    /// In visit order.
    variables: Vec<VariableRef>,
    /// The types of the model's tensors; bools are bytes on the servers.
    dtypes: Vec<DType>,
    /// Which of them are trained.
    trained: Vec<usize>,
    slots: Vec<&'static str>,
    /// The optimizer's name.
    optimizer: &'static str,
    /// Whether the checkpoints of this state hold the program's embedding tables.
    has_tables: bool,
}

impl State {
    pub(super) fn new(
        servers: Servers,
        prefix: String,
        variables: Vec<VariableRef>,
        spec: &RemoteSpec<'_>,
    ) -> Self {
        let trained = spec
            .tensors
            .iter()
            .enumerate()
            .filter(|(_, tensor)| tensor.is_trained && spec.optimizer.is_some());
        Self {
            servers,
            prefix,
            variables,
            dtypes: spec
                .tensors
                .iter()
                .map(|tensor| tensor.value.dtype())
                .collect(),
            trained: trained.map(|(index, _)| index).collect(),
            slots: spec
                .optimizer
                .map_or_else(Vec::new, |optimizer| optimizer.slots().to_vec()),
            optimizer: spec.optimizer.map_or("", |optimizer| optimizer.name()),
            has_tables: false,
        }
    }

    /// Has its checkpoints hold the program's embedding tables: one state of a run does.
    pub(super) fn with_tables(mut self, has_tables: bool) -> Self {
        self.has_tables = has_tables;
        self
    }

    /// `model/conv1.weight` of a variable's name.
    fn plain_name<'a>(&self, variable: &'a VariableRef) -> &'a str {
        let name = variable.name();
        name.strip_prefix(&self.prefix).unwrap_or(name)
    }

    /// A value of a server in the type that the model has.
    fn of_model(&self, index: usize, value: TensorData) -> Result<TensorData> {
        match self.dtypes.get(index) {
            Some(dtype) if dtype.is_bool() => value.try_cast(*dtype).map_err(Error::internal),
            _ => Ok(value),
        }
    }

    /// Refuses slots of another optimizer; without any they start anew.
    fn check_slots(
        &self,
        variable: &VariableRef,
        tensors: &BTreeMap<String, TensorData>,
    ) -> Result<()> {
        let found = slots_in(tensors, self.plain_name(variable)).map(|(slot, _)| slot);
        let own = OptimizerSlots {
            optimizer: self.optimizer,
            slots: &self.slots,
        };
        Ok(check_slot_names(own, None, found)?)
    }
}

/// A value of a model as servers keep it: they know no bools.
pub(super) fn on_server(value: &TensorData) -> Result<TensorData> {
    if value.dtype().is_bool() {
        value.clone().try_cast(DType::U8).map_err(Error::internal)
    } else {
        Ok(value.clone())
    }
}

impl RemoteState for State {
    fn pull(&self, known: &[RemoteVersion]) -> Result<RemoteValues> {
        let known: Vec<Versions> = known.iter().cloned().map(Versions).collect();
        let Servers { client, updates } = &self.servers;
        let pulled = client.pull(&self.variables, &known, updates.closure())?;
        let trained = self.trained.iter().filter_map(|index| pulled.get(*index));
        let step = step_of(trained.map(|pulled| &pulled.updates));
        let learning_rate = pulled.iter().find_map(|pulled| pulled.learning_rate);
        let mut changed = Vec::new();
        for (index, pulled) in pulled.into_iter().enumerate() {
            if let Some(value) = pulled.value {
                changed.push((index, pulled.versions.0, self.of_model(index, value)?));
            }
        }
        Ok(RemoteValues {
            step,
            learning_rate,
            changed,
        })
    }

    fn push(
        &self,
        gradients: Vec<Option<TensorData>>,
        base: &[RemoteVersion],
        rows: Vec<RowGradients>,
    ) -> Result<Pushed> {
        let (mut pushed, mut versions) = (Vec::new(), Vec::new());
        for ((index, gradient), base) in self.trained.iter().zip(gradients).zip(base) {
            if let Some(gradient) = gradient {
                let variable = self.variables[*index].clone();
                pushed.push((variable, Gradient::Dense(gradient)));
                versions.push(Versions(base.clone()));
            }
        }
        // The step is counted by the model's own variables.
        let own = pushed.len();
        let (rows, bases) = self.servers.row_gradients(rows)?;
        pushed.extend(rows);
        versions.extend(bases);
        self.servers.push((pushed, versions), own)
    }

    fn add(&self, changes: Vec<(usize, TensorData)>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let Servers { client, updates } = &self.servers;
        let drawn = updates.next()?;
        let named = |(index, value): (usize, _)| Some((self.variables.get(index)?, value));
        let changes = changes.into_iter().filter_map(named);
        Ok(client.assign_add_all(drawn.id(), changes).map(drop)?)
    }

    fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        Ok(self.servers.client.set_learning_rate(learning_rate)?)
    }

    fn save(&self) -> Result<(u64, BTreeMap<String, TensorData>)> {
        let mut snapshot = self.servers.client.snapshot()?;
        let mut tensors = BTreeMap::new();
        let mut step = 0;
        for (index, variable) in self.variables.iter().enumerate() {
            let name = variable.name();
            let missing = || PsError::Uninitialized {
                name: name.to_string(),
            };
            let value = snapshot.variables.remove(name).ok_or_else(missing)?;
            let value = self.of_model(index, value)?;
            let plain = self.plain_name(variable);
            add_slots(&snapshot, name, plain, &mut tensors);
            tensors.insert(plain.to_string(), value);
            let updates = snapshot.updates.get(name);
            let most = updates.and_then(|updates| updates.0.iter().max());
            step = step.max(most.copied().unwrap_or(0));
        }
        if self.has_tables {
            take_tables(&mut snapshot, &mut tensors);
        }
        Ok((step, tensors))
    }

    fn restore(&self, tensors: &BTreeMap<String, TensorData>, step: u64) -> Result<()> {
        let mut snapshot = Snapshot::default();
        for variable in &self.variables {
            let name = self.plain_name(variable);
            let missing = || PsError::invalid(format!("the checkpoint has no parameter `{name}`"));
            let value = on_server(tensors.get(name).ok_or_else(missing)?)?;
            add(&mut snapshot, variable.name(), name, value, tensors, step);
            if variable.spec().optimizer.is_some() {
                self.check_slots(variable, tensors)?;
            } else {
                // Of what is not trained any longer the slots are of no use.
                snapshot.slots.retain(|(of, _), _| of != variable.name());
            }
        }
        if self.has_tables {
            add_tables(
                &mut snapshot,
                &self.servers.client.variables()?,
                tensors,
                step,
            )?;
        }
        Ok(self.servers.client.restore(&snapshot)?)
    }
}
