//! The functions of the gates, in arithmetic that the compiler vectorises: the same bits whatever
//! the width of the vectors.

/// `1 / (1 + exp(-x))`, with an error of a few units in the last place.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// By Cephes' polynomial, between the logarithms of the smallest and the largest normal number.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Added to a small number it leaves the nearest integer in the last bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const TERMS: [f32; 6] = [
        1.987_569_1e-4,
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_6e-1,
        0.5,
    ];
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let rest = n.mul_add(-LN_2[0], x);
    let rest = n.mul_add(-LN_2[1], rest);
    let mut sum = TERMS[0];
    for term in &TERMS[1..] {
        sum = sum.mul_add(rest, *term);
    }
    let sum = (rest * rest).mul_add(sum, rest) + 1.0;
    // 2^n: the integer is moved to the exponent.
    let bits = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    sum * f32::from_bits(bits.wrapping_add(127) << 23)
}

/// The hyperbolic tangent, by Eigen's rational function.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    const ABOVE: [f32; 7] = [
        -2.760_768_4e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_3e-8,
        1.485_722_35e-5,
        6.372_619_5e-4,
        4.893_524_6e-3,
    ];
    const BELOW: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_7e-3, 4.893_525e-3];
    let x = x.clamp(-7.905_311, 7.905_311);
    let square = x * x;
    let (mut above, mut below) = (ABOVE[0], BELOW[0]);
    for term in &ABOVE[1..] {
        above = above.mul_add(square, *term);
    }
    for term in &BELOW[1..] {
        below = below.mul_add(square, *term);
    }
    x * above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f32, exact: f64) -> bool {
        (f64::from(ours) - exact).abs() <= 5e-7 * exact.abs()
    }

    #[test]
    fn both_are_exact_to_a_few_units_in_the_last_place() {
        for i in -400_000..400_000 {
            let x = i as f32 / 5_000.0;
            let wide = f64::from(x);
            let (s, t) = (sigmoid(x), tanh(x));
            assert!(close(s, 1.0 / (1.0 + (-wide).exp())), "{x}: {s}");
            assert!(close(t, wide.tanh()), "{x}: {t}");
        }
        assert!(close(tanh(1e-6), 1e-6_f64.tanh()));
    }

    #[test]
    fn what_is_no_number_stays_so_and_infinities_have_limits() {
        assert!(sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert!(sigmoid(f32::INFINITY) == 1.0 && close(tanh(f32::INFINITY), 1.0));
        assert!(sigmoid(f32::NEG_INFINITY) < 1e-37 && close(tanh(f32::NEG_INFINITY), -1.0));
    }
}
