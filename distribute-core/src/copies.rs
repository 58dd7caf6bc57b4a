//! The copies of a mirrored value: on the host, and newer ones on the devices after compiled steps.

use std::sync::{Arc, Mutex, OnceLock};

use burn::tensor::{Device, Shape, Tensor, TensorData};

use crate::gradients::with_shape;
use crate::notes::BatchFacts;
use crate::replicate::{Replicate, ReplicateExt};
use crate::running_statistics::{Sums, check_finite, finite_or};
use crate::state_leaf::{StateOwner, StateWalk};
use crate::sync::lock;
use crate::trace::{DeviceTensor, OnDevice, Tracer};
use crate::{Error, Result, WorkerGroup};

/// One copy per local replica, wherever the newest one is.
pub(crate) struct Copies<T> {
    /// The host's parts: their numbers are the newest, their tensors may be older than those on the
    /// devices.
    pub(crate) host: Vec<T>,
    devices: Vec<Device>,
    /// The tensors on the devices, under a strategy that compiles steps.
    on_device: Mutex<Option<OnDevice>>,
    /// What is read in place of the host's parts, once it was asked for: newer tensors on the
    /// devices, or the mean of the replicas' running statistics.
    fetched: OnceLock<Vec<T>>,
    /// The newest copies in evaluation mode, once a step has read them.
    evaluated: OnceLock<Vec<T>>,
    statistics: Statistics,
}

/// The running statistics of the copies, of which each replica has its own.
#[derive(Default)]
struct Statistics {
    are_there: bool,
    /// Their mean over the replicas of all workers, after a run of several workers.
    mean_of_workers: Option<Vec<Tensor<1>>>,
    /// The statistics of each replica, and their mean, before the run that is under way or was the
    /// last.
    before: Vec<Vec<Tensor<1>>>,
    mean_before: Option<Vec<Tensor<1>>>,
}

/// What is known of a run when its step has gone well on all replicas.
#[derive(Debug)]
pub struct EndOfRun<'a> {
    pub(crate) workers: Option<&'a WorkerGroup>,
    /// The number of the first replica of this process.
    pub(crate) first_replica: usize,
    pub(crate) batches: &'a [BatchFacts],
}

impl<T> Copies<T> {
    /// What can be shown without asking a device.
    pub(crate) fn shown(&self) -> &[T] {
        self.fetched.get().unwrap_or(&self.host)
    }

    /// Changes the numbers of all host copies.
    pub(crate) fn for_each_host_part(&mut self, change: impl Fn(&mut T)) {
        self.evaluated.take();
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
        self.evaluated.take();
        let mut on_device = lock(&self.on_device);
        let was_newer = on_device.as_ref().is_some_and(|state| state.is_newer);
        *on_device = Some(OnDevice {
            tensors,
            is_newer: was_newer || are_computed,
            to_read: None,
        });
    }

    /// What was fetched becomes the host's part.
    pub(crate) fn keep_fetched(&mut self) {
        self.evaluated.take();
        if let Some(fetched) = self.fetched.take() {
            self.host = fetched;
        }
        self.statistics.mean_of_workers = None;
    }
}

impl<T: Replicate> Copies<T> {
    pub(crate) fn new(mut value: T, devices: &[Device]) -> Self {
        let found = value.all_statistics();
        let statistics = Statistics {
            are_there: found.is_ok_and(|(paths, _)| !paths.is_empty()),
            ..Statistics::default()
        };
        let mut host = Vec::with_capacity(devices.len());
        host.extend(devices.iter().skip(1).map(|device| value.replicate(device)));
        host.insert(0, value);
        Self {
            host,
            devices: devices.to_vec(),
            on_device: Mutex::default(),
            fetched: OnceLock::new(),
            evaluated: OnceLock::new(),
            statistics,
        }
    }

    /// Another copy of replica 0's host part.
    pub(crate) fn first(&self) -> T {
        self.host[0].replicate(&self.devices[0])
    }

    /// The newest copies; newer ones of the devices are copied to the host the first time. Running
    /// statistics are the mean over the replicas.
    pub(crate) fn newest(&self) -> Result<&[T]> {
        let on_device = lock(&self.on_device);
        if let Some(fetched) = self.fetched.get() {
            return Ok(fetched);
        }
        let newer = on_device.as_ref().filter(|tensors| tensors.is_newer);
        if newer.is_none() && !self.have_own_statistics() {
            return Ok(&self.host);
        }
        let mut copies = self.copied(newer)?;
        if self.have_own_statistics() {
            self.average(&mut copies)?;
        }
        Ok(self.fetched.get_or_init(|| copies))
    }

    /// The newest copies in evaluation mode: each a copy of its own, whose tensors share their
    /// memory with the others until these change.
    pub(crate) fn evaluated(&self, newest: &[T]) -> Result<&[T]> {
        if let Some(known) = self.evaluated.get() {
            return Ok(known);
        }
        let mut copies = self.anew(newest);
        for copy in &mut copies {
            copy.parts(|_, part| part.evaluate(false))?;
        }
        Ok(self.evaluated.get_or_init(|| copies))
    }

    /// The copies have changed.
    pub(crate) fn forget_evaluated(&mut self) {
        self.evaluated.take();
    }

    /// Copies of the newest copies.
    pub(crate) fn anew(&self, newest: &[T]) -> Vec<T> {
        let pairs = newest.iter().zip(&self.devices);
        pairs.map(|(copy, device)| copy.replicate(device)).collect()
    }

    fn have_own_statistics(&self) -> bool {
        let of_workers = self.statistics.mean_of_workers.is_some();
        self.statistics.are_there && (self.host.len() > 1 || of_workers)
    }

    /// Makes the running statistics of all copies the mean over the replicas.
    fn average(&self, copies: &mut [T]) -> Result<()> {
        let mean = match &self.statistics.mean_of_workers {
            Some(mean) => mean.clone(),
            None => sums_of(copies)?.mean()?,
        };
        let mut copies = copies.iter_mut();
        copies.try_for_each(|copy| copy.set_all_statistics(mean.clone()))
    }

    /// A run is about to change the copies: notes their running statistics.
    pub(crate) fn begin_run(&mut self) -> Result<()> {
        // It shares memory with the copies, which a step changes in place.
        self.evaluated.take();
        if !self.statistics.are_there {
            return Ok(());
        }
        self.fetched = OnceLock::new();
        let before = self.host.iter_mut().map(ReplicateExt::all_statistics);
        let before = before.map(|found| Ok(found?.1)).collect::<Result<_>>();
        self.statistics.before = before?;
        for copy in &mut self.host {
            copy.parts(|_, part| {
                part.begin_run();
                Ok(())
            })?;
        }
        self.statistics.mean_before = self.statistics.mean_of_workers.clone();
        Ok(())
    }

    /// A run has gone well. All workers call it together, and note the mean of all replicas.
    ///
    /// # Errors
    /// For values that are not finite, here or in another worker; the run has to be
    /// [undone](Self::undo_run) then.
    pub(crate) fn end_run(&mut self, end: &EndOfRun<'_>) -> Result<()> {
        if !self.statistics.are_there {
            return Ok(());
        }
        let checked = self.check_statistics(end);
        let Some(workers) = end.workers else {
            return checked;
        };
        let parts = checked.and_then(|()| {
            let mut rest = &mut self.host[..];
            let parts = workers.parts().iter().map(|count| {
                let count = rest.len().min(*count);
                sums_of(rest.split_off_mut(..count).unwrap_or_default())
            });
            parts.collect::<Result<Vec<_>>>()
        });
        let sums = Sums::of_workers(workers.or_abort(parts)?, workers)?;
        self.statistics.mean_of_workers = Some(sums.mean()?);
        Ok(())
    }

    /// Looks whether they are finite. An empty part of a batch, whose mean is NaN, leaves them as
    /// they were.
    fn check_statistics(&mut self, end: &EndOfRun<'_>) -> Result<()> {
        let copies = self.host.iter_mut().zip(&self.statistics.before);
        for (replica, (copy, before)) in copies.enumerate() {
            let (paths, values) = copy.all_statistics()?;
            let updates = copy.updates()?;
            if end.batches.get(replica).is_some_and(BatchFacts::is_empty) {
                copy.set_all_statistics(finite_or(values, before)?)?
            } else {
                check_finite(&paths, &values, end.first_replica + replica, updates)?
            }
        }
        Ok(())
    }

    /// A run has failed, here or in another argument: they are as they were before it.
    pub(crate) fn undo_run(&mut self) -> Result<()> {
        self.statistics.mean_of_workers = self.statistics.mean_before.take();
        let before = std::mem::take(&mut self.statistics.before);
        let mut copies = self.host.iter_mut().zip(before);
        copies.try_for_each(|(copy, before)| copy.set_all_statistics(before))
    }

    /// Reads each copy as it is: with running statistics of its own instead of their mean.
    pub(crate) fn each_own<R>(&self, read: impl FnMut(&T) -> Result<R>) -> Result<Vec<R>> {
        let on_device = lock(&self.on_device);
        match on_device.as_ref().filter(|tensors| tensors.is_newer) {
            None => self.host.iter().map(read).collect(),
            newer => self.copied(newer)?.iter().map(read).collect(),
        }
    }

    /// Gives each replica running statistics of its own, of which `of` is told the replica, the
    /// paths and what all copies have now, as after [`copy_first`](Self::copy_first): that stays
    /// the mean that is read outside of steps, where it is one over several workers.
    pub(crate) fn put_own(
        &mut self,
        has_workers: bool,
        of: impl Fn(usize, &[String], &[Tensor<1>]) -> Vec<Tensor<1>>,
    ) -> Result<()> {
        self.take_over();
        let (paths, mean) = self.host[0].all_statistics()?;
        for (replica, copy) in self.host.iter_mut().enumerate() {
            copy.set_all_statistics(of(replica, &paths, &mean))?;
        }
        self.statistics.mean_of_workers = has_workers.then_some(mean);
        Ok(())
    }

    /// Host copies of what is on the devices, or of the host's own.
    fn copied(&self, newer: Option<&OnDevice>) -> Result<Vec<T>> {
        let Some(newer) = newer else {
            let pairs = self.host.iter().zip(&self.devices);
            return Ok(pairs.map(|(copy, device)| copy.replicate(device)).collect());
        };
        // The first replica reads all; the rest of the others is in their copy already.
        let read = |copy: &mut T, replica: usize| {
            let mut tensors = newer.tensors.iter();
            copy.leaves(StateWalk::All, |_, leaf| {
                let missing =
                    || Error::invalid("a mirrored value changed its structure on the device");
                let source = tensors.next().ok_or_else(missing)?;
                if replica == 0 || leaf.owner == StateOwner::PerReplica {
                    leaf.value.set_data(source.read(replica)?)
                } else {
                    Ok(())
                }
            })
        };
        let mut all = vec![self.first()];
        read(&mut all[0], 0)?;
        for (replica, device) in self.devices.iter().enumerate().skip(1) {
            let mut copy = all[0].replicate(device);
            read(&mut copy, replica)?;
            all.push(copy);
        }
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
        self.first().leaves(StateWalk::All, |_, leaf| {
            let mut data = vec![leaf.value.data()?];
            for other in others
                .iter_mut()
                .filter(|_| leaf.owner == StateOwner::PerReplica)
            {
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
            ..OnDevice::default()
        });
        Ok(there.tensors.clone())
    }

    /// [`on_devices`](Self::on_devices) for a step that only reads: running statistics are the mean
    /// over the replicas.
    pub(crate) fn on_devices_to_read(
        &self,
        tracer: &dyn Tracer,
    ) -> Result<Vec<Arc<dyn DeviceTensor>>> {
        let mut tensors = self.on_devices(tracer)?;
        if !self.have_own_statistics() {
            return Ok(tensors);
        }
        let known = lock(&self.on_device);
        if let Some(known) = known.as_ref().and_then(|there| there.to_read.clone()) {
            return Ok(known);
        }
        drop(known);
        let mut all = tensors.iter_mut();
        self.first().leaves(StateWalk::All, |_, leaf| {
            let tensor = all.next().ok_or_else(other_structure)?;
            if leaf.is_own_statistic() {
                let each = (0..self.host.len()).map(|replica| tensor.read(replica));
                let mean = mean_of(each.collect::<Result<_>>()?, &self.devices[0])?;
                *tensor = tracer.upload(mean)?;
            }
            Ok(())
        })?;
        if let Some(there) = lock(&self.on_device).as_mut() {
            there.to_read = Some(tensors.clone());
        }
        Ok(tensors)
    }

    /// What each replica but the first has its own of.
    fn own_tensors_of_others(&self) -> Result<Vec<std::vec::IntoIter<TensorData>>> {
        let others = self.host.iter().zip(&self.devices).skip(1);
        let read = others.map(|(value, device)| {
            let mut own = Vec::new();
            value.replicate(device).leaves(StateWalk::All, |_, leaf| {
                if leaf.owner == StateOwner::PerReplica {
                    own.push(leaf.value.data()?);
                }
                Ok(())
            })?;
            Ok(own.into_iter())
        });
        read.collect()
    }
}

/// The mean of what each replica has of a running statistic.
fn mean_of(all: Vec<TensorData>, device: &Device) -> Result<TensorData> {
    let shape = all.first().ok_or_else(other_structure)?.shape().clone();
    let device = device.clone().without_autodiff();
    let own = all.into_iter().map(|own| {
        let (count, dtype) = (own.num_elements(), own.dtype());
        let own = with_shape(own, Shape::new([count]))?;
        Sums::of(&[Tensor::from_data(own, (&device, dtype))])
    });
    let mean = Sums::of_all(own.collect::<Result<_>>()?)?
        .mean()?
        .pop()
        .ok_or_else(other_structure)?;
    with_shape(mean.try_into_data().map_err(Error::internal)?, shape)
}

/// The running statistics of all copies, added up.
fn sums_of<T: Replicate>(copies: &mut [T]) -> Result<Sums> {
    let own = copies
        .iter_mut()
        .map(|copy| Sums::of(&copy.all_statistics()?.1));
    Sums::of_all(own.collect::<Result<_>>()?)
}

fn other_structure() -> Error {
    Error::invalid("the replicas' copies of a mirrored value differ in structure")
}
