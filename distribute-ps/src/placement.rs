//! Which server holds which rows of which variable, its *placement*: TensorFlow's rule.
//!
//! A *shard* is a part of a variable along its first axis, on one server.
//! A variable is cut along its first axis if there is a partitioner, and the shards go to the
//! servers in turn, in creation order over all variables: sizes do not matter
//! (TensorFlow: `ParameterServerStrategyV2._create_variable`).

use crate::partitioners::{Partitioner, shard_sizes};

use crate::error::{PsError, Result};

/// One shard: a range of rows, and the server that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlacement {
    /// The number of the server in the cluster.
    pub server: usize,
    /// The first row of the whole variable.
    pub offset: usize,
    /// The number of rows; 1 for a scalar.
    pub rows: usize,
    /// The shape of the shard.
    pub shape: Vec<usize>,
}

impl ShardPlacement {
    /// This many rows from `offset` on, of a variable of this shape.
    pub(crate) fn new(server: usize, offset: usize, rows: usize, whole: &[usize]) -> Self {
        let mut shape = whole.to_vec();
        if let Some(first) = shape.first_mut() {
            *first = rows;
        }
        Self {
            server,
            offset,
            rows,
            shape,
        }
    }
}

/// The shards of one variable, in the order of their rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// At least one.
    pub shards: Vec<ShardPlacement>,
}

impl Placement {
    /// Whether the variable is cut into several shards (TensorFlow: `ShardedVariable`).
    pub fn is_sharded(&self) -> bool {
        self.shards.len() > 1
    }
}

/// Hands shards to servers in turn.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    servers: usize,
    next: usize,
}

impl RoundRobin {
    /// For this many servers; the first shard goes to server 0.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] for no servers.
    pub fn new(servers: usize) -> Result<Self> {
        if servers == 0 {
            return Err(PsError::invalid(
                "there is no parameter server: the cluster needs at least one task of type `ps`",
            ));
        }
        Ok(Self { servers, next: 0 })
    }

    /// Places the next variable. Scalars are never cut.
    ///
    /// `element_bytes` is the size of one element, which partitioners by size need.
    ///
    /// # Errors
    /// What the partitioner reports, and [`PsError::InvalidArgument`] when it cuts other axes than
    /// the first or into no parts.
    pub fn place(
        &mut self,
        shape: &[usize],
        element_bytes: usize,
        partitioner: Option<&dyn Partitioner>,
    ) -> Result<Placement> {
        let parts = match (partitioner, shape) {
            (None, _) | (_, []) => 1,
            (Some(partitioner), _) => {
                let parts = partitioner.partitions(shape, element_bytes)?;
                along_first(&parts, shape)?
            }
        };
        let rows = shape.first().copied();
        let mut offset = 0;
        let mut shards = Vec::with_capacity(parts);
        for size in shard_sizes(rows.unwrap_or(1), parts) {
            shards.push(ShardPlacement::new(self.next, offset, size, shape));
            offset += size;
            self.next = (self.next + 1) % self.servers;
        }
        Ok(Placement { shards })
    }
}

/// The number of parts along the first axis; the others must have one.
fn along_first(parts: &[usize], shape: &[usize]) -> Result<usize> {
    match parts {
        [first, others @ ..]
            if parts.len() == shape.len()
                && *first > 0
                && *first <= shape[0].max(1)
                && others.iter().all(|count| *count == 1) =>
        {
            Ok(*first)
        }
        _ => Err(PsError::invalid(format!(
            "the partitioner cuts a variable of shape {shape:?} into {parts:?} parts; at least \
             one and at most one per row along the first axis, and one along every other, is \
             possible"
        ))),
    }
}
