//! Operations on two numbers of a type.

/// Numbers that can be accumulated. As the name of this trait cannot be written elsewhere, no other
/// crate else implements [`Accumulator`](crate::Accumulator).
pub trait Number: bytemuck::Pod {
    /// `self + other`; integers wrap around.
    fn sum(self, other: Self) -> Self;
    /// The smaller value; NaN wins.
    fn minimum(self, other: Self) -> Self;
    /// The larger value; NaN wins.
    fn maximum(self, other: Self) -> Self;
    /// `self * other`; integers wrap around.
    fn product(self, other: Self) -> Self;
    /// `self / count`; integers truncate toward zero.
    fn divided(self, count: usize) -> Self;
    /// The number itself, and the NaN whose bits are all set for every NaN.
    fn one_nan(self) -> Self;
    /// `dst[i] = f(dst[i], src[i])` for the elements whose bytes are `src`.
    fn zip(dst: &mut [Self], src: &[u8], f: impl Fn(Self, Self) -> Self);
}

macro_rules! zip_unaligned {
    ($type:ty) => {
        #[inline(always)]
        fn zip(dst: &mut [Self], src: &[u8], f: impl Fn(Self, Self) -> Self) {
            let (src, _) = src.as_chunks::<{ size_of::<$type>() }>();
            for (d, s) in dst.iter_mut().zip(src) {
                *d = f(*d, <$type>::from_ne_bytes(*s));
            }
        }
    };
}

macro_rules! float_numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            // `other != other` is true for NaN only; written so that it becomes a compare and
            // a blend instead of a branch.
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if (other < self) | (other != other) { other } else { self }
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if (other > self) | (other != other) { other } else { self }
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn divided(self, count: usize) -> Self {
                self / count as $type
            }

            // Of all NaNs the cheapest to put there: the result of the comparison.
            #[inline(always)]
            fn one_nan(self) -> Self {
                if self != self { <$type>::from_bits(!0) } else { self }
            }

            zip_unaligned!($type);
        }
    )*};
}
float_numbers!(f32, f64);

macro_rules! integer_numbers {
    ($($type:ty => $wide:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn divided(self, count: usize) -> Self {
                // The quotient is never larger than `self`, so it fits.
                (self as $wide / count as $wide) as $type
            }

            #[inline(always)]
            fn one_nan(self) -> Self {
                self
            }

            zip_unaligned!($type);
        }
    )*};
}
integer_numbers!(i32 => i64, i64 => i64, u8 => u64);
