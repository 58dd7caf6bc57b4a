//! Reductions and concatenations of whole values in host memory: what `reduce`, `gather` and
//! `all_gather` do with the leaves of per-replica values.
//!
//! Order: element by element, the canonical one ([`tree`](distribute_collectives::tree)) over the
//! components; along axes the same over the rows within each component first.

use std::collections::BTreeSet;

use burn::tensor::{DType, Element, Shape, TensorData};
use distribute_collectives::{Element as Kernel, ReduceOp};

use crate::nest::different_structure;
use crate::{Error, Result};

/// Runs an expression of the operation `op` with `E` standing for the element type.
macro_rules! for_element {
    ($op:expr, $dtype:expr, $element:ident => $body:expr) => {
        $crate::host_reduce::for_element!(@$op, $dtype, $element, $body;
            F32 f32, F64 f64, F16 burn::tensor::f16, BF16 burn::tensor::bf16, I32 i32, I64 i64,
            U8 u8)
    };
    (@$op:expr, $dtype:expr, $element:ident, $body:expr; $($variant:ident $type:ty),*) => {
        match $dtype {
            $(burn::tensor::DType::$variant => {
                type $element = $type;
                $body
            })*
            other => Err($crate::Error::dtype($op, other)),
        }
    };
}
pub(crate) use for_element;

/// Turns one list of leaves per replica into one list of components per leaf.
pub(crate) fn columns(lists: Vec<Vec<TensorData>>) -> Result<Vec<Vec<TensorData>>> {
    let leaf_count = lists.first().map_or(0, Vec::len);
    if lists.iter().any(|list| list.len() != leaf_count) {
        return Err(different_structure());
    }
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    Ok((0..leaf_count)
        .map(|_| lists.iter_mut().filter_map(Iterator::next).collect())
        .collect())
}

/// Reduces components of equal shape element by element. One component comes back unchanged.
pub(crate) fn reduce(op: ReduceOp, mut components: Vec<TensorData>) -> Result<TensorData> {
    if components.len() < 2 {
        return components.pop().ok_or_else(different_structure);
    }
    let first = &components[0];
    let fits =
        |other: &&TensorData| other.shape() == first.shape() && other.dtype() == first.dtype();
    if let Some(other) = components.iter().find(|other| !fits(other)) {
        return Err(Error::shape("reduce", first.shape(), other.shape()));
    }
    if op == ReduceOp::Mean {
        components = components.iter().map(mean_input).collect();
    }
    for_element!("reduce", components[0].dtype(), E => fold::<E>(op, &components))
}

/// Reduces a value that is the same on all replicas, as TensorFlow does: any op over one replica
/// and MEAN, MIN and MAX over several give the value itself. SUM and PROD of several are refused,
/// because nothing says how often the value counts; only zero, which stays zero, is let through.
pub(crate) fn reduce_same(op: ReduceOp, value: TensorData, replicas: usize) -> Result<TensorData> {
    let counts = matches!(op, ReduceOp::Sum | ReduceOp::Prod);
    let is_zero = value.rank() == 0 && value.iter::<f64>().all(|value| value == 0.0);
    if replicas > 1 && counts && !is_zero {
        return Err(Error::NotDistributed { op, replicas });
    }
    Ok(value)
}

/// [`reduce_same`] of the values of several workers, which have at most this many replicas each: a
/// value counts once per worker.
pub(crate) fn reduce_same_of_workers(
    op: ReduceOp,
    values: Vec<TensorData>,
    replicas: usize,
) -> Result<TensorData> {
    for value in &values {
        reduce_same(op, value.clone(), replicas)?;
    }
    let is_equal = values.windows(2).all(|pair| pair[0] == pair[1]);
    match (op, values.first()) {
        // As it is: the mean of integers would be of another type.
        (ReduceOp::Mean, Some(value)) if is_equal => Ok(value.clone()),
        _ => reduce(op, values),
    }
}

/// The mean of integers is a float, as in TensorFlow: u8 gives f32, wider integers f64.
fn mean_input(data: &TensorData) -> TensorData {
    let mean = match data.dtype() {
        DType::U8 => DType::F32,
        dtype if dtype.is_int() || dtype.is_uint() => DType::F64,
        float => float,
    };
    data.clone().convert_dtype(mean)
}

/// Reduces over the elements along `axes` and over the components; the axes disappear.
pub(crate) fn reduce_axes(
    op: ReduceOp,
    components: Vec<TensorData>,
    axes: &[i64],
) -> Result<TensorData> {
    if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Err(Error::invalid(format!(
            "reduce over an axis: SUM or MEAN, not {op}"
        )));
    }
    let mut count = 0;
    let sums = components.iter().map(|data| {
        let axes = axes.iter().map(|axis| normalized_axis(data.rank(), *axis));
        // In order, and each once.
        let axes = axes.collect::<Result<BTreeSet<_>>>()?;
        let along = axes.iter().map(|axis| data.shape()[*axis]);
        count += along.product::<usize>();
        let mut sum = match op {
            ReduceOp::Mean => mean_input(data),
            _ => data.clone(),
        };
        for axis in axes.into_iter().rev() {
            sum = for_element!("reduce", sum.dtype(), E => sum_axis::<E>(&sum, axis))?;
        }
        Ok(sum)
    });
    let total = reduce(ReduceOp::Sum, sums.collect::<Result<_>>()?)?;
    match op {
        ReduceOp::Mean => divide(total, count),
        _ => Ok(total),
    }
}

fn normalized_axis(rank: usize, axis: i64) -> Result<usize> {
    let op = "reduce";
    let signed = i64::try_from(rank).map_err(Error::internal)?;
    let index = if axis < 0 { axis + signed } else { axis };
    let index = usize::try_from(index).ok().filter(|index| *index < rank);
    index.ok_or(Error::Axis { op, axis, rank })
}

fn sum_axis<E: Element + Kernel>(data: &TensorData, axis: usize) -> Result<TensorData> {
    let (outer, length, inner) = split_at(data.shape(), axis);
    let values = data.as_slice::<E>().map_err(Error::internal)?;
    let mut sums = vec![E::default(); outer * inner];
    for (row, sum) in sums.chunks_exact_mut(inner.max(1)).enumerate() {
        let rows = &values[row * length * inner..(row + 1) * length * inner];
        let rows: Vec<&[E]> = rows.chunks_exact(inner.max(1)).collect();
        if rows.is_empty() {
            continue; // the sum over no elements is zero
        }
        distribute_collectives::reduce::reduce_into(ReduceOp::Sum, &rows, sum);
    }
    let mut shape = data.shape().to_vec();
    shape.remove(axis);
    Ok(TensorData::new(sums, Shape::from(shape)))
}

/// The product of the dimensions before `axis`, the dimension itself, the product after.
fn split_at(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    let outer = shape[..axis].iter().product();
    let inner = shape[axis + 1..].iter().product();
    (outer, shape[axis], inner)
}

/// Divides by a count; zero elements give NaN, as in TensorFlow.
pub(crate) fn divide(mut total: TensorData, count: usize) -> Result<TensorData> {
    for_element!("reduce", total.dtype(), E => {
        let sums = total.as_mut_slice::<E>().map_err(Error::internal)?;
        distribute_collectives::reduce::divide(&mut <E as Kernel>::buffer(sums), count);
        Ok(total)
    })
}

/// Adds up rows of `width` elements at their indices in a tensor of zeros.
pub(crate) fn scatter_sum(
    rows: &TensorData,
    indices: &[usize],
    width: usize,
    shape: &[usize],
) -> Result<TensorData> {
    for_element!("reduce", rows.dtype(), E => {
        let values = rows.as_slice::<E>().map_err(Error::internal)?;
        let mut dense = vec![E::default(); shape.iter().product()];
        for (row, index) in values.chunks_exact(width.max(1)).zip(indices) {
            let target = &mut dense[index * width..(index + 1) * width];
            distribute_collectives::reduce::accumulate(ReduceOp::Sum, target, row);
        }
        Ok(TensorData::new(dense, Shape::from(shape.to_vec())))
    })
}

/// Concatenates components along `axis`, in order. One component comes back unchanged.
pub(crate) fn gather(components: Vec<TensorData>, axis: i64) -> Result<TensorData> {
    let first = components.first().ok_or_else(different_structure)?;
    let axis = gather_axis(first.dtype(), first.rank(), axis)?;
    let mut shape = first.shape().to_vec();
    shape[axis] = 0;
    for data in &components {
        let fits = data.rank() == shape.len()
            && data.dtype() == first.dtype()
            && (0..shape.len()).all(|i| i == axis || data.shape()[i] == shape[i]);
        if !fits {
            let op = "gather (only the gathered dimension may differ)";
            return Err(Error::shape(op, first.shape(), data.shape()));
        }
        shape[axis] += data.shape()[axis];
    }
    let (outer, _, inner) = split_at(&shape, axis);
    let dtype = first.dtype();
    let width = dtype.size() * inner;
    let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * dtype.size());
    for row in 0..outer {
        for data in &components {
            let chunk = data.shape()[axis] * width;
            bytes.extend_from_slice(&data.as_bytes()[row * chunk..(row + 1) * chunk]);
        }
    }
    Ok(TensorData::from_bytes_vec(bytes, shape, dtype))
}

/// Where tensors of this type and rank are concatenated.
pub(crate) fn gather_axis(dtype: DType, rank: usize, axis: i64) -> Result<usize> {
    let op = "gather";
    if dtype.is_bool() {
        return Err(Error::dtype(op, dtype));
    }
    // TensorFlow counts no axes from the end here.
    let index = usize::try_from(axis).ok().filter(|index| *index < rank);
    index.ok_or(Error::Axis { op, axis, rank })
}

/// Concatenates values of several tensors: the first tensors of all values along `axis`, in order,
/// then the second ones, and so on.
///
/// # Errors
/// [`Error::InvalidArgument`] for values with different numbers of tensors, [`Error::Axis`],
/// [`Error::Shape`] if other dimensions or the element types differ, [`Error::DType`] for bools.
pub fn concatenate(values: Vec<Vec<TensorData>>, axis: i64) -> Result<Vec<TensorData>> {
    let columns = columns(values)?.into_iter();
    columns.map(|column| gather(column, axis)).collect()
}

fn fold<E: Element + Kernel>(op: ReduceOp, components: &[TensorData]) -> Result<TensorData> {
    let slices = components
        .iter()
        .map(TensorData::as_slice::<E>)
        .collect::<Result<Vec<_>, _>>();
    let slices = slices.map_err(Error::internal)?;
    let mut values = vec![E::default(); slices[0].len()];
    distribute_collectives::reduce::reduce_into(op, &slices, &mut values);
    Ok(TensorData::new(values, components[0].shape().clone()))
}
