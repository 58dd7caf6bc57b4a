//! The operation on two values.

use std::fmt;

/// How the values of the ranks are combined, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The sum divided by the world size.
    Mean,
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// The product.
    Prod,
}

impl ReduceOp {
    /// All values, in the order of their declaration, which is the order of their codes.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Prod];

    /// The short name, as used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
        }
    }

    /// What partial results are combined with: of a mean the last result is divided, no other one.
    #[must_use]
    pub fn undivided(self) -> Self {
        match self {
            Self::Mean => Self::Sum,
            other => other,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which of two values comes to the other one. It shows in minima and maxima alone: in the sign of
/// a zero and in which NaN it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What comes is the left side.
    Left,
    /// What comes is the right side.
    Right,
}
