//! From the arguments of a call to the operation.

use serde_json::Value;

use super::super::entries::Reference;
use super::Parts;
use super::given::{Argument, Given, Item, Operand, Refusal, one_integer, plain, wrong};
use super::ordered::{bent, sort, triangle};
use super::table::{Row, What};
use crate::Activation;
use crate::layers::Operation;
use crate::layers::operation::{Binary, Einsum, Index, Kind, PadMode, Part, Reduction, Unary};

/// An operation, and the tensors that it receives.
pub(super) struct Built {
    pub(super) inputs: Vec<Reference>,
    pub(super) parts: Parts,
}

/// The slope of TensorFlow's and Keras' `leaky_relu`.
const LEAKY_SLOPE: f64 = 0.2;
/// The least number that Keras 3 and TensorFlow add in a normalization.
const EPSILON: f64 = 1e-12;

/// The operation of a row with these arguments, of which the used ones are taken.
pub(super) fn build(row: &Row, given: &mut Given) -> Result<Built, Refusal> {
    let operands = operands(row, given)?;
    match row.what {
        What::Part | What::Unstack => return parts(row, operands, given),
        What::TopK => return top_k(row, operands, given),
        What::Resize | What::Pool { .. } => return layer(row.what, operands, given),
        _ => {}
    }
    let kind = kind(row.what, operands.len(), given)?;
    let (inputs, constants) = split(operands);
    let operation = Operation {
        class: row.class,
        kind,
        operands: constants,
    };
    Ok(Built {
        inputs,
        parts: Box::new(move |part| (part == 0).then(|| operation.clone().into())),
    })
}

/// The largest values, and their positions.
fn top_k(row: &Row, operands: Vec<Operand>, given: &mut Given) -> Result<Built, Refusal> {
    let count = count(given.integer("k")?.unwrap_or(1))?;
    // Either way the largest come first.
    given.value("sorted")?;
    let (inputs, operands) = split(operands);
    let class = row.class;
    Ok(Built {
        inputs,
        parts: Box::new(move |part| {
            let kind = Kind::Sort {
                axis: -1,
                descending: true,
                first: Some(count),
                positions: part == 1,
            };
            let operands = operands.clone();
            let operation = Operation {
                class,
                kind,
                operands,
            };
            (part < 2).then(|| operation.into())
        }),
    })
}

/// An operation that a layer does too.
fn layer(what: What, operands: Vec<Operand>, given: &mut Given) -> Result<Built, Refusal> {
    let (inputs, _) = split(operands);
    let axes = inputs.first().and_then(|input| given.axes_of(input));
    let spec = match what {
        What::Pool { average, axes: own } => super::layer::pool(
            average,
            axes.map_or(own, |axes| axes.saturating_sub(2)),
            given,
        )?,
        _ => super::layer::resize(given)?,
    };
    Ok(Built {
        inputs,
        parts: Box::new(move |part| (part == 0).then(|| spec.clone())),
    })
}

/// What it computes with, in order.
fn operands(row: &Row, given: &mut Given) -> Result<Vec<Operand>, Refusal> {
    match row.what {
        What::Binary(_) | What::Matmul | What::Dot => {
            Ok(vec![given.operand("x1")?, given.operand("x2")?])
        }
        What::TakeAlong => Ok(vec![given.operand("x")?, given.operand("indices")?]),
        What::Einsum => Ok(vec![given.operand("left")?, given.operand("right")?]),
        What::Where => Ok(vec![
            given.operand("condition")?,
            given.operand("x1")?,
            given.operand("x2")?,
        ]),
        What::Concatenate | What::Stack | What::AddN | What::Joined(_) => given.operands("xs"),
        _ => Ok(vec![given.operand("x")?]),
    }
}

type Split = (Vec<Reference>, Vec<Option<crate::layers::Constant>>);

fn split(operands: Vec<Operand>) -> Split {
    let mut inputs = Vec::new();
    let constants = operands.into_iter().map(|operand| match operand {
        Operand::Tensor(tensor) => {
            inputs.push(tensor);
            None
        }
        Operand::Constant(constant) => Some(constant),
    });
    let constants = constants.collect();
    (inputs, constants)
}

fn kind(what: What, count: usize, given: &mut Given) -> Result<Kind, Refusal> {
    Ok(match what {
        What::Unary(unary) => Kind::Unary(unary),
        What::Activation(activation) => Kind::Activation(activation),
        What::Binary(binary) => Kind::Binary(binary),
        What::AddN if count > 1 => Kind::Binary(Binary::Add),
        What::AddN => Kind::Unary(Unary::Identity),
        What::Where => Kind::Where,
        What::Shape => Kind::Shape,
        What::Reduce(by) => reduction(by, given)?,
        What::Matmul => Kind::Matmul {
            transposed: [given.flag("transpose_a")?, given.flag("transpose_b")?],
        },
        What::Dot => Kind::Matmul {
            transposed: [false; 2],
        },
        What::Einsum => {
            let text = given.text("subscripts")?.unwrap_or_default();
            let einsum = Einsum::parse(&text);
            Kind::Einsum(einsum.ok_or_else(|| wrong("subscripts", &Value::String(text)))?)
        }
        What::Gelu | What::LeakyRelu | What::Elu | What::Softmax { .. } => function(what, given)?,
        What::Clip => Kind::Clip {
            low: given.number("x_min", f64::NEG_INFINITY)?,
            high: given.number("x_max", f64::INFINITY)?,
        },
        What::Norm => norm(given)?,
        What::Normalize => normalize(given)?,
        What::Cast => cast(given)?,
        What::Like(number) => Kind::Like(number),
        What::Round | What::Squareplus | What::Bent(_) => bent(what, given)?,
        What::Triangle { .. } | What::Band => triangle(what, given)?,
        _ => axes(what, given)?,
    })
}

/// What moves axes, and takes and repeats values along them.
fn axes(what: What, given: &mut Given) -> Result<Kind, Refusal> {
    let axis =
        |given: &mut Given, default| Ok::<i64, Refusal>(given.integer("axis")?.unwrap_or(default));
    Ok(match what {
        What::Reshape => reshape(given)?,
        What::Transpose => Kind::Transpose(given.integers("axes")?),
        What::MoveAxes => Kind::MoveAxes {
            from: given.integers("source")?.unwrap_or_default(),
            to: given.integers("destination")?.unwrap_or_default(),
        },
        What::Swap => Kind::Swap(
            given.integer("axis1")?.unwrap_or(0),
            given.integer("axis2")?.unwrap_or(0),
        ),
        What::ExpandDims => Kind::ExpandDims(given.integers("axis")?.unwrap_or_default()),
        What::Squeeze => Kind::Squeeze(given.integers("axis")?),
        What::GetItem => items(given)?,
        What::Concatenate => Kind::Concatenate(axis(given, -1)?),
        What::Joined(axis) => Kind::Concatenate(axis),
        What::Glu => Kind::Glu(axis(given, -1)?),
        What::TakeAlong => Kind::TakeAlong(axis(given, 0)?),
        What::Sort { positions } => sort(positions, given)?,
        What::Cumprod => Kind::Cumprod(axis(given, 0)?),
        What::Stack => Kind::Stack(axis(given, 0)?),
        What::Pad => pad(given)?,
        What::Take => take(given)?,
        What::Tile => {
            let times = given.integers("repeats")?.unwrap_or_default();
            Kind::Tile(
                times
                    .iter()
                    .map(|times| count(*times))
                    .collect::<Result<_, _>>()?,
            )
        }
        What::Repeat => Kind::Repeat {
            times: count(given.integer("repeats")?.unwrap_or(0))?,
            axis: axis(given, 0)?,
        },
        What::Flip => Kind::Flip(given.integers("axis")?),
        What::Roll => Kind::Roll {
            shift: given.integer("shift")?.unwrap_or(0),
            axis: axis(given, 0)?,
        },
        What::Cumsum => Kind::Cumsum(axis(given, 0)?),
        What::ArgMax { least } => Kind::ArgMax {
            least,
            axis: axis(given, 0)?,
            keepdims: given.flag("keepdims")?,
        },
        What::OneHot => {
            let classes = count(given.integer("num_classes")?.unwrap_or(0))?;
            if axis(given, -1)? != -1 {
                return Err("another `axis` than -1 of this operation".to_string());
            }
            Kind::OneHot(classes)
        }
        What::Blocks { to_depth } => Kind::Blocks {
            size: count(given.integer("block_size")?.unwrap_or(0))?,
            to_depth,
        },
        _ => return Err("this operation".to_string()),
    })
}

/// A number from 1 on that cannot make a tensor without bounds.
fn count(number: i64) -> Result<usize, Refusal> {
    let count = usize::try_from(number).ok();
    let count = count.filter(|count| (1..=1 << 24).contains(count));
    count.ok_or_else(|| format!("the number {number} in this operation"))
}

fn reduction(by: Reduction, given: &mut Given) -> Result<Kind, Refusal> {
    Ok(Kind::Reduce {
        by,
        axes: given.integers("axis")?,
        keepdims: given.flag("keepdims")?,
    })
}

fn function(what: What, given: &mut Given) -> Result<Kind, Refusal> {
    Ok(match what {
        What::Softmax { log } => Kind::Softmax {
            axis: given.integer("axis")?.unwrap_or(-1),
            log,
        },
        // Keras 3 writes which of both; the default of TensorFlow is the exact one.
        What::Gelu if given.flag("approximate")? => Kind::Activation(Activation::GeluTanh),
        What::Gelu => Kind::Activation(Activation::Gelu),
        What::LeakyRelu => {
            let slope = given.number("negative_slope", LEAKY_SLOPE)?;
            Kind::Activation(Activation::relu(None, slope, 0.0))
        }
        _ => Kind::Activation(Activation::Elu {
            alpha: given.number("alpha", 1.0)?,
        }),
    })
}

/// `norm` over one axis or several, of order 1 or 2.
fn norm(given: &mut Given) -> Result<Kind, Refusal> {
    let order = given.value("ord")?;
    let by = match &order {
        None => Reduction::Norm2,
        Some(Value::String(name)) if name == "euclidean" => Reduction::Norm2,
        Some(order) if order.as_f64() == Some(2.0) => Reduction::Norm2,
        Some(order) if order.as_f64() == Some(1.0) => Reduction::Norm1,
        Some(order) => return Err(wrong("ord", order)),
    };
    reduction(by, given)
}

fn normalize(given: &mut Given) -> Result<Kind, Refusal> {
    let order = given.number("order", 2.0)?;
    if order != 2.0 {
        return Err(format!("`order` = {order} of this operation"));
    }
    // Keras 3 bounds the root of the sum, TensorFlow the sum.
    let root = given.number("epsilon", EPSILON.sqrt())?;
    let bound = given.number("tf_epsilon", root * root)?;
    Ok(Kind::Normalize {
        axes: given.integers("axis")?.unwrap_or_else(|| vec![-1]),
        epsilon: bound,
    })
}

fn cast(given: &mut Given) -> Result<Kind, Refusal> {
    let dtype = given.text("dtype")?.unwrap_or_default();
    Ok(Kind::Unary(match dtype.as_str() {
        "float32" | "float64" => Unary::Identity,
        "bool" => Unary::Bool,
        "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64" => {
            Unary::Trunc
        }
        other => return Err(wrong("dtype", &Value::String(other.to_string()))),
    }))
}

/// The shape of an example: the first extent is the batch, which is open or a tensor.
fn reshape(given: &mut Given) -> Result<Kind, Refusal> {
    let value = match given.take("newshape") {
        Some(Argument::Constant(Value::Array(list))) => {
            list.into_iter().map(Item::Constant).collect()
        }
        Some(Argument::List(items)) => items,
        _ => return Err("`newshape` of this operation".to_string()),
    };
    let mut extents = value.into_iter().map(|item| match item {
        // A tensor in a shape can only be the size of the batch, which nothing else has.
        Item::Tensor(_) | Item::Constant(Value::Null) => Ok(None),
        Item::Constant(extent) => match one_integer(&extent) {
            Some(-1) => Ok(None),
            Some(extent) => count(extent).map(Some),
            None => Err(wrong("newshape", &extent)),
        },
    });
    match extents.next() {
        Some(Ok(None)) => Ok(Kind::Reshape(extents.collect::<Result<_, _>>()?)),
        _ => Err("a fixed size of the batch in `newshape` of this operation".to_string()),
    }
}

/// `x[..]`, with Keras 3's objects for slices, or Keras 2's.
fn items(given: &mut Given) -> Result<Kind, Refusal> {
    let key = match given.take("key") {
        Some(Argument::Constant(key)) => key,
        Some(_) => return Err("a tensor as index of this operation".to_string()),
        None => Value::Null,
    };
    let list = match key {
        Value::Array(list) => list,
        one => vec![one],
    };
    let index = |value: &Value| {
        let class = value["class_name"].as_str();
        let slice = if class == Some("__slice__") {
            &value["config"]
        } else {
            value
        };
        let bound = |key: &str| match &slice[key] {
            Value::Null => Some(None),
            bound => one_integer(bound).map(Some),
        };
        let found = match value {
            Value::Null => Some(Index::New),
            Value::Object(_) if class == Some("__ellipsis__") => Some(Index::Ellipsis),
            Value::String(dots) if dots == "..." => Some(Index::Ellipsis),
            Value::Object(_) => match (bound("start"), bound("stop"), bound("step")) {
                (Some(start), Some(stop), Some(step)) if step != Some(0) => Some(Index::Slice {
                    start,
                    stop,
                    step: step.unwrap_or(1),
                }),
                _ => None,
            },
            at => one_integer(at).map(Index::At),
        };
        found.ok_or_else(|| wrong("key", value))
    };
    let indices = list.iter().map(index);
    Ok(Kind::GetItem(indices.collect::<Result<_, _>>()?))
}

fn pad(given: &mut Given) -> Result<Kind, Refusal> {
    let widths = given.value("pad_width")?.unwrap_or_default();
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([before, after]) => {
            let width = |width: &Value| one_integer(width).and_then(|n| usize::try_from(n).ok());
            let pair = width(before).zip(width(after));
            pair.filter(|(before, after)| (*before).max(*after) <= 1 << 24)
        }
        _ => None,
    };
    let pairs = plain(&widths)
        .as_array()
        .map(|pairs| pairs.iter().map(pair).collect());
    let pairs: Option<Vec<_>> = pairs.flatten();
    let value = given.number("constant_values", 0.0)?;
    let mode = given.text("mode")?.map(|mode| mode.to_lowercase());
    let mode = match mode.as_deref() {
        None | Some("constant") => PadMode::Constant(value),
        Some("reflect") => PadMode::Reflect,
        Some("symmetric") => PadMode::Symmetric,
        Some(other) => return Err(wrong("mode", &Value::String(other.to_string()))),
    };
    Ok(Kind::Pad {
        widths: pairs.ok_or_else(|| wrong("pad_width", &widths))?,
        mode,
    })
}

fn take(given: &mut Given) -> Result<Kind, Refusal> {
    let value = given.value("indices")?.unwrap_or_default();
    let (keep, list) = match plain(&value) {
        Value::Array(list) => (true, list.clone()),
        one => (false, vec![one.clone()]),
    };
    let indices: Option<Vec<i64>> = list.iter().map(one_integer).collect();
    Ok(Kind::Take {
        indices: indices.ok_or_else(|| wrong("indices", &value))?,
        axis: given
            .integer("axis")?
            .ok_or("no `axis` of this operation")?,
        keep,
    })
}

/// Every part of a split, which are results of the call.
fn parts(row: &Row, operands: Vec<Operand>, given: &mut Given) -> Result<Built, Refusal> {
    let axis = given.integer("axis")?.unwrap_or(0);
    let sections = match row.what {
        What::Part => given.value("indices_or_sections")?,
        _ => {
            // The number of parts, which is the extent of the axis.
            given.value("num")?;
            None
        }
    };
    let (inputs, constants) = split(operands);
    // TensorFlow's lists are sizes, Keras 3's positions.
    let is_tensorflow = given.take("tensorflow").is_some();
    let class = row.class;
    let part: Box<dyn Fn(usize) -> Option<Part>> = match sections {
        None => Box::new(|index| Some(Part::At(i64::try_from(index).ok()?))),
        Some(value) => match plain(&value) {
            Value::Array(list) => {
                let list: Option<Vec<i64>> = list.iter().map(one_integer).collect();
                let list = list.ok_or_else(|| wrong("indices_or_sections", &value))?;
                let bounds = bounds(&list, is_tensorflow);
                Box::new(move |index| {
                    let start = *bounds.get(index)?;
                    let is_last =
                        index + 1 == bounds.len() || is_tensorflow && index + 2 == bounds.len();
                    let stop = bounds.get(index + 1).copied().filter(|_| !is_last);
                    Some(Part::Between { start, stop })
                })
            }
            one => {
                let parts = one_integer(one).ok_or_else(|| wrong("indices_or_sections", one))?;
                let count = count(parts)?;
                Box::new(move |index| (index < count).then_some(Part::Equal { index, count }))
            }
        },
    };
    Ok(Built {
        inputs,
        parts: Box::new(move |index| {
            let operation = Operation {
                class,
                kind: Kind::Part {
                    axis,
                    part: part(index)?,
                },
                operands: constants.clone(),
            };
            Some(operation.into())
        }),
    })
}

/// The positions at which parts begin.
fn bounds(list: &[i64], sizes: bool) -> Vec<i64> {
    let mut bounds = vec![0_i64];
    for number in list {
        let last = bounds.last().copied().unwrap_or(0);
        bounds.push(if sizes {
            last.saturating_add(*number)
        } else {
            *number
        });
    }
    bounds
}
