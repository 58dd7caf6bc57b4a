//! Max and average pooling and their gradients. One function serves one and two dimensions.

use distribute_core::burn_internals::ir::{
    AvgPool1dBackwardOpIr, AvgPool1dOpIr, AvgPool2dBackwardOpIr, AvgPool2dOpIr, MaxPool1dOpIr,
    MaxPool1dWithIndicesBackwardOpIr, MaxPool1dWithIndicesOpIr, MaxPool2dOpIr,
    MaxPool2dWithIndicesBackwardOpIr, MaxPool2dWithIndicesOpIr, TensorIr,
};

use crate::stablehlo::{
    Binary, Comparison, ElementType, ScatterDimensions, TensorType, Update, Value, Window,
};

use super::context::Context;
use super::error::Result;
use super::options::Target;
use super::windows::{Pool, Pooled, largest, largest_with_positions};

/// The window of an operation that has a dilation, or not.
macro_rules! pool {
    ($op:expr, 1) => {
        Pool {
            kernel: vec![$op.kernel_size],
            stride: vec![$op.stride],
            padding: vec![$op.padding],
            dilation: vec![$op.dilation],
        }
    };
    ($op:expr, 2) => {
        Pool {
            kernel: $op.kernel_size.to_vec(),
            stride: $op.stride.to_vec(),
            padding: $op.padding.to_vec(),
            dilation: $op.dilation.to_vec(),
        }
    };
    ($op:expr, 1, dense) => {
        Pool {
            kernel: vec![$op.kernel_size],
            stride: vec![$op.stride],
            padding: vec![$op.padding],
            dilation: vec![1],
        }
    };
    ($op:expr, 2, dense) => {
        Pool {
            kernel: $op.kernel_size.to_vec(),
            stride: $op.stride.to_vec(),
            padding: $op.padding.to_vec(),
            dilation: vec![1; 2],
        }
    };
}

fn max_pool(cx: &mut Context, x: &TensorIr, out: &TensorIr, pool: &Pool) -> Result<()> {
    let x = cx.get(x)?;
    let largest = largest(&mut cx.builder, &x, &out.shape[2..], pool)?;
    cx.set(out, largest)
}

/// The largest element of each window and its position in the plane. The TPU compiler makes much
/// less of a maximum alone, and the gradient of the same pooling does not need the positions.
fn max_pool_with_indices(
    cx: &mut Context,
    x: &TensorIr,
    out: &TensorIr,
    out_indices: &TensorIr,
    pool: &Pool,
) -> Result<()> {
    let input = x.id;
    let x = cx.get(x)?;
    if cx.target == Target::Tpu {
        let value = largest(&mut cx.builder, &x, &out.shape[2..], pool)?;
        let pooled = Pooled {
            pool: pool.clone(),
            input,
            x,
            positions: out_indices.clone(),
        };
        cx.pools.insert(out_indices.id, pooled);
        return cx.set(out, value);
    }
    let [value, positions] = largest_with_positions(&mut cx.builder, &x, &out.shape[2..], pool)?;
    cx.set(out, value)?;
    cx.set_as(out_indices, &positions)
}

/// Windows of more elements than this have their gradients scattered.
const SPREAD_OFFSETS: usize = 32;

/// Each gradient goes to the element whose position was recorded. For every place inside the
/// window the gradients of the windows that chose it are spread over the plane and added up, which
/// needs no scatter unless the window is large.
fn max_pool_backward(
    cx: &mut Context,
    x: &TensorIr,
    gradient: &TensorIr,
    indices: &TensorIr,
    out: &TensorIr,
    pool: &Pool,
) -> Result<()> {
    let gradient = cx.get(gradient)?;
    if let Some(pooled) = same_pooling(cx, x, indices, pool) {
        let sum = selected(cx, &pooled, &gradient)?;
        return cx.set_as(out, &sum);
    }
    let indices = cx.get(indices)?;
    let indices = cx.builder.convert(&indices, ElementType::I32);
    let target = &x.shape[2..];
    let windows = gradient.dims()[2..].to_vec();
    let wide = cx.wide(&gradient);
    if pool.kernel.iter().product::<usize>() > SPREAD_OFFSETS {
        let sum = scattered(cx, &wide, &indices, &x.shape)?;
        return cx.set_as(out, &sum);
    }
    let zeros = cx.number_like(0.0, &wide);
    let mut sum: Option<Value> = None;
    for offset in offsets(&pool.kernel) {
        let position = offset_positions(cx, pool, &offset, &gradient, target)?;
        let chosen = cx.builder.compare(Comparison::Eq, &indices, &position)?;
        let part = cx.builder.select(&chosen, &wide, &zeros)?;
        let part = spread_windows(cx, &part, pool, &offset, &windows, target)?;
        sum = Some(match sum {
            Some(sum) => cx.binary(Binary::Add, &sum, &part)?,
            None => part,
        });
    }
    let sum = match sum {
        Some(sum) => sum,
        None => cx.builder.splat(&x.shape, wide.element(), 0i64),
    };
    cx.set_as(out, &sum)
}

/// The pooling of `x` with these windows that `indices` come from, if they do and the gradient can
/// be had without them.
fn same_pooling(cx: &Context, x: &TensorIr, indices: &TensorIr, pool: &Pool) -> Option<Pooled> {
    let pooled = cx.pools.get(&indices.id)?;
    let same = pooled.input == x.id && pooled.pool == *pool;
    let simple = pool.dilation.iter().all(|d| *d == 1);
    (same && simple).then(|| pooled.clone())
}

/// Each gradient goes to the element that wins in its window: of equals the first, of NaNs the
/// last, as [`largest_with_positions`] has it.
fn selected(cx: &mut Context, pooled: &Pooled, gradient: &Value) -> Result<Value> {
    let x = cx.wide(&pooled.x);
    let gradient = cx.wide(gradient);
    let (cut, window) = pooled
        .pool
        .window(&mut cx.builder, &x, &gradient.dims()[2..])?;
    let low: Vec<i64> = window.padding.iter().map(|padding| padding.0).collect();
    let (cut, window) = padded(cx, cut, window)?;
    let zero = cx.builder.scalar(x.element(), 0i64);
    let sum =
        cx.builder
            .select_and_scatter(&cut, &gradient, &zero, &window, |b, winner, next| {
                let larger = b.compare(Comparison::Ge, winner, next)?;
                let nan = b.compare(Comparison::Ne, winner, winner)?;
                let number = b.compare(Comparison::Eq, next, next)?;
                let nan_stays = b.binary(Binary::And, &nan, &number)?;
                b.binary(Binary::Or, &larger, &nan_stays)
            })?;
    // Without the padding, and with what no window has touched.
    let none = vec![0; x.rank()];
    let size = |t: &Value, d: usize| t.dims()[d] as i64;
    let high: Vec<i64> = (0..x.rank())
        .map(|d| size(&x, d) + low[d] - size(&sum, d))
        .collect();
    if low == none && high == none {
        return Ok(sum);
    }
    let low: Vec<i64> = low.iter().map(|padding| -padding).collect();
    Ok(cx.builder.pad(&sum, &zero, &low, &high, &none)?)
}

/// `x` with a window's padding around it, and the window without padding.
///
/// XLA goes through windows row by row only where they have no padding: elsewhere another of
/// several equals may win. What is around `x` is less than everything inside, so that even the
/// lowest element wins against it: minus infinity inside counts as the lowest number.
fn padded(cx: &mut Context, x: Value, mut window: Window) -> Result<(Value, Window)> {
    let padding = std::mem::replace(&mut window.padding, vec![(0, 0); x.rank()]);
    if padding == window.padding {
        return Ok((x, window));
    }
    let (low, high): (Vec<i64>, Vec<i64>) = padding.into_iter().unzip();
    let lowest = match x.element() {
        ElementType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    };
    let inside = cx.with_number(Binary::Maximum, &x, lowest)?;
    let outside = cx.builder.scalar(x.element(), f64::NEG_INFINITY);
    let none = vec![0; x.rank()];
    let x = cx.builder.pad(&inside, &outside, &low, &high, &none)?;
    Ok((x, window))
}

/// Adds every gradient at its position in its plane; positions of -1 are left out.
fn scattered(cx: &mut Context, gradient: &Value, at: &Value, x: &[usize]) -> Result<Value> {
    let planes = x[0] * x[1];
    let plane: usize = x[2..].iter().product();
    let windows: usize = gradient.dims()[2..].iter().product();
    let at = cx.builder.reshape(at, &[planes, windows, 1])?;
    let row = cx.builder.iota(at.ty().clone(), 0)?;
    let at = cx.builder.concatenate(&[row, at], 2)?;
    let gradient = cx.builder.reshape(gradient, &[planes, windows])?;
    let zeros = cx.builder.splat(&[planes, plane], gradient.element(), 0i64);
    let dims = ScatterDimensions {
        update_window_dims: vec![],
        inserted_window_dims: vec![0, 1],
        scatter_dims_to_operand_dims: vec![0, 1],
        index_vector_dim: 2,
    };
    let add = Update::Combine(Binary::Add);
    let sum = cx.builder.scatter(&zeros, &at, &gradient, &dims, add)?;
    Ok(cx.builder.reshape(&sum, x)?)
}

/// All places inside a window, row by row.
pub(super) fn offsets(kernel: &[usize]) -> Vec<Vec<usize>> {
    kernel.iter().fold(vec![vec![]], |found, size| {
        let longer = |prefix: &Vec<usize>| {
            let prefix = prefix.clone();
            (0..*size).map(move |k| [prefix.clone(), vec![k]].concat())
        };
        found.iter().flat_map(longer).collect()
    })
}

/// For each window the position in the plane that is at `offset` in it, `i32`. Outside of the plane
/// along one dimension it is below -1, so that no recorded position is equal to it.
fn offset_positions(
    cx: &mut Context,
    pool: &Pool,
    offset: &[usize],
    like: &Value,
    target: &[usize],
) -> Result<Value> {
    const NOWHERE: i32 = -2;
    let windows = &like.dims()[2..];
    let mut bytes = Vec::new();
    for window in offsets(windows) {
        let mut position = Some(0);
        for d in 0..offset.len() {
            let place = window[d] * pool.stride[d] + offset[d] * pool.dilation[d];
            position = place
                .checked_sub(pool.padding[d])
                .filter(|place| *place < target[d])
                .zip(position)
                .map(|(place, position)| position * target[d] + place);
        }
        let position = position.map_or(NOWHERE, |p| p as i32);
        bytes.extend_from_slice(&position.to_le_bytes());
    }
    let ty = TensorType::new(windows, ElementType::I32);
    let positions = cx.builder.constant(ty, &bytes)?;
    let kept: Vec<usize> = (2..like.rank()).collect();
    cx.spread(&positions, like, &kept)
}

/// Puts one number per window at `offset` of the window, zeros everywhere else.
fn spread_windows(
    cx: &mut Context,
    x: &Value,
    pool: &Pool,
    offset: &[usize],
    windows: &[usize],
    target: &[usize],
) -> Result<Value> {
    let rank = x.rank();
    let (mut low, mut high, mut interior) = (vec![0; rank], vec![0; rank], vec![0; rank]);
    for d in 0..offset.len() {
        let start = (offset[d] * pool.dilation[d]) as i64 - pool.padding[d] as i64;
        let length = windows[d].saturating_sub(1) * pool.stride[d] + windows[d].min(1);
        low[d + 2] = start;
        high[d + 2] = target[d] as i64 - start - length as i64;
        interior[d + 2] = pool.stride[d] as i64 - 1;
    }
    let zero = cx.builder.scalar(x.element(), 0i64);
    Ok(cx.builder.pad(x, &zero, &low, &high, &interior)?)
}

/// How many elements each window averages over: per dimension those inside of the input, or with
/// `include` inside of the padded input.
fn divisors(
    cx: &mut Context,
    pool: &Pool,
    like: &Value,
    input: &[usize],
    include: bool,
) -> Result<Value> {
    let windows = &like.dims()[2..];
    let count = |d: usize, window: usize| {
        let start = window * pool.stride[d];
        let (from, to) = if include {
            (0, input[d] + 2 * pool.padding[d])
        } else {
            (pool.padding[d], input[d] + pool.padding[d])
        };
        (start + pool.kernel[d])
            .min(to)
            .saturating_sub(start.max(from))
    };
    let mut bytes = Vec::new();
    for window in offsets(windows) {
        let product: usize = (0..window.len()).map(|d| count(d, window[d])).product();
        bytes.extend_from_slice(&(product.max(1) as f64).to_le_bytes());
    }
    let counts = cx
        .builder
        .constant(TensorType::new(windows, ElementType::F64), &bytes)?;
    let counts = cx.builder.convert(&counts, like.element());
    let kept: Vec<usize> = (2..like.rank()).collect();
    cx.spread(&counts, like, &kept)
}

fn avg_pool(
    cx: &mut Context,
    x: &TensorIr,
    out: &TensorIr,
    pool: &Pool,
    include: bool,
) -> Result<()> {
    let input = x.shape[2..].to_vec();
    let x = cx.get(x)?;
    let x = cx.wide(&x);
    let (x, window) = pool.window(&mut cx.builder, &x, &out.shape[2..])?;
    let sum = window_sum(cx, &x, &window)?;
    let counts = divisors(cx, pool, &sum, &input, include)?;
    let mean = cx.binary(Binary::Divide, &sum, &counts)?;
    cx.set_as(out, &mean)
}

fn window_sum(cx: &mut Context, x: &Value, window: &Window) -> Result<Value> {
    let zero = cx.builder.scalar(x.element(), 0i64);
    let results = cx
        .builder
        .reduce_window(&[x], &[&zero], window, |b, acc, next| {
            Ok(vec![b.binary(Binary::Add, &acc[0], &next[0])?])
        })?;
    Ok(results[0].clone())
}

/// Each element gets its share of the gradients of all windows that cover it: the windows spread
/// out at their distance, summed by a window that moves by one.
fn avg_pool_backward(
    cx: &mut Context,
    x: &TensorIr,
    gradient: &TensorIr,
    out: &TensorIr,
    pool: &Pool,
    include: bool,
) -> Result<()> {
    let input = x.shape[2..].to_vec();
    let gradient = cx.get(gradient)?;
    let gradient = cx.wide(&gradient);
    let counts = divisors(cx, pool, &gradient, &input, include)?;
    let share = cx.binary(Binary::Divide, &gradient, &counts)?;
    let rank = share.rank();
    let (mut low, mut high, mut interior) = (vec![0; rank], vec![0; rank], vec![0; rank]);
    let mut window = Window::identity(rank);
    for d in 0..input.len() {
        let windows = share.dims()[d + 2];
        let length = windows.saturating_sub(1) * pool.stride[d] + windows.min(1);
        let reach = pool.kernel[d] as i64 - 1;
        low[d + 2] = reach - pool.padding[d] as i64;
        high[d + 2] = input[d] as i64 + reach - low[d + 2] - length as i64;
        interior[d + 2] = pool.stride[d] as i64 - 1;
        window.size[d + 2] = pool.kernel[d];
    }
    let zero = cx.builder.scalar(share.element(), 0i64);
    let spread = cx.builder.pad(&share, &zero, &low, &high, &interior)?;
    let x = window_sum(cx, &spread, &window)?;
    cx.set_as(out, &x)
}

/// The functions for one number of spatial dimensions.
macro_rules! pools {
    ($($n:tt: $max:ident($max_op:ty), $with:ident($with_op:ty), $back:ident($back_op:ty),
        $avg:ident($avg_op:ty), $avg_back:ident($avg_back_op:ty);)*) => {
        $(pub(super) fn $max(cx: &mut Context, op: &$max_op) -> Result<()> {
            max_pool(cx, &op.x, &op.out, &pool!(op, $n))
        }

        pub(super) fn $with(cx: &mut Context, op: &$with_op) -> Result<()> {
            max_pool_with_indices(cx, &op.x, &op.out, &op.out_indices, &pool!(op, $n))
        }

        pub(super) fn $back(cx: &mut Context, op: &$back_op) -> Result<()> {
            max_pool_backward(cx, &op.x, &op.grad, &op.indices, &op.out, &pool!(op, $n))
        }

        pub(super) fn $avg(cx: &mut Context, op: &$avg_op) -> Result<()> {
            avg_pool(cx, &op.x, &op.out, &pool!(op, $n, dense), op.count_include_pad)
        }

        pub(super) fn $avg_back(cx: &mut Context, op: &$avg_back_op) -> Result<()> {
            let pool = pool!(op, $n, dense);
            avg_pool_backward(cx, &op.x, &op.grad, &op.out, &pool, op.count_include_pad)
        })*
    };
}

pools! {
    1: max_pool1d(MaxPool1dOpIr), max_pool1d_with_indices(MaxPool1dWithIndicesOpIr),
        max_pool1d_backward(MaxPool1dWithIndicesBackwardOpIr), avg_pool1d(AvgPool1dOpIr),
        avg_pool1d_backward(AvgPool1dBackwardOpIr);
    2: max_pool2d(MaxPool2dOpIr), max_pool2d_with_indices(MaxPool2dWithIndicesOpIr),
        max_pool2d_backward(MaxPool2dWithIndicesBackwardOpIr), avg_pool2d(AvgPool2dOpIr),
        avg_pool2d_backward(AvgPool2dBackwardOpIr);
}
