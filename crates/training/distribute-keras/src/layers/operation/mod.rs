//! Operations on tensors, as `x + y`, `x[:, 0]` and `keras.ops` put them into a graph.
//!
//! Keras 3 writes an operation as an object of its class (`keras.src.ops.numpy.Add`), Keras 2 as a
//! layer `TFOpLambda` with the name of a function of TensorFlow. Its constants are arguments of
//! the call, so every call is a layer of its own here.

mod axes;
mod composed;
mod compute;
mod einsum;
mod order;
mod pick;
mod reduce;
mod shapes;

use super::*;
pub(crate) use compute::paired;
pub(crate) use einsum::Einsum;
pub(crate) use pick::Index;
pub(crate) use reduce::Reduction;

/// An operation of `keras.ops`, or of TensorFlow in a file of Keras 2, with its constants.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// Keras 3's name of the class.
    pub(crate) class: &'static str,
    pub(crate) kind: Kind,
    /// What it takes, in order: a constant, or nothing for the next value that it receives.
    pub(crate) operands: Vec<Option<Constant>>,
}

/// An array of numbers in a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Constant {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl Constant {
    /// The number, if it is one alone.
    pub(crate) fn scalar(&self) -> Option<f64> {
        match self.values[..] {
            [number] => Some(number),
            _ => None,
        }
    }
}

/// What an operation does. Axes are counted as in Keras: 0 is the batch, -1 the last one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Unary(Unary),
    Activation(Activation),
    Softmax {
        axis: i64,
        log: bool,
    },
    Binary(Binary),
    Where,
    /// The extents, which nothing but a `Reshape` may use, as the size of the batch.
    Shape,
    Clip {
        low: f64,
        high: f64,
    },
    Reduce {
        by: Reduction,
        axes: Option<Vec<i64>>,
        keepdims: bool,
    },
    Reshape(Vec<Option<usize>>),
    Transpose(Option<Vec<i64>>),
    MoveAxes {
        from: Vec<i64>,
        to: Vec<i64>,
    },
    Swap(i64, i64),
    ExpandDims(Vec<i64>),
    Squeeze(Option<Vec<i64>>),
    GetItem(Vec<Index>),
    Concatenate(i64),
    Stack(i64),
    /// One of several parts along an axis: of as many equal ones, or between two positions.
    Part {
        axis: i64,
        part: Part,
    },
    Matmul {
        transposed: [bool; 2],
    },
    Einsum(Einsum),
    Normalize {
        axes: Vec<i64>,
        epsilon: f64,
    },
    Pad {
        widths: Vec<(usize, usize)>,
        mode: PadMode,
    },
    Take {
        axis: i64,
        indices: Vec<i64>,
        keep: bool,
    },
    Tile(Vec<usize>),
    Repeat {
        axis: i64,
        times: usize,
    },
    Flip(Option<Vec<i64>>),
    Roll {
        axis: i64,
        shift: i64,
    },
    Cumsum(i64),
    Cumprod(i64),
    /// The first half of an axis by the sigmoid of the second.
    Glu(i64),
    /// The values at the positions that another value names, along an axis.
    TakeAlong(i64),
    /// The values in order, or their positions; of all or as many as `first`.
    Sort {
        axis: i64,
        descending: bool,
        first: Option<usize>,
        positions: bool,
    },
    /// Zeros in matrices but for diagonals from the lowest to the highest, counted from the middle.
    Band {
        lowest: Option<i64>,
        highest: Option<i64>,
    },
    ArgMax {
        axis: i64,
        keepdims: bool,
        least: bool,
    },
    OneHot(usize),
    /// The number for every element.
    Like(f64),
    Blocks {
        size: usize,
        to_depth: bool,
    },
}

/// Which part along an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// One of as many equal parts.
    Equal { index: usize, count: usize },
    /// From one position to another, or to the end.
    Between { start: i64, stop: Option<i64> },
    /// One position, without the axis.
    At(i64),
}

/// What stands in the places that a padding adds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PadMode {
    Constant(f64),
    Reflect,
    Symmetric,
}

/// Functions of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Identity,
    Stop,
    Negative,
    Abs,
    Exp,
    Expm1,
    Log,
    Log1p,
    Log2,
    Log10,
    Sqrt,
    Rsqrt,
    Square,
    Reciprocal,
    Sin,
    Cos,
    Tan,
    Sinh,
    Cosh,
    Tanh,
    Arctan,
    Erf,
    Floor,
    Ceil,
    Round,
    Trunc,
    Sign,
    Not,
    Bool,
    Arcsin,
    Arccos,
    Arcsinh,
    Arccosh,
    Arctanh,
    Erfc,
    Exp2,
    Cbrt,
    Radians,
    Degrees,
    IsNan,
    IsInf,
    IsFinite,
}

/// Functions of two numbers; comparisons give 1 and 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    DivideNoNan,
    FloorDivide,
    Mod,
    Power,
    Maximum,
    Minimum,
    SquaredDifference,
    Arctan2,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Equal,
    NotEqual,
    And,
    Or,
    Xor,
    /// The remainder with the sign of the dividend.
    Fmod,
    Hypot,
    LogAddExp,
    /// The logarithm to the base 2 of the sum of the powers of 2.
    LogAddExp2,
    Heaviside,
    MultiplyNoNan,
}

impl Operation {
    /// Moves an axis to another position; the others keep their order.
    pub(crate) fn move_axis(from: i64, to: i64) -> Self {
        Self {
            class: "Moveaxis",
            kind: Kind::MoveAxes {
                from: vec![from],
                to: vec![to],
            },
            operands: vec![None],
        }
    }
}

impl KerasLayer for Operation {
    /// Operations are read of the calls in the graph, where their arguments are.
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let what = "an operation outside of a functional model".to_string();
        let remedy = "use a functional model";
        Err(fields.place().unsupported(what, None, remedy))
    }

    fn class(&self) -> Option<&'static str> {
        Some(self.class)
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        shapes::output(self, inputs)
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let flows = inputs.into_iter().map(|value| value.flow).collect();
        compute::output(self, flows, pass).map(Value::of)
    }

    fn activation(&self) -> Activation {
        match self.kind {
            Kind::Activation(activation) => activation,
            Kind::Softmax {
                axis: -1,
                log: false,
            } => Activation::Softmax,
            _ => Activation::Linear,
        }
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        match &self.kind {
            Kind::Reshape(_) | Kind::ExpandDims(_) | Kind::Squeeze(_) => true,
            Kind::Unary(unary) => matches!(unary, Unary::Identity | Unary::Stop),
            Kind::Activation(activation) => *activation == Activation::Linear,
            _ => false,
        }
    }

    fn treats_features_alike(&self) -> bool {
        match &self.kind {
            Kind::Unary(_) | Kind::Activation(_) | Kind::Clip { .. } | Kind::Like(_) => true,
            // Of two values one may stand in another order than the other.
            Kind::Binary(_) => {
                let mut constants = self.operands.iter().flatten();
                constants.any(|constant| constant.scalar().is_some())
            }
            _ => false,
        }
    }
}
