//! A replica's step computed again by another one: what the calls of the first one have given it,
//! which is in its [log](super::log), is given once more to the second one. It exchanges nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::tensor::TensorData;
use distribute_collectives::{CollectiveError, ReduceOp};

use super::differentiable::Differentiable;
use super::host::HostPeers;
use super::link::{Link, OnPack};
use super::local_exchange::LocalExchange;
use super::log::{GATHERED, Log, REDUCED};
use super::peers::Peers;
use super::{ReplicaContext, ReplicaCounts};
use crate::sync::lock;
use crate::workers::encoding;
use crate::{Error, Gradients, Nest, Result};

/// Gives the results of a log, call by call.
struct Replayed {
    entries: Mutex<VecDeque<Vec<i64>>>,
}

impl Replayed {
    /// The lists of the next result, which is of this kind.
    fn next(&self, kind: i64) -> Result<Vec<Vec<i64>>> {
        let entry = lock(&self.entries).pop_front();
        let entry = entry.filter(|entry| entry.first() == Some(&kind));
        let lists = entry
            .as_ref()
            .and_then(|entry| encoding::lists(&entry[1..]));
        let lists = lists.ok_or_else(other_calls)?;
        Ok(lists.into_iter().map(<[i64]>::to_vec).collect())
    }
}

fn other_calls() -> Error {
    Error::not_recomputable(
        "a step that makes other cross-replica calls when it is computed again",
        "begin the check at the start of the step, on all replicas, and make the calls depend on \
         its arguments alone",
    )
}

impl Link for Replayed {
    fn all_reduce(&self, _: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        let lists = self.next(REDUCED)?;
        if lists.len() != buffers.len() {
            return Err(other_calls());
        }
        for (buffer, words) in buffers.iter_mut().zip(lists) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let length = buffer.as_bytes().len();
            if length.div_ceil(8) != words.len() {
                return Err(other_calls());
            }
            let (shape, dtype) = (buffer.shape().to_vec(), buffer.dtype());
            *buffer = TensorData::from_bytes_vec(bytes[..length].to_vec(), shape, dtype);
        }
        Ok(())
    }

    fn sum_in_packs(&self, _: Vec<TensorData>, _: OnPack<'_>) -> Result<()> {
        Err(no_update())
    }

    fn all_gather(&self, _: &[i64]) -> Result<Vec<Vec<i64>>> {
        self.next(GATHERED)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn abort(&self, _: &str) {}
}

/// The other replicas, for one that computes the step of another one again: what they have said
/// then.
struct Again(HostPeers);

fn no_update() -> Error {
    Error::not_recomputable(
        "an update",
        "return the gradients from what is computed again, and update the state after the check",
    )
}

fn no_whole_values(what: &str) -> Error {
    let what = format!("`{what}` in a forward pass");
    Error::not_recomputable(what, "use `all_reduce`, or leave out the check")
}

impl Peers for Again {
    fn all_reduce(&self, op: ReduceOp, value: &mut dyn Nest) -> Result<()> {
        self.0.all_reduce(op, value)
    }

    fn all_gather(&self, _: &mut dyn Nest, _: i64) -> Result<()> {
        Err(no_whole_values("all_gather"))
    }

    fn broadcast(&self, _: &mut dyn Nest, _: usize) -> Result<()> {
        Err(no_whole_values("broadcast"))
    }

    fn all_reduce_tensor(&self, op: ReduceOp, tensor: &mut dyn Differentiable) -> Result<()> {
        self.0.all_reduce_tensor(op, tensor)
    }

    fn all_reduce_gradients(&self, _: ReduceOp, _: &mut Gradients) -> Result<()> {
        Err(no_update())
    }

    fn local_exchange(&self, op: &'static str, _: i64) -> Result<Option<Arc<LocalExchange>>> {
        Err(no_whole_values(op))
    }

    fn take_initial_value(&self, _: &mut TensorData) -> Result<()> {
        Err(no_whole_values("variable"))
    }

    fn gather_numbers(&self, _: &[i64]) -> Result<Vec<Vec<i64>>> {
        Err(no_whole_values("recompute"))
    }

    fn check_backward(&self) -> Result<()> {
        self.0.check_backward()
    }

    fn is_again(&self) -> bool {
        true
    }
}

impl ReplicaContext {
    /// From now on what the calls of this replica give is noted, see [`take_log`](Self::take_log).
    pub(crate) fn begin_log(&self) {
        self.peers().begin_log();
    }

    /// What was noted, which ends.
    pub(crate) fn take_log(&self) -> Log {
        self.peers().take_log()
    }

    /// The context of the step of replica `id`, which was given the results of this log, on the
    /// device of this one.
    pub(crate) fn again(&self, id: usize, log: Log) -> Self {
        let entries = Mutex::new(log.into());
        let link = Box::new(Replayed { entries });
        let alone = Arc::new(LocalExchange::new(1, Duration::ZERO));
        let mut replica = self.replica.clone();
        replica.id = id;
        // It does not give up its turn: it waits for no other replica.
        let peers = Again(HostPeers::new(link, 0, 1, alone, None));
        let counts = ReplicaCounts {
            local_id: self.local_id,
            num_local: self.num_local,
            num_replicas: self.num_replicas,
        };
        Self::new(&replica, counts, self.placement, Arc::new(peers))
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::Turning;
    use super::*;

    /// A link that always gives the same.
    struct Fixed;

    impl Link for Fixed {
        fn all_reduce(&self, _: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
            for buffer in buffers {
                let values = buffer.as_mut_slice::<f32>().map_err(Error::internal)?;
                values.iter_mut().for_each(|value| *value += 0.5);
            }
            Ok(())
        }

        fn sum_in_packs(&self, _: Vec<TensorData>, _: OnPack<'_>) -> Result<()> {
            Ok(())
        }

        fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
            Ok(vec![mine.to_vec(), vec![], vec![-7]])
        }

        fn barrier(&self) -> Result<(), CollectiveError> {
            Ok(())
        }

        fn abort(&self, _: &str) {}
    }

    fn values(count: usize) -> Vec<TensorData> {
        let values: Vec<f32> = (0..count).map(|value| value as f32).collect();
        vec![
            TensorData::new(values, [count]),
            TensorData::new(vec![1.0_f32], [1]),
        ]
    }

    #[test]
    fn what_was_noted_is_given_again_and_nothing_else() {
        let way = Turning::new(Box::new(Fixed), None);
        way.waiting().all_gather(&[1]).unwrap();
        way.noted.begin();
        let gathered = way.waiting().all_gather(&[3, 4]).unwrap();
        let mut reduced = values(3);
        way.waiting()
            .all_reduce(ReduceOp::Sum, &mut reduced)
            .unwrap();
        let log = way.noted.take();
        assert_eq!(log.len(), 2);
        way.waiting().all_gather(&[1]).unwrap();
        assert!(way.noted.take().is_empty(), "it has ended");

        let replayed = |log: &Log| Replayed {
            entries: Mutex::new(log.clone().into()),
        };
        let again = replayed(&log);
        assert_eq!(again.all_gather(&[9]).unwrap(), gathered);
        let mut buffers = values(3);
        again.all_reduce(ReduceOp::Sum, &mut buffers).unwrap();
        assert_eq!(buffers, reduced);
        assert!(again.all_gather(&[9]).is_err(), "there was no other call");

        let mut other_length = values(5);
        let again = replayed(&log);
        again.all_gather(&[9]).unwrap();
        let refused = again.all_reduce(ReduceOp::Sum, &mut other_length);
        assert!(matches!(refused, Err(Error::NotRecomputable { .. })));
        let refused = replayed(&log).all_reduce(ReduceOp::Sum, &mut buffers);
        assert!(matches!(refused, Err(Error::NotRecomputable { .. })));
    }
}
