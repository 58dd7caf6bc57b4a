//! Tables in checkpoints: as `table/NAME`, their slots as `optimizer/SLOT/table/NAME` and the
//! number of their updates as `updates/table/NAME`. Nothing of it depends on servers and shards.

use std::collections::BTreeMap;

use burn::tensor::{Shape, TensorData};
use distribute_core::checkpoint::{OptimizerSlots, Section, check_slot_names};

use super::PREFIX;
use crate::error::{PsError, Result};
use crate::server::slots_of;
use crate::update::Versions;
use crate::variable::{Snapshot, VariableRef};

fn is_table(name: &str) -> bool {
    name.starts_with(PREFIX)
}

fn count_name(table: &str) -> String {
    Section::Updates.name(table)
}

/// The path of a parameter, or the name of a table.
fn path_of(name: &str) -> &str {
    Section::Model.path_of(name).unwrap_or(name)
}

fn slot_name(slot: &str, name: &str) -> String {
    Section::Optimizer.name_in(slot, path_of(name))
}

fn reshaped(value: &TensorData, shape: impl Into<Shape>) -> TensorData {
    let (bytes, _, dtype) = value.clone().into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}

/// Adds the slots of a variable of a snapshot that is called `name` in checkpoints.
pub(crate) fn add_slots(
    snapshot: &Snapshot,
    variable: &str,
    name: &str,
    tensors: &mut BTreeMap<String, TensorData>,
) {
    let slots = snapshot
        .slots
        .range((variable.to_string(), String::new())..);
    for ((_, slot), value) in slots.take_while(|((of, _), _)| of == variable) {
        let flat = reshaped(value, [value.shape().num_elements()]);
        tensors.insert(slot_name(slot, name), flat);
    }
}

/// The counts of updates of a snapshot's tables, by their names in checkpoints.
fn counts(snapshot: &Snapshot) -> impl Iterator<Item = (String, TensorData)> {
    let tables = snapshot.variables.keys().filter(|name| is_table(name));
    tables.map(|name| {
        let updates = snapshot.updates.get(name);
        let most = updates.and_then(|updates| updates.0.iter().max().copied());
        let most = i64::try_from(most.unwrap_or(0)).unwrap_or(i64::MAX);
        (count_name(name), TensorData::new(vec![most], [1]))
    })
}

/// Moves all tables of a snapshot, with slots and counts, under their names in checkpoints.
pub(crate) fn take_tables(snapshot: &mut Snapshot, tensors: &mut BTreeMap<String, TensorData>) {
    tensors.extend(counts(snapshot));
    let names: Vec<String> = snapshot
        .variables
        .keys()
        .filter(|name| is_table(name))
        .cloned()
        .collect();
    for name in names {
        add_slots(snapshot, &name, &name, tensors);
        if let Some(value) = snapshot.variables.remove(&name) {
            tensors.insert(name, value);
        }
    }
}

/// Adds the tables among these variables, from a checkpoint of step `step`, to a snapshot that is
/// to be restored. Where it holds no slots of a table, those start anew.
///
/// # Errors
/// A table that the checkpoint does not hold; slots of another optimizer.
pub(crate) fn add_tables(
    snapshot: &mut Snapshot,
    variables: &[VariableRef],
    tensors: &BTreeMap<String, TensorData>,
    step: u64,
) -> Result<()> {
    let tables = variables.iter().filter(|one| is_table(one.name()));
    for table in tables {
        let name = table.name();
        let missing = || PsError::invalid(format!("the checkpoint has no table `{name}`"));
        let value = tensors.get(name).ok_or_else(missing)?;
        check_slots(table, tensors)?;
        add(snapshot, name, name, value.clone(), tensors, step);
    }
    Ok(())
}

/// The slots that a checkpoint holds of the variable that is called `name` there.
pub(crate) fn slots_in<'a>(
    tensors: &'a BTreeMap<String, TensorData>,
    name: &str,
) -> impl Iterator<Item = (&'a str, &'a TensorData)> {
    let path = path_of(name).to_string();
    let optimizer = tensors.range(Section::Optimizer.prefix().to_string()..);
    let slots = optimizer.take_while(|(key, _)| Section::Optimizer.has(key));
    slots.filter_map(move |(key, value)| {
        let (slot, of) = Section::Optimizer.parts_of(key)?;
        (of == path).then_some((slot, value))
    })
}

/// Refuses slots that do not belong to the table's optimizer. Slots of an optimizer that only the
/// servers know are compared there.
fn check_slots(table: &VariableRef, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
    let optimizer = table.spec().optimizer.as_ref();
    let Some((optimizer, slots)) = optimizer.and_then(|spec| Some((spec, slots_of(spec)?))) else {
        return Ok(());
    };
    let own = OptimizerSlots {
        optimizer: &optimizer.name,
        slots: &slots,
    };
    let found = slots_in(tensors, table.name()).map(|(slot, _)| slot);
    check_slot_names(own, None, found)
        .map_err(|error| PsError::invalid(format!("`{}`: {error}", table.name())))
}

/// Adds a variable with its slots and its count to a snapshot: what it is called on the servers and
/// in the checkpoint.
pub(crate) fn add(
    snapshot: &mut Snapshot,
    variable: &str,
    name: &str,
    value: TensorData,
    tensors: &BTreeMap<String, TensorData>,
    step: u64,
) {
    let variable = variable.to_string();
    let count = value.shape().num_elements();
    let slots = slots_in(tensors, name).filter(|(_, slot)| slot.shape().num_elements() == count);
    snapshot.slots.extend(slots.map(|(slot, of_slot)| {
        let key = (variable.clone(), slot.to_string());
        (key, reshaped(of_slot, value.shape().clone()))
    }));
    let stored = tensors
        .get(&count_name(name))
        .and_then(|count| count.iter::<i64>().next());
    let updates = stored
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(step);
    // One number stands for all shards; their versions go on from those on the servers.
    let updates = Versions(vec![updates]);
    snapshot.updates.insert(variable.clone(), updates);
    snapshot.variables.insert(variable, value);
}

/// Whether a tensor belongs to another one of the same checkpoint: a slot or a count.
fn belongs_to_another(name: &str, tensors: &BTreeMap<String, TensorData>) -> bool {
    if let Some((_, path)) = Section::Optimizer.parts_of(name) {
        return tensors.contains_key(path) || tensors.contains_key(&Section::Model.name(path));
    }
    let count = Section::Updates.path_of(name);
    count.is_some_and(|of| is_table(of) && tensors.contains_key(of))
}

impl Snapshot {
    /// The tensors under the names of
    /// [`TrainState::to_tensors`](distribute_core::TrainState::to_tensors): values under the
    /// names of the variables, a slot of `model/<path>` as `optimizer/<slot>/<path>`, flattened.
    /// The number of updates of a table is `updates/table/<name>`.
    pub fn to_tensors(&self) -> BTreeMap<String, TensorData> {
        let mut tensors = self.variables.clone();
        tensors.extend(counts(self));
        for name in self.variables.keys() {
            add_slots(self, name, name, &mut tensors);
        }
        tensors
    }

    /// The way back of [`to_tensors`](Self::to_tensors): what
    /// [`VariableClient::restore`](crate::VariableClient::restore) takes, for any number of
    /// servers and shards. `step` is the number of updates of variables that are not tables, as
    /// [`Snapshot::step`] or a checkpoint has it.
    ///
    /// The restore compares names, shapes and types with those on the servers, and refuses slots
    /// that a variable's optimizer does not have.
    pub fn from_tensors(tensors: &BTreeMap<String, TensorData>, step: u64) -> Self {
        let mut snapshot = Self::default();
        for (name, value) in tensors {
            if !belongs_to_another(name, tensors) {
                add(&mut snapshot, name, name, value.clone(), tensors, step);
            }
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_a_snapshot_make_it_again() {
        let mut snapshot = Snapshot::default();
        let names = [
            "model/weight",
            "second/model/weight",
            "table/words",
            "variable/0",
        ];
        for (number, name) in names.into_iter().enumerate() {
            let value = |at: f32| TensorData::new(vec![at; 6], [3, 2]);
            let name = name.to_string();
            snapshot
                .variables
                .insert(name.clone(), value(number as f32));
            for slot in ["momentum", "velocity"].into_iter().take(number) {
                let key = (name.clone(), slot.to_string());
                snapshot.slots.insert(key, value(number as f32 + 0.5));
            }
            let updates = if number == 2 { 3 } else { 7 };
            snapshot.updates.insert(name, Versions(vec![updates]));
        }
        let tensors = snapshot.to_tensors();
        assert!(tensors.contains_key("optimizer/momentum/table/words"));
        assert_eq!(Snapshot::from_tensors(&tensors, 7), snapshot);
    }
}
