//! The width of the vectors changes no bit.

use pulp::Simd;
use pulp::x86::{V3, V4};

use super::cell::Cell;
use super::sequence::{Backward, Forward, Sizes};

fn numbers(n: usize, mut state: u64) -> Vec<f32> {
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// The outputs and all gradients, one after the other.
fn all<S: Simd>(simd: S, sizes: Sizes) -> Vec<u32> {
    let (rows, columns) = (sizes.batch * sizes.steps, sizes.columns());
    let kernel = numbers(sizes.units * columns, 2);
    let saved = simd.vectorize(Forward {
        sizes,
        inputs: &numbers(rows * columns, 1),
        kernel: &kernel,
        bias: &numbers(columns, 3),
        left_out: numbers(rows, 4).iter().map(|x| *x > 0.3).collect(),
    });
    let gradients = simd.vectorize(Backward {
        sizes,
        saved: &saved,
        kernel: &kernel,
        gradient: &numbers(rows * sizes.units, 5),
        of_weights: true,
    });
    let outputs = saved.outputs;
    let all = [outputs, gradients.inputs, gradients.kernel, gradients.bias].concat();
    all.into_iter().map(f32::to_bits).collect()
}

#[test]
fn avx2_and_avx512_give_the_same_bits() {
    let (Some(avx2), Some(avx512)) = (V3::try_new(), V4::try_new()) else {
        println!("SKIPPED: this CPU does not have both AVX2 and AVX-512");
        return;
    };
    for cell in [Cell::Simple, Cell::Lstm, Cell::Gru] {
        for (batch, steps, units) in [(1, 1, 1), (3, 5, 7), (9, 4, 33), (12, 30, 70)] {
            let sizes = Sizes {
                cell,
                batch,
                steps,
                units,
            };
            assert_eq!(all(avx2, sizes), all(avx512, sizes), "{sizes:?}");
        }
    }
}
