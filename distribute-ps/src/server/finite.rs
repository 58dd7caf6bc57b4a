//! Whether numbers are finite.

/// Whether all elements of this many bytes each are finite; a rest that is no element is left out.
#[inline(always)]
pub(super) fn finite<E, const N: usize>(
    bytes: &[u8],
    read: impl Fn([u8; N]) -> E,
    is_finite: impl Fn(E) -> bool,
) -> bool {
    // No early end: that lets the compiler look at many elements at a time.
    let (elements, _) = bytes.as_chunks::<N>();
    elements.chunks(4096).all(|block| {
        block
            .iter()
            .fold(true, |all, element| all & is_finite(read(*element)))
    })
}
