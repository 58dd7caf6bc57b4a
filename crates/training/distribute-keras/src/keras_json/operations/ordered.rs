//! Arguments of functions with a bound, of cut matrices and of sorted values.

use super::given::{Given, Refusal, wrong};
use super::table::What;
use crate::Activation;
use crate::layers::operation::{Kind, Unary};

/// Functions with a bound, which must be the usual one.
pub(super) fn bent(what: What, given: &mut Given) -> Result<Kind, Refusal> {
    let (key, usual, kind) = match what {
        What::Squareplus => ("b", 4.0, Kind::Activation(Activation::Squareplus)),
        What::Bent(Activation::Celu) => ("alpha", 1.0, Kind::Activation(Activation::Celu)),
        What::Bent(activation) => ("threshold", 0.5, Kind::Activation(activation)),
        _ => ("decimals", 0.0, Kind::Unary(Unary::Round)),
    };
    match given.number(key, usual)? {
        number if number == usual => Ok(kind),
        number => Err(wrong(key, &number.into())),
    }
}

/// The diagonals of matrices that are kept, from one below the middle to one above it.
pub(super) fn triangle(what: What, given: &mut Given) -> Result<Kind, Refusal> {
    let open = |width: i64| (width >= 0).then_some(width);
    let (lowest, highest) = match what {
        What::Triangle { lower: true } => (None, Some(given.integer("k")?.unwrap_or(0))),
        What::Triangle { lower: false } => (Some(given.integer("k")?.unwrap_or(0)), None),
        _ => {
            let mut width = |key| given.integer(key).map(|width| open(width.unwrap_or(0)));
            let (lower, upper) = (width("num_lower")?, width("num_upper")?);
            (lower.map(|width| -width), upper)
        }
    };
    Ok(Kind::Band { lowest, highest })
}

/// The order of values along an axis, or their positions in it.
pub(super) fn sort(positions: bool, given: &mut Given) -> Result<Kind, Refusal> {
    let descending = match given.text("direction")?.as_deref() {
        None | Some("ASCENDING") => false,
        Some("DESCENDING") => true,
        Some(other) => return Err(wrong("direction", &other.into())),
    };
    Ok(Kind::Sort {
        axis: given.integer("axis")?.unwrap_or(-1),
        descending,
        first: None,
        positions,
    })
}
