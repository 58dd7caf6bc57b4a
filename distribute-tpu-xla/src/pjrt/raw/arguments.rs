//! What can be wrong with the arguments of an execution.
//!
//! A plugin checks the arguments device by device. When the arguments of one device only are wrong,
//! the others have already started, and wait in their first all-reduce for one that never comes:
//! XLA's CPU client ends the process then. So whatever can differ between devices is checked
//! before.

use std::sync::Arc;

use super::buffer::Buffer;
use super::handles::ClientHandle;
use crate::pjrt::error::{PjrtError, Result};

/// Checks `lists[device][number]` for a program on the devices at these places of the client.
pub(super) fn check(
    lists: &[Vec<&Buffer>],
    client: &Arc<ClientHandle>,
    devices: &[usize],
) -> Result<()> {
    if lists.len() != devices.len() {
        let (devices, lists) = (devices.len(), lists.len());
        return invalid(format!(
            "the program runs on {devices} devices of this process and was given {lists} lists of \
             arguments"
        ));
    }
    let Some(first) = lists.first() else {
        return Ok(());
    };
    for (place, (list, device)) in lists.iter().zip(devices).enumerate() {
        if list.len() != first.len() {
            let (all, own) = (first.len(), list.len());
            return invalid(format!(
                "list 0 has {all} arguments, but list {place} has {own}"
            ));
        }
        for (number, (buffer, other)) in list.iter().zip(first).enumerate() {
            if let Some(what) = wrong_with(buffer, other, client, *device)? {
                return invalid(format!("argument {number} in list {place} {what}"));
            }
        }
    }
    check_repetitions(lists)
}

/// What is wrong with `buffer`, which must be like `other` and on this device of the client.
fn wrong_with(
    buffer: &Buffer,
    other: &Buffer,
    client: &Arc<ClientHandle>,
    device: usize,
) -> Result<Option<String>> {
    Ok(if !Arc::ptr_eq(buffer.client_handle(), client) {
        Some("is a buffer of another client".to_string())
    } else if buffer.device_index() != device {
        let (is, must) = (buffer.device().id(), client.devices[device].description.id);
        Some(format!("is on device {is}, not on {must}"))
    } else if buffer.shape() != other.shape() {
        Some(format!(
            "is {}, but that in list 0 is {}",
            buffer.shape(),
            other.shape()
        ))
    } else if buffer.is_deleted()? {
        Some("was deleted, or donated to a program".to_string())
    } else {
        None
    })
}

/// A buffer may stand in a list more than once, unless it is donated. Then the plugin refuses it,
/// and must do so on all devices.
fn check_repetitions(lists: &[Vec<&Buffer>]) -> Result<()> {
    let repeated = lists.iter().any(|list| {
        let mut handles: Vec<_> = list.iter().map(|buffer| buffer.raw()).collect();
        handles.sort_unstable();
        handles.windows(2).any(|pair| pair[0] == pair[1])
    });
    if !repeated {
        return Ok(());
    }
    // For each argument, where the same buffer stands first.
    let pattern = |list: &Vec<&Buffer>| -> Vec<Option<usize>> {
        let first = |buffer: &&Buffer| list.iter().position(|other| other.raw() == buffer.raw());
        list.iter().map(first).collect()
    };
    let patterns: Vec<_> = lists.iter().map(pattern).collect();
    match patterns.iter().position(|pattern| *pattern != patterns[0]) {
        Some(place) => invalid(format!(
            "list {place} repeats other arguments than list 0: all devices must be given the same \
             arguments twice"
        )),
        None => Ok(()),
    }
}

fn invalid(what: String) -> Result<()> {
    Err(PjrtError::InvalidArgument(what))
}
