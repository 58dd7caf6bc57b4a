//! Recursive halving and doubling along the canonical [`tree`](crate::tree), for any number of
//! ranks.
//!
//! The ranks are *blocks* of powers of two: 13 ranks are blocks of 8, 4 and 1, whose tree is
//! `b8 + (b4 + b1)`. Inside a block the ranks are numbered from 0 and run Rabenseifner's algorithm
//! with the distances in the order of the tree.
//!
//! Halving: at distance `d = 1, 2, 4, ...` a rank and its partner `number XOR d` hold the same
//! window of the vector, each combined over its own node of the tree. Each keeps one half (the
//! lower one when bit `d` of its number is 0), gives the other half away and combines what comes
//! with its own as the left or the right side of the next node. Doubling runs the same steps
//! backwards and copies. Every element is reduced on exactly one rank.
//!
//! A block that is not the first one gives its result to the block before: rank `n` of `2^k` ranks
//! gives its window to the rank with the same number, which holds the same window at distance
//! `2^k`. There the window is halved along, apart from the rank's own, and becomes the right side
//! of the last node when all distances are done. The result comes back the same way.
//!
//! - Steps: `2 log2 Q` for a first block of `Q` ranks, and at most 2 more for each further block.
//! - Partners: `log2 Q`, and at most 2 in the blocks beside.
//! - Bytes sent per rank: `2S(Q - 1)/Q`; next to a block of `R` ranks up to `2S/R` more.
//! - Order: canonical. Half types are combined in `f32` and rounded at every node.
//! - Memory: next to a block of `R` ranks up to `S/R` bytes; none for a power of two of ranks.

use std::ops::Range;

use crate::algorithm::exchange::{Exchange, Step};
use crate::buffer::Element;
use crate::error::Result;
use crate::reduce::Side;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let place = Place::of(exchange.rank(), exchange.size);
    exchange.round_own::<T>(0..exchange.len);
    halve::<T>(exchange, &place)?;
    if let Some(partner) = place.partner_before() {
        let window = place.window(exchange.len, place.levels);
        exchange.swap::<T>(partner, window.clone(), 0..0, Exchange::receive::<T>)?;
        exchange.swap::<T>(partner, 0..0, window, Exchange::receive::<T>)?;
    }
    double::<T>(exchange, &place)
}

/// The ranks with which a rank exchanges windows.
#[cfg(feature = "grpc")]
pub(crate) fn partners(rank: usize, size: usize) -> Vec<usize> {
    let place = Place::of(rank, size);
    let inside = (0..place.levels).map(|level| place.partner(level));
    let after = (0..place.levels).filter_map(|level| place.partner_after(level));
    inside.chain(after).chain(place.partner_before()).collect()
}

/// `2^levels` ranks.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    levels: u32,
}

/// Where a rank is among the blocks.
struct Place {
    first: usize,
    levels: u32,
    /// The rank's number in its block.
    number: usize,
    /// The first rank of the block before.
    before: Option<usize>,
    after: Option<Block>,
}

impl Place {
    fn of(rank: usize, size: usize) -> Self {
        let (mut before, mut first) = (None, 0);
        loop {
            let levels = (size - first).ilog2();
            let end = first + (1 << levels);
            if rank < end {
                let after = (end < size).then(|| Block {
                    first: end,
                    levels: (size - end).ilog2(),
                });
                return Self {
                    first,
                    levels,
                    number: rank - first,
                    before,
                    after,
                };
            }
            (before, first) = (Some(first), end);
        }
    }

    /// The rank of the block before that has the result of this one.
    fn partner_before(&self) -> Option<usize> {
        self.before.map(|first| first + self.number)
    }

    /// The rank of the block after whose window this one holds before this level.
    fn partner_after(&self, level: u32) -> Option<usize> {
        let block = self.after.filter(|block| block.levels == level)?;
        (self.number < 1 << level).then_some(block.first + self.number)
    }

    /// How what was given by the block after goes on at a level, if this rank takes part in that.
    fn passing(&self, level: u32) -> Option<Passing> {
        self.after.filter(|block| block.levels <= level)?;
        let distance = 1_usize << level;
        match self.number {
            number if number < distance => Some(Passing::Gives),
            number if number < 2 * distance => Some(Passing::Takes),
            _ => None,
        }
    }

    fn partner(&self, level: u32) -> usize {
        self.first + (self.number ^ (1 << level))
    }

    /// This rank's part of the vector after `levels` halvings.
    fn window(&self, len: usize, levels: u32) -> Range<usize> {
        (0..levels).fold(0..len, |window, level| self.halves(window, level).0)
    }

    /// The halves of a window at a level: (kept, given).
    fn halves(&self, window: Range<usize>, level: u32) -> (Range<usize>, Range<usize>) {
        let middle = window.start + window.len() / 2;
        let (low, high) = (window.start..middle, middle..window.end);
        if self.is_left(level) {
            (low, high)
        } else {
            (high, low)
        }
    }

    /// Whether this rank is on the left side of the node that combines it with its partner.
    fn is_left(&self, level: u32) -> bool {
        self.number & (1 << level) == 0
    }

    /// What the last node of this block is.
    fn last_step(&self) -> Step {
        if self.before.is_none() {
            Step::End
        } else {
            Step::Combine
        }
    }
}

enum Passing {
    Gives,
    Takes,
}

/// Leaves the rank with its window combined over its block and all blocks after.
fn halve<T: Element>(exchange: &mut Exchange<'_, '_>, place: &Place) -> Result<()> {
    let mut window = 0..exchange.len;
    // Where the window began when this rank got that of the block after.
    let mut aside = 0;
    for level in 0..place.levels {
        if let Some(partner) = place.partner_after(level) {
            aside = window.start;
            exchange.receive_aside::<T>(partner, window.clone(), aside)?;
        }
        let (kept, given) = place.halves(window, level);
        let is_last = level + 1 == place.levels && place.after.is_none();
        let step = if is_last {
            place.last_step()
        } else {
            Step::Combine
        };
        let side = if place.is_left(level) {
            Side::Right
        } else {
            Side::Left
        };
        let partner = place.partner(level);
        exchange.swap::<T>(
            partner,
            given.clone(),
            kept.clone(),
            |exchange, from, range| exchange.receive_own::<T>(from, &range, side, step),
        )?;
        match place.passing(level) {
            Some(Passing::Gives) => exchange.send_aside::<T>(partner, given, aside)?,
            Some(Passing::Takes) => {
                aside = kept.start;
                exchange.receive_aside::<T>(partner, kept.clone(), aside)?;
            }
            None => {}
        }
        window = kept;
    }
    if place.after.is_some() {
        exchange.combine_aside::<T>(&window, aside, place.last_step());
    }
    Ok(())
}

/// Gives every rank of the block, and of the blocks after, the whole result.
fn double<T: Element>(exchange: &mut Exchange<'_, '_>, place: &Place) -> Result<()> {
    for level in (0..place.levels).rev() {
        let window = place.window(exchange.len, level);
        let (kept, given) = place.halves(window.clone(), level);
        exchange.swap::<T>(place.partner(level), kept, given, Exchange::receive::<T>)?;
        if let Some(partner) = place.partner_after(level) {
            exchange.swap::<T>(partner, window, 0..0, Exchange::receive::<T>)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_few_partners() {
        for size in 1..1100_usize {
            let levels = size.ilog2();
            for rank in 0..size {
                let place = Place::of(rank, size);
                let after = (0..place.levels).filter_map(|level| place.partner_after(level));
                let beside = after.count() + usize::from(place.partner_before().is_some());
                assert!(place.levels <= levels && beside <= 2, "{rank} of {size}");
            }
        }
    }

    #[test]
    fn blocks_meet_at_the_same_window() {
        for size in 1..70_usize {
            for rank in 0..size {
                let place = Place::of(rank, size);
                let Some(partner) = place.partner_before() else {
                    continue;
                };
                let other = Place::of(partner, size);
                assert_eq!(other.partner_after(place.levels), Some(rank));
                let windows = [&place, &other].map(|it| it.window(1000, place.levels));
                assert_eq!(windows[0], windows[1], "{rank} of {size}");
            }
        }
    }
}
