//! The copies of a mirrored value: on the host, and newer ones on the devices after compiled steps.

use std::sync::{Arc, Mutex, OnceLock};

use burn::tensor::{Device, TensorData};

use crate::replicate::{Replicate, ReplicateExt};
use crate::sync::lock;
use crate::trace::{DeviceTensor, OnDevice, Tracer};
use crate::{Error, Result};

/// One copy per local replica, wherever the newest one is.
pub(crate) struct Copies<T> {
    /// The host's parts: their numbers are the newest, their tensors may be older than those on the
    /// devices.
    pub(crate) host: Vec<T>,
    devices: Vec<Device>,
    /// The tensors on the devices, under a strategy that compiles steps.
    on_device: Mutex<Option<OnDevice>>,
    /// The host's copies of newer tensors on the devices, once somebody has asked for them.
    fetched: OnceLock<Vec<T>>,
}

impl<T> Copies<T> {
    /// What can be shown without asking a device.
    pub(crate) fn shown(&self) -> &[T] {
        self.fetched.get().unwrap_or(&self.host)
    }

    /// Changes the numbers of all host copies.
    pub(crate) fn for_each_host_part(&mut self, change: impl Fn(&mut T)) {
        self.host.iter_mut().for_each(&change);
        if let Some(fetched) = self.fetched.get_mut() {
            fetched.iter_mut().for_each(&change);
        }
    }

    /// The tensors on the devices are lost.
    pub(crate) fn lose(&self) {
        *lock(&self.on_device) = None;
    }

    /// A step has left these tensors on the devices; whether it has computed any of them.
    pub(crate) fn put_on_devices(
        &mut self,
        tensors: Vec<Arc<dyn DeviceTensor>>,
        are_computed: bool,
    ) {
        let mut on_device = lock(&self.on_device);
        let was_newer = on_device.as_ref().is_some_and(|state| state.is_newer);
        *on_device = Some(OnDevice {
            tensors,
            is_newer: was_newer || are_computed,
        });
    }

    /// What was fetched becomes the host's part.
    pub(crate) fn keep_fetched(&mut self) {
        if let Some(fetched) = self.fetched.take() {
            self.host = fetched;
        }
    }
}

impl<T: Replicate> Copies<T> {
    pub(crate) fn new(value: T, devices: &[Device]) -> Self {
        let mut host = Vec::with_capacity(devices.len());
        host.extend(devices.iter().skip(1).map(|device| value.replicate(device)));
        host.insert(0, value);
        Self {
            host,
            devices: devices.to_vec(),
            on_device: Mutex::default(),
            fetched: OnceLock::new(),
        }
    }

    /// Another copy of replica 0's host part.
    pub(crate) fn first(&self) -> T {
        self.host[0].replicate(&self.devices[0])
    }

    /// The newest copies; newer ones of the devices are copied to the host the first time.
    pub(crate) fn newest(&self) -> Result<&[T]> {
        let on_device = lock(&self.on_device);
        if let Some(fetched) = self.fetched.get() {
            return Ok(fetched);
        }
        match on_device.as_ref().filter(|tensors| tensors.is_newer) {
            None => Ok(&self.host),
            Some(newer) => {
                let fetched = self.fetch(newer)?;
                Ok(self.fetched.get_or_init(|| fetched))
            }
        }
    }

    /// Host copies of what is on the devices.
    fn fetch(&self, newer: &OnDevice) -> Result<Vec<T>> {
        // The first replica reads all; the rest of the others is in their copy already.
        let read = |copy: &mut T, replica: usize| {
            let mut tensors = newer.tensors.iter();
            copy.leaves(None, |_, leaf| {
                let missing =
                    || Error::invalid("a mirrored value changed its structure on the device");
                let source = tensors.next().ok_or_else(missing)?;
                match replica == 0 || leaf.is_per_replica() {
                    true => leaf.set_data(source.read(replica)?),
                    false => Ok(()),
                }
            })
        };
        let mut value = self.first();
        read(&mut value, 0)?;
        let mut all: Vec<T> = Vec::with_capacity(self.devices.len());
        for (replica, device) in self.devices.iter().enumerate().skip(1) {
            let mut copy = value.replicate(device);
            read(&mut copy, replica)?;
            all.push(copy);
        }
        all.insert(0, value);
        Ok(all)
    }

    /// The host's copies become the newest, and are to be changed: what was fetched, if it was.
    /// Those on the devices are given up.
    pub(crate) fn take_over(&mut self) -> &mut [T] {
        self.lose();
        self.keep_fetched();
        &mut self.host
    }

    /// Copies replica 0's host copy to all others.
    pub(crate) fn copy_first(&mut self) {
        self.take_over();
        if let Some((first, others)) = self.host.split_first_mut() {
            for (copy, device) in others.iter_mut().zip(self.devices.iter().skip(1)) {
                copy.sync_from(first, device);
            }
        }
    }

    /// The tensors on the devices; the host's are copied there where there are none yet.
    pub(crate) fn on_devices(&self, tracer: &dyn Tracer) -> Result<Vec<Arc<dyn DeviceTensor>>> {
        let mut on_device = lock(&self.on_device);
        if let Some(there) = &*on_device {
            return Ok(there.tensors.clone());
        }
        let mut others = self.own_tensors_of_others()?;
        let mut tensors = Vec::new();
        self.first().leaves(None, |_, leaf| {
            let mut data = vec![leaf.data()?];
            for other in others.iter_mut().filter(|_| leaf.is_per_replica()) {
                data.push(other.next().ok_or_else(other_structure)?);
            }
            tensors.push(match <[_; 1]>::try_from(data) {
                Ok([data]) => tracer.upload(data)?,
                Err(data) => tracer.upload_each(data)?,
            });
            Ok(())
        })?;
        let there = on_device.insert(OnDevice {
            tensors,
            is_newer: false,
        });
        Ok(there.tensors.clone())
    }

    /// What each replica but the first has its own of.
    fn own_tensors_of_others(&self) -> Result<Vec<std::vec::IntoIter<TensorData>>> {
        let others = self.host.iter().zip(&self.devices).skip(1);
        let read = others.map(|(value, device)| {
            let mut own = Vec::new();
            value.replicate(device).leaves(None, |_, leaf| {
                if leaf.is_per_replica() {
                    own.push(leaf.data()?);
                }
                Ok(())
            })?;
            Ok(own.into_iter())
        });
        read.collect()
    }
}

fn other_structure() -> Error {
    Error::invalid("the replicas' copies of a mirrored value differ in structure")
}
