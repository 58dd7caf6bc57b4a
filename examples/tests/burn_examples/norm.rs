//! Batch normalization that is burn's, or over all replicas with burn's numbers.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use distribute::SyncBatchNorm;
use distribute::prelude::*;

/// The weight of the new value in the running statistics.
const MOMENTUM: f64 = 0.1;

#[derive(Module, Debug)]
pub enum Norm {
    Own(BatchNorm),
    Synchronized(SyncBatchNorm),
}

impl Norm {
    pub fn own(features: usize, epsilon: f64, device: &Device) -> Self {
        let config = BatchNormConfig::new(features).with_epsilon(epsilon);
        Self::Own(config.with_momentum(MOMENTUM).init(device))
    }

    pub fn synchronized(features: usize, epsilon: f64, device: &Device) -> Self {
        let config = BatchNormConfig::new(features).with_epsilon(epsilon);
        Self::Synchronized(config.with_momentum(MOMENTUM).init(device).into())
    }

    /// Lets the statistics of the last step count, too, which burn keeps back until the next one.
    pub fn settle(&self) {
        if let Self::Own(norm) = self {
            let _ = (
                norm.running_mean.value_sync(),
                norm.running_var.value_sync(),
            );
        }
    }

    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Own(norm) => norm.forward(input),
            Self::Synchronized(norm) => norm.forward(input),
        }
    }
}
