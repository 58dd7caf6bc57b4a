//! The width of the vectors changes no bit.

use pulp::Simd;
use pulp::x86::{V3, V4};

use super::filter_gradient::FilterGradient;
use super::forward::Forward;
use super::input_gradient::InputGradient;
use super::shape::Conv;
use crate::axis::Axis;

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
fn all<S: Simd>(simd: S, conv: &Conv) -> Vec<u32> {
    let images = numbers(conv.batch * conv.image(), 1);
    let filters = numbers(conv.filter_shape().iter().product(), 2);
    let bias = numbers(conv.filters, 3);
    let gradient = numbers(conv.output_shape().iter().product(), 4);
    let (mut output, mut input) = (vec![0.0; gradient.len()], vec![0.0; images.len()]);
    simd.vectorize(Forward {
        conv,
        images: &images,
        filters: &filters,
        bias: Some(&bias),
        relu: false,
        output: &mut output,
    });
    simd.vectorize(InputGradient {
        conv,
        filters: &filters,
        gradient: &gradient,
        images: &mut input,
    });
    let (filters, bias) = simd.vectorize(FilterGradient {
        conv,
        images: &images,
        gradient: &gradient,
    });
    let all = [output, input, filters, bias].concat();
    all.into_iter().map(f32::to_bits).collect()
}

#[test]
fn avx2_and_avx512_give_the_same_bits() {
    let (Some(avx2), Some(avx512)) = (V3::try_new(), V4::try_new()) else {
        println!("SKIPPED: this CPU does not have both AVX2 and AVX-512");
        return;
    };
    let sizes = [(1, 5, 3), (7, 20, 1), (12, 64, 2), (33, 9, 4)];
    for (channels, filters, size) in sizes {
        for (stride, dilation, padding) in [(1, 1, (0, 0)), (2, 1, (1, 0)), (3, 2, (2, 2))] {
            let axis = |input| Axis::new(input, size, stride, dilation, padding).unwrap();
            let conv = Conv {
                batch: 2,
                channels,
                filters,
                rows: axis(17),
                columns: axis(23),
            };
            assert_eq!(all(avx2, &conv), all(avx512, &conv), "{conv:?}");
        }
    }
}
