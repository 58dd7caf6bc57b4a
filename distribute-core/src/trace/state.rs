//! Mirrored values as a captured step sees them: tensors on the device, and numbers on the host.

use std::sync::Arc;

use burn::tensor::TensorData;

use super::{CapturedTensor, Coefficients, DeviceTensor};
use crate::replicate::{StatePart, StateVisitor};
use crate::{Error, Leaf, NestPath, Result};

/// A mirrored value's tensors on the devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnDevice {
    pub(crate) tensors: Vec<Arc<dyn DeviceTensor>>,
    /// Whether the host's copy is older.
    pub(crate) is_newer: bool,
}

/// What the host knows of a value.
#[derive(Default)]
pub(crate) struct ReadHosts {
    pub(crate) fingerprint: Vec<String>,
    pub(crate) coefficients: Vec<Arc<dyn Coefficients>>,
    pub(crate) records: Vec<Vec<u64>>,
}

/// Copies all tensors.
pub(crate) struct ReadTensors<'a> {
    /// Of the other replicas, what they have their own of.
    pub(crate) others: Vec<std::vec::IntoIter<TensorData>>,
    /// Called with one value, or with that of each replica.
    pub(crate) each: &'a mut dyn FnMut(Vec<TensorData>) -> Result<()>,
}

impl StateVisitor for ReadTensors<'_> {
    fn leaf(&mut self, _: &NestPath<'_>, tensor: &mut dyn Leaf) -> Result<()> {
        (self.each)(vec![tensor.data()?])
    }

    fn own_leaf(&mut self, _: &NestPath<'_>, tensor: &mut dyn Leaf) -> Result<()> {
        let mut all = vec![tensor.data()?];
        for other in &mut self.others {
            all.push(other.next().ok_or_else(other_structure)?);
        }
        (self.each)(all)
    }
}

fn other_structure() -> Error {
    Error::invalid("the replicas' copies of a mirrored value differ in structure")
}

/// Copies the tensors that a replica has its own of.
#[derive(Default)]
pub(crate) struct ReadOwn {
    pub(crate) tensors: Vec<TensorData>,
}

impl StateVisitor for ReadOwn {
    fn own_leaf(&mut self, _: &NestPath<'_>, tensor: &mut dyn Leaf) -> Result<()> {
        self.tensors.push(tensor.data()?);
        Ok(())
    }
}

/// Puts the devices' values into a host copy.
pub(crate) struct Fetch<'a> {
    tensors: std::slice::Iter<'a, Arc<dyn DeviceTensor>>,
    replica: usize,
    /// Whether the replicas have tensors of their own.
    pub(crate) has_own: bool,
}

impl<'a> Fetch<'a> {
    /// Of all tensors for the first replica, and for others of those that they have their own of:
    /// the rest is in their copy already.
    pub(crate) fn new(tensors: &'a [Arc<dyn DeviceTensor>], replica: usize) -> Self {
        Self {
            tensors: tensors.iter(),
            replica,
            has_own: false,
        }
    }

    fn next(&mut self) -> Result<&'a Arc<dyn DeviceTensor>> {
        let missing = || Error::invalid("a mirrored value changed its structure on the device");
        self.tensors.next().ok_or_else(missing)
    }
}

impl StateVisitor for Fetch<'_> {
    fn leaf(&mut self, _: &NestPath<'_>, tensor: &mut dyn Leaf) -> Result<()> {
        let source = self.next()?;
        match self.replica {
            0 => tensor.set_data(source.read(0)?),
            _ => Ok(()),
        }
    }

    fn own_leaf(&mut self, _: &NestPath<'_>, tensor: &mut dyn Leaf) -> Result<()> {
        self.has_own = true;
        let source = self.next()?;
        tensor.set_data(source.read(self.replica)?)
    }
}

/// Collects the tensors of a value after a captured step.
#[derive(Default)]
pub(crate) struct Collect {
    pub(crate) records: Vec<Vec<u64>>,
    pub(crate) tensors: Vec<Option<CapturedTensor>>,
}

impl StateVisitor for Collect {
    fn enter(&mut self, _: &NestPath<'_>, part: &mut dyn StatePart) -> Result<bool> {
        self.records.extend(part.host().map(|state| state.record()));
        Ok(true)
    }

    fn leaf(&mut self, _: &NestPath<'_>, tensor: &mut dyn Leaf) -> Result<()> {
        self.tensors.push(tensor.captured());
        Ok(())
    }
}
