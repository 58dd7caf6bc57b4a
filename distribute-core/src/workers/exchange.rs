//! Whole values of all workers.

use burn::tensor::TensorData;
use distribute_collectives::{Buffer, Communicator, CommunicatorExt, ReduceOp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encoding::unreadable;
use super::endpoint::Endpoint;
use super::{WorkerGroup, encoding};
use crate::cross_device::by_type;
use crate::nest::different_structure;
use crate::{Error, Result};

/// How many bytes more the names and shapes of a worker's lists may take than another worker's.
const SLACK_BYTES: usize = 64 * 1024;

/// What two workers have called, in the same words on both.
fn different_calls(mut calls: [(usize, &str); 2]) -> Error {
    calls.sort_unstable();
    let [(first, one), (second, other)] = calls;
    Error::invalid(format!(
        "the workers made different calls: `{one}` on worker {first}, `{other}` on worker \
         {second}; all workers must make the same ones in the same order"
    ))
}

/// Bytes behind their number.
fn send(communicator: &mut dyn Communicator, to: usize, mut bytes: Vec<u8>) -> Result<()> {
    let mut length = [i64::try_from(bytes.len()).map_err(Error::internal)?];
    communicator.send(to, Buffer::I64(&mut length))?;
    Ok(communicator.send(to, Buffer::U8(&mut bytes))?)
}

/// Receives a message of at most `limit` bytes, after its length.
fn receive(communicator: &mut dyn Communicator, from: usize, limit: usize) -> Result<Vec<u8>> {
    let mut length = [0];
    communicator.recv(from, Buffer::I64(&mut length))?;
    let length = usize::try_from(length[0]).ok();
    let length = length.filter(|length| *length <= limit);
    let mut bytes = vec![0; length.ok_or_else(unreadable)?];
    communicator.recv(from, Buffer::U8(&mut bytes))?;
    Ok(bytes)
}

impl WorkerGroup {
    /// Reduces over all replicas of all workers, as one operation per element type. A worker hands
    /// in a list for each of its [parts](Self::parts), of the same types and lengths; the first one
    /// gets the result. Not for a mean, which is a sum that is
    /// divided.
    pub(crate) fn all_reduce(&self, op: ReduceOp, lists: &mut [&mut [TensorData]]) -> Result<()> {
        self.all_reduce_on(self.communicator(), op, lists)
    }

    /// [`all_reduce`](Self::all_reduce) with this end of the group.
    pub(crate) fn all_reduce_on(
        &self,
        mut communicator: Endpoint<'_>,
        op: ReduceOp,
        lists: &mut [&mut [TensorData]],
    ) -> Result<()> {
        by_type(lists, |buffers| {
            match &self.shared.terms {
                Some(terms) => terms.all_reduce(communicator.as_mut(), op, buffers)?,
                None => communicator.all_reduce(op, buffers)?,
            }
            Ok(())
        })
    }

    /// [`all_reduce`](Self::all_reduce) in packs of the size that the options ask for.
    pub(crate) fn all_reduce_in_packs(
        &self,
        op: ReduceOp,
        lists: &mut [&mut [TensorData]],
    ) -> Result<()> {
        if self.options().bytes_per_pack == 0 {
            return self.all_reduce(op, lists);
        }
        let sizes: Vec<usize> = lists
            .first()
            .map_or(&[][..], |list| list)
            .iter()
            .map(|data| data.as_bytes().len())
            .collect();
        for pack in self.options().packs(&sizes) {
            let lists = lists.iter_mut().map(|list| &mut list[pack.clone()]);
            self.all_reduce(op, &mut lists.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Adds up numbers over all replicas of all workers. A worker hands in the sums of each of its
    /// [parts](Self::parts).
    pub(crate) fn add_up(&self, mut parts: Vec<Vec<f64>>) -> Result<Vec<f64>> {
        let mut communicator = self.communicator();
        let terms = self.shared.terms.as_ref();
        let Some(terms) = terms.filter(|terms| !terms.is_tree_of_ranks()) else {
            let mut sums = parts.swap_remove(0);
            communicator.all_reduce(ReduceOp::Sum, &mut [Buffer::F64(&mut sums)])?;
            return Ok(sums);
        };
        // They are few; and the processes of a TPU slice can do nothing else.
        let width = parts[0].len();
        let gathered = communicator.all_gather(&parts.concat())?.into_values();
        let all = gathered.chunks(width.max(1)).map(<[f64]>::to_vec);
        let sums = terms.combine(all.collect(), |mut sum, other| {
            sum.iter_mut()
                .zip(other)
                .for_each(|(sum, other)| *sum += other);
            sum
        });
        sums.filter(|sums| sums.len() == width)
            .ok_or_else(different_structure)
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
            let (first, found) = (calls[0].as_str(), calls[worker].as_str());
            return Err(different_calls([(0, first), (worker, found)]));
        }
        Ok(lists.into_iter().flatten().collect())
    }

    /// Sends lists to worker `rank + distance` and returns the lists of worker `rank -
    /// distance`, both modulo the number of workers (MPI: `MPI_Cart_shift` and `MPI_Sendrecv`).
    /// A worker alone gets its own, and so does
    /// each at a distance of 0. `call` says what it is for. The lists are about as large on all
    /// workers, for each of their replicas; the distance is the same on all.
    ///
    /// Blocks until both of these workers have called it.
    ///
    /// # Errors
    /// If the other worker does it for another call, or sends far more than this one. A worker that
    /// was lost, ended the group or does not come before the deadline. An error ends the group.
    pub fn shift(
        &self,
        call: &str,
        distance: usize,
        lists: &[Vec<TensorData>],
    ) -> Result<Vec<Vec<TensorData>>> {
        let distance = distance % self.num_workers();
        if distance == 0 {
            return Ok(lists.to_vec());
        }
        self.or_abort(self.shift_by(call, distance, lists))
    }

    /// [`shift`](Self::shift) over a distance that is not 0.
    fn shift_by(
        &self,
        call: &str,
        distance: usize,
        lists: &[Vec<TensorData>],
    ) -> Result<Vec<Vec<TensorData>>> {
        let (own, count) = (self.index(), self.num_workers());
        let bytes = encoding::encode(call, lists)?;
        let limit = (bytes.len() + SLACK_BYTES).saturating_mul(self.max_replicas());
        let (next, before) = ((own + distance) % count, (own + count - distance) % count);
        let mut communicator = self.communicator();
        let communicator = communicator.as_mut();
        // A send may block until it is received. In each circle of workers that send
        // to each other the one below `distance` sends first, and the next listens.
        let received = if (own / distance).is_multiple_of(2) {
            send(communicator, next, bytes)?;
            receive(communicator, before, limit)?
        } else {
            let received = receive(communicator, before, limit)?;
            send(communicator, next, bytes)?;
            received
        };
        let (found, lists) = encoding::decode(&received)?;
        if found == call {
            Ok(lists)
        } else {
            Err(different_calls([(before, found.as_str()), (own, call)]))
        }
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
