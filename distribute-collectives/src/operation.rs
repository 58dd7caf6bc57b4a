//! The calls of a communicator.

use std::fmt;

/// The calls of a [`Communicator`](crate::Communicator).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum OperationKind {
    /// `all_reduce`.
    AllReduce,
    /// `reduce_scatter`.
    ReduceScatter,
    /// `all_gather`.
    AllGather,
    /// `broadcast`.
    Broadcast,
    /// `reduce`.
    Reduce,
    /// `barrier`.
    Barrier,
    /// `send`.
    Send,
    /// `recv`.
    Recv,
}

impl OperationKind {
    /// All calls, in the order of their codes on the wire.
    pub(crate) const ALL: [OperationKind; 8] = [
        OperationKind::AllReduce,
        OperationKind::ReduceScatter,
        OperationKind::AllGather,
        OperationKind::Broadcast,
        OperationKind::Reduce,
        OperationKind::Barrier,
        OperationKind::Send,
        OperationKind::Recv,
    ];

    /// Whether only two ranks take part: such a call is not counted and not compared.
    pub(crate) fn is_point_to_point(self) -> bool {
        matches!(self, OperationKind::Send | OperationKind::Recv)
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OperationKind::AllReduce => "all_reduce",
            OperationKind::ReduceScatter => "reduce_scatter",
            OperationKind::AllGather => "all_gather",
            OperationKind::Broadcast => "broadcast",
            OperationKind::Reduce => "reduce",
            OperationKind::Barrier => "barrier",
            OperationKind::Send => "send",
            OperationKind::Recv => "recv",
        })
    }
}
