//! The gradients of the filters and of the bias: the output's gradient times the images.
//!
//! A weight's gradient is summed over the images, and in an image over the outputs in the order of
//! rows: by chains of fused multiply-adds from 0 over as many whole rows as have [`CHAIN`] outputs,
//! at least one, whose sums are added in their order. A bias' gradient is summed in the same way.

use pulp::{Simd, WithSimd};

use super::shape::Conv;
use crate::tile::{CHAIN, Tile, add, add_columns, cut, load, zeros};
use crate::vectors;

impl Conv {
    /// The rows of outputs over which a gradient is summed in registers.
    fn rows_of_chain(&self) -> usize {
        (CHAIN / self.columns.output).max(1)
    }

    /// The gradients of the filters and of the bias, given the output's.
    pub(super) fn filter_gradient(&self, images: &[f32], gradient: &[f32]) -> Gradients {
        vectors::run(FilterGradient {
            conv: self,
            images,
            gradient,
        })
    }
}

pub(super) struct FilterGradient<'a> {
    pub(super) conv: &'a Conv,
    pub(super) images: &'a [f32],
    pub(super) gradient: &'a [f32],
}

/// Of the filters, and of the bias.
pub(super) type Gradients = (Vec<f32>, Vec<f32>);

impl WithSimd for FilterGradient<'_> {
    type Output = Gradients;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Gradients {
        if S::REGISTER_COUNT >= 32 {
            self.run::<S, 6>(simd, 4)
        } else {
            self.run::<S, 4>(simd, 2)
        }
    }
}

impl FilterGradient<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize>(self, simd: S, widest: usize) -> Gradients {
        let Self {
            conv,
            images,
            gradient,
        } = self;
        let layout = conv.layout();
        let mut offsets = conv.offsets(&layout);
        let taps = offsets.len();
        // The results of taps behind the last one are left out.
        offsets.resize(taps.next_multiple_of(M), 0);
        let width = conv.filters.next_multiple_of(S::F32_LANES);
        let outputs = conv.outputs();
        let mut laid_out = vec![0.0; conv.channels * layout.channel()];
        let mut turned = vec![0.0; outputs * width];
        let mut sums = vec![0.0; offsets.len() * width];
        let mut bias = vec![0.0; width];
        let images = images.chunks_exact(conv.image());
        for (image, gradient) in images.zip(gradient.chunks_exact(conv.filters * outputs)) {
            layout.lay_out(image, &mut laid_out);
            turn(gradient, outputs, &mut turned, width);
            for lines in turned.chunks(conv.rows_of_chain() * conv.columns.output * width) {
                add_lines(simd, lines, &mut bias);
            }
            let sums = sums.chunks_exact_mut(M * width);
            for (offsets, sums) in offsets.as_chunks::<M>().0.iter().zip(sums) {
                for (at, vectors) in cut(width / S::F32_LANES, widest) {
                    let at = at * S::F32_LANES;
                    let product = Product {
                        offsets,
                        image: &laid_out,
                        row: layout.row(),
                        gradient: &turned,
                        width,
                        at,
                        rows_of_chain: conv.rows_of_chain(),
                        outputs: [conv.rows.output, conv.columns.output],
                    };
                    match vectors {
                        1 => product.add_to::<S, 1>(simd, sums),
                        2 => product.add_to::<S, 2>(simd, sums),
                        3 => product.add_to::<S, 3>(simd, sums),
                        _ => product.add_to::<S, 4>(simd, sums),
                    }
                }
            }
        }
        bias.truncate(conv.filters);
        let mut filters = vec![0.0; conv.filters * taps];
        for (f, filter) in filters.chunks_exact_mut(taps).enumerate() {
            let sums = sums[f..].iter().step_by(width);
            filter
                .iter_mut()
                .zip(sums)
                .for_each(|(to, from)| *to = *from);
        }
        (filters, bias)
    }
}

/// Adds to each element of `sums` that element of all lines.
#[inline(always)]
fn add_lines<S: Simd>(simd: S, lines: &[f32], sums: &mut [f32]) {
    for at in (0..sums.len()).step_by(S::F32_LANES) {
        let mut sum = simd.splat_f32s(0.0);
        for line in lines.chunks_exact(sums.len()) {
            let [line] = load::<S, 1>(&line[at..]);
            sum = simd.add_f32s(sum, line);
        }
        add::<S, 1>(simd, &[sum], &mut sums[at..]);
    }
}

/// The gradient with the filters next to each other: `width` elements for each output.
#[inline(always)]
fn turn(gradient: &[f32], outputs: usize, turned: &mut [f32], width: usize) {
    // A few outputs at a time, so that the written values stay in the cache.
    const BLOCK: usize = 16;
    for (block, lines) in turned.chunks_mut(BLOCK * width).enumerate() {
        for (filter, plane) in gradient.chunks_exact(outputs).enumerate() {
            let values = &plane[BLOCK * block..];
            for (line, value) in lines.chunks_exact_mut(width).zip(values) {
                line[filter] = *value;
            }
        }
    }
}

/// The part of one image in the gradients of `M` taps and some filters.
struct Product<'a, const M: usize> {
    offsets: &'a [usize; M],
    image: &'a [f32],
    row: usize,
    gradient: &'a [f32],
    width: usize,
    /// The first filter.
    at: usize,
    rows_of_chain: usize,
    outputs: [usize; 2],
}

impl<const M: usize> Product<'_, M> {
    #[inline(always)]
    fn add_to<S: Simd, const N: usize>(&self, simd: S, sums: &mut [f32]) {
        let [rows, columns] = self.outputs;
        for first in (0..rows).step_by(self.rows_of_chain) {
            let mut tile: Tile<S, M, N> = zeros(simd);
            for i in first..rows.min(first + self.rows_of_chain) {
                let mut lines = [self.image; M];
                for (line, offset) in lines.iter_mut().zip(self.offsets) {
                    let start = offset + i * self.row;
                    *line = &self.image[start..start + columns];
                }
                let gradient = &self.gradient[i * columns * self.width + self.at..];
                tile = add_columns(simd, tile, lines, gradient, self.width, columns);
            }
            for (vectors, sums) in tile.iter().zip(sums.chunks_exact_mut(self.width)) {
                add::<S, N>(simd, vectors, &mut sums[self.at..]);
            }
        }
    }
}
