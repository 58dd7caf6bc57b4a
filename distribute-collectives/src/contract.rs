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
use crate::terms::Terms;

/// Elements of a buffer: few enough for one message, and enough for many.
const ELEMENTS: [usize; 2] = [3, 30_000];

/// What a rank calls, with a number of elements in each buffer.
#[derive(Clone, Copy)]
enum Call {
    /// For buffers with a multiple of the elements, and some more in the last one.
    AllReduce(ReduceOp, &'static [usize], usize),
    AllReduceIntegers,
    ReduceScatter(ReduceOp),
    GatherFloats,
    GatherBytes,
    /// From a root; without one from a rank that does not exist.
    Broadcast(Option<usize>),
    /// To a root; without one to a rank that does not exist.
    Reduce(Option<usize>),
    /// Of ranks with a term each, but three in this one.
    Terms(ReduceOp, usize),
    Barrier,
    /// Passes a buffer, of integers or not and with this many elements more, from a rank to the
    /// next: the one that differs and the one below, or rank 0 and 1. A group that has no `send`
    /// and `recv` refuses all that is passed.
    Pass(bool, usize),
}

/// One way in which ranks disagree; see [`cases`].
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    usual: Call,
    /// What one rank calls: with few elements the highest, with many the one in the middle (of two
    /// ranks the lower).
    odd: Call,
    /// What the mismatch names; none where the call is refused and the group goes on.
    values: Option<[&'static str; 2]>,
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
            let ranks: Vec<_> = group
                .iter_mut()
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
    let all = CASES
        .iter()
        .flat_map(|case| ELEMENTS.map(|elements| (case, elements)));
    all.map(|((name, usual, odd, values), elements)| Case {
        name,
        usual: *usual,
        odd: *odd,
        values: *values,
        elements,
    })
}

impl Case {
    /// Plays one rank of a new group of at least two; all ranks play the same case. One rank
    /// differs: the highest, and with many elements the one in the middle.
    ///
    /// # Errors
    /// [`ContractError`], which says what this rank got in the place of what it must get.
    pub fn check(self, communicator: &mut dyn Communicator) -> Result<(), ContractError> {
        let (rank, size) = (communicator.rank(), communicator.world_size());
        sum(communicator).map_err(|cause| self.no_group(cause))?;
        let odd = if self.elements == ELEMENTS[0] {
            size - 1
        } else {
            (size - 1) / 2
        };
        let call = if rank == odd { self.odd } else { self.usual };
        let from = odd.saturating_sub(1);
        let values = if self.is_refused(communicator, from)? {
            None
        } else {
            self.values
        };
        let Err(error) = call.make(communicator, self.elements, from) else {
            return Err(self.outcome(rank, "a result"));
        };
        let named = |text: &str| values.is_some_and(|all| all.iter().all(|it| text.contains(it)));
        let kept = match &error {
            CollectiveError::Mismatch {
                rank_a,
                rank_b,
                op,
                what,
                ..
            } => {
                // It is named by the lower rank's call.
                let kind = if *rank_a == odd {
                    self.odd.kind()
                } else {
                    self.usual.kind()
                };
                let is_named = [*rank_a, *rank_b].contains(&odd);
                rank_a < rank_b && is_named && *op == kind && named(what)
            }
            // A rank that has no part in what is passed may only hear of it.
            CollectiveError::Aborted { rank: by, reason }
                if matches!(self.usual, Call::Pass(..)) && ![from, from + 1].contains(&rank) =>
            {
                [from, from + 1].contains(by) && named(reason)
            }
            CollectiveError::InvalidArgument { op, .. } => {
                values.is_none() && *op == self.usual.kind()
            }
            _ => false,
        };
        if !kept {
            return Err(self.outcome(rank, &error));
        }
        match (values, sum(communicator)) {
            (None, Ok(())) => Ok(()),
            (Some(_), Err(later)) if later.root_cause() == &error => Ok(()),
            (_, Ok(())) => Err(self.outcome(rank, "the error, and then another result")),
            (_, Err(later)) => Err(self.outcome(rank, format!("{error}, and then {later}"))),
        }
    }

    /// Whether the group refuses what the case passes between two ranks also when both agree, as
    /// one without `send` and `recv` does.
    fn is_refused(
        self,
        communicator: &mut dyn Communicator,
        from: usize,
    ) -> Result<bool, ContractError> {
        let Call::Pass(..) = self.usual else {
            return Ok(false);
        };
        match self.usual.make(communicator, self.elements, from) {
            Ok(()) => Ok(false),
            Err(CollectiveError::InvalidArgument { .. }) => Ok(true),
            Err(cause) => Err(self.no_group(cause)),
        }
    }

    fn no_group(self, cause: CollectiveError) -> ContractError {
        let case = self.to_string();
        ContractError::Group { case, cause }
    }

    fn outcome(self, rank: usize, found: impl fmt::Display) -> ContractError {
        let kind = self.usual.kind();
        let expected = match self.values {
            Some([a, b]) => format!(
                "a mismatch of the rank that differs, in the operation of the lower of two ranks, \
                 with a text that names {a:?} and {b:?}, and then the same cause again"
            ),
            None => format!("a refusal of {kind}, and then a sum"),
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
    let (rank, op) = (communicator.rank(), OperationKind::AllReduce);
    let what = format!("the sum of ones is {ones:?}");
    Err(CollectiveError::InvalidArgument { rank, op, what })
}

impl Call {
    fn kind(self) -> OperationKind {
        match self {
            Call::AllReduce(..) | Call::AllReduceIntegers | Call::Terms(..) => {
                OperationKind::AllReduce
            }
            Call::ReduceScatter(_) => OperationKind::ReduceScatter,
            Call::GatherFloats | Call::GatherBytes => OperationKind::AllGather,
            Call::Broadcast(_) => OperationKind::Broadcast,
            Call::Reduce(_) => OperationKind::Reduce,
            Call::Barrier => OperationKind::Barrier,
            Call::Pass(..) => OperationKind::Send,
        }
    }

    fn make(self, communicator: &mut dyn Communicator, elements: usize, from: usize) -> Result<()> {
        let beyond = communicator.world_size();
        let mut ones = vec![1.0_f32; elements];
        let own = &mut ones[..];
        match self {
            Call::AllReduce(op, parts, more) => {
                let mut parts: Vec<_> = parts
                    .iter()
                    .map(|times| vec![1.0; times * elements])
                    .collect();
                if let Some(last) = parts.last_mut() {
                    last.resize(last.len() + more, 1.0_f32);
                }
                let parts = parts.iter_mut().map(|part| Buffer::F32(part));
                communicator.all_reduce(op, &mut parts.collect::<Vec<_>>())
            }
            Call::AllReduceIntegers => {
                let mut ones = vec![1_i32; elements];
                communicator.all_reduce(ReduceOp::Sum, &mut [(&mut ones[..]).into()])
            }
            Call::ReduceScatter(op) => communicator.reduce_scatter(op, own.into()).map(drop),
            Call::GatherFloats => communicator.all_gather(own).map(drop),
            Call::GatherBytes => communicator
                .all_gather(bytemuck::cast_slice::<_, u8>(own))
                .map(drop),
            Call::Broadcast(root) => {
                communicator.broadcast(root.unwrap_or(beyond), &mut [own.into()])
            }
            Call::Reduce(root) => {
                let root = root.unwrap_or(beyond);
                communicator.reduce(ReduceOp::Sum, root, &mut [own.into()])
            }
            Call::Terms(op, at) => {
                let rank = communicator.rank();
                let counts = (0..beyond).map(|rank| if rank == at { 3 } else { 1 });
                let terms = Terms::new(counts)?;
                let mut parts: Vec<_> = terms
                    .subtrees(rank)
                    .iter()
                    .map(|_| vec![1.0_f32; elements])
                    .collect();
                let parts = parts.iter_mut().map(|part| Buffer::F32(part));
                terms.all_reduce(communicator, op, &mut parts.collect::<Vec<_>>())
            }
            Call::Barrier => communicator.barrier(),
            Call::Pass(true, more) => {
                let mut integers = vec![1_i32; elements + more];
                pass(communicator, from, Buffer::I32(&mut integers))
            }
            Call::Pass(false, more) => {
                let mut floats = vec![1.0_f32; elements + more];
                pass(communicator, from, Buffer::F32(&mut floats))
            }
        }
    }
}

/// Passes a buffer from a rank to the next, and then tells all ranks whether the group has a way
/// to do so: a refusal is an error of all.
fn pass(communicator: &mut dyn Communicator, from: usize, buffer: Buffer<'_>) -> Result<()> {
    let rank = communicator.rank();
    let passed = match rank {
        _ if rank == from => communicator.send(from + 1, buffer),
        _ if rank == from + 1 => communicator.recv(from, buffer),
        _ => Ok(()),
    };
    let mut refusals = match passed {
        Err(CollectiveError::InvalidArgument { .. }) => [1],
        passed => passed.map(|()| [0])?,
    };
    communicator.all_reduce(ReduceOp::Sum, &mut [Buffer::I32(&mut refusals)])?;
    match refusals {
        [0] => Ok(()),
        _ => Err(CollectiveError::InvalidArgument {
            rank,
            op: OperationKind::Send,
            what: "the group has no send and recv".to_string(),
        }),
    }
}

const SUM: Call = Call::AllReduce(ReduceOp::Sum, &[1], 0);
const MAX: Call = Call::AllReduce(ReduceOp::Max, &[1], 0);
const ONE_MORE: Call = Call::AllReduce(ReduceOp::Sum, &[1], 1);
const IN_ONE: Call = Call::AllReduce(ReduceOp::Sum, &[3], 0);
const SHORT_FIRST: Call = Call::AllReduce(ReduceOp::Sum, &[1, 2], 0);
const LONG_FIRST: Call = Call::AllReduce(ReduceOp::Sum, &[2, 1], 0);
const MIN_OF_SHARES: Call = Call::ReduceScatter(ReduceOp::Min);
const MEAN_OF_SHARES: Call = Call::ReduceScatter(ReduceOp::Mean);
const IN_THE_FIRST: Call = Call::Terms(ReduceOp::Sum, 0);
const IN_THE_SECOND: Call = Call::Terms(ReduceOp::Sum, 1);
const MAX_OF_TERMS: Call = Call::Terms(ReduceOp::Max, 0);
const FROM: [Call; 3] = [
    Call::Broadcast(Some(0)),
    Call::Broadcast(Some(1)),
    Call::Broadcast(None),
];
const PASS: Call = Call::Pass(false, 0);
const TO: [Call; 2] = [Call::Reduce(Some(0)), Call::Reduce(None)];

/// What differs, what all ranks but one call, what that one calls, and what the mismatch
/// names.
const CASES: [(&str, Call, Call, Option<[&str; 2]>); 18] = [
    ("operation", SUM, FROM[0], Some(["all_reduce", "broadcast"])),
    (
        "kind of reduction",
        SUM,
        MIN_OF_SHARES,
        Some(["all_reduce", "reduce_scatter"]),
    ),
    ("reduction", SUM, MAX, Some(["sum", "max"])),
    (
        "reduction of shares",
        MIN_OF_SHARES,
        MEAN_OF_SHARES,
        Some(["min", "mean"]),
    ),
    ("dtype", SUM, Call::AllReduceIntegers, Some(["f32", "i32"])),
    (
        "dtype of a gathering",
        Call::GatherFloats,
        Call::GatherBytes,
        Some(["f32", "u8"]),
    ),
    ("count", SUM, ONE_MORE, Some(["count", "3"])),
    ("number of buffers", IN_ONE, SHORT_FIRST, Some(["1", "2"])),
    (
        "layout",
        SHORT_FIRST,
        LONG_FIRST,
        Some(["lengths", "buffers"]),
    ),
    ("root", FROM[0], FROM[1], Some(["0", "1"])),
    ("root, which is no rank", TO[0], TO[1], Some(["root", "0"])),
    ("order", Call::Barrier, SUM, Some(["barrier", "all_reduce"])),
    (
        "dtype of what is passed",
        PASS,
        Call::Pass(true, 0),
        Some(["f32", "i32"]),
    ),
    (
        "count of what is passed",
        PASS,
        Call::Pass(false, 1),
        Some(["count", "3"]),
    ),
    ("root than any rank", FROM[2], FROM[2], None),
    ("root of a reduction than any rank", TO[1], TO[1], None),
    ("distribution of terms", IN_THE_FIRST, IN_THE_SECOND, None),
    ("reduction of terms", IN_THE_FIRST, MAX_OF_TERMS, None),
];
