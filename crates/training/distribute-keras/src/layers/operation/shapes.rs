//! The shape that an operation gives, or why it cannot.

use super::axes::{BATCH, Extents, example_axes, example_axis};
use super::pick::picks;
use super::*;

type Outcome<T> = Result<T, String>;

pub(super) fn output(operation: &Operation, inputs: &[Shape]) -> Outcome<Shape> {
    let mut values = inputs.iter();
    let mut operands = Vec::with_capacity(operation.operands.len());
    for constant in &operation.operands {
        let operand = match constant {
            Some(constant) => Some(Extents {
                batched: false,
                dims: constant.shape.clone(),
            }),
            None => values.next().map(|shape| Extents {
                batched: true,
                dims: shape.dims(),
            }),
        };
        operands.push(operand.ok_or("receives fewer values than it takes")?);
    }
    if values.next().is_some() {
        return Err("receives more values than it takes".to_string());
    }
    let dims = of_kind(&operation.kind, &operands)?;
    if dims.contains(&0) {
        return Err(format!(
            "gives {}, which is empty",
            crate::shape::tuple(&dims)
        ));
    }
    Shape::of(&dims).ok_or_else(|| {
        format!(
            "gives {} axes, more than {} are not supported",
            dims.len(),
            crate::shape::MOST_AXES
        )
    })
}

/// The extents of one example of the result.
fn of_kind(kind: &Kind, operands: &[Extents]) -> Outcome<Vec<usize>> {
    let first = match operands.first() {
        Some(first) if first.batched || several(kind) => first,
        Some(_) => return Err("works on a constant".to_string()),
        None => return Err("receives nothing".to_string()),
    };
    let dims = &first.dims;
    match kind {
        Kind::Unary(_) | Kind::Activation(_) | Kind::Clip { .. } | Kind::Like(_) => {
            Ok(dims.clone())
        }
        Kind::Softmax { axis, .. } | Kind::Cumsum(axis) | Kind::Cumprod(axis) => {
            example_axis(dims, *axis).map(|_| dims.clone())
        }
        Kind::Glu(_) | Kind::TakeAlong(_) | Kind::Sort { .. } | Kind::Band { .. } => {
            ordered(kind, operands)
        }
        Kind::Normalize { axes, .. } => example_axes(dims, axes).map(|_| dims.clone()),
        Kind::Binary(_) | Kind::Where => broadcast(operands),
        Kind::Shape => Err(
            "gives a shape, which is supported as the first extent of a reshape \
                            alone; use numbers, and -1"
                .to_string(),
        ),
        Kind::Reduce { axes, keepdims, .. } => {
            let axes = reduced(dims, axes.as_deref())?;
            Ok(without(dims, &axes, *keepdims))
        }
        Kind::ArgMax { axis, keepdims, .. } => {
            let axis = example_axis(dims, *axis)?;
            Ok(without(dims, &[axis], *keepdims))
        }
        Kind::Reshape(to) => reshaped(dims, to),
        Kind::Transpose(_) | Kind::MoveAxes { .. } | Kind::Swap(..) => {
            let order = order(kind, dims.len() + 1)?;
            let order = order.iter().skip(1);
            Ok(order.map(|axis| dims[axis - 1]).collect())
        }
        Kind::ExpandDims(axes) => expanded(dims, axes),
        Kind::Squeeze(axes) => squeezed(dims, axes.as_deref()),
        Kind::Concatenate(axis) => concatenated(operands, *axis),
        Kind::Stack(axis) => {
            if operands.iter().any(|other| other.dims != *dims) {
                return Err("stacks values of different shapes".to_string());
            }
            let axis = new_axis(dims.len(), *axis)?;
            let mut dims = dims.clone();
            dims.insert(axis, operands.len());
            Ok(dims)
        }
        Kind::Matmul { transposed } => product(operands, *transposed),
        Kind::Einsum(einsum) => einsum.output(operands),
        Kind::Pad { widths, .. } => padded(dims, widths),
        Kind::OneHot(classes) => Ok([&dims[..], &[*classes]].concat()),
        Kind::Blocks { size, to_depth } => blocks(dims, *size, *to_depth),
        Kind::GetItem(_)
        | Kind::Part { .. }
        | Kind::Take { .. }
        | Kind::Tile(_)
        | Kind::Repeat { .. }
        | Kind::Flip(_)
        | Kind::Roll { .. } => picks(kind, dims).map(|(_, dims)| dims),
    }
}

/// The extents of what has the values of an axis in another order, or a part of them.
fn ordered(kind: &Kind, operands: &[Extents]) -> Outcome<Vec<usize>> {
    let mut dims = operands[0].dims.clone();
    match kind {
        Kind::Glu(axis) => {
            let axis = example_axis(&dims, *axis)?;
            if !dims[axis].is_multiple_of(2) {
                return Err(format!("halves an axis of {} places", dims[axis]));
            }
            dims[axis] /= 2;
        }
        Kind::Sort { axis, first, .. } => {
            let axis = example_axis(&dims, *axis)?;
            let count = first.unwrap_or(dims[axis]);
            if count > dims[axis] {
                return Err(format!("takes {count} of {} places", dims[axis]));
            }
            dims[axis] = count;
        }
        Kind::TakeAlong(axis) => {
            let axis = example_axis(&dims, *axis)?;
            let taken = operands.get(1).filter(|operand| operand.batched);
            let taken = taken.ok_or("takes constant positions; use keras.ops.take")?;
            let fits =
                |(at, (extent, other)): (usize, (&usize, &usize))| at == axis || extent == other;
            let pairs = dims.iter().zip(&taken.dims).enumerate();
            if dims.len() != taken.dims.len() || !pairs.into_iter().all(fits) {
                return Err("takes positions of another shape".to_string());
            }
            dims.clone_from(&taken.dims);
        }
        _ if dims.len() < 2 => return Err("needs matrices in every example".to_string()),
        _ => {}
    }
    Ok(dims)
}

/// Whether the first operand may be a constant.
fn several(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Binary(_) | Kind::Where | Kind::Concatenate(_) | Kind::Matmul { .. } | Kind::Stack(_)
    )
}

/// The axes of one example over which a reduction goes.
pub(super) fn reduced(dims: &[usize], axes: Option<&[i64]>) -> Outcome<Vec<usize>> {
    match axes {
        Some(axes) => example_axes(dims, axes),
        None => Err(BATCH.to_string()),
    }
}

fn without(dims: &[usize], axes: &[usize], keepdims: bool) -> Vec<usize> {
    let extent = |(axis, extent): (usize, &usize)| match (axes.contains(&axis), keepdims) {
        (false, _) => Some(*extent),
        (true, true) => Some(1),
        (true, false) => None,
    };
    dims.iter().enumerate().filter_map(extent).collect()
}

/// NumPy's rule, without the axis of the batch, which no other axis may meet.
pub(super) fn broadcast(operands: &[Extents]) -> Outcome<Vec<usize>> {
    let batched = operands.iter().filter(|operand| operand.batched);
    let Some(rank) = batched.clone().map(|operand| operand.dims.len()).max() else {
        return Err("works on constants alone".to_string());
    };
    let mut dims = vec![1; rank];
    for operand in operands {
        let mut theirs = &operand.dims[..];
        if operand.batched && theirs.len() != rank {
            return Err(format!(
                "combines values of {} and of {rank} axes, so that the batch would meet another \
                 axis; use keras.ops.expand_dims",
                theirs.len()
            ));
        }
        // A constant may have an axis of extent 1 for the batch.
        if !operand.batched && theirs.len() == rank + 1 && theirs[0] == 1 {
            theirs = &theirs[1..];
        }
        let Some(offset) = rank.checked_sub(theirs.len()) else {
            return Err(format!(
                "combines a value of {rank} axes with a constant of the shape {}",
                crate::shape::tuple(&operand.dims)
            ));
        };
        for (extent, other) in dims[offset..].iter_mut().zip(theirs) {
            *extent = match (*extent, *other) {
                (1, other) => other,
                (extent, 1) => extent,
                (extent, other) if extent == other => extent,
                (extent, other) => {
                    return Err(format!("combines axes of {extent} and {other} places"));
                }
            };
        }
    }
    Ok(dims)
}

fn reshaped(dims: &[usize], to: &[Option<usize>]) -> Outcome<Vec<usize>> {
    let elements = dims.iter().copied().fold(1, usize::saturating_mul);
    let known = to.iter().flatten().copied().fold(1, usize::saturating_mul);
    let open = to.iter().filter(|extent| extent.is_none()).count();
    let fits = match open {
        0 => known == elements,
        1 => known > 0 && elements.is_multiple_of(known),
        _ => false,
    };
    if !fits {
        return Err(format!(
            "reshapes {} into another number of values for each example",
            crate::shape::tuple(dims)
        ));
    }
    let extent = |extent: &Option<usize>| extent.unwrap_or(elements / known.max(1));
    Ok(to.iter().map(extent).collect())
}

/// The order of all axes, the batch among them.
pub(super) fn order(kind: &Kind, rank: usize) -> Outcome<Vec<usize>> {
    let dims = vec![1; rank - 1];
    let position = |axis: i64| example_axis(&dims, axis).map(|axis| axis + 1);
    let mut order: Vec<usize> = (0..rank).collect();
    match kind {
        Kind::Transpose(Some(axes)) if axes.first() == Some(&0) && axes.len() == rank => {
            for (to, from) in order.iter_mut().zip(axes).skip(1) {
                *to = position(*from)?;
            }
        }
        Kind::Transpose(None) if rank <= 1 => {}
        Kind::Transpose(_) => return Err(BATCH.to_string()),
        Kind::Swap(one, other) => order.swap(position(*one)?, position(*other)?),
        Kind::MoveAxes { from, to } => {
            let positions = |axes: &[i64]| {
                let each = axes.iter().map(|axis| position(*axis));
                each.collect::<Outcome<Vec<_>>>()
            };
            let (from, to) = (positions(from)?, positions(to)?);
            order.retain(|axis| !from.contains(axis));
            let mut moved: Vec<_> = to.into_iter().zip(from).collect();
            moved.sort_unstable();
            for (to, from) in moved {
                order.insert(to.min(order.len()), from);
            }
        }
        _ => {}
    }
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..rank) {
        Ok(order)
    } else {
        Err("needs every axis once".to_string())
    }
}

/// The position of a new axis in one example that has `rank` axes.
fn new_axis(rank: usize, axis: i64) -> Outcome<usize> {
    example_axis(&vec![1; rank + 1], axis)
}

fn expanded(dims: &[usize], axes: &[i64]) -> Outcome<Vec<usize>> {
    let rank = dims.len() + axes.len();
    let axes = example_axes(&vec![1; rank], axes)?;
    if dims.len() + axes.len() != rank {
        return Err("adds an axis twice".to_string());
    }
    let mut rest = dims.iter();
    let extent = |axis| {
        if axes.contains(&axis) {
            Some(1)
        } else {
            rest.next().copied()
        }
    };
    Ok((0..rank).filter_map(extent).collect())
}

fn squeezed(dims: &[usize], axes: Option<&[i64]>) -> Outcome<Vec<usize>> {
    let axes = match axes {
        Some(axes) => example_axes(dims, axes)?,
        None => (0..dims.len()).filter(|axis| dims[*axis] == 1).collect(),
    };
    match axes.iter().find(|axis| dims[**axis] != 1) {
        Some(axis) => Err(format!("takes an axis of {} places away", dims[*axis])),
        None => Ok(without(dims, &axes, false)),
    }
}

fn concatenated(operands: &[Extents], axis: i64) -> Outcome<Vec<usize>> {
    let mut dims = operands[0].dims.clone();
    if operands.iter().any(|operand| !operand.batched) {
        return Err("joins a constant".to_string());
    }
    let axis = example_axis(&dims, axis)?;
    for operand in &operands[1..] {
        let fits = operand.dims.len() == dims.len()
            && (0..dims.len()).all(|i| i == axis || operand.dims[i] == dims[i]);
        if !fits {
            return Err(format!(
                "joins {} and {}",
                crate::shape::tuple(&dims),
                crate::shape::tuple(&operand.dims)
            ));
        }
        dims[axis] = dims[axis].saturating_add(operand.dims[axis]);
    }
    Ok(dims)
}

/// Rows and columns of an operand as the product reads it.
pub(super) fn matrix(operand: &Extents, transposed: bool) -> Option<(usize, usize)> {
    match (&operand.dims[..], transposed) {
        ([.., rows, columns], false) => Some((*rows, *columns)),
        ([.., rows, columns], true) => Some((*columns, *rows)),
        _ => None,
    }
}

fn product(operands: &[Extents], transposed: [bool; 2]) -> Outcome<Vec<usize>> {
    let [left, right] = operands else {
        return Err("needs two values".to_string());
    };
    let wrong = || {
        format!(
            "multiplies {} and {}; matrices in every example, or a constant matrix on the right, \
             are supported",
            crate::shape::tuple(&left.dims),
            crate::shape::tuple(&right.dims)
        )
    };
    // The rows of the examples with a constant matrix.
    if left.batched && !right.batched && right.dims.len() == 2 {
        let (rows, columns) = matrix(right, transposed[1]).ok_or_else(wrong)?;
        return match left.dims.split_last() {
            Some((last, outer)) if !transposed[0] && *last == rows => {
                Ok([outer, &[columns]].concat())
            }
            _ => Err(wrong()),
        };
    }
    if !(left.batched && right.batched) || left.dims.len() != right.dims.len() {
        return Err(wrong());
    }
    let (rows, inner) = matrix(left, transposed[0]).ok_or_else(wrong)?;
    let (other, columns) = matrix(right, transposed[1]).ok_or_else(wrong)?;
    let outer = left.dims.len() - 2;
    if inner != other || left.dims[..outer] != right.dims[..outer] {
        return Err(wrong());
    }
    Ok([&left.dims[..outer], &[rows, columns]].concat())
}

fn padded(dims: &[usize], widths: &[(usize, usize)]) -> Outcome<Vec<usize>> {
    if widths.len() != dims.len() + 1 || widths.first() != Some(&(0, 0)) {
        return Err("pads another number of axes, or the batch".to_string());
    }
    let padded = dims.iter().zip(&widths[1..]);
    Ok(padded
        .map(|(extent, (before, after))| extent.saturating_add(*before).saturating_add(*after))
        .collect())
}

fn blocks(dims: &[usize], size: usize, to_depth: bool) -> Outcome<Vec<usize>> {
    let area = size.saturating_mul(size);
    match *dims {
        [height, width, channels]
            if to_depth && height.is_multiple_of(size) && width.is_multiple_of(size) =>
        {
            Ok(vec![
                height / size,
                width / size,
                channels.saturating_mul(area),
            ])
        }
        [height, width, channels] if !to_depth && channels.is_multiple_of(area) => Ok(vec![
            height.saturating_mul(size),
            width.saturating_mul(size),
            channels / area,
        ]),
        _ => Err(format!(
            "needs images that blocks of {size} divide, gets {}",
            crate::shape::tuple(dims)
        )),
    }
}
