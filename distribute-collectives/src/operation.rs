//! The calls of a communicator.

use crate::names::named_enum;

named_enum! {
    all: pub(crate),
    /// The calls of a [`Communicator`](crate::Communicator).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum OperationKind {
        /// `all_reduce`.
        AllReduce => "all_reduce",
        /// `reduce_scatter`.
        ReduceScatter => "reduce_scatter",
        /// `all_gather`.
        AllGather => "all_gather",
        /// `broadcast`.
        Broadcast => "broadcast",
        /// `reduce`.
        Reduce => "reduce",
        /// `barrier`.
        Barrier => "barrier",
        /// `send`.
        Send => "send",
        /// `recv`.
        Recv => "recv",
    }
}

impl OperationKind {
    /// Whether only two ranks take part: such a call is not counted and not compared.
    pub(crate) fn is_point_to_point(self) -> bool {
        matches!(self, OperationKind::Send | OperationKind::Recv)
    }
}
