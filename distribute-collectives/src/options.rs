//! How a group of ranks behaves.

use std::fmt;
use std::time::Duration;

/// In which order the contributions of the ranks are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// The order that is cheapest for the algorithm; its documentation says which one. The same
    /// bits on all ranks and in every rerun, but other algorithms may round differently.
    #[default]
    Fast,
    /// Rank 0, then rank 1, then rank 2 and so on, from left to right: the same bits for every
    /// algorithm and transport.
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
    /// The library picks one from the transport, the world size and the size of the buffers.
    #[default]
    Auto,
    /// Shared memory only: every rank reduces its share of all ranks' buffers where they lie.
    Direct,
    /// Reduce-scatter and all-gather around a ring: fewest bytes, most steps; for big buffers.
    Ring,
    /// Partial sums travel from rank to rank in rank order; always canonical.
    Chain,
    /// Recursive halving and doubling: about `2 log2(world size)` steps; for small buffers.
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
            Algorithm::Chain => f.write_str("chain"),
            Algorithm::HalvingDoubling => f.write_str("halving_doubling"),
            Algorithm::DirectExchange => f.write_str("direct_exchange"),
            Algorithm::Hierarchical { ranks_per_host } => {
                write!(f, "hierarchical({ranks_per_host} ranks per host)")
            }
        }
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
pub struct GroupOptions {
    timeout: Duration,
    algorithm: Algorithm,
    order: Order,
    segment_bytes: Option<usize>,
    name: String,
    generation: u64,
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
    /// make it tiny so that few elements need many segments. At least one element is moved.
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

    /// The deadline of every operation.
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }

    /// The wanted algorithm.
    pub fn get_algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The order of the reduction.
    pub fn get_order(&self) -> Order {
        self.order
    }

    /// The segment size in bytes, when one was set.
    pub fn get_segment_bytes(&self) -> Option<usize> {
        self.segment_bytes
    }

    /// The name of the group.
    pub fn get_name(&self) -> &str {
        &self.name
    }

    /// The generation of the group.
    pub fn get_generation(&self) -> u64 {
        self.generation
    }
}
