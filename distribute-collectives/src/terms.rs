//! The all-reduce of ranks that have several terms each, in canonical order over all terms.
//!
//! A rank hands in what its terms give as far as the [`tree`] allows: the result of each of its
//! [subtrees](tree::subtrees). Where every rank has one and these make the tree over the ranks (so
//! it is for equal powers of two), that is an all-reduce of the group. Otherwise
//!
//! 1. the ranks tell each other what they are about to do, and refuse it where they differ;
//! 2. every two ranks meet once, and each sends the other its part of the other's chunk, of all its
//!    subtrees;
//! 3. every rank combines its chunk of all subtrees, in the order of the tree;
//! 4. all ranks get all chunks.
//!
//! - Steps: `P` and the steps of an all-gather. Bytes sent by a rank with `k` subtrees:
//!   `(k + 1) S (P - 1)/P`; a ring's are `2S(P - 1)/P`.
//! - Memory: a chunk of every subtree. It is not kept.
//! - In step 2 ranks meet as in a tournament: in each round a rank has at most one partner, and the
//!   lower of the two sends first. So no rank waits for one that waits.

use half::{bf16, f16};

use crate::algorithm::exchange::{element_bytes, pack, unpack};
use crate::buffer::{Buffer, Element, with_dtype};
use crate::communicator::{Communicator, CommunicatorExt, chunk_range};
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::options::WireType;
use crate::pieces;
use crate::reduce::{self, ReduceOp};
use crate::tree;

/// Where the terms of a reduction lie: how many each rank of a group has, and what they travel as.
///
/// Rank 0 has the first ones, rank 1 those after them, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The first term of each rank, and the number of terms.
    firsts: Vec<usize>,
    /// The first term of each subtree that a rank hands in, by rank.
    starts: Vec<Vec<usize>>,
    /// Whether every rank has one subtree, and these make the tree over the ranks.
    is_tree_of_ranks: bool,
    wire: Option<WireType>,
}

impl Terms {
    /// This many terms in each rank, rank 0 first.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when there is no rank, a rank has no term, or they are
    /// more than can be counted.
    pub fn new(counts: impl IntoIterator<Item = usize>) -> Result<Self> {
        let mut firsts = vec![0_usize];
        for (rank, count) in counts.into_iter().enumerate() {
            let first = firsts[rank].checked_add(count).filter(|_| count > 0);
            firsts.push(first.ok_or_else(|| CollectiveError::InvalidOption {
                what: format!(
                    "rank {rank} has {count} terms: it needs one, and all can be counted"
                ),
            })?);
        }
        let Some(total) = firsts.last().copied().filter(|total| *total > 0) else {
            let what = "a group has at least 1 rank, which has terms".to_string();
            return Err(CollectiveError::InvalidOption { what });
        };
        let ranges = firsts.windows(2).map(|pair| pair[0]..pair[1]);
        let starts: Vec<Vec<usize>> = ranges
            .map(|range| tree::subtrees(total, range).map(|it| it.start).collect())
            .collect();
        let all = starts.concat();
        let one_each = all.len() == starts.len();
        let is_tree_of_ranks =
            one_each && tree::pairs(total, &all).eq(tree::pairs_of_terms(all.len()));
        Ok(Terms {
            firsts,
            starts,
            is_tree_of_ranks,
            wire: None,
        })
    }

    /// What `f32` elements travel as, as in [`GroupOptions::wire`](crate::GroupOptions::wire) of
    /// the group (default: what they are). Then every term, and what a rank makes of some of its
    /// own, counts as it would have travelled; ranks that combine terms among themselves have to
    /// round likewise, for example in a group with the same wire type.
    #[must_use]
    pub fn wire(mut self, wire: impl Into<Option<WireType>>) -> Self {
        self.wire = wire.into();
        self
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.starts.len()
    }

    /// Number of terms of all ranks.
    pub fn total(&self) -> usize {
        self.firsts[self.world_size()]
    }

    /// How many terms each subtree that a rank hands in is the result of.
    ///
    /// # Panics
    /// When `rank` is not below the world size.
    pub fn subtrees(&self, rank: usize) -> Vec<usize> {
        let range = self.firsts[rank]..self.firsts[rank + 1];
        let parts = tree::subtrees(self.total(), range);
        parts.map(|part| part.len()).collect()
    }

    /// Whether the ranks' results make the tree over the ranks, so that an all-reduce of the group
    /// in canonical order combines them.
    pub fn is_tree_of_ranks(&self) -> bool {
        self.is_tree_of_ranks
    }

    /// Combines the results of all ranks' subtrees, rank 0's first, where one rank has them all.
    /// `None` when they are not as many.
    pub fn combine<R>(&self, results: Vec<R>, combine: impl FnMut(R, R) -> R) -> Option<R> {
        let starts = self.starts.concat();
        if starts.len() != results.len() {
            return None;
        }
        let ends = starts[1..].iter().copied().chain([self.total()]);
        let subtrees = starts.iter().zip(ends).map(|(start, end)| *start..end);
        tree::fold_subtrees(self.total(), subtrees.zip(results), combine)
    }

    /// Combines the terms of all ranks, of which each may have several, in canonical order: the
    /// result depends on the number of terms, not on the ranks that they lie in.
    ///
    /// `buffers` are what this rank's terms give, one result for each of its
    /// [subtrees](Self::subtrees), all with the same lengths: first all buffers of the first
    /// subtree, then all of the second, and so on. Every rank ends with the result in the first
    /// ones; what the others hold is unspecified. A mean is the sum divided by the number of terms.
    ///
    /// Bytes: as an all-reduce if every rank has one subtree and these make the tree of
    /// the ranks, as equal powers of two do; then the order is the group's, which has to be
    /// [canonical](crate::Order::Canonical). Otherwise a rank with `k` subtrees sends `(k + 1) / 2`
    /// times the bytes of a ring, by calls that every communicator has, and the memory of a chunk
    /// of every subtree is allocated.
    ///
    /// ```
    /// use distribute_collectives::{GroupOptions, ReduceOp, Terms, in_process};
    ///
    /// // Rank 0 has the terms 1, 2 and 3, rank 1 has 4.
    /// let terms = Terms::new([3, 1])?;
    /// assert_eq!((terms.subtrees(0), terms.subtrees(1)), (vec![2, 1], vec![1]));
    /// let mut group = in_process(2, GroupOptions::default())?;
    /// let [rank_0, rank_1] = &mut group[..] else { unreachable!() };
    /// let (mut pair, mut third, mut fourth) = ([1.0_f32 + 2.0], [3.0_f32], [4.0_f32]);
    /// let mut of_1 = [(&mut fourth[..]).into()];
    /// std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| terms.all_reduce(rank_1, ReduceOp::Mean, &mut of_1));
    ///     let own = &mut [(&mut pair[..]).into(), (&mut third[..]).into()];
    ///     terms.all_reduce(rank_0, ReduceOp::Mean, own).unwrap();
    ///     other.join().unwrap().unwrap();
    /// });
    /// assert_eq!((pair, fourth), ([2.5], [2.5]));
    /// # Ok::<(), distribute_collectives::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the operations it is made of. [`InvalidArgument`] when the buffers are not as
    /// many for each subtree; on all ranks, and the group goes on, when they do not make the same
    /// call, unless it is an all-reduce of the group ([`is_tree_of_ranks`](Self::is_tree_of_ranks))
    /// on one of them, whose differences are a mismatch like any other.
    ///
    /// [`InvalidArgument`]: crate::CollectiveError::InvalidArgument
    pub fn all_reduce<C: Communicator + ?Sized>(
        &self,
        communicator: &mut C,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        let own = OperationHeader::new(OperationKind::AllReduce, 0, 0).with_op(op);
        let refused = |what: String| Err(own.refused(rank, what));
        if self.world_size() != world_size {
            return refused(format!(
                "terms of {} ranks in a group of {world_size}",
                self.world_size()
            ));
        }
        let parts = self.starts[rank].len();
        let each = buffers.len() / parts;
        let header = own.with_buffers(rank, &buffers[..each])?;
        let mut lists = buffers.chunks(each.max(1));
        if each * parts != buffers.len()
            || !lists.all(|list| own.with_buffers(rank, list) == Ok(header))
        {
            return refused(format!(
                "{} buffers are not the same ones {parts} times, once per subtree of this rank",
                buffers.len()
            ));
        }
        let inner = op.undivided();
        if self.is_tree_of_ranks {
            communicator.all_reduce(inner, buffers)?;
        } else {
            compare(communicator, &header, self)?;
            let mut exchange = Exchange {
                communicator,
                op: inner,
                terms: self,
                wire: header.with_wire(self.wire).wire(),
                each,
            };
            match (header.dtype, exchange.wire) {
                (None, _) => {}
                (Some(_), Some(WireType::Bf16)) => exchange.run::<f32, bf16>(buffers)?,
                (Some(_), Some(WireType::F16)) => exchange.run::<f32, f16>(buffers)?,
                (Some(dtype), None) => with_dtype!(dtype, T => exchange.run::<T, T>(buffers)?),
            }
        }
        if op == ReduceOp::Mean {
            let result = buffers[..each].iter_mut();
            result.for_each(|buffer| reduce::divide(buffer, self.total()));
        }
        Ok(())
    }
}

/// Refuses on all ranks what they do not all do.
fn compare<C: Communicator + ?Sized>(
    communicator: &mut C,
    header: &OperationHeader,
    terms: &Terms,
) -> Result<()> {
    let rank = communicator.rank();
    let mut said = header.with_wire(terms.wire).encode().to_vec();
    let firsts = terms.firsts.iter();
    said.extend(firsts.flat_map(|first| (*first as u64).to_le_bytes()));
    let all = communicator.all_gather(&said)?;
    let Some(other) = all.iter().position(|other| other != all.rank(0)) else {
        return Ok(());
    };
    let read = |rank: usize| {
        let bytes = all.rank(rank).first_chunk()?;
        OperationHeader::decode(bytes).ok()
    };
    let of_calls = read(0).zip(read(other));
    let what = of_calls
        .and_then(|(first, other)| first.first_difference(&other))
        .unwrap_or_else(|| "the numbers of terms of the ranks differ".to_string());
    let what = format!("rank 0 and rank {other} make different calls: {what}");
    Err(header.refused(rank, what))
}

/// One operation of one rank.
struct Exchange<'a, C: ?Sized> {
    communicator: &'a mut C,
    op: ReduceOp,
    terms: &'a Terms,
    wire: Option<WireType>,
    /// Buffers of the result.
    each: usize,
}

impl<C: Communicator + ?Sized> Exchange<'_, C> {
    /// Elements `T`, which travel and are combined as `W`.
    fn run<T: Element, W: Element>(&mut self, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let (rank, world_size) = (self.communicator.rank(), self.terms.world_size());
        let len = pieces::len(&buffers[..self.each]);
        let chunk = |rank: usize| chunk_range(len, world_size, rank).len();
        let zero = <W as bytemuck::Zeroable>::zeroed();
        let starts = self.terms.starts.iter();
        let parts = starts.map(|starts| vec![zero; chunk(rank) * starts.len()]);
        let mut parts: Vec<Vec<W>> = parts.collect();
        self.pack::<T, W>(buffers, rank, &mut parts[rank]);
        let mut outgoing = Vec::new();
        for round in 0..rounds(world_size) {
            let Some(peer) = partner(world_size, round, rank) else {
                continue;
            };
            let count = chunk(peer) * self.terms.starts[rank].len();
            outgoing.resize(count, zero);
            self.pack::<T, W>(buffers, peer, &mut outgoing);
            for sends in [rank < peer, rank > peer] {
                let to_move = if sends {
                    &mut outgoing
                } else {
                    &mut parts[peer]
                };
                match (sends, to_move.is_empty()) {
                    (_, true) => {}
                    (true, _) => self.communicator.send(peer, W::buffer(to_move))?,
                    (false, _) => self.communicator.recv(peer, W::buffer(to_move))?,
                }
            }
        }
        let all = parts
            .iter_mut()
            .flat_map(|part| part.chunks_mut(chunk(rank).max(1)));
        let op = self.op;
        let own = self
            .terms
            .combine(all.collect(), |below: &mut [W], above: &mut [W]| {
                reduce::accumulate(op, below, above);
                below
            });
        // There is none of a chunk without elements.
        let own = own.map_or(&[][..], |own| own);
        let gathered = self.communicator.all_gather::<W>(own)?;
        let frame = bytemuck::cast_slice(gathered.values());
        unpack::<T>(self.wire, &mut buffers[..self.each], 0..len, frame);
        Ok(())
    }

    /// The own subtrees' elements of a rank's chunk, one subtree after the other.
    fn pack<T: Element, W: Element>(&self, buffers: &[Buffer<'_>], owner: usize, frame: &mut [W]) {
        let len = pieces::len(&buffers[..self.each]);
        let range = chunk_range(len, self.terms.world_size(), owner);
        let bytes = range.len() * element_bytes::<T>(self.wire);
        let frames = bytemuck::cast_slice_mut(frame).chunks_mut(bytes.max(1));
        for (frame, buffers) in frames.zip(buffers.chunks(self.each.max(1))) {
            pack::<T>(self.wire, buffers, range.clone(), frame);
        }
    }
}

/// Rounds in which each of this many players meets each other one once.
fn rounds(players: usize) -> usize {
    players.next_multiple_of(2) - 1
}

/// The opponent of a player in a round (the circle method); `None` for one player if their number
/// is odd.
fn partner(players: usize, round: usize, player: usize) -> Option<usize> {
    // One stays where it is, the others move around it.
    let moving = rounds(players);
    let opposite = |player: usize| (round + moving - player) % moving;
    let partner = match player {
        // Of the others one would meet itself.
        fixed if fixed == moving => (0..moving).find(|player| opposite(*player) == *player)?,
        player if opposite(player) == player => moving,
        player => opposite(player),
    };
    (partner < players).then_some(partner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_players_meet_once() {
        for players in 1..=17 {
            let mut met = vec![0; players * players];
            for round in 0..rounds(players) {
                for player in 0..players {
                    let Some(other) = partner(players, round, player) else {
                        continue;
                    };
                    assert_eq!(partner(players, round, other), Some(player), "{players}");
                    met[player * players + other] += 1;
                }
            }
            for (index, met) in met.iter().enumerate() {
                let expected = usize::from(index / players != index % players);
                assert_eq!(*met, expected, "{players} players, {index}");
            }
        }
    }

    #[test]
    fn equal_powers_of_two_make_the_tree_of_the_ranks() {
        let is_tree = |counts: &[usize]| {
            let terms = Terms::new(counts.iter().copied()).unwrap();
            terms.is_tree_of_ranks
        };
        for counts in [
            &[8][..],
            &[4, 4],
            &[2; 4],
            &[1; 8],
            &[1; 7],
            &[2, 1],
            &[2, 2, 4],
            &[4, 4, 3],
        ] {
            assert!(is_tree(counts), "{counts:?}");
        }
        for counts in [
            &[3, 3, 2][..],
            &[5, 2, 1],
            &[4, 2, 1],
            &[1, 2],
            &[3, 3],
            &[4, 2, 2],
        ] {
            assert!(!is_tree(counts), "{counts:?}");
        }
    }

    #[test]
    fn what_is_no_distribution_of_terms_is_refused() {
        for counts in [&[][..], &[0], &[2, 0], &[usize::MAX, 1]] {
            let error = Terms::new(counts.iter().copied()).unwrap_err();
            assert!(
                matches!(error, CollectiveError::InvalidOption { .. }),
                "{error}"
            );
        }
        let terms = Terms::new([5, 2, 1]).unwrap();
        let parts: Vec<_> = (0..3).map(|rank| terms.subtrees(rank)).collect();
        assert_eq!(parts, [vec![4, 1], vec![1, 1], vec![1]]);
    }
}
