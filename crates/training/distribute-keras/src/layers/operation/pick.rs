//! Operations that take values out of a tensor, or put them into another order, along its axes:
//! slices, parts, copies.

use burn::tensor::{Int, Tensor};

use super::axes::{example_axes, example_axis};
use super::{Kind, PadMode, Part};
use crate::layers::nd::{Nd, each_rank};

/// One entry of `x[..]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Index {
    /// A position, whose axis goes.
    At(i64),
    Slice {
        start: Option<i64>,
        stop: Option<i64>,
        step: i64,
    },
    /// A new axis (`None`).
    New,
    /// All axes that are left (`...`).
    Ellipsis,
}

/// Which positions of an axis are taken, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pick {
    Range {
        start: usize,
        count: usize,
    },
    Steps {
        start: usize,
        step: i64,
        count: usize,
    },
    /// Each position this many times.
    Repeat(usize),
    /// All positions, this many times.
    Tile(usize),
    /// All positions, beginning with this one, and the first ones behind the last.
    Roll(usize),
    List(Vec<usize>),
}

impl Pick {
    /// How many positions are taken of this many.
    fn count(&self, extent: usize) -> usize {
        match self {
            Self::Range { count, .. } | Self::Steps { count, .. } => *count,
            Self::Repeat(times) | Self::Tile(times) => extent.saturating_mul(*times),
            Self::Roll(_) => extent,
            Self::List(list) => list.len(),
        }
    }

    fn positions(&self, extent: usize) -> Vec<i64> {
        let all = 0..extent as i64;
        match self {
            Self::Range { start, count } => {
                let start = *start as i64;
                (start..start + *count as i64).collect()
            }
            Self::Steps { start, step, count } => {
                let position = |index: usize| *start as i64 + step * index as i64;
                (0..*count).map(position).collect()
            }
            Self::Repeat(times) => {
                let each = all.flat_map(|position| std::iter::repeat_n(position, *times));
                each.collect()
            }
            Self::Tile(times) => (0..*times).flat_map(|_| all.clone()).collect(),
            Self::Roll(first) => {
                let first = *first as i64;
                (first..extent as i64).chain(0..first).collect()
            }
            Self::List(list) => list.iter().map(|position| *position as i64).collect(),
        }
    }

    /// Takes the positions of an axis of a tensor.
    pub(super) fn take(&self, x: Nd, axis: usize) -> Nd {
        let extent = x.dims()[axis];
        if let Self::Range { start, count } = self {
            if *count == extent {
                return x;
            }
            return each_rank!(x, x => x.narrow(axis, *start, *count));
        }
        pick(x, axis, &self.positions(extent))
    }
}

/// Takes these positions of an axis.
pub(super) fn pick(x: Nd, axis: usize, positions: &[i64]) -> Nd {
    let device = x.device().without_autodiff();
    let positions = Tensor::<1, Int>::from_data(positions, &device);
    each_rank!(x, x => x.select(axis, positions))
}

type Outcome<T> = Result<T, String>;

/// Where is what taken: pairs of an axis of one example and its positions.
type Picks = Vec<(usize, Pick)>;

/// What an operation takes of examples with these extents, and the extents of the result, in which
/// new axes and those of one position are added and left out.
pub(super) fn picks(kind: &Kind, dims: &[usize]) -> Outcome<(Picks, Vec<usize>)> {
    let picks = match kind {
        Kind::GetItem(indices) => return items(indices, dims),
        Kind::Part { axis, part } => return parts(part, example_axis(dims, *axis)?, dims),
        Kind::Take {
            axis,
            indices,
            keep,
        } => {
            let axis = example_axis(dims, *axis)?;
            let list = indices.iter().map(|index| position(*index, dims[axis]));
            let list = list.collect::<Outcome<Vec<_>>>()?;
            let picks = vec![(axis, Pick::List(list))];
            let mut picked = after(&picks, dims);
            if !keep {
                picked.remove(axis);
            }
            return Ok((picks, picked));
        }
        Kind::Tile(times) => tiles(times, dims.len())?,
        Kind::Repeat { axis, times } => vec![(example_axis(dims, *axis)?, Pick::Repeat(*times))],
        Kind::Flip(Some(axes)) => {
            let axes = example_axes(dims, axes)?.into_iter();
            axes.map(|axis| (axis, backwards(dims[axis]))).collect()
        }
        Kind::Roll { axis, shift } => {
            let axis = example_axis(dims, *axis)?;
            let extent = (dims[axis] as i64).max(1);
            vec![(axis, Pick::Roll((-shift).rem_euclid(extent) as usize))]
        }
        // A flip of all axes is one of the batch.
        _ => return Err("works along the axis of the batch; give the axes".to_string()),
    };
    let dims = after(&picks, dims);
    Ok((picks, dims))
}

fn after(picks: &Picks, dims: &[usize]) -> Vec<usize> {
    let mut dims = dims.to_vec();
    for (axis, pick) in picks {
        dims[*axis] = pick.count(dims[*axis]);
    }
    dims
}

fn backwards(extent: usize) -> Pick {
    Pick::Steps {
        start: extent.saturating_sub(1),
        step: -1,
        count: extent,
    }
}

fn position(index: i64, extent: usize) -> Outcome<usize> {
    let from_front = if index < 0 {
        index.saturating_add(extent as i64)
    } else {
        index
    };
    let found = usize::try_from(from_front).ok();
    let found = found.filter(|position| *position < extent);
    found.ok_or_else(|| format!("takes position {index} of an axis of {extent} places"))
}

fn tiles(times: &[usize], rank: usize) -> Outcome<Picks> {
    let fewer = (rank + 1).checked_sub(times.len());
    let own = match fewer {
        Some(0) if times[0] == 1 => &times[1..],
        Some(1..) => times,
        _ => return Err("repeats the axis of the batch".to_string()),
    };
    let first = rank - own.len();
    let picks = own.iter().enumerate();
    Ok(picks
        .filter(|(_, times)| **times != 1)
        .map(|(axis, times)| (first + axis, Pick::Tile(*times)))
        .collect())
}

fn parts(part: &Part, axis: usize, dims: &[usize]) -> Outcome<(Picks, Vec<usize>)> {
    let extent = dims[axis];
    let (start, count) = match *part {
        Part::Equal { index, count } => {
            let size = extent
                .checked_div(count)
                .filter(|size| size * count == extent);
            let size = size.ok_or_else(|| {
                format!("splits an axis of {extent} places into {count} equal parts")
            })?;
            (index.saturating_mul(size), size)
        }
        Part::Between { start, stop } => range(Some(start), stop, extent),
        Part::At(index) => (position(index, extent)?, 1),
    };
    if start.saturating_add(count) > extent {
        return Err(format!(
            "has no part behind the {extent} places of the axis"
        ));
    }
    let picks = vec![(axis, Pick::Range { start, count })];
    let mut dims = after(&picks, dims);
    if let Part::At(_) = part {
        dims.remove(axis);
    }
    Ok((picks, dims))
}

/// Start and count of a slice without a step.
fn range(start: Option<i64>, stop: Option<i64>, extent: usize) -> (usize, usize) {
    let clamp = |position: i64| {
        let from_front = if position < 0 {
            position.saturating_add(extent as i64)
        } else {
            position
        };
        usize::try_from(from_front).unwrap_or(0).min(extent)
    };
    let start = start.map_or(0, clamp);
    (start, stop.map_or(extent, clamp).saturating_sub(start))
}

/// Python's slices: first position, step and count.
fn slice(start: Option<i64>, stop: Option<i64>, step: i64, extent: usize) -> Option<Pick> {
    if step == 1 {
        let (start, count) = range(start, stop, extent);
        return Some(Pick::Range { start, count });
    }
    let (all, forward) = (extent as i64, step > 0);
    let (lowest, highest) = if forward { (0, all) } else { (-1, all - 1) };
    let clamp = |position: i64| {
        let from_front = if position < 0 {
            position.saturating_add(all)
        } else {
            position
        };
        from_front.clamp(lowest, highest)
    };
    let (from, to) = if forward { (0, all) } else { (all - 1, -1) };
    let start = start.map_or(from, clamp);
    let stop = stop.map_or(to, clamp);
    let distance = if forward { stop - start } else { start - stop };
    let count = if distance > 0 {
        (distance as u64).div_ceil(step.unsigned_abs())
    } else {
        0
    };
    Some(Pick::Steps {
        start: usize::try_from(start).unwrap_or(0),
        step,
        count: usize::try_from(count).ok()?,
    })
}

/// `x[..]`. The first index, of the batch, takes all examples.
fn items(indices: &[Index], dims: &[usize]) -> Outcome<(Picks, Vec<usize>)> {
    let used = indices.iter();
    let used = used.filter(|index| matches!(index, Index::At(_) | Index::Slice { .. }));
    let Some(rest) = (dims.len() + 1).checked_sub(used.count()) else {
        return Err("has fewer axes than indices".to_string());
    };
    let whole = Index::Slice {
        start: None,
        stop: None,
        step: 1,
    };
    let all = || std::iter::repeat_n(whole.clone(), rest);
    let mut written: Vec<Index> = Vec::new();
    let mut open = false;
    for index in indices {
        if *index != Index::Ellipsis {
            written.push(index.clone());
        } else if !std::mem::replace(&mut open, true) {
            written.extend(all());
        } else {
            return Err("has two ellipses".to_string());
        }
    }
    if !open {
        written.extend(all());
    }
    let is_whole = |index: &Index| {
        matches!(
            index,
            Index::Slice {
                start: None | Some(0),
                stop: None,
                step: 1
            }
        )
    };
    if !written.first().is_some_and(is_whole) {
        return Err(
            "takes examples out of the batch, which is split over the replicas; begin \
                    with `:`"
                .to_string(),
        );
    }
    let (mut picks, mut picked, mut axis) = (Vec::new(), Vec::new(), 0);
    for index in &written[1..] {
        if *index == Index::New {
            picked.push(1);
            continue;
        }
        let extent = dims[axis];
        let pick = match *index {
            Index::At(at) => Pick::Range {
                start: position(at, extent)?,
                count: 1,
            },
            Index::Slice { start, stop, step } => {
                slice(start, stop, step, extent).ok_or("has a slice that is too long")?
            }
            Index::New | Index::Ellipsis => continue,
        };
        if !matches!(index, Index::At(_)) {
            picked.push(pick.count(extent));
        }
        picks.push((axis, pick));
        axis += 1;
    }
    Ok((picks, picked))
}

/// Values around a tensor, as many before and after on each axis.
pub(super) fn pad(x: Nd, widths: &[(usize, usize)], mode: PadMode) -> Nd {
    let mut x = x;
    for (axis, (before, after)) in widths.iter().enumerate() {
        if (*before, *after) == (0, 0) {
            continue;
        }
        let extent = x.dims()[axis];
        x = match mode {
            PadMode::Constant(value) => filled(x, axis, (*before, *after), value),
            PadMode::Reflect | PadMode::Symmetric => {
                let edge = i64::from(mode == PadMode::Reflect);
                let (before, after) = (*before as i64, *after as i64);
                let positions = -before..extent as i64 + after;
                let positions: Vec<i64> = positions
                    .map(|position| mirrored(position, extent as i64, edge))
                    .collect();
                pick(x, axis, &positions)
            }
        };
    }
    x
}

/// The position inside that a mirror at the ends shows in a position outside. With `edge` the
/// outermost position is not repeated.
fn mirrored(position: i64, extent: i64, edge: i64) -> i64 {
    if extent <= 1 {
        return 0;
    }
    let period = 2 * (extent - edge);
    let place = position.rem_euclid(period);
    if place < extent {
        place
    } else {
        period - place - 1 + edge
    }
}

fn filled(x: Nd, axis: usize, (before, after): (usize, usize), value: f64) -> Nd {
    each_rank!(x, x => {
        let device = x.device().without_autodiff();
        let side = |count: usize| {
            let mut dims = x.dims();
            dims[axis] = count;
            (count > 0).then(|| Tensor::full(dims, value, (&device, x.dtype())))
        };
        let sides = (side(before), side(after));
        let all = sides.0.into_iter().chain([x]).chain(sides.1);
        Tensor::cat(all.collect(), axis)
    })
}
