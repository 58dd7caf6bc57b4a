//! The kernel: one plane, an image's channel, after the other.

use pulp::{Simd, WithSimd};

use super::Pool;
use crate::vectors;

/// The maxima of all planes, and the place of each in its plane; -1 where that is padding.
pub(super) fn forward(pool: &Pool, input: &[f32]) -> (Vec<f32>, Vec<i32>) {
    let outputs = pool.batch * pool.channels * pool.rows.output * pool.columns.output;
    let mut maxima = vec![f32::NEG_INFINITY; outputs];
    let mut places = vec![-1; outputs];
    // With the widest instructions of this CPU: they change no result.
    vectors::run(Forward {
        pool,
        input,
        maxima: &mut maxima,
        places: &mut places,
    });
    (maxima, places)
}

struct Forward<'a> {
    pool: &'a Pool,
    input: &'a [f32],
    maxima: &'a mut [f32],
    places: &'a mut [i32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { pool, input, .. } = self;
        let outputs = pool.rows.output * pool.columns.output;
        let planes = input.chunks_exact(pool.rows.input * pool.columns.input);
        let maxima = self.maxima.chunks_exact_mut(outputs);
        let places = self.places.chunks_exact_mut(outputs);
        for (plane, (maxima, places)) in planes.zip(maxima.zip(places)) {
            if is_halving(pool) {
                halve(pool, plane, maxima, places);
            } else {
                windows(pool, plane, maxima, places);
            }
        }
    }
}

/// The gradient of the input: each output's is added at the place of its maximum, in the order of
/// the outputs.
pub(super) fn backward(pool: &Pool, gradient: &[f32], places: &[i32]) -> Vec<f32> {
    let plane = pool.rows.input * pool.columns.input;
    let outputs = pool.rows.output * pool.columns.output;
    let mut input = vec![0.0; pool.batch * pool.channels * plane];
    let planes = gradient
        .chunks_exact(outputs)
        .zip(places.chunks_exact(outputs));
    for (input, (gradient, places)) in input.chunks_exact_mut(plane).zip(planes) {
        for (&gradient, &place) in gradient.iter().zip(places) {
            // A negative place is larger than every index.
            if let Some(input) = input.get_mut(place as usize) {
                *input += gradient;
            }
        }
    }
    input
}

/// Whether `value` takes the place of the maximum before it.
#[inline(always)]
fn is_larger(value: f32, maximum: f32) -> bool {
    (value > maximum) | value.is_nan()
}

/// Any windows: one tap after the other along a row of outputs.
#[inline(always)]
fn windows(pool: &Pool, plane: &[f32], maxima: &mut [f32], places: &mut [i32]) {
    let (rows, columns) = (pool.rows, pool.columns);
    let outputs = maxima.chunks_exact_mut(columns.output);
    for (o, (maxima, places)) in outputs
        .zip(places.chunks_exact_mut(columns.output))
        .enumerate()
    {
        for (window, place) in places.iter_mut().enumerate() {
            *place = first_place(pool, o, window);
        }
        for tap in rows.taps(o) {
            let start = rows.at(o, tap) * columns.input;
            let row = &plane[start..start + columns.input];
            for tap in 0..columns.size {
                let windows = columns.windows(tap);
                if windows.is_empty() {
                    continue;
                }
                let from = columns.at(windows.start, tap);
                let values = row[from..].iter().step_by(columns.stride);
                let outputs = maxima[windows.clone()].iter_mut().zip(&mut places[windows]);
                let mut here = (start + from) as i32;
                for ((maximum, place), &value) in outputs.zip(values) {
                    let larger = is_larger(value, *maximum);
                    *maximum = if larger { value } else { *maximum };
                    *place = if larger { here } else { *place };
                    here += columns.stride as i32;
                }
            }
        }
    }
}

/// The place of the maximum where nothing is larger than minus infinity.
fn first_place(pool: &Pool, row: usize, column: usize) -> i32 {
    let (rows, columns) = (pool.rows.taps(row), pool.columns.taps(column));
    let starts_in_padding = rows.start > 0 || columns.start > 0;
    if rows.is_empty() || columns.is_empty() || pool.padding_is_written && starts_in_padding {
        return -1;
    }
    let row = pool.rows.at(row, rows.start);
    (row * pool.columns.input + pool.columns.at(column, columns.start)) as i32
}

/// The pool of most networks: 2 by 2 next to each other, which halves height and width.
fn is_halving(pool: &Pool) -> bool {
    [pool.rows, pool.columns]
        .iter()
        .all(|axis| (axis.size, axis.stride, axis.dilation, axis.before) == (2, 2, 1, 0))
        && !pool.padding_is_written
}

#[inline(always)]
fn halve(pool: &Pool, plane: &[f32], maxima: &mut [f32], places: &mut [i32]) {
    match pool.columns.output {
        8.. => halve_by::<8>(pool, plane, maxima, places),
        4.. => halve_by::<4>(pool, plane, maxima, places),
        _ => halve_by::<1>(pool, plane, maxima, places),
    }
}

/// `N` outputs of a row at a time. The last ones are computed with some before them a second time.
#[inline(always)]
fn halve_by<const N: usize>(pool: &Pool, plane: &[f32], maxima: &mut [f32], places: &mut [i32]) {
    let (width, half) = (pool.columns.input, pool.columns.output);
    let outputs = maxima
        .chunks_exact_mut(half)
        .zip(places.chunks_exact_mut(half));
    for (o, (maxima, places)) in outputs.enumerate() {
        let start = 2 * o * width;
        let (upper, lower) = plane[start..start + 2 * width].split_at(width);
        for at in (0..half).step_by(N) {
            let at = at.min(half - N);
            let (upper, lower) = (&upper[2 * at..], &lower[2 * at..]);
            let (maxima, places) = (&mut maxima[at..], &mut places[at..]);
            let place = (start + 2 * at) as i32;
            pairs::<N>(upper, lower, place, width as i32, maxima, places);
        }
    }
}

/// `N` windows of 2 by 2 next to each other. `place` is the place of their first input.
///
/// Step by step over arrays, which the compiler turns into vectors: no value decides on a jump.
#[inline(always)]
fn pairs<const N: usize>(
    upper: &[f32],
    lower: &[f32],
    place: i32,
    width: i32,
    maxima: &mut [f32],
    places: &mut [i32],
) {
    let mut first = [place; N];
    for (i, first) in first.iter_mut().enumerate() {
        *first += 2 * i as i32;
    }
    let (mut best, mut best_at) = (every_second::<N>(upper, 0), first);
    let others = [(upper, 1, 1), (lower, 0, width), (lower, 1, width + 1)];
    for (row, column, offset) in others {
        let values = every_second::<N>(row, column);
        for i in 0..N {
            let larger = is_larger(values[i], best[i]);
            best[i] = if larger { values[i] } else { best[i] };
            best_at[i] = if larger {
                first[i] + offset
            } else {
                best_at[i]
            };
        }
    }
    maxima[..N].copy_from_slice(&best);
    places[..N].copy_from_slice(&best_at);
}

/// `N` elements from `first` on, without those between them.
#[inline(always)]
fn every_second<const N: usize>(row: &[f32], first: usize) -> [f32; N] {
    let row = &row[..2 * N];
    let mut elements = [0.0; N];
    for (i, element) in elements.iter_mut().enumerate() {
        *element = row[2 * i + first];
    }
    elements
}
