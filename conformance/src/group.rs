//! The communicators that are checked, alone and under a strategy.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, Communicator, GroupOptions, ProcessTransport, ReduceOp,
    in_process, loopback,
};
use distribute_core::{CrossDeviceOps, LogicalDevice, Result, Strategy};

use crate::backend::{StrategyFactory, mirrored_with};
use crate::case::StrategyKind;

/// Makes the groups that cases need.
///
/// The ranks of a group are used from one thread each. A call that waits for ever cannot be
/// ended from outside, so a communicator should have a deadline.
pub trait CommunicatorFactory: Send + Sync {
    /// The name on the command line and in reports.
    fn name(&self) -> &str;

    /// A new group: the endpoints of all ranks, rank 0 first.
    ///
    /// # Errors
    /// Fails the case.
    fn group(&self, world_size: usize) -> Result<Vec<Box<dyn Communicator>>, CollectiveError>;
}

/// A factory made of a name and a closure.
pub fn communicator<F>(name: impl Into<String>, group: F) -> Arc<dyn CommunicatorFactory>
where
    F: Fn(usize) -> Result<Vec<Box<dyn Communicator>>, CollectiveError> + Send + Sync + 'static,
{
    Arc::new(Named {
        name: name.into(),
        group,
    })
}

struct Named<F> {
    name: String,
    group: F,
}

impl<F> CommunicatorFactory for Named<F>
where
    F: Fn(usize) -> Result<Vec<Box<dyn Communicator>>, CollectiveError> + Send + Sync,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn group(&self, world_size: usize) -> Result<Vec<Box<dyn Communicator>>, CollectiveError> {
        (self.group)(world_size)
    }
}

/// The in-process groups of `distribute-collectives`, one per algorithm. Tiny segments make ten
/// elements travel in several.
pub(crate) fn built_in() -> Vec<Arc<dyn CommunicatorFactory>> {
    let algorithms = [
        ("direct", Algorithm::Direct),
        ("ring", Algorithm::Ring),
        ("halving-doubling", Algorithm::HalvingDoubling),
        ("direct-exchange", Algorithm::DirectExchange),
        (
            "hierarchical",
            Algorithm::Hierarchical { ranks_per_host: 2 },
        ),
    ];
    let factory = |(name, algorithm)| {
        communicator(name, move |world_size| {
            let options = GroupOptions::default().segment_bytes(16);
            let group = in_process(world_size, options.algorithm(algorithm))?;
            Ok(group.into_iter().map(boxed).collect())
        })
    };
    let mut factories: Vec<_> = algorithms.map(factory).into();
    factories.extend([
        between_processes("shm", ProcessTransport::SharedMemory),
        between_processes("grpc", ProcessTransport::Grpc),
    ]);
    factories
}

/// Groups whose ranks meet over loopback addresses, as processes do. The algorithm is named: the
/// links of every little group need not be measured.
fn between_processes(
    name: &'static str,
    transport: ProcessTransport,
) -> Arc<dyn CommunicatorFactory> {
    let algorithm = match transport {
        ProcessTransport::Grpc => Algorithm::Ring,
        _ => Algorithm::Direct,
    };
    communicator(name, move |world_size| {
        let group = loopback(
            world_size,
            GroupOptions::default().algorithm(algorithm),
            transport,
        )?;
        Ok(group.into_iter().map(boxed).collect())
    })
}

fn boxed(rank: impl Communicator + 'static) -> Box<dyn Communicator> {
    Box::new(rank)
}

/// `MirroredStrategy` whose gradients and all-reduces go through groups of a factory.
pub(crate) struct OverCommunicator(pub(crate) Arc<dyn CommunicatorFactory>);

impl StrategyFactory for OverCommunicator {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn kind(&self) -> StrategyKind {
        StrategyKind::Mirrored
    }

    fn strategy(&self, devices: &[LogicalDevice]) -> Result<Arc<dyn Strategy>> {
        let group = self.0.group(devices.len())?.into_iter();
        let ops = GroupOps {
            name: self.0.name().to_string(),
            ranks: group.map(|rank| Mutex::new(Some(rank))).collect(),
        };
        mirrored_with(devices, Arc::new(ops))
    }
}

/// Cross-device ops that leave the work to another group than the strategy's.
struct GroupOps {
    name: String,
    ranks: Vec<Mutex<Option<Box<dyn Communicator>>>>,
}

impl fmt::Debug for GroupOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupOps")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl CrossDeviceOps for GroupOps {
    fn name(&self) -> &str {
        &self.name
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let missing = || distribute_core::Error::invalid("the group has fewer ranks than replicas");
        let rank = self.ranks.get(communicator.rank()).ok_or_else(missing)?;
        let mut rank = rank.lock().unwrap_or_else(PoisonError::into_inner);
        let group = rank.as_mut().ok_or_else(missing)?;
        let result = group.all_reduce(op, buffers);
        if result.is_err() {
            // The drop of an endpoint ends the operations of the others.
            *rank = None;
        }
        Ok(result?)
    }
}
