//! The gradient of the images: each tap's filters, turned round, times the output's gradient.
//!
//! An input's gradient is summed over the taps in the order of rows, and for a tap over the
//! filters: by chains of [`CHAIN`] fused multiply-adds from 0, each within a tap, whose sums are
//! added in their order.

use pulp::{Simd, WithSimd};

use super::layout::SLACK;
use super::shape::Conv;
use crate::tile::{CHAIN, Tile, add, add_rows, cut, zeros};
use crate::vectors;

impl Conv {
    /// The images' gradient, given the output's.
    pub(super) fn input_gradient(&self, filters: &[f32], gradient: &[f32]) -> Vec<f32> {
        let mut images = vec![0.0; self.batch * self.image()];
        vectors::run(InputGradient {
            conv: self,
            filters,
            gradient,
            images: &mut images,
        });
        images
    }
}

pub(super) struct InputGradient<'a> {
    pub(super) conv: &'a Conv,
    pub(super) filters: &'a [f32],
    pub(super) gradient: &'a [f32],
    pub(super) images: &'a mut [f32],
}

impl WithSimd for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 {
            self.run::<S, 8>(simd);
        } else {
            self.run::<S, 4>(simd);
        }
    }
}

impl InputGradient<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize>(self, simd: S) {
        let Self {
            conv,
            filters,
            gradient,
            images,
        } = self;
        let layout = conv.layout();
        let (taps, channel) = (layout.taps(), layout.channel());
        let panels = panels::<M>(conv, filters, taps.len());
        let positions = layout.positions();
        let width = positions + SLACK;
        let offsets: Vec<_> = (0..conv.filters).map(|filter| filter * width).collect();
        let mut spread = vec![0.0; conv.filters * width];
        let mut laid_out = vec![0.0; conv.channels.next_multiple_of(M) * channel];
        let outputs = conv.filters * conv.outputs();
        let images = images.chunks_exact_mut(conv.image());
        for (image, gradient) in images.zip(gradient.chunks_exact(outputs)) {
            spread_out(conv, gradient, &mut spread, width, layout.row());
            laid_out.fill(0.0);
            let panels = panels.chunks_exact(taps.len() * M * conv.filters);
            for (panels, laid_out) in panels.zip(laid_out.chunks_exact_mut(M * channel)) {
                for (panel, &tap) in panels.chunks_exact(M * conv.filters).zip(&taps) {
                    for (at, vectors) in cut(positions.div_ceil(S::F32_LANES), 3) {
                        let at = at * S::F32_LANES;
                        let (from, to) = (&spread[at..], &mut laid_out[tap + at..]);
                        match vectors {
                            1 => tile::<S, M, 1>(simd, panel, &offsets, from, to, channel),
                            2 => tile::<S, M, 2>(simd, panel, &offsets, from, to, channel),
                            _ => tile::<S, M, 3>(simd, panel, &offsets, from, to, channel),
                        }
                    }
                }
            }
            layout.collect(&laid_out, image);
        }
    }
}

/// Writes the outputs' gradient into rows as long as the rows of a laid-out image.
#[inline(always)]
fn spread_out(conv: &Conv, gradient: &[f32], spread: &mut [f32], width: usize, row: usize) {
    let columns = conv.columns.output;
    let planes = gradient.chunks_exact(conv.outputs());
    for (plane, spread) in planes.zip(spread.chunks_exact_mut(width)) {
        for (from, to) in plane.chunks_exact(columns).zip(spread.chunks_mut(row)) {
            to[..columns].copy_from_slice(from);
        }
    }
}

/// The weights of `M` channels at a time, in there by tap, then by filter.
fn panels<const M: usize>(conv: &Conv, filters: &[f32], taps: usize) -> Vec<f32> {
    let mut panels = vec![0.0; conv.channels.next_multiple_of(M) * taps * conv.filters];
    for (f, filter) in filters.chunks_exact(conv.channels * taps).enumerate() {
        for (c, channel) in filter.chunks_exact(taps).enumerate() {
            let start = c / M * M * taps * conv.filters + f * M + c % M;
            let panel = panels[start..].iter_mut().step_by(M * conv.filters);
            panel.zip(channel).for_each(|(to, from)| *to = *from);
        }
    }
    panels
}

#[inline(always)]
fn tile<S: Simd, const M: usize, const N: usize>(
    simd: S,
    panel: &[f32],
    offsets: &[usize],
    from: &[f32],
    to: &mut [f32],
    channel: usize,
) {
    for (panel, offsets) in panel.chunks(M * CHAIN).zip(offsets.chunks(CHAIN)) {
        let tile: Tile<S, M, N> = add_rows(simd, zeros(simd), panel, offsets, from);
        for (vectors, to) in tile.iter().zip(to.chunks_mut(channel)) {
            add::<S, N>(simd, vectors, to);
        }
    }
}
