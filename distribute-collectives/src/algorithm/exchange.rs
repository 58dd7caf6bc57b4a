//! Sends and receives elements of the vector, segment by segment.

use std::ops::Range;

use crate::algorithm::compression;
use crate::buffer::{Buffer, Element, in_words};
use crate::error::Result;
use crate::options::WireType;
use crate::pieces;
use crate::reduce::{self, ReduceOp, Side};
use crate::transport::Transport;
use crate::tree;

/// One operation of one rank: its vector, its peers and its reduction.
pub(crate) struct Exchange<'a, 'b> {
    pub(crate) transport: &'a mut dyn Transport,
    /// The vector: these buffers one after the other.
    pub(crate) buffers: &'a mut [Buffer<'b>],
    /// Elements of the vector.
    pub(crate) len: usize,
    pub(crate) op: ReduceOp,
    /// What [`ReduceOp::Mean`] divides by.
    pub(crate) divisor: usize,
    /// Most elements of a segment.
    pub(crate) segment: usize,
    /// The ranks that take part are `first`, `first + stride`, `first + 2 * stride`, ...; they are
    /// numbered from 0 here.
    pub(crate) first: usize,
    pub(crate) stride: usize,
    /// Number of ranks that take part.
    pub(crate) size: usize,
    /// What `f32` elements travel as, when not as they are. Every fully reduced element is rounded
    /// to it where it is reduced, so that this rank has what the others receive.
    pub(crate) wire: Option<WireType>,
    /// Memory for a segment in the accumulator's type, or one for each level of the tree.
    pub(crate) scratch: &'a mut Vec<u64>,
}

/// Segment `index` of a range.
pub(crate) fn segment_of(range: &Range<usize>, segment: usize, index: usize) -> Range<usize> {
    // A segment may be as large as a number can be.
    let start = range.start.saturating_add(index.saturating_mul(segment));
    let start = range.end.min(start);
    start..range.end.min(start.saturating_add(segment))
}

/// All segments of a range.
pub(crate) fn segments_of(
    range: &Range<usize>,
    segment: usize,
) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
    let range = range.clone();
    (0..range.len().div_ceil(segment)).map(move |index| segment_of(&range, segment, index))
}

impl Exchange<'_, '_> {
    /// This rank among those that take part.
    pub(crate) fn rank(&self) -> usize {
        (self.transport.rank() - self.first) / self.stride
    }

    /// The number in the group of a rank that takes part.
    fn in_group(&self, rank: usize) -> usize {
        self.first + rank * self.stride
    }

    /// The segments of a range.
    pub(crate) fn segments(
        &self,
        range: &Range<usize>,
    ) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        segments_of(range, self.segment)
    }

    /// Bytes of an element on the wire.
    pub(crate) fn element_bytes<T: Element>(&self) -> usize {
        element_bytes::<T>(self.wire)
    }

    /// Sends elements. Nothing is sent for an empty range, and nothing expected.
    pub(crate) fn send<T: Element>(&mut self, to: usize, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let to = self.in_group(to);
        let (wire, buffers) = (self.wire, &*self.buffers);
        if let (None, Some(elements)) = (wire, pieces::in_one::<T>(buffers, &range)) {
            return self
                .transport
                .send_bytes(to, bytemuck::cast_slice(elements));
        }
        let bytes = range.len() * element_bytes::<T>(wire);
        self.transport.send_with(to, bytes, &mut |frame| {
            pack::<T>(wire, buffers, range.clone(), frame);
        })
    }

    /// Receives elements in place of the range's.
    pub(crate) fn receive<T: Element>(&mut self, from: usize, range: Range<usize>) -> Result<()> {
        self.receive_each::<T>(from, range, |piece, values| {
            bytemuck::cast_slice_mut(piece).copy_from_slice(values);
        })
    }

    /// Receives elements and combines them with the range's. `last` says that the range is
    /// fully reduced afterwards.
    pub(crate) fn receive_reduce<T: Element>(
        &mut self,
        from: usize,
        range: Range<usize>,
        last: bool,
    ) -> Result<()> {
        let rules = self.rules();
        self.receive_each::<T>(from, range, |piece, values| {
            if last {
                rules.take(Step::End, Side::Right, piece, values)
            } else {
                // What is passed on is rounded when it is sent.
                reduce::accumulate_bytes(rules.op, piece, values, Side::Right)
            }
        })
    }

    /// Receives elements for a range: `f` gets the range's elements, piece by piece, and the bytes
    /// of those that came for them.
    fn receive_each<T: Element>(
        &mut self,
        from: usize,
        range: Range<usize>,
        mut f: impl FnMut(&mut [T], &[u8]),
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (wire, each, from) = (self.wire, self.element_bytes::<T>(), self.in_group(from));
        let buffers = &mut *self.buffers;
        self.transport
            .receive_with(from, range.len() * each, &mut |frame| {
                pieces::for_each_mut::<T>(buffers, range.clone(), |offset, piece| {
                    let at = offset * each;
                    let frame = &frame[at..at + piece.len() * each];
                    for_received(wire, frame, |start, values| {
                        f(part_of(piece, start, values), values);
                    });
                });
            })
    }

    /// Sends one range and receives another one from the same rank at the same time.
    ///
    /// Sends run one segment ahead of receives: with room for two segments in each direction,
    /// neither side can wait for the other for ever.
    pub(crate) fn swap<T: Element>(
        &mut self,
        peer: usize,
        send: Range<usize>,
        receive: Range<usize>,
        mut on_receive: impl FnMut(&mut Self, usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let steps = self
            .segments(&send)
            .len()
            .max(self.segments(&receive).len());
        for step in 0..=steps {
            if step < steps {
                self.send::<T>(peer, segment_of(&send, self.segment, step))?;
            }
            if step > 0 {
                on_receive(self, peer, segment_of(&receive, self.segment, step - 1))?;
            }
        }
        Ok(())
    }

    /// Rounds the own elements of a range to what other ranks receive of them, so that a result
    /// does not depend on which rank it is computed on. Does nothing without compression.
    pub(crate) fn round_own<T: Element>(&mut self, range: Range<usize>) {
        let wire = self.wire;
        if wire.is_some() {
            pieces::for_each_mut::<T>(self.buffers, range, |_, piece| round(wire, piece));
        }
    }

    /// Combines a range of this rank with the same elements that all other ranks send, in canonical
    /// order: what comes is combined with what is left of the ranks before as soon as both belong
    /// to one node of the [`tree`]. The own elements are combined where they lie, and what a
    /// neighbour sends in one node with them is combined there too.
    pub(crate) fn combine_in_tree<T: Element>(&mut self, own: Range<usize>) -> Result<()> {
        let (rank, size, len) = (self.rank(), self.size, own.len());
        let merges_of = |term: usize| tree::merges_after(size, &(term..term + 1));
        let step_of = |term: usize, merged: usize| match merged {
            0 => Step::Keep,
            _ if term + 1 == size && merged == merges_of(term) => Step::End,
            _ => Step::Combine,
        };
        let meets_own = |from| from + 1 == rank && merges_of(from) == 0 && merges_of(rank) > 0;
        self.round_own::<T>(own.clone());
        // Results that are left, and the number of the one that lies in the vector.
        let (mut left, mut own_at) = (0, None);
        for from in 0..size {
            let merges = merges_of(from);
            let step = step_of(from, merges.min(1));
            if meets_own(from) || (from == rank && merges == 0) {
                own_at = Some(left);
            }
            left += usize::from(merges == 0);
            if from == rank && own_at.is_none() {
                own_at = Some(left - 1);
                self.take_left::<T>(&own, left - 1, Side::Left, step);
            } else if meets_own(from) {
                self.receive_own::<T>(from, &own, Side::Left, step_of(rank, 1))?;
            } else if from != rank && own_at == Some(left - 1) {
                self.receive_own::<T>(from, &own, Side::Right, step)?;
            } else if from != rank {
                self.receive_left::<T>(from, left, len, step)?;
            }
            for merged in 2..=merges {
                let (step, below) = (step_of(from, merged), left - 2);
                if own_at == Some(below + 1) {
                    own_at = Some(below);
                    self.take_left::<T>(&own, below, Side::Left, step);
                } else if own_at == Some(below) {
                    self.take_left::<T>(&own, below + 1, Side::Right, step);
                } else {
                    let rules = self.rules();
                    let top_two = &mut in_words::<T>(self.scratch, left * len)[below * len..];
                    let (below, top) = top_two.split_at_mut(len);
                    rules.take(step, Side::Right, below, bytemuck::cast_slice(top));
                }
                left -= 1;
            }
        }
        Ok(())
    }

    /// Receives the elements of a range apart from the own ones: into the scratch memory, whose
    /// first element is `start`.
    pub(crate) fn receive_aside<T: Element>(
        &mut self,
        from: usize,
        range: Range<usize>,
        start: usize,
    ) -> Result<()> {
        let (wire, each, from) = (self.wire, self.element_bytes::<T>(), self.in_group(from));
        for range in self.segments(&range) {
            let aside = &mut in_words::<T>(self.scratch, range.end - start)[range.start - start..];
            let mut put_aside = |frame: &[u8]| take(wire, frame, aside);
            self.transport
                .receive_with(from, range.len() * each, &mut put_aside)?;
        }
        Ok(())
    }

    /// Sends what [`receive_aside`](Self::receive_aside) has received of a range.
    pub(crate) fn send_aside<T: Element>(
        &mut self,
        to: usize,
        range: Range<usize>,
        start: usize,
    ) -> Result<()> {
        let (wire, each, to) = (self.wire, self.element_bytes::<T>(), self.in_group(to));
        for range in self.segments(&range) {
            let aside = &in_words::<T>(self.scratch, range.end - start)[range.start - start..];
            let mut fill = |frame: &mut [u8]| put(wire, aside, frame);
            self.transport
                .send_with(to, range.len() * each, &mut fill)?;
        }
        Ok(())
    }

    /// Combines the own elements of a range with the ones that were received aside, which are the
    /// right side.
    pub(crate) fn combine_aside<T: Element>(
        &mut self,
        own: &Range<usize>,
        start: usize,
        step: Step,
    ) {
        let rules = self.rules();
        let aside = &in_words::<T>(self.scratch, own.end - start)[own.start - start..];
        pieces::for_each_mut::<T>(self.buffers, own.clone(), |offset, piece| {
            let aside = &aside[offset..offset + piece.len()];
            rules.take(step, Side::Right, piece, bytemuck::cast_slice(aside));
        });
    }

    fn rules(&self) -> Rules {
        Rules {
            op: self.op,
            divisor: self.divisor,
            wire: self.wire,
        }
    }

    /// Combines the own elements of a range with the result of this number of those that are left.
    fn take_left<T: Element>(&mut self, own: &Range<usize>, at: usize, side: Side, step: Step) {
        let (rules, len) = (self.rules(), own.len());
        let other = &in_words::<T>(self.scratch, (at + 1) * len)[at * len..];
        pieces::for_each_mut::<T>(self.buffers, own.clone(), |offset, piece| {
            let other = &other[offset..offset + piece.len()];
            rules.take(step, side, piece, bytemuck::cast_slice(other));
        });
    }

    /// Combines the own elements of a range with those that a rank sends.
    pub(crate) fn receive_own<T: Element>(
        &mut self,
        from: usize,
        own: &Range<usize>,
        side: Side,
        step: Step,
    ) -> Result<()> {
        let rules = self.rules();
        self.receive_each::<T>(from, own.clone(), |piece, values| {
            rules.take(step, side, piece, values);
        })
    }

    /// Takes the elements that a rank sends to the last of the results that are left.
    fn receive_left<T: Element>(
        &mut self,
        from: usize,
        left: usize,
        len: usize,
        step: Step,
    ) -> Result<()> {
        let (rules, each, from) = (self.rules(), self.element_bytes::<T>(), self.in_group(from));
        let top = &mut in_words::<T>(self.scratch, left * len)[(left - 1) * len..];
        self.transport.receive_with(from, len * each, &mut |frame| {
            for_received(rules.wire, frame, |start, values| {
                rules.take(step, Side::Right, part_of(top, start, values), values);
            });
        })
    }
}

/// Bytes of an element on the wire.
pub(crate) fn element_bytes<T>(wire: Option<WireType>) -> usize {
    wire.map_or(size_of::<T>(), |_| WireType::SIZE_BYTES)
}

/// Copies a range of the vector into a frame, as it travels.
pub(crate) fn pack<T: Element>(
    wire: Option<WireType>,
    buffers: &[Buffer<'_>],
    range: Range<usize>,
    frame: &mut [u8],
) {
    let each = element_bytes::<T>(wire);
    pieces::for_each::<T>(buffers, range, |offset, piece| {
        let at = offset * each;
        put(wire, piece, &mut frame[at..at + piece.len() * each]);
    });
}

/// Copies a frame into a range of the vector.
pub(crate) fn unpack<T: Element>(
    wire: Option<WireType>,
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    frame: &[u8],
) {
    let each = element_bytes::<T>(wire);
    pieces::for_each_mut::<T>(buffers, range, |offset, piece| {
        let at = offset * each;
        take(wire, &frame[at..at + piece.len() * each], piece);
    });
}

/// Writes elements to a frame. With a wire type they are `f32`.
fn put<T: bytemuck::Pod>(wire: Option<WireType>, from: &[T], frame: &mut [u8]) {
    match wire {
        Some(wire) => compression::compress(wire, bytemuck::cast_slice(from), frame),
        None => frame.copy_from_slice(bytemuck::cast_slice(from)),
    }
}

/// Reads elements from a frame.
fn take<T: bytemuck::Pod>(wire: Option<WireType>, frame: &[u8], to: &mut [T]) {
    let expected = to.len() * element_bytes::<T>(wire);
    assert_eq!(frame.len(), expected, "a frame has its elements");
    for_received(wire, frame, |start, values| {
        bytemuck::cast_slice_mut(part_of(to, start, values)).copy_from_slice(values);
    });
}

/// Calls `f` with elements of a frame, as bytes that need not be aligned, and the index of the
/// first one.
fn for_received(wire: Option<WireType>, frame: &[u8], mut f: impl FnMut(usize, &[u8])) {
    match wire {
        Some(wire) => compression::expand(wire, frame, |start, values| {
            f(start, bytemuck::cast_slice(values));
        }),
        None => f(0, frame),
    }
}

/// Those elements that `values` came for, from `start` on.
fn part_of<'a, T>(elements: &'a mut [T], start: usize, values: &[u8]) -> &'a mut [T] {
    &mut elements[start..start + values.len() / size_of::<T>()]
}

/// Rounds finished elements to what the other ranks receive.
fn round<T: Element>(wire: Option<WireType>, values: &mut [T]) {
    if let Some(wire) = wire {
        compression::round(wire, bytemuck::cast_slice_mut(values));
    }
}

/// What is done with elements that come to a result.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// They are a result of their own.
    Keep,
    /// They are combined with it.
    Combine,
    /// They are combined with it, and all ranks are in it then.
    End,
}

/// How elements are combined.
#[derive(Clone, Copy)]
struct Rules {
    op: ReduceOp,
    divisor: usize,
    wire: Option<WireType>,
}

impl Rules {
    /// Takes values, which need not be aligned, to the other side of a node.
    fn take<T: Element>(self, step: Step, side: Side, result: &mut [T], values: &[u8]) {
        let (op, divisor) = (self.op, self.divisor);
        match step {
            Step::Keep => return bytemuck::cast_slice_mut(result).copy_from_slice(values),
            Step::Combine => reduce::accumulate_bytes(op, result, values, side),
            Step::End => reduce::accumulate_last_bytes(op, divisor, result, values, side),
        }
        round(self.wire, result);
    }
}
