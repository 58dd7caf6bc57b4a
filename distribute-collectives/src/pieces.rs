//! A list of buffers as one long vector, and what a range of it is in each buffer.

use std::ops::Range;

use crate::buffer::{Buffer, Element};

/// Number of elements of all buffers.
pub(crate) fn len(buffers: &[Buffer<'_>]) -> usize {
    buffers.iter().map(Buffer::len).sum()
}

/// Takes the lengths of the buffers one after the other, and says what of `range` lies in each: the
/// part of the buffer, and where it begins in `range`.
pub(crate) fn cutter(range: Range<usize>) -> impl FnMut(usize) -> Option<(Range<usize>, usize)> {
    let mut begin = 0;
    move |len| {
        let own = begin..begin + len;
        begin = own.end;
        let (start, end) = (range.start.max(own.start), range.end.min(own.end));
        (start < end).then(|| (start - own.start..end - own.start, start - range.start))
    }
}

/// The buffers that have a part of `range`: (buffer, its part, offset in `range`).
pub(crate) fn parts<'a, 'b>(
    buffers: &'a [Buffer<'b>],
    range: Range<usize>,
) -> impl Iterator<Item = (&'a Buffer<'b>, Range<usize>, usize)> {
    let mut cut = cutter(range);
    buffers.iter().filter_map(move |buffer| {
        let (part, offset) = cut(buffer.len())?;
        Some((buffer, part, offset))
    })
}

/// As [`parts`], for writing.
pub(crate) fn parts_mut<'a, 'b>(
    buffers: &'a mut [Buffer<'b>],
    range: Range<usize>,
) -> impl Iterator<Item = (&'a mut Buffer<'b>, Range<usize>, usize)> {
    let mut cut = cutter(range);
    buffers.iter_mut().filter_map(move |buffer| {
        let (part, offset) = cut(buffer.len())?;
        Some((buffer, part, offset))
    })
}

/// The elements of a range, if they all lie in one buffer.
pub(crate) fn in_one<'a, T: Element>(
    buffers: &'a [Buffer<'_>],
    range: &Range<usize>,
) -> Option<&'a [T]> {
    let (buffer, part, _) = parts(buffers, range.clone()).next()?;
    (part.len() == range.len()).then(|| T::slice_of(buffer)?.get(part))?
}

/// Calls `f` with the parts of a range in each buffer and their offsets in the range.
pub(crate) fn for_each<T: Element>(
    buffers: &[Buffer<'_>],
    range: Range<usize>,
    mut f: impl FnMut(usize, &[T]),
) {
    for (buffer, part, offset) in parts(buffers, range) {
        if let Some(elements) = T::slice_of(buffer) {
            f(offset, &elements[part]);
        }
    }
}

/// As [`for_each`], for writing.
pub(crate) fn for_each_mut<T: Element>(
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    mut f: impl FnMut(usize, &mut [T]),
) {
    for (buffer, part, offset) in parts_mut(buffers, range) {
        if let Some(elements) = T::slice_of_mut(buffer) {
            f(offset, &mut elements[part]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_in_the_buffers_it_touches() {
        let (mut a, mut b, mut c) = ([0_i32, 1, 2], [0_i32; 0], [3_i32, 4, 5, 6]);
        let mut buffers = [
            Buffer::from(&mut a[..]),
            Buffer::from(&mut b[..]),
            Buffer::from(&mut c[..]),
        ];
        for start in 0..7 {
            for end in start..8 {
                let mut found = Vec::new();
                for_each::<i32>(&buffers, start..end, |offset, part| {
                    assert_eq!(offset, found.len());
                    assert!(!part.is_empty());
                    found.extend_from_slice(part);
                });
                let expected: Vec<i32> = (start..end.min(7)).map(|value| value as i32).collect();
                assert_eq!(found, expected, "{start}..{end}");
                let whole = (end <= 3 || start >= 3)
                    .then_some(&expected[..])
                    .filter(|_| start < end && end <= 7);
                assert_eq!(
                    in_one::<i32>(&buffers, &(start..end)),
                    whole,
                    "{start}..{end}"
                );
            }
        }
        for_each_mut::<i32>(&mut buffers, 2..5, |offset, part| {
            part.fill(10 * (offset as i32 + 1));
        });
        assert_eq!((a, c), ([0, 1, 10], [20, 20, 5, 6]));
    }
}
