//! The two products that all others are made of, for one tile of the result that stays in
//! registers.
//!
//! `M` rows of `N` vectors: as many as there are registers for, less those for the operands.

use pulp::Simd;

/// Products that are added one after the other in registers, at most: rounding errors grow with
/// the length of such a chain. The sums of several chains are added in memory.
pub(crate) const CHAIN: usize = 256;

/// `M` by `N` vectors.
pub(crate) type Tile<S, const M: usize, const N: usize> = [[<S as Simd>::f32s; N]; M];

#[inline(always)]
pub(crate) fn zeros<S: Simd, const M: usize, const N: usize>(simd: S) -> Tile<S, M, N> {
    [[simd.splat_f32s(0.0); N]; M]
}

/// The `N` vectors at the start of a slice.
#[inline(always)]
pub(crate) fn load<S: Simd, const N: usize>(from: &[f32]) -> [S::f32s; N] {
    let (vectors, _) = S::as_simd_f32s(&from[..N * S::F32_LANES]);
    vectors.as_chunks::<N>().0[0]
}

#[inline(always)]
pub(crate) fn store<S: Simd, const N: usize>(vectors: [S::f32s; N], to: &mut [f32]) {
    let (to, _) = S::as_mut_simd_f32s(&mut to[..N * S::F32_LANES]);
    to.copy_from_slice(&vectors);
}

/// Adds vectors to the elements at the start of a slice.
#[inline(always)]
pub(crate) fn add<S: Simd, const N: usize>(simd: S, vectors: &[S::f32s; N], to: &mut [f32]) {
    let (to, _) = S::as_mut_simd_f32s(&mut to[..N * S::F32_LANES]);
    for (to, vector) in to.iter_mut().zip(vectors) {
        *to = simd.add_f32s(*to, *vector);
    }
}

/// Adds to a tile, for each row of `weights` (`M` numbers) in turn, its product with the vectors at
/// that row's offset in `input`.
#[inline(always)]
pub(crate) fn add_rows<S: Simd, const M: usize, const N: usize>(
    simd: S,
    mut tile: Tile<S, M, N>,
    weights: &[f32],
    offsets: &[usize],
    input: &[f32],
) -> Tile<S, M, N> {
    let (weights, _) = weights.as_chunks::<M>();
    for (weights, &offset) in weights.iter().zip(offsets) {
        let vectors = load::<S, N>(&input[offset..]);
        for m in 0..M {
            let weight = simd.splat_f32s(weights[m]);
            for n in 0..N {
                tile[m][n] = simd.mul_add_e_f32s(weight, vectors[n], tile[m][n]);
            }
        }
    }
    tile
}

/// Adds to a tile, for each column of `rows` in turn, its `M` numbers times the vectors of that
/// column: the first `N` of each `width` elements of `vectors`.
#[inline(always)]
pub(crate) fn add_columns<S: Simd, const M: usize, const N: usize>(
    simd: S,
    mut tile: Tile<S, M, N>,
    rows: [&[f32]; M],
    vectors: &[f32],
    width: usize,
    n: usize,
) -> Tile<S, M, N> {
    for (i, vectors) in (0..n).zip(vectors.chunks(width)) {
        let vectors = load::<S, N>(vectors);
        for m in 0..M {
            let number = simd.splat_f32s(rows[m][i]);
            for n in 0..N {
                tile[m][n] = simd.mul_add_e_f32s(number, vectors[n], tile[m][n]);
            }
        }
    }
    tile
}

/// Cuts `n` vectors into tiles of equal width, as far as that is possible, of at most `widest`:
/// their starts and widths.
#[inline(always)]
pub(crate) fn cut(n: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let width = n.div_ceil(n.div_ceil(widest).max(1)).max(1);
    (0..n)
        .step_by(width)
        .map(move |start| (start, width.min(n - start)))
}
