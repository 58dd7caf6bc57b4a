//! What an operation gives.

use burn::tensor::{Tensor, TensorData, activation};

use super::axes::{example_axes, example_axis};
use super::composed::number;
use super::order::{band, sorted, taken_along};
use super::pick::{pad, picks};
use super::reduce::reduce;
use super::shapes::order;
use super::*;
use crate::layers::flow::each;
use crate::layers::nd::{Nd, array, each_rank};

/// The output for the values that the operation receives. The plan has checked their shapes.
pub(super) fn output(
    operation: &Operation,
    inputs: Vec<Flow>,
    pass: &Pass<'_, '_>,
) -> Option<Flow> {
    let mut inputs = inputs.into_iter();
    if operation.operands.len() == 1 {
        let x = inputs.next()?;
        return Some(of_one(&operation.kind, x, pass));
    }
    let constants: Vec<_> = operation.operands.iter().map(Option::as_ref).collect();
    if let (Kind::Binary(binary), [left, right]) = (&operation.kind, &constants[..]) {
        return of_two(*binary, *left, *right, &mut inputs);
    }
    let values = inputs.map(Nd::of).collect();
    of_several(&operation.kind, &constants, values).map(Nd::into_flow)
}

/// Functions of every number keep the order of the axes.
fn of_one(kind: &Kind, x: Flow, pass: &Pass<'_, '_>) -> Flow {
    match kind {
        Kind::Unary(unary) => each!(x, x => of_number(*unary, x)),
        Kind::Activation(activation) => pass.activate(x, *activation),
        Kind::Softmax {
            axis: -1,
            log: false,
        } => pass.activate(x, Activation::Softmax),
        Kind::Clip { low, high } => each!(x, x => clipped(x, *low, *high)),
        Kind::Like(number) => each!(x, x => x.full_like(*number).detach()),
        _ => of_axes(kind, Nd::of(x), pass).into_flow(),
    }
}

fn clipped<const D: usize>(x: Tensor<D>, low: f64, high: f64) -> Tensor<D> {
    match (low.is_finite(), high.is_finite()) {
        (true, true) => x.clamp(low, high),
        (true, false) => x.clamp_min(low),
        (false, true) => x.clamp_max(high),
        (false, false) => x,
    }
}

fn of_number<const D: usize>(unary: Unary, x: Tensor<D>) -> Tensor<D> {
    match unary {
        Unary::Identity => x,
        Unary::Stop => x.detach(),
        Unary::Negative => x.neg(),
        Unary::Abs => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp().sub_scalar(1.0),
        Unary::Log => x.log(),
        Unary::Log1p => x.log1p(),
        Unary::Log2 => x.log().div_scalar(std::f64::consts::LN_2),
        Unary::Log10 => x.log().div_scalar(std::f64::consts::LN_10),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => x.sqrt().recip(),
        Unary::Square => x.clone() * x,
        Unary::Reciprocal => x.recip(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Arctan => x.atan(),
        Unary::Erf => x.erf(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round(),
        Unary::Trunc => composed::trunc(x),
        Unary::Sign => x.sign(),
        Unary::Not => number(x.clone().equal_elem(0.0), &x),
        Unary::Bool => number(x.clone().not_equal_elem(0.0), &x),
        Unary::Arcsin => x.asin(),
        Unary::Arccos => x.acos(),
        Unary::Arcsinh => x.asinh(),
        Unary::Arccosh => x.acosh(),
        Unary::Arctanh => x.atanh(),
        _ => composed::of_number(unary, x),
    }
}

/// An operation of two operands. Values with the same number of axes keep their order: constants
/// are brought into it.
fn of_two(
    binary: Binary,
    left: Option<&Constant>,
    right: Option<&Constant>,
    inputs: &mut impl Iterator<Item = Flow>,
) -> Option<Flow> {
    match (left, right) {
        (None, None) => {
            let (left, right) = (inputs.next()?, inputs.next()?);
            Some(match (left, right) {
                (Flow::Flat(x), Flow::Flat(y)) => Flow::Flat(pair(binary, x, y)),
                (Flow::Sequence(x), Flow::Sequence(y)) => Flow::Sequence(pair(binary, x, y)),
                (Flow::Image(x), Flow::Image(y)) => Flow::Image(pair(binary, x, y)),
                (x, y) => {
                    let (x, y) = (Nd::of(x), Nd::of(y));
                    paired(binary, x, y)?.into_flow()
                }
            })
        }
        (None, Some(constant)) => {
            let x = inputs.next()?;
            Some(match constant.scalar() {
                Some(number) => each!(x, x => with_number(binary, x, number)),
                None => with_constant(x, constant, |x, c| paired(binary, x, c))?,
            })
        }
        (Some(constant), None) => {
            let x = inputs.next()?;
            with_constant(x, constant, |x, c| paired(binary, c, x))
        }
        _ => None,
    }
}

/// Applies an operation to a value and a constant with as many axes.
fn with_constant(
    x: Flow,
    constant: &Constant,
    apply: impl FnOnce(Nd, Nd) -> Option<Nd>,
) -> Option<Flow> {
    // An image keeps its order: the constant gets the order of its axes.
    if let Flow::Image(x) = x {
        let constant = constant_of(constant, 4, &Nd::R4(x.clone())).permute(&[0, 3, 1, 2]);
        return match apply(Nd::R4(x), constant)? {
            Nd::R4(x) => Some(Flow::Image(x)),
            other => Some(other.into_flow()),
        };
    }
    let x = Nd::of(x);
    let constant = constant_of(constant, x.dims().len(), &x);
    apply(x, constant).map(Nd::into_flow)
}

/// A constant with this many axes, on the device and in the type of a value.
fn constant_of(constant: &Constant, rank: usize, like: &Nd) -> Nd {
    let values: Vec<f32> = constant.values.iter().map(|x| *x as f32).collect();
    let device = like.device().without_autodiff();
    let data = TensorData::new(values, [constant.values.len()]);
    let shape = match constant.shape.len() {
        0 => vec![1],
        _ => constant.shape.clone(),
    };
    let dtype = crate::layers::nd::with_rank!(like, x => x.dtype());
    let flat = Tensor::<1>::from_data(data, &device).cast(dtype);
    Nd::R1(flat).reshape(&shape).unsqueeze_to(rank)
}

/// Two values with as many axes.
pub(crate) fn paired(binary: Binary, x: Nd, y: Nd) -> Option<Nd> {
    Some(match (x, y) {
        (Nd::R1(x), Nd::R1(y)) => Nd::R1(pair(binary, x, y)),
        (Nd::R2(x), Nd::R2(y)) => Nd::R2(pair(binary, x, y)),
        (Nd::R3(x), Nd::R3(y)) => Nd::R3(pair(binary, x, y)),
        (Nd::R4(x), Nd::R4(y)) => Nd::R4(pair(binary, x, y)),
        (Nd::R5(x), Nd::R5(y)) => Nd::R5(pair(binary, x, y)),
        (Nd::R6(x), Nd::R6(y)) => Nd::R6(pair(binary, x, y)),
        (Nd::R7(x), Nd::R7(y)) => Nd::R7(pair(binary, x, y)),
        _ => return None,
    })
}

fn with_number<const D: usize>(binary: Binary, x: Tensor<D>, number: f64) -> Tensor<D> {
    match binary {
        Binary::Add => x.add_scalar(number),
        Binary::Subtract => x.sub_scalar(number),
        Binary::Multiply => x.mul_scalar(number),
        Binary::Divide => x.div_scalar(number),
        Binary::Power if number == 2.0 => x.clone() * x,
        Binary::Power if number == 0.5 => x.sqrt(),
        Binary::Power if number.fract() == 0.0 && number.abs() <= 64.0 => {
            x.powi_scalar(number as i32)
        }
        Binary::Power => x.powf_scalar(number),
        Binary::Maximum => x.clamp_min(number),
        Binary::Minimum => x.clamp_max(number),
        _ => {
            let device = x.device().without_autodiff();
            let other = Tensor::full([1; D], number, (&device, x.dtype()));
            pair(binary, x, other)
        }
    }
}

fn pair<const D: usize>(binary: Binary, x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    match binary {
        Binary::Add => return x + y,
        Binary::Subtract => return x - y,
        Binary::Multiply => return x * y,
        Binary::Divide => return x / y,
        Binary::SquaredDifference => {
            let difference = x - y;
            return difference.clone() * difference;
        }
        Binary::FloorDivide => return (x / y).floor(),
        _ => {}
    }
    // burn compares equal shapes only.
    let (x, y) = alike(x, y);
    let like = x.clone();
    match binary {
        Binary::DivideNoNan => {
            let is_zero = y.clone().equal_elem(0.0);
            let quotient = x / y.mask_fill(is_zero.clone(), 1.0);
            quotient.mask_fill(is_zero, 0.0)
        }
        Binary::Mod => x.clone() - (x / y.clone()).floor() * y,
        Binary::Power => x.powf(y),
        Binary::Maximum => x.max_pair(y),
        Binary::Minimum => x.min_pair(y),
        Binary::Arctan2 => x.atan2(y),
        Binary::Greater => number(x.greater(y), &like),
        Binary::GreaterEqual => number(x.greater_equal(y), &like),
        Binary::Less => number(x.lower(y), &like),
        Binary::LessEqual => number(x.lower_equal(y), &like),
        Binary::Equal => number(x.equal(y), &like),
        Binary::NotEqual => number(x.not_equal(y), &like),
        Binary::And => number(x.not_equal_elem(0.0), &like) * number(y.not_equal_elem(0.0), &like),
        Binary::Or => {
            let sum = number(x.not_equal_elem(0.0), &like) + number(y.not_equal_elem(0.0), &like);
            sum.clamp_max(1.0)
        }
        _ => composed::of_pair(binary, x, y),
    }
}

/// Both in the shape that holds both.
fn alike<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    let (dims, others) = (x.dims(), y.dims());
    let both = std::array::from_fn::<usize, D, _>(|i| dims[i].max(others[i]));
    let expand = |x: Tensor<D>| if x.dims() == both { x } else { x.expand(both) };
    (expand(x), expand(y))
}

/// An operation along the axes of one value, in Keras' order.
fn of_axes(kind: &Kind, x: Nd, pass: &Pass<'_, '_>) -> Nd {
    let dims = x.dims();
    let (batch, example) = (dims[0], &dims[1..]);
    let output = [vec![batch], pass.output.dims()].concat();
    // The plan has found every axis.
    let axis = |axis: i64| example_axis(example, axis).unwrap_or(0) + 1;
    match kind {
        Kind::Softmax { axis: along, log } => {
            let along = axis(*along);
            each_rank!(x, x => if *log {
                activation::log_softmax(x, along)
            } else {
                activation::softmax(x, along)
            })
        }
        Kind::Cumsum(along) => {
            let along = axis(*along);
            each_rank!(x, x => x.cumsum(along))
        }
        Kind::Cumprod(along) => {
            let along = axis(*along);
            each_rank!(x, x => x.cumprod(along))
        }
        Kind::Glu(along) => {
            let along = axis(*along);
            let half = dims[along] / 2;
            each_rank!(x, x => {
                let gate = activation::sigmoid(x.clone().narrow(along, half, half));
                x.narrow(along, 0, half) * gate
            })
        }
        Kind::Sort { axis: along, .. } => sorted(kind, x, axis(*along)),
        Kind::Band { lowest, highest } => band(x, *lowest, *highest),
        Kind::Normalize { axes, epsilon } => normalized(x, axes, *epsilon),
        Kind::Reduce { by, axes, .. } => {
            let axes = axes.as_deref().unwrap_or_default();
            let axes = example_axes(example, axes).unwrap_or_default();
            let axes: Vec<usize> = axes.into_iter().map(|axis| axis + 1).collect();
            Nd::R1(reduce(x, &axes, *by)).reshape(&output)
        }
        Kind::ArgMax {
            axis: along, least, ..
        } => {
            let along = axis(*along);
            let place = each_rank!(x, x => {
                let dtype = x.dtype();
                let x = x.detach();
                let place = if *least { x.argmin(along) } else { x.argmax(along) };
                place.float().cast(dtype)
            });
            place.reshape(&output)
        }
        Kind::Transpose(_) | Kind::MoveAxes { .. } | Kind::Swap(..) => {
            let order = order(kind, dims.len()).unwrap_or_default();
            x.permute(&order)
        }
        Kind::Pad { widths, mode } => pad(x, widths, *mode),
        Kind::OneHot(classes) => one_hot(x, *classes, &output),
        Kind::Blocks { size, to_depth } => in_blocks(x, *size, *to_depth),
        Kind::Reshape(_) | Kind::ExpandDims(_) | Kind::Squeeze(_) => x.reshape(&output),
        _ => {
            let (picks, _) = picks(kind, example).unwrap_or_default();
            let taken = picks
                .iter()
                .fold(x, |x, (axis, pick)| pick.take(x, axis + 1));
            taken.reshape(&output)
        }
    }
}

/// `x / sqrt(max(sum(x^2), epsilon))`.
fn normalized(x: Nd, axes: &[i64], epsilon: f64) -> Nd {
    let dims = x.dims();
    let axes = example_axes(&dims[1..], axes).unwrap_or_default();
    each_rank!(x, x => {
        let mut squares = x.clone() * x.clone();
        for axis in &axes {
            squares = squares.sum_dim(axis + 1);
        }
        x * squares.clamp_min(epsilon).sqrt().recip()
    })
}

/// A number becomes a row with a 1 at its place; none, if it is no place.
fn one_hot(x: Nd, classes: usize, output: &[usize]) -> Nd {
    let places = x.into_matrix(0).detach();
    let rows = places.dims()[0];
    let device = places.device().without_autodiff();
    let numbers: Vec<f32> = (0..classes).map(|class| class as f32).collect();
    let row = Tensor::<1>::from_data(TensorData::new(numbers, [classes]), &device);
    let row = row.cast(places.dtype()).reshape([1, classes]);
    let dims = [rows, classes];
    let is_place = places.clone().expand(dims).equal(row.expand(dims));
    Nd::R2(number(is_place, &places.expand(dims))).reshape(output)
}

/// Blocks of places become channels of one place, or the other way.
fn in_blocks(x: Nd, size: usize, to_depth: bool) -> Nd {
    let &[batch, height, width, channels] = &x.dims()[..] else {
        return x;
    };
    if to_depth {
        let (rows, columns) = (height / size, width / size);
        let split = x.reshape(&[batch, rows, size, columns, size, channels]);
        let deep = channels * size * size;
        split
            .permute(&[0, 1, 3, 2, 4, 5])
            .reshape(&[batch, rows, columns, deep])
    } else {
        let left = channels / (size * size);
        let split = x.reshape(&[batch, height, width, size, size, left]);
        let places = [batch, height * size, width * size, left];
        split.permute(&[0, 1, 3, 2, 4, 5]).reshape(&places)
    }
}

/// An operation of several operands, in Keras' order: constants, and where there is none the next
/// value.
fn of_several(kind: &Kind, constants: &[Option<&Constant>], values: Vec<Nd>) -> Option<Nd> {
    let like = values.first()?.clone();
    let rank = like.dims().len();
    let is_matrix = matches!(kind, Kind::Matmul { .. } | Kind::Einsum(_));
    let mut values = values.into_iter();
    let operands = constants.iter().map(|constant| match constant {
        None => values.next(),
        Some(constant) if is_matrix => Some(constant_of(constant, 0, &like)),
        Some(constant) => Some(constant_of(constant, rank, &like)),
    });
    let operands = operands.collect::<Option<Vec<_>>>()?;
    let mut values = operands.into_iter();
    match kind {
        Kind::Where => {
            let (condition, x, y) = (values.next()?, values.next()?, values.next()?);
            chosen(condition, x, y)
        }
        Kind::Matmul { transposed } => product(values.next()?, values.next()?, *transposed),
        Kind::Einsum(einsum) => einsum.product(values.next()?, values.next()?),
        Kind::TakeAlong(axis) => {
            let axis = example_axis(&like.dims()[1..], *axis).ok()? + 1;
            taken_along(values.next()?, values.next()?, axis)
        }
        Kind::Concatenate(axis) => {
            let axis = example_axis(&like.dims()[1..], *axis).ok()? + 1;
            joined(values.collect(), axis)
        }
        Kind::Stack(axis) => {
            let axis = example_axis(&vec![1; rank], *axis).ok()? + 1;
            let mut dims = like.dims();
            dims.insert(axis, 1);
            let values = values.map(|value| value.reshape(&dims)).collect();
            joined(values, axis)
        }
        // Further values of `add_n` and the like.
        Kind::Binary(binary) => {
            let first = values.next()?;
            values.try_fold(first, |x, y| paired(*binary, x, y))
        }
        _ => None,
    }
}

fn chosen(condition: Nd, x: Nd, y: Nd) -> Option<Nd> {
    let condition = each_rank!(condition, c => number(c.clone().not_equal_elem(0.0), &c));
    let both = paired(
        Binary::Add,
        paired(Binary::Multiply, condition.clone(), x.clone())?,
        y.clone(),
    )?;
    let dims = both.dims();
    let whole = |value: Nd| each_rank!(value, x => x.expand(array(&dims)));
    Some(match (whole(condition), whole(x), whole(y)) {
        (Nd::R1(c), Nd::R1(x), Nd::R1(y)) => Nd::R1(y.mask_where(c.not_equal_elem(0.0), x)),
        (Nd::R2(c), Nd::R2(x), Nd::R2(y)) => Nd::R2(y.mask_where(c.not_equal_elem(0.0), x)),
        (Nd::R3(c), Nd::R3(x), Nd::R3(y)) => Nd::R3(y.mask_where(c.not_equal_elem(0.0), x)),
        (Nd::R4(c), Nd::R4(x), Nd::R4(y)) => Nd::R4(y.mask_where(c.not_equal_elem(0.0), x)),
        (Nd::R5(c), Nd::R5(x), Nd::R5(y)) => Nd::R5(y.mask_where(c.not_equal_elem(0.0), x)),
        (Nd::R6(c), Nd::R6(x), Nd::R6(y)) => Nd::R6(y.mask_where(c.not_equal_elem(0.0), x)),
        (Nd::R7(c), Nd::R7(x), Nd::R7(y)) => Nd::R7(y.mask_where(c.not_equal_elem(0.0), x)),
        _ => return None,
    })
}

/// The matrices of every example, or the rows of all examples and one matrix.
fn product(x: Nd, y: Nd, transposed: [bool; 2]) -> Option<Nd> {
    let (dims, others) = (x.dims(), y.dims());
    if let (2, Nd::R2(matrix)) = (others.len(), &y)
        && !transposed[0]
    {
        let matrix = if transposed[1] {
            matrix.clone().transpose()
        } else {
            matrix.clone()
        };
        let columns = matrix.dims()[1];
        let (_, outer) = dims.split_last()?;
        let dims = [outer, &[columns]].concat();
        return Some(Nd::R2(x.into_matrix(1).matmul(matrix)).reshape(&dims));
    }
    let matrices = |x: Nd, transposed: bool| -> Option<(Tensor<3>, Vec<usize>)> {
        let dims = x.dims();
        let (outer, inner) = dims.split_at(dims.len().checked_sub(2)?);
        let all = outer.iter().product();
        let Nd::R3(x) = x.reshape(&[all, inner[0], inner[1]]) else {
            return None;
        };
        Some((
            if transposed { x.swap_dims(1, 2) } else { x },
            outer.to_vec(),
        ))
    };
    let (x, outer) = matrices(x, transposed[0])?;
    let (y, _) = matrices(y, transposed[1])?;
    let product = x.matmul(y);
    let [_, rows, columns] = product.dims();
    let dims = [&outer[..], &[rows, columns]].concat();
    Some(Nd::R3(product).reshape(&dims))
}

fn joined(values: Vec<Nd>, axis: usize) -> Option<Nd> {
    macro_rules! joined {
        ($rank:ident) => {{
            let tensors = values.into_iter().map(|value| match value {
                Nd::$rank(x) => Some(x),
                _ => None,
            });
            Some(Nd::$rank(Tensor::cat(
                tensors.collect::<Option<_>>()?,
                axis,
            )))
        }};
    }
    match values.first()? {
        Nd::R1(_) => joined!(R1),
        Nd::R2(_) => joined!(R2),
        Nd::R3(_) => joined!(R3),
        Nd::R4(_) => joined!(R4),
        Nd::R5(_) => joined!(R5),
        Nd::R6(_) => joined!(R6),
        Nd::R7(_) => joined!(R7),
    }
}
