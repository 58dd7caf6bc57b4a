//! Which devices the replicas of a process are on, and which of them take turns.

use std::collections::BTreeSet;

use super::Replica;
use crate::{Error, LogicalDevice, Result};

/// What a strategy was asked for.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    request: DeviceRequest,
    per_device: usize,
}

#[derive(Debug, Clone)]
enum DeviceRequest {
    AllCores,
    Replicas(usize),
    Devices(Vec<LogicalDevice>),
}

/// One replica on each core.
impl Default for Layout {
    fn default() -> Self {
        Self::of(DeviceRequest::AllCores)
    }
}

impl Layout {
    /// One replica on each of these devices.
    pub(super) fn on(devices: impl IntoIterator<Item = LogicalDevice>) -> Self {
        Self::of(DeviceRequest::Devices(devices.into_iter().collect()))
    }

    /// [`on`](Self::on) where no device means all cores.
    pub(super) fn on_any(devices: impl IntoIterator<Item = LogicalDevice>) -> Self {
        let devices: Vec<_> = devices.into_iter().collect();
        if devices.is_empty() {
            Self::default()
        } else {
            Self::on(devices)
        }
    }

    /// This many replicas on CPUs.
    pub(super) fn replicas(count: usize) -> Self {
        Self::of(DeviceRequest::Replicas(count))
    }

    fn of(request: DeviceRequest) -> Self {
        let per_device = 1;
        Self {
            request,
            per_device,
        }
    }

    /// The same number of replicas per device on other devices.
    pub(super) fn with_devices(&self, other: Self) -> Self {
        other.per_device(self.per_device)
    }

    /// This many replicas on each device.
    pub(super) fn per_device(mut self, count: usize) -> Self {
        self.per_device = count;
        self
    }

    /// The device of each replica, in replica order: replicas of one device are adjacent.
    ///
    /// # Errors
    /// If there are no replicas or their number is not a multiple of the replicas per device, or
    /// a device is named twice or does not exist.
    pub(super) fn devices(&self) -> Result<Vec<LogicalDevice>> {
        let per_device = self.per_device;
        let devices = match &self.request {
            _ if per_device == 0 => return Err(none("a device")),
            DeviceRequest::AllCores => LogicalDevice::all_cpus(),
            DeviceRequest::Replicas(count) if !count.is_multiple_of(per_device) => {
                return Err(Error::invalid(format!(
                    "{count} replicas cannot be divided into devices of {per_device} replicas; \
                     ask for a multiple of {per_device}, or name the devices"
                )));
            }
            DeviceRequest::Replicas(count) => {
                (0..count / per_device).map(LogicalDevice::cpu).collect()
            }
            DeviceRequest::Devices(devices) => devices.clone(),
        };
        if devices.is_empty() {
            return Err(none("a strategy"));
        }
        let distinct: BTreeSet<_> = devices.iter().collect();
        if distinct.len() < devices.len() {
            let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
            return Err(Error::invalid(format!(
                "a device may be named once only in `devices`, got {}; for several replicas on \
                 each there is `replicas_per_device`",
                names.join(", ")
            )));
        }
        devices.iter().try_for_each(|device| device.check())?;
        let replicas = devices.into_iter();
        Ok(replicas
            .flat_map(|device| std::iter::repeat_n(device, per_device))
            .collect())
    }
}

fn none(what: &str) -> Error {
    Error::invalid(format!(
        "{what} needs at least 1 replica; leave the number out for all cores"
    ))
}

/// One replica per device, numbered in order from `first`.
pub(super) fn replicas_on(first: usize, devices: &[LogicalDevice]) -> Vec<Replica> {
    let devices = (first..).zip(devices);
    devices
        .map(|(id, device)| Replica::new(id, *device))
        .collect()
}

/// What each replica takes turns on, as indices from 0: its GPU, or the core that its CPU device
/// shares with its neighbours where there are more of these devices than `cores`.
pub(super) fn shared_devices(devices: &[LogicalDevice], cores: usize) -> Vec<usize> {
    let mut distinct = Vec::new();
    for device in devices {
        if !distinct.contains(&device) {
            distinct.push(device);
        }
    }
    let (gpus, cpus): (Vec<_>, Vec<_>) = distinct
        .into_iter()
        .partition(|device| device.gpu_index().is_some());
    let cores = cores.clamp(1, cpus.len().max(1));
    let place = |list: &[&LogicalDevice], device| list.iter().position(|other| *other == device);
    let shared = devices.iter().map(|device| match place(&cpus, device) {
        Some(cpu) => cpu * cores / cpus.len(),
        None => cores + place(&gpus, device).unwrap_or(0),
    });
    shared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[usize]) -> Vec<LogicalDevice> {
        numbers.iter().copied().map(LogicalDevice::cpu).collect()
    }

    #[test]
    fn replicas_of_a_device_follow_one_another() {
        let on = Layout::on(cpus(&[0, 3])).per_device(2).devices();
        assert_eq!(on.unwrap(), cpus(&[0, 0, 3, 3]));
        let replicas = Layout::replicas(6).per_device(3).devices();
        assert_eq!(replicas.unwrap(), cpus(&[0, 0, 0, 1, 1, 1]));
        assert_eq!(Layout::replicas(3).devices().unwrap(), cpus(&[0, 1, 2]));
        let all = Layout::on_any([]).per_device(2).devices().unwrap();
        assert_eq!(all.len(), 2 * LogicalDevice::all_cpus().len());
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let refused = |layout: Layout| layout.devices().unwrap_err().to_string();
        let uneven = refused(Layout::replicas(7).per_device(2));
        assert!(uneven.contains("7 replicas cannot be divided"), "{uneven}");
        let none = refused(Layout::replicas(4).per_device(0));
        assert!(none.contains("a device needs at least 1"), "{none}");
        assert!(refused(Layout::replicas(0)).contains("a strategy needs at least 1"));
        assert!(refused(Layout::on([])).contains("a strategy needs at least 1"));
        let twice = refused(Layout::on(cpus(&[1, 1])));
        assert!(twice.contains("named once only"), "{twice}");
        assert!(twice.contains("`replicas_per_device`"), "{twice}");
    }

    #[test]
    fn neighbours_share_a_core_when_there_are_too_few() {
        let eight = cpus(&[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(shared_devices(&eight, 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(shared_devices(&eight, 3), [0, 0, 0, 1, 1, 1, 2, 2]);
        assert_eq!(shared_devices(&eight[..3], 2), [0, 0, 1]);
        assert_eq!(shared_devices(&eight[..2], 64), [0, 1]);
        assert_eq!(shared_devices(&cpus(&[5, 5, 2, 2]), 64), [0, 0, 1, 1]);
        assert_eq!(shared_devices(&cpus(&[5, 5, 2, 2]), 1), [0, 0, 0, 0]);
    }
}
