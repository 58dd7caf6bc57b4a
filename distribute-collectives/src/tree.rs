//! The canonical order of a reduction: one binary tree over all terms.
//!
//! A *term* is one of the values that are combined: what a rank gives, or one of several that lie
//! in a rank (the replicas of a process). Terms have numbers from 0. A tree over more than one term
//! has the terms below the largest power of two that is less than their number on its left side and
//! the others on its right side, as the trees of RFC 6962 (2.1) have; each side is such a tree. So
//! the node over terms `i * s .. (i + 1) * s`, for a power of two `s`, is the same one in a tree
//! over any number of terms, where it ends with the last term:
//!
//! ```text
//! 3 terms: (0+1)+2    5: ((0+1)+(2+3))+4    7: ((0+1)+(2+3))+((4+5)+6)
//! ```
//!
//! What is computed depends on the number of terms alone, not on where they lie: a rank that has
//! the terms of a *subtree* can combine them, and a contiguous range of terms consists of few
//! subtrees ([`subtrees`]): one for a power of two of terms that begins at a multiple of it, at
//! most two per level of the tree.
//!
//! Every node is rounded to the type of the elements, or to what they travel as; see
//! [`reduce`](crate::reduce).

use std::ops::Range;

/// Number of terms on the left side of a tree over `terms` terms, at least 2.
pub(crate) fn left_side(terms: usize) -> usize {
    1 << (terms - 1).ilog2()
}

/// The largest subtrees of the tree over `terms` terms that a range of terms consists of, in order.
///
/// ```
/// use distribute_collectives::tree;
///
/// let of = |range| tree::subtrees(8, range).collect::<Vec<_>>();
/// assert_eq!(of(4..8), [4..8]);
/// assert_eq!(of(3..6), [3..4, 4..6]);
/// assert_eq!(of(0..7), [0..4, 4..6, 6..7]);
/// // Where there are 7 terms, these are all of them.
/// assert_eq!(tree::subtrees(7, 0..7).collect::<Vec<_>>(), [0..7]);
/// ```
///
/// A range that ends behind the last term is cut there.
pub fn subtrees(terms: usize, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (mut start, end) = (range.start, range.end.min(terms));
    std::iter::from_fn(move || {
        (start < end).then(|| {
            let found = start..end_of_subtree(terms, start, end);
            start = found.end;
            found
        })
    })
}

/// Where the largest subtree ends that begins with term `start` and has no term from `end` on.
fn end_of_subtree(terms: usize, start: usize, end: usize) -> usize {
    let fits = |shift: &u32| {
        let size = 1_usize << shift;
        start.is_multiple_of(size) && (end == terms || size <= end - start)
    };
    // From this size on every subtree ends with the last term.
    let most = usize::BITS - (terms - 1).leading_zeros();
    let shift = (0..=most.min(usize::BITS - 1)).rev().find(fits);
    end.min(start.saturating_add(1 << shift.unwrap_or(0)))
}

/// How often the last two results that are left are combined once the result of a subtree has come
/// after all earlier terms: then no complete node is in parts.
pub(crate) fn merges_after(terms: usize, subtree: &Range<usize>) -> usize {
    // The largest subtrees that the terms before `end` consist of.
    let nodes = |end: usize| {
        if end == terms {
            1
        } else {
            end.count_ones() as usize
        }
    };
    nodes(subtree.start) + 1 - nodes(subtree.end)
}

/// Combines terms in the order of the tree, the left side with the right one. `None` without terms.
///
/// ```
/// use distribute_collectives::tree;
///
/// let words = (0..5).map(|term| term.to_string());
/// let tree = tree::fold(words, |left, right| format!("({left}+{right})"));
/// assert_eq!(tree.as_deref(), Some("(((0+1)+(2+3))+4)"));
/// ```
pub fn fold<R>(
    terms: impl ExactSizeIterator<Item = R>,
    combine: impl FnMut(R, R) -> R,
) -> Option<R> {
    let total = terms.len();
    let subtrees = terms
        .enumerate()
        .map(|(term, result)| (term..term + 1, result));
    fold_subtrees(total, subtrees, combine)
}

/// Combines the results of all subtrees that `terms` terms consist of, which come in order.
pub(crate) fn fold_subtrees<R>(
    terms: usize,
    subtrees: impl Iterator<Item = (Range<usize>, R)>,
    mut combine: impl FnMut(R, R) -> R,
) -> Option<R> {
    let mut left: Vec<R> = Vec::with_capacity(depth(terms) + 1);
    for (subtree, mut result) in subtrees {
        for _ in 0..merges_after(terms, &subtree) {
            result = combine(left.pop()?, result);
        }
        left.push(result);
    }
    left.pop()
}

/// Most results that are left at a time when the terms come one after the other.
pub(crate) fn depth(terms: usize) -> usize {
    let bits = usize::BITS - terms.saturating_sub(1).leading_zeros();
    bits.max(1) as usize
}

/// Which results are combined, in turn, when all subtrees that `terms` terms consist of are there:
/// the second of a pair goes into the first, and the result of all terms into 0. `starts` has the
/// first term of each subtree, ascending.
pub(crate) fn pairs<'a>(
    terms: usize,
    starts: &'a [usize],
) -> impl Iterator<Item = (usize, usize)> + 'a {
    left_sides(terms).flat_map(move |size| {
        starts.iter().enumerate().filter_map(move |(from, start)| {
            // A right side begins at an odd multiple of its size.
            let is_right = start.is_multiple_of(size) && !(start / size).is_multiple_of(2);
            let into = starts.binary_search(&start.wrapping_sub(size));
            into.ok().filter(|_| is_right).map(|into| (into, from))
        })
    })
}

/// As [`pairs`], where every term is there by itself. Does not allocate.
pub(crate) fn pairs_of_terms(terms: usize) -> impl Iterator<Item = (usize, usize)> {
    left_sides(terms).flat_map(move |size| {
        let left = (0..terms - size).step_by(2 * size);
        left.map(move |into| (into, into + size))
    })
}

/// The sizes that a left side can have, from the leaves on.
fn left_sides(terms: usize) -> impl Iterator<Item = usize> {
    let sizes = (0..usize::BITS).map(|level| 1_usize << level);
    sizes.take_while(move |size| *size < terms)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The tree in words, as the definition has it.
    fn naive(range: Range<usize>) -> String {
        if range.len() == 1 {
            return range.start.to_string();
        }
        let mut left = 1;
        while 2 * left < range.len() {
            left *= 2;
        }
        let middle = range.start + left;
        let (left, right) = (naive(range.start..middle), naive(middle..range.end));
        format!("({left}+{right})")
    }

    /// The ranges of all nodes.
    fn nodes(range: Range<usize>, found: &mut Vec<Range<usize>>) {
        found.push(range.clone());
        if range.len() > 1 {
            let middle = range.start + left_side(range.len());
            nodes(range.start..middle, found);
            nodes(middle..range.end, found);
        }
    }

    /// Term counts from 1 to 33, cut into ranges in any way.
    fn splits() -> impl Strategy<Value = (usize, Vec<Range<usize>>)> {
        (1..=33_usize)
            .prop_flat_map(|terms| (Just(terms), prop::collection::vec(0..terms, 0..9)))
            .prop_map(|(terms, mut cuts)| {
                cuts.extend([0, terms]);
                cuts.sort_unstable();
                cuts.dedup();
                let ranges = cuts.windows(2).map(|pair| pair[0]..pair[1]);
                (terms, ranges.collect())
            })
    }

    proptest! {
        #[test]
        fn however_terms_are_split_their_subtrees_make_the_same_tree((terms, ranges) in splits()) {
            let mut tree = Vec::new();
            nodes(0..terms, &mut tree);
            let (mut parts, mut left, mut most) = (Vec::new(), Vec::new(), 0);
            for range in ranges {
                let own: Vec<_> = subtrees(terms, range.clone()).collect();
                prop_assert_eq!(own.first().map(|part| part.start), Some(range.start));
                prop_assert_eq!(own.last().map(|part| part.end), Some(range.end));
                for (index, part) in own.iter().enumerate() {
                    prop_assert!(tree.contains(part), "{part:?} is no subtree of {terms}");
                    let larger = |node: &&Range<usize>| {
                        node.start <= part.start && node.end >= part.end && *node != part
                            && node.start >= range.start && node.end <= range.end
                    };
                    prop_assert_eq!(tree.iter().find(larger), None);
                    let before = index.checked_sub(1).map(|before| own[before].end);
                    prop_assert_eq!(before.unwrap_or(range.start), part.start);
                }
                parts.extend(own);
            }
            let mut results: Vec<_> = parts.iter().cloned().map(naive).collect();
            for (part, result) in parts.iter().zip(&results) {
                left.push(result.clone());
                most = most.max(left.len());
                for _ in 0..merges_after(terms, part) {
                    let (right, below) = (left.pop().unwrap(), left.pop().unwrap());
                    left.push(format!("({below}+{right})"));
                }
            }
            prop_assert_eq!(left, [naive(0..terms)]);
            let starts: Vec<_> = parts.iter().map(|part| part.start).collect();
            for (into, from) in pairs(terms, &starts) {
                results[into] = format!("({}+{})", results[into], results[from]);
            }
            prop_assert_eq!(&results[0], &naive(0..terms));
        }
    }

    #[test]
    fn terms_by_themselves_make_the_tree() {
        for terms in 1..=33 {
            let starts: Vec<usize> = (0..terms).collect();
            let pairs: Vec<_> = pairs(terms, &starts).collect();
            assert_eq!(pairs, pairs_of_terms(terms).collect::<Vec<_>>());
            assert_eq!(pairs.len(), terms - 1);
            let (mut left, mut most) = (0, 0);
            for term in 0..terms {
                let merges = merges_after(terms, &(term..term + 1));
                // What is combined at once takes no place.
                left += usize::from(merges == 0);
                most = most.max(left);
                left -= merges.saturating_sub(1);
            }
            assert_eq!(left, 1);
            assert!(most <= depth(terms), "{most} results of {terms} terms");
        }
    }

    #[test]
    fn the_tree_is_that_of_the_definition() {
        assert_eq!(naive(0..3), "((0+1)+2)");
        assert_eq!(naive(0..5), "(((0+1)+(2+3))+4)");
        assert_eq!(naive(0..7), "(((0+1)+(2+3))+((4+5)+6))");
        assert!(subtrees(5, 0..9).eq(std::iter::once(0..5)));
        assert_eq!(subtrees(5, 5..9).count(), 0);
        assert_eq!(subtrees(0, 0..1).count(), 0);
    }
}
