//! The output: filters times images.
//!
//! An output is summed over the channels, and in a channel over the taps in the order of rows: by
//! chains of [`CHAIN`] fused multiply-adds from 0, whose sums are added in their order. Its
//! filter's bias is added last.

use pulp::{Simd, WithSimd};

use super::layout::SLACK;
use super::shape::Conv;
use crate::tile::{CHAIN, Tile, add, add_rows, cut, store, zeros};
use crate::vectors;

impl Conv {
    /// The output: `relu` keeps what is positive, and NaN.
    pub(super) fn forward(
        &self,
        images: &[f32],
        filters: &[f32],
        bias: Option<&[f32]>,
        relu: bool,
    ) -> Vec<f32> {
        let mut output = vec![0.0; self.batch * self.filters * self.outputs()];
        vectors::run(Forward {
            conv: self,
            images,
            filters,
            bias,
            relu,
            output: &mut output,
        });
        output
    }
}

pub(super) struct Forward<'a> {
    pub(super) conv: &'a Conv,
    pub(super) images: &'a [f32],
    pub(super) filters: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) relu: bool,
    pub(super) output: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
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

impl Forward<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize>(self, simd: S) {
        let Self {
            conv,
            images,
            filters,
            bias,
            relu,
            output,
        } = self;
        let layout = conv.layout();
        let offsets = conv.offsets(&layout);
        let panels = panels::<M>(filters, offsets.len());
        let positions = layout.positions();
        let width = positions + SLACK;
        let mut laid_out = vec![0.0; conv.channels * layout.channel()];
        let mut result = vec![0.0; M * width];
        let outputs = conv.outputs();
        let images = images.chunks_exact(conv.image());
        for (image, output) in images.zip(output.chunks_exact_mut(conv.filters * outputs)) {
            layout.lay_out(image, &mut laid_out);
            let planes = output.chunks_mut(M * outputs);
            for (i, (panel, planes)) in panels
                .chunks_exact(M * offsets.len())
                .zip(planes)
                .enumerate()
            {
                for (at, vectors) in cut(positions.div_ceil(S::F32_LANES), 3) {
                    let at = at * S::F32_LANES;
                    let (input, result) = (&laid_out[at..], &mut result[at..]);
                    match vectors {
                        1 => tile::<S, M, 1>(simd, panel, &offsets, input, result, width),
                        2 => tile::<S, M, 2>(simd, panel, &offsets, input, result, width),
                        _ => tile::<S, M, 3>(simd, panel, &offsets, input, result, width),
                    }
                }
                let rows = planes
                    .chunks_exact_mut(outputs)
                    .zip(result.chunks_exact(width));
                for (m, (plane, result)) in rows.enumerate() {
                    let bias = bias.map(|bias| bias[i * M + m]);
                    let lines = plane.chunks_exact_mut(conv.columns.output);
                    for (to, from) in lines.zip(result.chunks(layout.row())) {
                        finish(&from[..to.len()], to, bias, relu);
                    }
                }
            }
        }
    }
}

/// Adds the bias, and keeps values that are positive or NaN.
#[inline(always)]
fn finish(from: &[f32], to: &mut [f32], bias: Option<f32>, relu: bool) {
    let Some(bias) = bias else {
        to.copy_from_slice(from);
        if relu {
            to.iter_mut().for_each(|x| *x = rectified(*x));
        }
        return;
    };
    if relu {
        to.iter_mut()
            .zip(from)
            .for_each(|(to, &from)| *to = rectified(from + bias));
    } else {
        to.iter_mut()
            .zip(from)
            .for_each(|(to, &from)| *to = from + bias);
    }
}

#[inline(always)]
fn rectified(x: f32) -> f32 {
    if x.is_nan() || x > 0.0 { x } else { 0.0 }
}

/// The filters `M` at a time, tap by tap; zeros behind the last one.
fn panels<const M: usize>(filters: &[f32], taps: usize) -> Vec<f32> {
    let count = filters.len() / taps;
    let mut panels = vec![0.0; count.next_multiple_of(M) * taps];
    for (i, filter) in filters.chunks_exact(taps).enumerate() {
        let panel = panels[i / M * M * taps..].iter_mut().skip(i % M).step_by(M);
        panel.zip(filter).for_each(|(to, from)| *to = *from);
    }
    panels
}

#[inline(always)]
fn tile<S: Simd, const M: usize, const N: usize>(
    simd: S,
    panel: &[f32],
    offsets: &[usize],
    input: &[f32],
    result: &mut [f32],
    width: usize,
) {
    let chains = panel.chunks(M * CHAIN).zip(offsets.chunks(CHAIN));
    for (i, (panel, offsets)) in chains.enumerate() {
        let tile: Tile<S, M, N> = add_rows(simd, zeros(simd), panel, offsets, input);
        for (vectors, result) in tile.iter().zip(result.chunks_mut(width)) {
            if i == 0 {
                store::<S, N>(*vectors, result);
            } else {
                add::<S, N>(simd, vectors, result);
            }
        }
    }
}
