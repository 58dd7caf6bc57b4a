//! TensorFlow's options of a collective operation (`tf.distribute.experimental`), and its packs.

pub mod pack;
mod wire;

pub(crate) use wire::Narrowed;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, Communicator, CommunicatorExt, GroupOptions, ReduceOp,
    Result, WireType,
};

/// Which library carries out collective operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CommunicationImplementation {
    /// The library picks.
    #[default]
    Auto,
    /// This library's ring.
    Ring,
    /// NVIDIA's library, between GPUs.
    Nccl,
}

impl fmt::Display for CommunicationImplementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommunicationImplementation::Auto => "AUTO",
            CommunicationImplementation::Ring => "RING",
            CommunicationImplementation::Nccl => "NCCL",
        })
    }
}

impl FromStr for CommunicationImplementation {
    type Err = CollectiveError;

    /// Reads the name in any case.
    fn from_str(name: &str) -> Result<Self> {
        let name = name.to_uppercase();
        let mut all = [Self::Auto, Self::Ring, Self::Nccl].into_iter();
        all.find(|known| known.to_string() == name).ok_or_else(|| {
            invalid(format!(
                "'{name}' is not a valid CommunicationImplementation; use AUTO, RING or NCCL"
            ))
        })
    }
}

/// TensorFlow's options: names, defaults and meaning are the same.
///
/// ```
/// use distribute_core::{CommunicationImplementation, CommunicationOptions};
///
/// let options = CommunicationOptions::new(1024, None, CommunicationImplementation::Ring)?;
/// let merged = CommunicationOptions::default().merge(&options);
/// assert_eq!(merged, options);
/// assert!(CommunicationOptions::new(-1, None, CommunicationImplementation::Auto).is_err());
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CommunicationOptions {
    /// Gradients are reduced in packs of about this many bytes; 0 is one pack.
    pub bytes_per_pack: usize,
    /// The deadline of an operation. `None` keeps the group's; zero is no deadline.
    pub timeout: Option<Duration>,
    /// Which library carries the operations out.
    pub implementation: CommunicationImplementation,
    /// What `f32` gradients travel as between workers; `None`, the default, is as they are.
    ///
    /// Only gradients are rounded, and only with several workers: the gradients of each replica,
    /// and every sum of two of them in canonical order, which is computed in `f32`. So the bits do
    /// not depend on how the replicas lie in workers. All else that workers exchange stays exact:
    /// losses and metrics, initial values, statistics of a normalization, whole values and what a
    /// step reduces itself. Gradients of other types are sent unchanged, gradients of tables in
    /// parts too. A sum that [`WireType::F16`] cannot hold (above 65504) is infinite, which a
    /// dynamic [`LossScale`](crate::LossScale) skips. NCCL has no such type: gradients of GPUs go
    /// through host memory. A worker that is alone sends nothing.
    pub wire: Option<WireType>,
}

impl CommunicationOptions {
    /// Checks and builds.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] with TensorFlow's words when `bytes_per_pack` is
    /// negative.
    pub fn new(
        bytes_per_pack: i64,
        timeout: Option<Duration>,
        implementation: CommunicationImplementation,
    ) -> Result<Self> {
        let bytes_per_pack = usize::try_from(bytes_per_pack).map_err(|_| {
            invalid(format!(
                "Argument `bytes_per_pack` must be >=0, Received {bytes_per_pack}."
            ))
        })?;
        Ok(CommunicationOptions {
            bytes_per_pack,
            timeout,
            implementation,
            wire: None,
        })
    }

    /// These options with gradients that travel as this type, or as they are.
    #[must_use]
    pub fn wire(mut self, wire: impl Into<Option<WireType>>) -> Self {
        self.wire = wire.into();
        self
    }

    /// These options with every field replaced that `other` sets to something else than the
    /// default: 0 bytes, no timeout, `Auto` and no wire type do not override, a timeout of zero
    /// does.
    #[must_use]
    pub fn merge(&self, other: &CommunicationOptions) -> CommunicationOptions {
        let mut merged = *self;
        if other.bytes_per_pack != 0 {
            merged.bytes_per_pack = other.bytes_per_pack;
        }
        if other.timeout.is_some() {
            merged.timeout = other.timeout;
        }
        if other.implementation != CommunicationImplementation::Auto {
            merged.implementation = other.implementation;
        }
        merged.wire = other.wire.or(merged.wire);
        merged
    }

    /// Puts timeout and implementation into the options of a group. `bytes_per_pack` and `wire`
    /// take effect per call, in [`batch_all_reduce`](Self::batch_all_reduce).
    ///
    /// # Errors
    /// [`CollectiveError::BackendUnavailable`] for NCCL, which reduces GPU memory: a group of
    /// this crate's transports has buffers in host memory.
    pub fn apply(&self, mut options: GroupOptions) -> Result<GroupOptions> {
        match self.implementation {
            CommunicationImplementation::Auto => {}
            CommunicationImplementation::Ring => options = options.algorithm(Algorithm::Ring),
            CommunicationImplementation::Nccl => {
                let reason = "the buffers of this group are in host memory; use AUTO or RING";
                return Err(CollectiveError::unavailable("NCCL", reason));
            }
        }
        match self.timeout {
            None => {}
            Some(Duration::ZERO) => options = options.timeout(Duration::MAX),
            Some(timeout) => options = options.timeout(timeout),
        }
        Ok(options)
    }

    /// The runs of gradients of these sizes that are reduced together, last gradient first.
    pub(crate) fn packs(&self, sizes_bytes: &[usize]) -> Vec<Range<usize>> {
        pack::reversed_packs(sizes_bytes, self.bytes_per_pack)
    }

    /// All-reduces a list of gradients in packs, last gradient first, as TensorFlow does (see
    /// [`reversed_packs`](pack::reversed_packs)). The buffers may have different types: a pack with
    /// several types is one operation per run of buffers with one type.
    ///
    /// Allocates the list of packs, and what is rounded to [`wire`](Self::wire); with
    /// `bytes_per_pack` 0, one type and no wire type it is
    /// [`all_reduce`](Communicator::all_reduce), which does not allocate.
    ///
    /// # Errors
    /// As there.
    pub fn batch_all_reduce(
        &self,
        communicator: &mut (impl Communicator + ?Sized),
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        wire::through(self.wire, buffers, |buffers| {
            if self.bytes_per_pack == 0 {
                return communicator.all_reduce_by_type(op, buffers);
            }
            let sizes_bytes: Vec<usize> = buffers.iter().map(Buffer::size_bytes).collect();
            for pack in self.packs(&sizes_bytes) {
                communicator.all_reduce_by_type(op, &mut buffers[pack])?;
            }
            Ok(())
        })
    }
}

impl fmt::Display for CommunicationOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeout = self
            .timeout
            .map_or("None".to_string(), |t| t.as_secs_f64().to_string());
        write!(
            f,
            "Options(bytes_per_pack={},timeout_seconds={timeout}, \
             implementation=CommunicationImplementation.{}",
            self.bytes_per_pack, self.implementation
        )?;
        // TensorFlow has no such option.
        match self.wire {
            None => f.write_str(")"),
            Some(wire) => write!(f, ",wire={wire})"),
        }
    }
}

fn invalid(what: String) -> CollectiveError {
    CollectiveError::InvalidOption { what }
}
