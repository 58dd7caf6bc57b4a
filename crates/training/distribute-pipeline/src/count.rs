//! Numbers of elements, with TensorFlow's -1.

/// How many elements to take, to skip, or how often to repeat: a number, or all. Every negative
/// number is all, as TensorFlow's -1 is.
///
/// ```
/// use distribute_pipeline::{Source, range};
/// assert_eq!(range(0..9).take(4).len(), 4);
/// assert_eq!(range(0..9).take(-1).len(), 9);
/// assert_eq!(range(0..9).skip(-1).len(), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// This many.
    Exactly(u64),
    /// All of them; of repetitions, without end.
    All,
}

impl Count {
    /// The number, of `most` at most.
    pub(crate) fn of(self, most: u64) -> u64 {
        match self {
            Self::Exactly(count) => count.min(most),
            Self::All => most,
        }
    }
}

macro_rules! from_unsigned {
    ($($number:ty),*) => {$(
        impl From<$number> for Count {
            fn from(count: $number) -> Self {
                u64::try_from(count).map_or(Self::All, Self::Exactly)
            }
        }
    )*};
}
from_unsigned!(i32, i64, u32, u64, usize);

/// How many elements one pass over a stream has (TensorFlow: `dataset.cardinality()`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cardinality {
    /// This many.
    Known(u64),
    /// It has no end (TensorFlow: `INFINITE_CARDINALITY`, -1).
    Infinite,
    /// It depends on the elements (TensorFlow: `UNKNOWN_CARDINALITY`, -2).
    Unknown,
}

impl Cardinality {
    /// The same of a stream of `change(n)` elements where this one has `n`.
    #[must_use]
    pub fn map(self, change: impl FnOnce(u64) -> u64) -> Self {
        match self {
            Self::Known(count) => Self::Known(change(count)),
            _ => self,
        }
    }

    /// The cardinality of `times` passes.
    pub(crate) fn repeated(self, times: Count) -> Self {
        match (self, times) {
            (_, Count::Exactly(0)) | (Self::Known(0), _) => Self::Known(0),
            (Self::Known(count), Count::Exactly(times)) => Self::Known(count.saturating_mul(times)),
            // As TensorFlow says, though it may be nothing that is repeated.
            (_, Count::All) => Self::Infinite,
            (other, _) => other,
        }
    }

    /// The cardinality of one stream after the other.
    pub(crate) fn followed_by(self, other: Self) -> Self {
        match (self, other) {
            (Self::Infinite, _) | (_, Self::Infinite) => Self::Infinite,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Known(one), Self::Known(other)) => Self::Known(one.saturating_add(other)),
        }
    }

    /// The cardinality of streams that are read together, until one ends.
    pub(crate) fn together_with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Infinite, other) | (other, Self::Infinite) => other,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Known(one), Self::Known(other)) => Self::Known(one.min(other)),
        }
    }

    /// The cardinality of the first elements.
    pub(crate) fn first(self, count: Count) -> Self {
        match (self, count) {
            (Self::Known(known), count) => Self::Known(count.of(known)),
            (Self::Infinite, Count::Exactly(count)) => Self::Known(count),
            (other, _) => other,
        }
    }

    /// The cardinality of what comes behind the first elements.
    pub(crate) fn without_first(self, count: Count) -> Self {
        match (self, count) {
            (Self::Unknown, _) => Self::Unknown,
            (_, Count::All) => Self::Known(0),
            (Self::Known(known), Count::Exactly(count)) => Self::Known(known.saturating_sub(count)),
            (other, _) => other,
        }
    }
}
