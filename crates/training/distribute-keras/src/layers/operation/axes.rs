//! Axes and extents of what an operation receives.

use crate::shape::tuple;

/// The shape of an operand: of one example, or of a constant as it is.
#[derive(Debug, Clone)]
pub(super) struct Extents {
    pub(super) batched: bool,
    pub(super) dims: Vec<usize>,
}

type Outcome<T> = Result<T, String>;

/// Why an operation along the first axis is refused.
pub(super) const BATCH: &str = "works along the axis of the batch, whose examples are on several replicas; \
                     use the other axes";

/// The position of an axis in one example.
pub(super) fn example_axis(dims: &[usize], axis: i64) -> Outcome<usize> {
    let rank = dims.len() as i64 + 1;
    let from_front = if axis < 0 { axis + rank } else { axis };
    match from_front {
        0 => Err(BATCH.to_string()),
        1.. if from_front < rank => Ok(from_front as usize - 1),
        _ => Err(format!("has no axis {axis} in {}", tuple(dims))),
    }
}

pub(super) fn example_axes(dims: &[usize], axes: &[i64]) -> Outcome<Vec<usize>> {
    let each = axes.iter().map(|axis| example_axis(dims, *axis));
    let mut axes = each.collect::<Outcome<Vec<_>>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}
