//! Snapshots of all servers, put together by variable, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::TensorData;
use bytes::Bytes;

use crate::client::VariableClient;
use crate::client::server::{Call, Server};
use crate::client::tensor::{tensor, tensor_bytes};
use crate::error::Result;
use crate::update::{RunId, Versions};
use crate::variable::{Snapshot, VariableRef};
use crate::wire::{Counts, Request, ShardState, State};

/// The bytes of each shard of one server, by its number there.
type Sizes = BTreeMap<u32, u64>;

/// The state of one shard, and its tensors.
type ShardTensors = (ShardState, Vec<Vec<u8>>);

async fn snapshot_of(
    server: Arc<Server>,
    run: RunId,
    sizes: Sizes,
) -> Result<(Option<f64>, Vec<ShardTensors>)> {
    let call = Call {
        op: "snapshot",
        run,
        request: Request::Snapshot,
        payload: Vec::new(),
        sizes: move |state: &State| {
            let mut all = Vec::new();
            for shard in &state.shards {
                // A variable that was created since the catalog was asked for.
                let size = sizes.get(&shard.id).ok_or("a shard that is not known")?;
                all.extend(std::iter::repeat_n(*size, shard.tensors()));
            }
            Ok(all)
        },
    };
    let (state, tensors): (State, _) = server.call(call).await?;
    let mut tensors = tensors.into_iter();
    let with_tensors = |header: ShardState| {
        let count = header.tensors();
        (header, tensors.by_ref().take(count).collect())
    };
    let shards = state.shards.into_iter().map(with_tensors).collect();
    Ok((state.learning_rate, shards))
}

/// The sizes of all shards, by server.
fn sizes(client: &VariableClient, variables: &[VariableRef]) -> Vec<Sizes> {
    let mut sizes = vec![Sizes::new(); client.num_servers()];
    for variable in variables {
        for (shard, id) in variable.placement().shards.iter().zip(&variable.0.ids) {
            sizes[shard.server].insert(*id, variable.shard_bytes(shard) as u64);
        }
    }
    sizes
}

pub(super) fn snapshot(client: &VariableClient) -> Result<Snapshot> {
    let (run, _) = client.in_run()?;
    let variables = client.variables()?;
    let sizes = sizes(client, &variables);
    let states = client.on_all(|server| {
        let sizes = sizes[server.index].clone();
        snapshot_of(server, run, sizes)
    })?;
    let mut snapshot = Snapshot::default();
    let mut shards: BTreeMap<(usize, u32), ShardTensors> = BTreeMap::new();
    for (server, (rate, states)) in states.into_iter().enumerate() {
        snapshot.learning_rate = snapshot.learning_rate.or(rate);
        for state in states {
            shards.insert((server, state.0.id), state);
        }
    }
    for variable in variables {
        let placed = variable.placement().shards.iter().zip(&variable.0.ids);
        let states: Option<Vec<ShardTensors>> = placed
            .map(|(shard, id)| shards.remove(&(shard.server, *id)))
            .collect();
        if let Some(states) = states {
            put_together(&mut snapshot, &variable, states);
        }
    }
    Ok(snapshot)
}

/// Adds one variable to a snapshot.
fn put_together(snapshot: &mut Snapshot, variable: &VariableRef, states: Vec<ShardTensors>) {
    let name = variable.name().to_string();
    let counts = || states.iter().map(|(header, _)| &header.counts);
    let versions = counts().map(|counts| counts.version).collect();
    let updates = counts().map(|counts| counts.updates).collect();
    snapshot.versions.insert(name.clone(), Versions(versions));
    snapshot.updates.insert(name.clone(), Versions(updates));
    if !states.iter().all(|(header, _)| header.is_initialized) {
        return;
    }
    // A shard that had no update yet sends no slots if they are zero.
    let names = states
        .iter()
        .map(|(header, _)| header.slots.clone())
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let sizes: Vec<usize> = states.iter().map(|(_, tensors)| tensors[0].len()).collect();
    let mut columns: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 1 + names.len()];
    for ((_, tensors), size) in states.into_iter().zip(sizes) {
        let mut tensors = tensors.into_iter();
        for column in &mut columns {
            column.push(tensors.next().unwrap_or_else(|| vec![0; size]));
        }
    }
    let mut columns = columns.into_iter().map(|column| variable.join(column));
    if let Some(value) = columns.next() {
        snapshot.variables.insert(name.clone(), value);
    }
    for (slot, value) in names.into_iter().zip(columns) {
        snapshot.slots.insert((name.clone(), slot), value);
    }
}

/// What is sent to one server.
type Sent = (State, Vec<Bytes>);

pub(super) fn restore(client: &VariableClient, snapshot: &Snapshot) -> Result<()> {
    let (run, _) = client.in_run()?;
    let mut sent: Vec<Sent> = Vec::new();
    sent.resize_with(client.num_servers(), Sent::default);
    for (name, value) in &snapshot.variables {
        let variable = client.variable(name)?;
        add(&mut sent, snapshot, &variable, value)?;
    }
    let servers = client.inner.servers.iter().cloned();
    let works: Vec<_> = servers
        .zip(sent)
        .map(|(server, (mut state, payload))| {
            state.learning_rate = snapshot.learning_rate;
            async move {
                let request = Request::Restore(state);
                server.ask("restore", run, request, payload).await
            }
        })
        .collect();
    let restored = client.inner.driver.run(super::in_parallel(works));
    restored.map(|_: Vec<()>| ())
}

/// Adds one variable to what is sent.
fn add(
    sent: &mut [Sent],
    snapshot: &Snapshot,
    variable: &VariableRef,
    value: &TensorData,
) -> Result<()> {
    let name = variable.name();
    let slots = snapshot
        .slots
        .range((name.to_string(), String::new())..)
        .take_while(|((of, _), _)| of == name);
    let mut tensors = vec![(None, checked(variable, value)?)];
    for ((_, slot), value) in slots {
        tensors.push((Some(slot.clone()), checked(variable, value)?));
    }
    let count = |of: &BTreeMap<String, Versions>, number: usize| {
        let counts = of.get(name).and_then(|versions| versions.0.get(number));
        counts
            .copied()
            .unwrap_or_else(|| of.get(name).map_or(0, highest))
    };
    let shards = variable.placement().shards.iter().zip(&variable.0.ids);
    for (number, (shard, id)) in shards.enumerate() {
        let begin = shard.offset * variable.row_bytes();
        let range = begin..begin + variable.shard_bytes(shard);
        let (state, payload) = &mut sent[shard.server];
        state.shards.push(ShardState {
            id: *id,
            counts: Counts {
                version: count(&snapshot.versions, number),
                updates: count(&snapshot.updates, number),
            },
            is_initialized: true,
            slots: tensors
                .iter()
                .filter_map(|(slot, _)| slot.clone())
                .collect(),
        });
        let pieces = tensors.iter().map(|(_, bytes)| bytes.slice(range.clone()));
        payload.extend(pieces);
    }
    Ok(())
}

fn highest(versions: &Versions) -> u64 {
    versions.0.iter().copied().max().unwrap_or(0)
}

/// The bytes of a value or slot of a variable; a slot may be flattened.
fn checked(variable: &VariableRef, value: &TensorData) -> Result<Bytes> {
    let flat = [variable.shape().iter().product()];
    let is_flat = value.shape()[..] == flat;
    let expected = if is_flat { &flat } else { variable.shape() };
    variable.check("restore", expected, value.dtype(), value.shape())?;
    let shape = value.shape().to_vec();
    let copy = tensor(value.as_bytes().to_vec(), shape, value.dtype());
    Ok(tensor_bytes(copy))
}
