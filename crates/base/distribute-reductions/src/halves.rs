//! The two half types, which are accumulated in `f32`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Arithmetic;

impl Arithmetic for f16 {
    type Acc = f32;
    const NATIVE: bool = false;

    fn widen(src: &[Self], dst: &mut [f32]) {
        src.convert_to_f32_slice(dst);
    }

    fn narrow(src: &[f32], dst: &mut [Self]) {
        dst.convert_from_f32_slice(src);
    }
}

impl Arithmetic for bf16 {
    type Acc = f32;
    const NATIVE: bool = false;

    fn widen(src: &[Self], dst: &mut [f32]) {
        for (to, from) in dst.iter_mut().zip(src) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }

    fn narrow(src: &[f32], dst: &mut [Self]) {
        for (to, from) in dst.iter_mut().zip(src) {
            let bits = from.to_bits();
            let nearest_even = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // Rounding could carry a NaN's payload into infinity: keep it quiet instead.
            let nan = (bits >> 16) | 0x40;
            *to = bf16::from_bits(if from.is_nan() { nan } else { nearest_even } as u16);
        }
    }
}
