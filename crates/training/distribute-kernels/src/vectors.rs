//! The widest vectors of this CPU.

use pulp::WithSimd;

/// Runs an operation with them.
#[cfg(target_arch = "x86_64")]
pub(crate) fn run<Op: WithSimd>(operation: Op) -> Op::Output {
    use pulp::Simd;
    use pulp::x86::{V3, V4};

    if let Some(avx512) = V4::try_new() {
        return Simd::vectorize(avx512, operation);
    }
    match V3::try_new() {
        Some(avx2) => Simd::vectorize(avx2, operation),
        None => Simd::vectorize(pulp::Scalar, operation),
    }
}

/// Whether it has vectors, and multiplies and adds in one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn exist() -> bool {
    pulp::x86::V3::try_new().is_some()
}

/// Runs an operation with them.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn run<Op: WithSimd>(operation: Op) -> Op::Output {
    pulp::Arch::new().dispatch(operation)
}

/// Whether it has vectors, and multiplies and adds in one.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn exist() -> bool {
    !matches!(pulp::Arch::new(), pulp::Arch::Scalar)
}
