//! Whole values of all workers.

use burn::tensor::TensorData;
use distribute_collectives::CommunicatorExt;

use super::{WorkerGroup, encoding};
use crate::Result;
use crate::values::lock;

impl WorkerGroup {
    /// Gives every worker the lists that all workers hand in, worker by worker. A worker hands in
    /// one list per replica, or one for all of them.
    pub(crate) fn gather(&self, lists: &[Vec<TensorData>]) -> Result<Vec<Vec<TensorData>>> {
        let bytes = encoding::encode(lists)?;
        let gathered = lock(&self.shared.communicator).all_gather(&bytes)?;
        let mut all = Vec::new();
        for worker in gathered.iter() {
            all.extend(encoding::decode(worker)?);
        }
        Ok(all)
    }

    /// Gives every worker the values that all workers hand in.
    pub(crate) fn gather_one(&self, value: TensorData) -> Result<Vec<TensorData>> {
        let all = self.gather(&[vec![value]])?;
        Ok(all.into_iter().flatten().collect())
    }
}
