//! Arithmetic compiled a second time for processors with wide vectors. Programs are built for the
//! smallest processor of their kind, whose vectors have 4 numbers; the bits do not depend on it.
#![expect(unsafe_code, reason = "each use says why it is sound")]

use crate::server::finite::finite;
use crate::server::kernels::Kernel;

/// [`Kernel::apply`].
pub(super) fn apply(
    kernel: Kernel,
    coefficients: &[f64],
    parameter: &mut [u8],
    gradient: &[u8],
    slots: &mut [&mut [u8]],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { apply_avx2(kernel, coefficients, parameter, gradient, slots) };
    }
    kernel.apply(coefficients, parameter, gradient, slots)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn apply_avx2(
    kernel: Kernel,
    coefficients: &[f64],
    parameter: &mut [u8],
    gradient: &[u8],
    slots: &mut [&mut [u8]],
) -> bool {
    kernel.apply(coefficients, parameter, gradient, slots)
}

/// Whether all `f32` are finite.
pub(super) fn all_finite(bytes: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { all_finite_avx2(bytes) };
    }
    finite_f32(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn all_finite_avx2(bytes: &[u8]) -> bool {
    finite_f32(bytes)
}

/// Compiled for the caller's processor.
#[inline(always)]
fn finite_f32(bytes: &[u8]) -> bool {
    finite::<f32, 4>(bytes, f32::from_le_bytes, f32::is_finite)
}
