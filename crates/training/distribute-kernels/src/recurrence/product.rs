//! Rows times a matrix.
//!
//! An element is the sum over the matrix's rows in chains of [`CHAIN`] fused multiply-adds from 0,
//! whose sums are added in their order.

use pulp::Simd;

use crate::tile::{CHAIN, Tile, add, add_columns, cut, store, zeros};

/// A matrix with the columns of a tile next to each other, for many products.
pub(super) struct Packed {
    values: Vec<f32>,
    rows: usize,
    columns: usize,
}

/// The vectors of a tile's row: as many as there are registers for.
#[inline(always)]
const fn widest<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 3 } else { 2 }
}

/// The length of a row of a product with a matrix of this many columns: whole vectors.
#[inline(always)]
pub(super) const fn width<S: Simd>(columns: usize) -> usize {
    columns.next_multiple_of(S::F32_LANES)
}

impl Packed {
    /// Of a matrix in row-major order.
    #[inline(always)]
    pub(super) fn new<S: Simd>(matrix: &[f32], columns: usize) -> Self {
        let rows = matrix.len() / columns;
        let mut values = vec![0.0; rows * width::<S>(columns)];
        for (at, vectors) in cut(width::<S>(columns) / S::F32_LANES, widest::<S>()) {
            let (at, wide) = (at * S::F32_LANES, vectors * S::F32_LANES);
            pack(
                matrix,
                columns,
                at,
                &mut values[at * rows..][..rows * wide],
                wide,
            );
        }
        Self {
            values,
            rows,
            columns,
        }
    }

    /// Rows times this matrix; a row of the result is [`width`] long.
    #[inline(always)]
    pub(super) fn product<S: Simd>(&self, simd: S, left: &[f32], result: &mut [f32]) {
        let width = width::<S>(self.columns);
        for (at, vectors) in cut(width / S::F32_LANES, widest::<S>()) {
            let (at, wide) = (at * S::F32_LANES, vectors * S::F32_LANES);
            let strip = &self.values[at * self.rows..][..self.rows * wide];
            of_strip(
                simd,
                left,
                self.rows,
                strip,
                vectors,
                &mut result[at..],
                width,
            );
        }
    }
}

/// Rows times a matrix in row-major order; a row of the result is [`width`] long.
#[inline(always)]
pub(super) fn product<S: Simd>(simd: S, left: &[f32], right: &[f32], columns: usize) -> Vec<f32> {
    let (rows, width) = (right.len() / columns, width::<S>(columns));
    let mut result = vec![0.0; left.len() / rows * width];
    let mut strip = vec![0.0; rows * widest::<S>() * S::F32_LANES];
    for (at, vectors) in cut(width / S::F32_LANES, widest::<S>()) {
        let (at, wide) = (at * S::F32_LANES, vectors * S::F32_LANES);
        let strip = &mut strip[..rows * wide];
        pack(right, columns, at, strip, wide);
        of_strip(simd, left, rows, strip, vectors, &mut result[at..], width);
    }
    result
}

/// Copies the columns from `at` on, with zeros behind the last one.
#[inline(always)]
fn pack(matrix: &[f32], columns: usize, at: usize, strip: &mut [f32], wide: usize) {
    let n = wide.min(columns - at);
    let rows = matrix.chunks_exact(columns);
    for (to, from) in strip.chunks_exact_mut(wide).zip(rows) {
        to[..n].copy_from_slice(&from[at..at + n]);
        to[n..].fill(0.0);
    }
}

#[inline(always)]
fn of_strip<S: Simd>(
    simd: S,
    left: &[f32],
    rows: usize,
    strip: &[f32],
    vectors: usize,
    result: &mut [f32],
    width: usize,
) {
    let product = Strip { rows, strip, width };
    match (S::REGISTER_COUNT >= 32, vectors) {
        (true, 1) => product.add_to::<S, 8, 1>(simd, left, result),
        (true, 2) => product.add_to::<S, 8, 2>(simd, left, result),
        (true, _) => product.add_to::<S, 8, 3>(simd, left, result),
        (false, 1) => product.add_to::<S, 4, 1>(simd, left, result),
        (false, _) => product.add_to::<S, 4, 2>(simd, left, result),
    }
}

/// Some columns of a matrix, next to each other.
struct Strip<'a> {
    rows: usize,
    strip: &'a [f32],
    /// The length of a row of the result.
    width: usize,
}

impl Strip<'_> {
    #[inline(always)]
    fn add_to<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        left: &[f32],
        result: &mut [f32],
    ) {
        let chains = self.strip.chunks(CHAIN * N * S::F32_LANES);
        for (first, chain) in (0..).step_by(CHAIN).zip(chains) {
            let blocks = left.chunks(M * self.rows);
            for (left, result) in blocks.zip(result.chunks_mut(M * self.width)) {
                if left.len() == M * self.rows {
                    self.tile::<S, M, N>(simd, left, first, chain, result);
                    continue;
                }
                let rows = left.chunks_exact(self.rows);
                for (left, result) in rows.zip(result.chunks_mut(self.width)) {
                    self.tile::<S, 1, N>(simd, left, first, chain, result);
                }
            }
        }
    }

    /// The part of a chain in `M` rows of the result.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        left: &[f32],
        first: usize,
        chain: &[f32],
        result: &mut [f32],
    ) {
        let wide = N * S::F32_LANES;
        let n = chain.len() / wide;
        let rows = std::array::from_fn(|m| &left[m * self.rows + first..][..n]);
        let tile: Tile<S, M, N> = add_columns(simd, zeros(simd), rows, chain, wide, n);
        for (vectors, result) in tile.iter().zip(result.chunks_mut(self.width)) {
            if first == 0 {
                store::<S, N>(*vectors, result);
            } else {
                add::<S, N>(simd, vectors, result);
            }
        }
    }
}

/// A matrix in row-major order with its rows as columns.
#[inline(always)]
pub(super) fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    // A few rows at a time, so that the written values stay in the cache.
    const BLOCK: usize = 16;
    let rows = matrix.len() / columns;
    let mut turned = vec![0.0; matrix.len()];
    for (block, lines) in matrix.chunks(BLOCK * columns).enumerate() {
        for (column, turned) in turned.chunks_exact_mut(rows).enumerate() {
            let values = lines[column..].iter().step_by(columns);
            let turned = &mut turned[block * BLOCK..];
            turned
                .iter_mut()
                .zip(values)
                .for_each(|(to, from)| *to = *from);
        }
    }
    turned
}
