//! Whole values of all workers.

use burn::tensor::TensorData;
use distribute_collectives::{Buffer, CommunicatorExt, ReduceOp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encoding::unreadable;
use super::{WorkerGroup, encoding};
use crate::{Error, Result};

impl WorkerGroup {
    /// Adds up numbers over all workers, in place, each list as one buffer of an all-reduce.
    pub(crate) fn add_up(&self, lists: &mut [Vec<f64>]) -> Result<()> {
        let mut buffers: Vec<_> = lists.iter_mut().map(|list| Buffer::F64(list)).collect();
        let mut communicator = self.communicator();
        let options = self.options();
        Ok(options.batch_all_reduce(communicator.as_mut(), ReduceOp::Sum, &mut buffers)?)
    }

    /// Gives every worker the lists that all workers hand in, worker by worker. A worker hands in
    /// one list per replica, or one for all of them. `call` says what it is for.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// On all workers if they do it for different calls. A worker that was lost, ended the group or
    /// does not come before the deadline.
    pub fn gather(&self, call: &str, lists: &[Vec<TensorData>]) -> Result<Vec<Vec<TensorData>>> {
        let bytes = encoding::encode(call, lists)?;
        let gathered = self.communicator().all_gather(&bytes)?;
        let read = gathered.iter().map(encoding::decode);
        let (calls, lists): (Vec<_>, Vec<_>) =
            read.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        if let Some(worker) = calls.iter().position(|found| *found != calls[0]) {
            let (first, found) = (&calls[0], &calls[worker]);
            return Err(Error::invalid(format!(
                "the workers made different calls: `{first}` on worker 0, `{found}` on worker \
                 {worker}; all workers must make the same ones in the same order"
            )));
        }
        Ok(lists.into_iter().flatten().collect())
    }

    /// Gives every worker the values that all workers hand in, one each.
    pub(crate) fn gather_one(&self, call: &str, value: TensorData) -> Result<Vec<TensorData>> {
        let all = self.gather(call, &[vec![value]])?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Gives every worker the texts of all workers, worker 0's first. Blocks until all workers have
    /// called it.
    ///
    /// # Errors
    /// A worker that was lost, ended the group or does not come before the deadline.
    pub fn gather_text(&self, text: &str) -> Result<Vec<String>> {
        self.gather_text_for("gather_text", text)
    }

    fn gather_text_for(&self, call: &str, text: &str) -> Result<Vec<String>> {
        let bytes = TensorData::new(text.as_bytes().to_vec(), [text.len()]);
        let texts = self.gather_one(call, bytes)?.into_iter().map(|data| {
            let bytes = data.try_into_vec::<u8>().map_err(|_| unreadable())?;
            String::from_utf8(bytes).map_err(|_| unreadable())
        });
        texts.collect()
    }

    /// Gives every worker the values of all workers, worker 0's first; they travel as JSON. `call`
    /// says what it is for.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// As [`gather`](Self::gather); a value that cannot be written as JSON.
    pub fn all_gather_json<T>(&self, call: &str, said: &T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let text = serde_json::to_string(said).map_err(Error::invalid)?;
        let texts = self.gather_text_for(call, &text)?.into_iter();
        texts
            .map(|text| serde_json::from_str(&text).map_err(|_| unreadable()))
            .collect()
    }
}
