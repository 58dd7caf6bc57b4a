//! How a group of ranks behaves.

use std::fmt;
use std::time::Duration;

use crate::error::{CollectiveError, Result};

/// In which order the contributions of the ranks are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// The order that is cheapest for the algorithm; its documentation says which one. The same
    /// bits on all ranks and in every rerun with as many ranks on as many hosts (also with
    /// [`Algorithm::Auto`], whatever the links are measured to cost), but other algorithms and
    /// other transports may round differently.
    #[default]
    Fast,
    /// That of the [`tree`](crate::tree) over the ranks, which splits at powers of two; rounded to
    /// the type of the elements at every node. The same bits for every algorithm and transport, and
    /// also where the terms lie in other ranks: see [`Terms`](crate::Terms).
    Canonical,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Fast => "fast",
            Order::Canonical => "canonical",
        })
    }
}

/// How an all-reduce moves the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// The library picks one from the transport, the world size, the size of the buffers and what
    /// the links were measured to cost. What was measured decides only between algorithms that sum
    /// in the same order, so it never shows in the bits.
    #[default]
    Auto,
    /// Shared memory only: every rank reduces its share of all ranks' buffers where they lie.
    Direct,
    /// Reduce-scatter and all-gather around a ring: fewest bytes, most steps; for big buffers.
    Ring,
    /// Recursive halving and doubling along the [`tree`](crate::tree): about `2 log2(world size)`
    /// steps and as many bytes as the ring sends, for many ranks; always canonical.
    HalvingDoubling,
    /// Every rank sends its whole buffer to every other rank: one step, for the smallest buffers;
    /// always canonical.
    DirectExchange,
    /// First inside a host, then a ring between one rank of each host, then inside the host again.
    Hierarchical {
        /// Ranks on one host; host `h` has the ranks from `h * ranks_per_host`. The last host may
        /// have fewer.
        ranks_per_host: usize,
    },
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Auto => f.write_str("auto"),
            Algorithm::Direct => f.write_str("direct"),
            Algorithm::Ring => f.write_str("ring"),
            Algorithm::HalvingDoubling => f.write_str("halving_doubling"),
            Algorithm::DirectExchange => f.write_str("direct_exchange"),
            Algorithm::Hierarchical { ranks_per_host } => {
                write!(f, "hierarchical({ranks_per_host} ranks per host)")
            }
        }
    }
}

/// What `f32` elements travel as while they are reduced; see [`GroupOptions::wire`].
///
/// Half as many bytes travel. Every element is rounded to the wire type when it is sent, combined
/// in `f32`, and the result is rounded to it on all ranks alike, so all ranks end with the same
/// bits and every result is a value of the wire type. (A group of one rank sends nothing and rounds
/// nothing.)
///
/// # Error bound
///
/// Let `u` be the unit roundoff: 2⁻⁸ for [`Bf16`](Self::Bf16), 2⁻¹¹ for [`F16`](Self::F16). A sum
/// of `P` ranks is off from the exact one by at most `((1 + u)ᴿ - 1) · Σ|xᵢ|` (about `R·u·Σ|xᵢ|`),
/// plus what adding in `f32` costs, where `R` is the number of roundings on an element's way:
///
/// | algorithm | `R` |
/// |---|---|
/// | ring | `P`: partial sums are rounded on each of `P - 1` hops, the result once |
/// | hierarchical, `H` hosts | `H + 1` |
/// | all others, and all in canonical order | `⌈log₂ P⌉ + 1`: the nodes of the tree |
///
/// ([`Algorithm::Auto`] runs the ring in canonical order.)
///
/// A mean has the bound of the sum divided by `P`; partial results are sums. The minimum and the
/// maximum are the rounded ones (`R = 1`). A product is off by at most
/// `((1 + u)ᴾ⁺¹ - 1) · Π max(1, |xᵢ|)`.
///
/// For `F16` the bounds hold while no partial result is above 65504 (larger ones become infinite),
/// and values below 2⁻¹⁴ are off by up to 2⁻²⁵ instead, once per rounding. `Bf16` has the range of
/// `f32`.
///
/// # Order
///
/// In [`Order::Canonical`] the elements of every rank are rounded once, and so is what every node
/// of the [`tree`](crate::tree) gives, so that all algorithms give the same bits, and ranks that
/// combine some terms among themselves as well. A mean is divided before the last rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WireType {
    /// The upper half of a binary32: its range, 8 significant bits.
    Bf16 = 1,
    /// IEEE 754 binary16: up to 65504, 11 significant bits.
    F16 = 2,
}

impl WireType {
    /// Every wire type, in declaration order.
    pub const ALL: [WireType; 2] = [WireType::Bf16, WireType::F16];

    /// Bytes of one element on the wire.
    pub const SIZE_BYTES: usize = 2;
}

impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireType::Bf16 => "bf16",
            WireType::F16 => "f16",
        })
    }
}

/// Settings of one group; every rank has the same ones.
///
/// ```
/// use distribute_collectives::{Algorithm, GroupOptions, Order};
/// use std::time::Duration;
///
/// let options = GroupOptions::default()
///     .timeout(Duration::from_secs(5))
///     .algorithm(Algorithm::Ring)
///     .order(Order::Canonical);
/// assert_eq!(options.get_timeout(), Duration::from_secs(5));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct GroupOptions {
    pub(crate) timeout: Duration,
    pub(crate) algorithm: Algorithm,
    pub(crate) order: Order,
    pub(crate) segment_bytes: Option<usize>,
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) wire: Option<WireType>,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            timeout: Duration::from_secs(30),
            algorithm: Algorithm::Auto,
            order: Order::Fast,
            segment_bytes: None,
            name: "group".to_string(),
            generation: 0,
            wire: None,
        }
    }
}

impl GroupOptions {
    /// The deadline of every operation, from the call on (default 30 s). `Duration::MAX` is no
    /// deadline.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The all-reduce algorithm (default [`Algorithm::Auto`]).
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// The order of the reduction (default [`Order::Fast`]).
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Bytes of the pieces that buffers are cut into (default: what suits the transport). Tests
    /// make it tiny so that few elements need many segments. At least one element is moved. Where
    /// a transport carries no piece of that size, making the group is refused: between processes
    /// 64 MiB is the most, and what fits
    /// [`max_message_bytes`](crate::ProcessGroupOptions::max_message_bytes) where they may use
    /// gRPC.
    pub fn segment_bytes(mut self, segment_bytes: usize) -> Self {
        self.segment_bytes = Some(segment_bytes);
        self
    }

    /// The name of the group in descriptions.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The generation: a number that grows each time a group is made anew after a failure, so
    /// that nothing of the old one is taken for the new one.
    pub fn generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// Compresses `f32` buffers on the way (default: none): `all_reduce`, `reduce_scatter` and
    /// `reduce` send them as this type. See [`WireType`] for the error.
    ///
    /// Buffers of other types travel as they are, and calls that only move data (`broadcast`,
    /// `all_gather`, `send`, `recv`) are never compressed. Ranks that do not agree on it get a
    /// [`Mismatch`](CollectiveError::Mismatch) in the first operation that it concerns.
    ///
    /// Where nothing is sent, it would do nothing: with [`Algorithm::Direct`], which works in
    /// shared memory, it is refused, and [`Algorithm::Auto`] does not pick that. So an in-process
    /// group computes what a group of machines with the same options computes.
    pub fn wire(mut self, wire: impl Into<Option<WireType>>) -> Self {
        self.wire = wire.into();
        self
    }

    /// The deadline of every operation.
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }

    /// Refuses pieces of more than `most` bytes, which `limit` names.
    pub(crate) fn check_segment(&self, most: usize, limit: &str) -> Result<()> {
        match self.segment_bytes {
            Some(bytes) if bytes > most => {
                let what =
                    format!("segments of {bytes} bytes are too big: {limit} allows at most {most}");
                Err(CollectiveError::InvalidOption { what })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a wire type where nothing is sent.
    pub(crate) fn check_wire(&self) -> Result<()> {
        match self.wire {
            Some(wire) if self.algorithm == Algorithm::Direct => {
                let what = format!(
                    "the wire type {wire} has no effect with the algorithm direct, which sends \
                     nothing; use another algorithm or no wire type"
                );
                Err(CollectiveError::InvalidOption { what })
            }
            _ => Ok(()),
        }
    }
}
