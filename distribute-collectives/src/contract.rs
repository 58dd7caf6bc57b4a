//! What every communicator must do when its ranks disagree, as a suite that anyone can run.
//!
//! A rank that makes another call than the others must never get a number for it: every rank gets
//! [`CollectiveError::Mismatch`], which names two ranks, the operation and the first difference,
//! and the group has ended. What all ranks together get wrong is refused on all of them, and the
//! group goes on.
//!
//! ```
//! use distribute_collectives::{GroupOptions, contract, in_process};
//!
//! contract::check(|| {
//!     let ranks = in_process(2, GroupOptions::default())?.into_iter();
//!     Ok(ranks.map(|rank| Box::new(rank) as _).collect())
//! })?;
//! # Ok::<(), contract::ContractError>(())
//! ```
//!
//! Where ranks are processes, each of them runs [`cases`] in turn, each on a new group.

use std::fmt;

use crate::buffer::Buffer;
use crate::communicator::{Communicator, CommunicatorExt};
use crate::error::{CollectiveError, Result};
use crate::operation::OperationKind;
use crate::reduce::ReduceOp;

/// Elements of a buffer: few enough for one message, and enough for many.
const ELEMENTS: [usize; 2] = [3, 30_000];

/// What a rank calls. The number is that of elements; the flag is set on the rank that differs.
type Call = fn(&mut dyn Communicator, usize, bool) -> Result<()>;

/// What all ranks must get.
#[derive(Clone, Copy)]
enum Expected {
    /// A mismatch in this operation, as the other ranks call it, that names both values.
    Mismatch(OperationKind, [&'static str; 2]),
    /// The call is refused and the group goes on.
    Refused(OperationKind),
}

/// One way in which ranks disagree; see [`cases`].
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    expected: Expected,
    call: Call,
    elements: usize,
}

/// A communicator does not keep the contract.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// The group could not be made, or could not add up numbers before anything differed.
    #[error("{case}: the group does not work: {cause}")]
    Group {
        /// The case.
        case: String,
        /// Why.
        cause: CollectiveError,
    },
    /// A rank got something else than it must.
    #[error("{case}: rank {rank} must get {expected}, but got {found}")]
    Outcome {
        /// The case.
        case: String,
        /// The rank.
        rank: usize,
        /// What it must get.
        expected: String,
        /// What it got.
        found: String,
    },
}

/// Runs all cases on groups of threads; `make` makes a new group with the same number of ranks.
///
/// # Errors
/// [`ContractError`] of the first case that fails, of its lowest rank.
pub fn check(
    mut make: impl FnMut() -> Result<Vec<Box<dyn Communicator>>>,
) -> Result<(), ContractError> {
    for case in cases() {
        let mut group = make().map_err(|cause| case.no_group(cause))?;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let ranks = group.iter_mut();
            let ranks: Vec<_> = ranks
                .map(|rank| scope.spawn(move || case.check(&mut **rank)))
                .collect();
            ranks
                .into_iter()
                .map(std::thread::ScopedJoinHandle::join)
                .collect()
        });
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            outcome.unwrap_or_else(|_| Err(case.outcome(rank, "a panic")))?;
        }
    }
    Ok(())
}

/// All cases: each way to disagree, with few and with many elements.
pub fn cases() -> impl Iterator<Item = Case> {
    let all = CASES.iter();
    all.flat_map(|case| ELEMENTS.map(|elements| Case { elements, ..*case }))
}

impl Case {
    const fn mismatch(
        name: &'static str,
        kind: OperationKind,
        values: [&'static str; 2],
        call: Call,
    ) -> Case {
        Case {
            name,
            expected: Expected::Mismatch(kind, values),
            call,
            elements: 0,
        }
    }

    const fn refused(name: &'static str, kind: OperationKind, call: Call) -> Case {
        Case {
            name,
            expected: Expected::Refused(kind),
            call,
            elements: 0,
        }
    }

    /// Plays one rank of a new group of at least two; all ranks play the same case. The highest
    /// rank is the one that differs.
    ///
    /// # Errors
    /// [`ContractError`], which says what this rank got in the place of what it must get.
    pub fn check(self, communicator: &mut dyn Communicator) -> Result<(), ContractError> {
        let (rank, size) = (communicator.rank(), communicator.world_size());
        sum(communicator).map_err(|cause| self.no_group(cause))?;
        let called = (self.call)(communicator, self.elements, rank + 1 == size);
        let Err(error) = called else {
            return Err(self.outcome(rank, "a result"));
        };
        let kept = match (self.expected, &error) {
            (
                Expected::Mismatch(kind, values),
                CollectiveError::Mismatch {
                    rank_a,
                    rank_b,
                    op,
                    what,
                    ..
                },
            ) => {
                let named = values.iter().all(|value| what.contains(value));
                rank_a < rank_b && rank_b + 1 == size && *op == kind && named
            }
            (Expected::Refused(kind), CollectiveError::InvalidArgument { op, .. }) => *op == kind,
            _ => false,
        };
        if !kept {
            return Err(self.outcome(rank, &error));
        }
        match (self.expected, sum(communicator)) {
            (Expected::Refused(_), Ok(())) => Ok(()),
            (Expected::Mismatch(..), Err(later)) if later.root_cause() == &error => Ok(()),
            (_, Ok(())) => Err(self.outcome(rank, "the error, and then another result")),
            (_, Err(later)) => Err(self.outcome(rank, format!("{error}, and then {later}"))),
        }
    }

    fn no_group(self, cause: CollectiveError) -> ContractError {
        let case = self.to_string();
        ContractError::Group { case, cause }
    }

    fn outcome(self, rank: usize, found: impl fmt::Display) -> ContractError {
        let expected = match self.expected {
            Expected::Mismatch(kind, [a, b]) => format!(
                "a mismatch in {kind} with the highest rank that names {a:?} and {b:?}, and then \
                 the same cause again"
            ),
            Expected::Refused(kind) => format!("a refusal of {kind}, and then a sum"),
        };
        ContractError::Outcome {
            case: self.to_string(),
            rank,
            expected,
            found: found.to_string(),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another {} ({} elements)", self.name, self.elements)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Adds up ones.
fn sum(communicator: &mut dyn Communicator) -> Result<()> {
    let mut ones = [1_i32; 2];
    communicator.all_reduce(ReduceOp::Sum, &mut [(&mut ones[..]).into()])?;
    if ones == [communicator.world_size() as i32; 2] {
        return Ok(());
    }
    Err(CollectiveError::InvalidArgument {
        rank: communicator.rank(),
        op: OperationKind::AllReduce,
        what: format!("the sum of ones is {ones:?}"),
    })
}

/// All-reduces ones in buffers of these lengths.
fn reduce(communicator: &mut dyn Communicator, op: ReduceOp, lengths: &[usize]) -> Result<()> {
    let mut memory: Vec<Vec<f32>> = lengths.iter().map(|length| vec![1.0; *length]).collect();
    let mut buffers: Vec<Buffer<'_>> = memory.iter_mut().map(|one| (&mut one[..]).into()).collect();
    communicator.all_reduce(op, &mut buffers)
}

fn broadcast(communicator: &mut dyn Communicator, root: usize, elements: usize) -> Result<()> {
    let mut memory = vec![1.0_f32; elements];
    communicator.broadcast(root, &mut [(&mut memory[..]).into()])
}

fn reduce_to(communicator: &mut dyn Communicator, root: usize, elements: usize) -> Result<()> {
    let mut memory = vec![1.0_f32; elements];
    communicator.reduce(ReduceOp::Sum, root, &mut [(&mut memory[..]).into()])
}

const CASES: [Case; 15] = [
    Case::mismatch(
        "operation",
        OperationKind::AllReduce,
        ["all_reduce", "broadcast"],
        |rank, n, odd| match odd {
            false => reduce(rank, ReduceOp::Sum, &[n]),
            true => broadcast(rank, 0, n),
        },
    ),
    Case::mismatch(
        "operation of all elements",
        OperationKind::AllReduce,
        ["all_reduce", "reduce_scatter"],
        |rank, n, odd| match odd {
            false => reduce(rank, ReduceOp::Sum, &[n]),
            true => {
                let mut memory = vec![1.0_f32; n];
                rank.reduce_scatter(ReduceOp::Sum, (&mut memory[..]).into())
                    .map(drop)
            }
        },
    ),
    Case::mismatch(
        "reduction",
        OperationKind::AllReduce,
        ["sum", "max"],
        |rank, n, odd| reduce(rank, if odd { ReduceOp::Max } else { ReduceOp::Sum }, &[n]),
    ),
    Case::mismatch(
        "reduction of shares",
        OperationKind::ReduceScatter,
        ["min", "mean"],
        |rank, n, odd| {
            let op = if odd { ReduceOp::Mean } else { ReduceOp::Min };
            let mut memory = vec![1.0_f32; n];
            rank.reduce_scatter(op, (&mut memory[..]).into()).map(drop)
        },
    ),
    Case::mismatch(
        "dtype",
        OperationKind::AllReduce,
        ["f32", "i32"],
        |rank, n, odd| match odd {
            false => reduce(rank, ReduceOp::Sum, &[n]),
            true => rank.all_reduce(ReduceOp::Sum, &mut [(&mut vec![1_i32; n][..]).into()]),
        },
    ),
    Case::mismatch(
        "dtype of a gathering",
        OperationKind::AllGather,
        ["f32", "u8"],
        |rank, n, odd| match odd {
            false => rank.all_gather(&vec![1.0_f32; n]).map(drop),
            true => rank.all_gather(&vec![1_u8; 4 * n]).map(drop),
        },
    ),
    Case::mismatch(
        "count",
        OperationKind::AllReduce,
        ["count", "3"],
        |rank, n, odd| reduce(rank, ReduceOp::Sum, &[n + usize::from(odd)]),
    ),
    Case::mismatch(
        "number of buffers",
        OperationKind::AllReduce,
        ["1", "2"],
        |rank, n, odd| match odd {
            false => reduce(rank, ReduceOp::Sum, &[3 * n]),
            true => reduce(rank, ReduceOp::Sum, &[n, 2 * n]),
        },
    ),
    Case::mismatch(
        "layout",
        OperationKind::AllReduce,
        ["lengths", "buffers"],
        |rank, n, odd| match odd {
            false => reduce(rank, ReduceOp::Sum, &[n, 2 * n]),
            true => reduce(rank, ReduceOp::Sum, &[2 * n, n]),
        },
    ),
    Case::mismatch(
        "root",
        OperationKind::Broadcast,
        ["0", "1"],
        |rank, n, odd| broadcast(rank, usize::from(odd), n),
    ),
    Case::mismatch(
        "root of a reduction",
        OperationKind::Reduce,
        ["0", "1"],
        |rank, n, odd| reduce_to(rank, usize::from(odd), n),
    ),
    Case::mismatch(
        "root, which is no rank",
        OperationKind::Broadcast,
        ["0", "1000"],
        |rank, n, odd| broadcast(rank, if odd { 1000 } else { 0 }, n),
    ),
    Case::mismatch(
        "order",
        OperationKind::Barrier,
        ["barrier", "all_reduce"],
        |rank, n, odd| match odd {
            false => rank
                .barrier()
                .and_then(|()| reduce(rank, ReduceOp::Sum, &[n])),
            true => reduce(rank, ReduceOp::Sum, &[n]).and_then(|()| rank.barrier()),
        },
    ),
    Case::refused(
        "root than any rank",
        OperationKind::Broadcast,
        |rank, n, _| {
            let beyond = rank.world_size();
            broadcast(rank, beyond, n)
        },
    ),
    Case::refused(
        "root of a reduction than any rank",
        OperationKind::Reduce,
        |rank, n, _| {
            let beyond = rank.world_size();
            reduce_to(rank, beyond, n)
        },
    ),
];
