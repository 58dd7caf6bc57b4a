//! A communicator over the system's MPI (feature `mpi`), so that the network of a cluster is used
//! as its administrators have set it up.
//!
//! ```no_run
//! use distribute_collectives::mpi::MpiEnvironment;
//! use distribute_collectives::{Communicator, GroupOptions, ReduceOp};
//!
//! let environment = MpiEnvironment::initialize()?;
//! let mut group = environment.communicator(GroupOptions::default())?;
//! let mut gradient = [1.0_f32; 4];
//! group.all_reduce(ReduceOp::Mean, &mut [(&mut gradient[..]).into()])?;
//! # Ok::<(), distribute_collectives::CollectiveError>(())
//! ```
//!
//! Run it with `mpirun -np 4 PROGRAM`; without `mpirun` it is a group of one rank. Rank and world
//! size come from MPI's world.
//!
//! # Which MPI calls are used
//!
//! MPI does not promise that `MPI_Allreduce` ends with the same bits on all ranks, nor what it does
//! with NaN, and it knows no half types. Everything here holds nevertheless:
//!
//! - `i32` and `i64`: `MPI_Iallreduce`, whose result does not depend on the order (sums and
//!   products are computed as unsigned integers, which wrap around).
//! - Floats, and `u8` (whose sums Open MPI 4.1 saturates where it uses AVX): `MPI_Ialltoallv` gives
//!   every rank its share of all ranks' elements, which it combines in canonical order;
//!   `MPI_Iallgatherv` gives the shares to all ranks. These are the bytes of a ring,
//!   `2S(P - 1)/P` per rank, and every element is combined in one place, so all ranks have the same
//!   bits, as with [`Order::Canonical`](crate::Order::Canonical).
//! - `reduce_scatter` is the first half of that, `reduce` ends with `MPI_Igatherv`.
//! - `broadcast`: `MPI_Ibcast`. `all_gather`: `MPI_Iallgatherv`. `send` and `recv`: `MPI_Isend` and
//!   `MPI_Irecv`, after both have agreed on type and length.
//! - Before each collective operation the ranks compare its description with `MPI_Iallgather`; that
//!   is also the `barrier`.
//!
//! With another algorithm than [`Auto`](crate::Algorithm::Auto), that algorithm of this crate runs
//! over `MPI_Isend` and `MPI_Irecv`. A [wire type](GroupOptions::wire) takes effect in either case.
//!
//! # Failures
//!
//! MPI has no deadlines and cannot be repaired. Operations are non-blocking and polled (with pauses
//! of up to a millisecond when it takes long), and work on memory of their own: a deadline, an
//! abort or a lost rank ends the call with the usual error. What the library was doing then cannot
//! be taken back, so its memory (some segments) is given up and `MPI_Finalize` is not called any
//! more: end the process soon, and `mpirun` ends the others.

mod collectives;
mod notice;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw;
mod transport;

use std::sync::Arc;

use crate::error::Result;
use crate::forward::forward_communicator;
use crate::messages::TransportCommunicator;
use crate::options::{Algorithm, GroupOptions};
use collectives::MpiCollectives;
use raw::{Comm, World};
use transport::MpiTransport;

/// MPI between `MPI_Init` and `MPI_Finalize`, which is called when this value and all its
/// communicators have been dropped.
///
/// A process can initialise MPI once. Clones are the same environment.
#[derive(Clone)]
pub struct MpiEnvironment(Arc<World>);

impl MpiEnvironment {
    /// Initialises MPI.
    ///
    /// # Errors
    /// [`BackendUnavailable`](crate::CollectiveError::BackendUnavailable) when this process has
    /// initialised MPI before, or when the library cannot be called from several threads
    /// (`MPI_THREAD_SERIALIZED` is needed).
    pub fn initialize() -> Result<Self> {
        World::initialize().map(MpiEnvironment)
    }

    /// Makes a group of all ranks of the world, which all must call this in the same order. It
    /// blocks until they have, at most for the [timeout](GroupOptions::timeout); other groups work
    /// meanwhile.
    ///
    /// # Errors
    /// [`InvalidOption`](crate::CollectiveError::InvalidOption) when the options contradict
    /// themselves (on every rank that has them; no message is sent before),
    /// [`BackendUnavailable`](crate::CollectiveError::BackendUnavailable) when MPI fails, or when
    /// not all ranks have come in time: the communicator is then given up as an operation is.
    pub fn communicator(&self, options: GroupOptions) -> Result<MpiCommunicator> {
        TransportCommunicator::<MpiTransport>::check_options(&options)?;
        let transport = MpiTransport::new(Comm::duplicate(&self.0, options.timeout)?, &options);
        Ok(MpiCommunicator(match options.algorithm {
            Algorithm::Auto => Inner::Native(MpiCollectives::new(transport, options)),
            _ => Inner::Messages(TransportCommunicator::new(transport, options)?),
        }))
    }
}

impl std::fmt::Debug for MpiEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MpiEnvironment").finish_non_exhaustive()
    }
}

/// One rank's endpoint of a group over MPI; see [`MpiEnvironment::communicator`].
pub struct MpiCommunicator(Inner);

enum Inner {
    Native(MpiCollectives),
    Messages(TransportCommunicator<MpiTransport>),
}

forward_communicator!(
    MpiCommunicator,
    inner in [Self(Inner::Native(inner)), Self(Inner::Messages(inner))]
);
