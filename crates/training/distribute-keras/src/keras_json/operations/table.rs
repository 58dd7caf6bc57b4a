//! The operations by the names that files have.

use crate::Activation;
use crate::layers::operation::{Binary, Reduction, Unary};

/// One operation.
pub(super) struct Row {
    /// Keras 3's class.
    pub(super) class: &'static str,
    /// TensorFlow's functions that do the same, as Keras 2 writes them.
    pub(super) functions: &'static [&'static str],
    /// The arguments of a call in their order.
    pub(super) signature: &'static [&'static str],
    pub(super) what: What,
    /// Whether Keras has a layer with this class.
    pub(super) is_layer: bool,
}

impl Row {
    /// The name in Keras 3 of an argument of TensorFlow's function.
    pub(super) fn renamed<'a>(&self, key: &'a str) -> &'a str {
        let own = match (&self.what, key) {
            (What::Pad, "paddings") => "pad_width",
            (What::Tile, "multiples") => "repeats",
            (What::Part, "num_or_size_splits") => "indices_or_sections",
            (What::OneHot, "depth") => "num_classes",
            (What::Matmul, "adjoint_a") => "transpose_a",
            (What::Matmul, "adjoint_b") => "transpose_b",
            (What::Resize, "method") => "interpolation",
            (What::Pool { .. }, "ksize") => "pool_size",
            (What::Binary(Binary::Arctan2), "x") => "x2",
            (What::Reshape, "shape") => "newshape",
            (What::Transpose, "perm") => "axes",
            (What::LeakyRelu, "alpha") => "negative_slope",
            (What::Normalize, "epsilon") => "tf_epsilon",
            (What::Where, "x") => "x1",
            (What::Where, "y") => "x2",
            _ => "",
        };
        match key {
            _ if !own.is_empty() => own,
            "y" | "b" | "bias" => "x2",
            "keep_dims" => "keepdims",
            "clip_value_min" => "x_min",
            "clip_value_max" => "x_max",
            "slice_spec" => "key",
            "num_or_size_splits" => "indices_or_sections",
            other => other,
        }
    }
}

/// Which operation, or of which kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum What {
    Unary(Unary),
    Activation(Activation),
    Gelu,
    LeakyRelu,
    Elu,
    Softmax {
        log: bool,
    },
    Binary(Binary),
    AddN,
    Shape,
    Where,
    Clip,
    Reduce(Reduction),
    Norm,
    Reshape,
    Transpose,
    MoveAxes,
    Swap,
    ExpandDims,
    Squeeze,
    GetItem,
    Concatenate,
    Stack,
    Part,
    Unstack,
    Matmul,
    Einsum,
    Normalize,
    Pad,
    Take,
    Tile,
    Repeat,
    Flip,
    Roll,
    Cumsum,
    ArgMax {
        least: bool,
    },
    OneHot,
    Cast,
    Like(f64),
    Blocks {
        to_depth: bool,
    },
    Round,
    Squareplus,
    /// One of the functions whose bounds Keras' layers do not set.
    Bent(Activation),
    Glu,
    Triangle {
        lower: bool,
    },
    Band,
    TakeAlong,
    Sort {
        positions: bool,
    },
    TopK,
    Dot,
    Cumprod,
    Joined(i64),
    Resize,
    Pool {
        average: bool,
        axes: usize,
    },
}

const X: &[&str] = &["x"];
const XS: &[&str] = &["xs"];
const TWO: &[&str] = &["x1", "x2"];

const fn row(class: &'static str, functions: &'static [&'static str], what: What) -> Row {
    let signature = match what {
        What::Binary(_) | What::Matmul | What::Dot => TWO,
        What::TakeAlong => &["x", "indices", "axis"],
        What::TopK => &["x", "k"],
        What::Bent(_) => &["x", "threshold"],
        What::Sort { .. } | What::Glu => &["x", "axis"],
        What::Where => &["condition", "x1", "x2"],
        What::Concatenate | What::Stack | What::AddN | What::Joined(_) => XS,
        What::GetItem => &["x", "key"],
        What::Take => &["x", "indices"],
        What::Einsum => &["left", "right"],
        What::Reduce(_) => &["x", "axis", "keepdims"],
        What::Reshape => &["x", "newshape"],
        What::Clip => &["x", "x_min", "x_max"],
        _ => X,
    };
    Row {
        class,
        functions,
        signature,
        what,
        is_layer: false,
    }
}

/// The same of a class that is a layer too.
const fn layer(class: &'static str, functions: &'static [&'static str], what: What) -> Row {
    Row {
        is_layer: true,
        ..row(class, functions, what)
    }
}

const fn unary(class: &'static str, functions: &'static [&'static str], unary: Unary) -> Row {
    row(class, functions, What::Unary(unary))
}

const fn binary(class: &'static str, functions: &'static [&'static str], binary: Binary) -> Row {
    row(class, functions, What::Binary(binary))
}

const fn pool(
    class: &'static str,
    functions: &'static [&'static str],
    average: bool,
    axes: usize,
) -> Row {
    row(class, functions, What::Pool { average, axes })
}

const fn of(class: &'static str, functions: &'static [&'static str], by: Reduction) -> Row {
    row(class, functions, What::Reduce(by))
}

const fn function(
    class: &'static str,
    functions: &'static [&'static str],
    activation: Activation,
) -> Row {
    row(class, functions, What::Activation(activation))
}

/// All of them.
pub(super) const OPERATIONS: &[Row] = &[
    layer(
        "Add",
        &["__operators__.add", "math.add", "nn.bias_add"],
        What::Binary(Binary::Add),
    ),
    layer(
        "Subtract",
        &["math.subtract"],
        What::Binary(Binary::Subtract),
    ),
    layer(
        "Multiply",
        &["math.multiply"],
        What::Binary(Binary::Multiply),
    ),
    layer("Maximum", &["math.maximum"], What::Binary(Binary::Maximum)),
    layer("Minimum", &["math.minimum"], What::Binary(Binary::Minimum)),
    layer("Concatenate", &["concat"], What::Concatenate),
    layer("Reshape", &["reshape"], What::Reshape),
    layer(
        "Softmax",
        &["nn.softmax", "compat.v1.nn.softmax"],
        What::Softmax { log: false },
    ),
    layer(
        "Identity",
        &["identity", "convert_to_tensor"],
        What::Unary(Unary::Identity),
    ),
    binary("TrueDivide", &["math.truediv"], Binary::Divide),
    binary(
        "Divide",
        &["math.divide", "realdiv", "compat.v1.div"],
        Binary::Divide,
    ),
    binary("DivideNoNan", &["math.divide_no_nan"], Binary::DivideNoNan),
    binary(
        "FloorDivide",
        &["compat.v1.floor_div", "math.floordiv"],
        Binary::FloorDivide,
    ),
    binary("Mod", &["math.floormod"], Binary::Mod),
    binary("Power", &["math.pow"], Binary::Power),
    binary(
        "SquaredDifference",
        &["math.squared_difference"],
        Binary::SquaredDifference,
    ),
    binary("Arctan2", &["math.atan2"], Binary::Arctan2),
    binary("Greater", &["math.greater"], Binary::Greater),
    binary(
        "GreaterEqual",
        &["math.greater_equal"],
        Binary::GreaterEqual,
    ),
    binary("Less", &["math.less"], Binary::Less),
    binary("LessEqual", &["math.less_equal"], Binary::LessEqual),
    binary("Equal", &["math.equal", "__operators__.eq"], Binary::Equal),
    binary(
        "NotEqual",
        &["math.not_equal", "__operators__.ne"],
        Binary::NotEqual,
    ),
    binary("LogicalAnd", &["math.logical_and"], Binary::And),
    binary("LogicalOr", &["math.logical_or"], Binary::Or),
    binary("LogicalXor", &["math.logical_xor"], Binary::Xor),
    binary("Fmax", &[], Binary::Maximum),
    binary("Fmin", &[], Binary::Minimum),
    binary("Fmod", &[], Binary::Fmod),
    binary("Hypot", &[], Binary::Hypot),
    binary("Logaddexp", &[], Binary::LogAddExp),
    binary("Logaddexp2", &[], Binary::LogAddExp2),
    binary("Heaviside", &[], Binary::Heaviside),
    binary(
        "MultiplyNoNan",
        &["math.multiply_no_nan"],
        Binary::MultiplyNoNan,
    ),
    unary("LogicalNot", &["math.logical_not"], Unary::Not),
    row("Shape", &["compat.v1.shape", "shape"], What::Shape),
    row("AddN", &["math.add_n"], What::AddN),
    row("Where", &["where", "compat.v1.where"], What::Where),
    row("Clip", &["clip_by_value"], What::Clip),
    unary("Negative", &["math.negative"], Unary::Negative),
    unary("Absolute", &["math.abs"], Unary::Abs),
    unary("Abs", &[], Unary::Abs),
    unary("Exp", &["math.exp"], Unary::Exp),
    unary("Expm1", &["math.expm1"], Unary::Expm1),
    unary("Log", &["math.log"], Unary::Log),
    unary("Log1p", &["math.log1p"], Unary::Log1p),
    unary("Log2", &[], Unary::Log2),
    unary("Log10", &[], Unary::Log10),
    unary("Sqrt", &["math.sqrt"], Unary::Sqrt),
    unary("Rsqrt", &["math.rsqrt"], Unary::Rsqrt),
    unary("Square", &["math.square"], Unary::Square),
    unary("Reciprocal", &["math.reciprocal"], Unary::Reciprocal),
    unary("Sin", &["math.sin"], Unary::Sin),
    unary("Cos", &["math.cos"], Unary::Cos),
    unary("Tan", &["math.tan"], Unary::Tan),
    unary("Sinh", &["math.sinh"], Unary::Sinh),
    unary("Cosh", &["math.cosh"], Unary::Cosh),
    unary("Tanh", &["math.tanh", "nn.tanh"], Unary::Tanh),
    unary("Arctan", &["math.atan"], Unary::Arctan),
    unary("Erf", &["math.erf"], Unary::Erf),
    unary("Floor", &["math.floor"], Unary::Floor),
    unary("Ceil", &["math.ceil"], Unary::Ceil),
    row("Round", &["math.round", "math.rint"], What::Round),
    unary("Trunc", &[], Unary::Trunc),
    unary("Sign", &["math.sign"], Unary::Sign),
    unary("Arcsin", &["math.asin"], Unary::Arcsin),
    unary("Arccos", &["math.acos"], Unary::Arccos),
    unary("Arcsinh", &["math.asinh"], Unary::Arcsinh),
    unary("Arccosh", &["math.acosh"], Unary::Arccosh),
    unary("Arctanh", &["math.atanh"], Unary::Arctanh),
    unary("Erfc", &["math.erfc"], Unary::Erfc),
    unary("Exp2", &[], Unary::Exp2),
    unary("Cbrt", &[], Unary::Cbrt),
    unary("Deg2rad", &[], Unary::Radians),
    unary("Rad2deg", &[], Unary::Degrees),
    unary("Isnan", &["math.is_nan"], Unary::IsNan),
    unary("Isinf", &["math.is_inf"], Unary::IsInf),
    unary("Isfinite", &["math.is_finite"], Unary::IsFinite),
    unary("Fabs", &[], Unary::Abs),
    unary("Copy", &["ensure_shape"], Unary::Identity),
    unary("StopGradient", &["stop_gradient"], Unary::Stop),
    unary("ConvertToTensor", &[], Unary::Identity),
    row("Cast", &["cast"], What::Cast),
    of("Mean", &["math.reduce_mean"], Reduction::Mean),
    of("Sum", &["math.reduce_sum"], Reduction::Sum),
    of("Max", &["math.reduce_max"], Reduction::Max),
    of("Min", &["math.reduce_min"], Reduction::Min),
    of("Amax", &[], Reduction::Max),
    of("Amin", &[], Reduction::Min),
    of("Prod", &["math.reduce_prod"], Reduction::Prod),
    of("Std", &["math.reduce_std"], Reduction::Std),
    of("Var", &["math.reduce_variance"], Reduction::Var),
    of(
        "Logsumexp",
        &["math.reduce_logsumexp"],
        Reduction::LogSumExp,
    ),
    of("Any", &["math.reduce_any"], Reduction::Any),
    of("All", &["math.reduce_all"], Reduction::All),
    row("Norm", &["compat.v1.norm", "norm"], What::Norm),
    row(
        "Transpose",
        &["compat.v1.transpose", "transpose"],
        What::Transpose,
    ),
    row("Moveaxis", &[], What::MoveAxes),
    row("Swapaxes", &[], What::Swap),
    row(
        "ExpandDims",
        &["expand_dims", "compat.v1.expand_dims"],
        What::ExpandDims,
    ),
    row("Squeeze", &["compat.v1.squeeze", "squeeze"], What::Squeeze),
    row("GetItem", &["__operators__.getitem"], What::GetItem),
    row("Stack", &["stack"], What::Stack),
    row("Split", &["split"], What::Part),
    row("Unstack", &["unstack"], What::Unstack),
    row("Matmul", &["linalg.matmul"], What::Matmul),
    row("Einsum", &[], What::Einsum),
    layer("Dot", &[], What::Dot),
    row("Hstack", &[], What::Joined(1)),
    row("Dstack", &[], What::Joined(2)),
    row("Tril", &[], What::Triangle { lower: true }),
    row("Triu", &[], What::Triangle { lower: false }),
    row("BandPart", &["linalg.band_part"], What::Band),
    row("TakeAlongAxis", &[], What::TakeAlong),
    row("Sort", &["sort"], What::Sort { positions: false }),
    row("Argsort", &["argsort"], What::Sort { positions: true }),
    row("TopK", &["math.top_k", "nn.top_k"], What::TopK),
    row("Cumprod", &["math.cumprod"], What::Cumprod),
    row("Resize", &["image.resize"], What::Resize),
    pool("MaxPool", &["nn.max_pool2d"], false, 2),
    pool(
        "AveragePool",
        &["nn.avg_pool2d", "compat.v1.nn.avg_pool"],
        true,
        2,
    ),
    pool("MaxPool1d", &["nn.max_pool1d"], false, 1),
    pool("AveragePool1d", &["nn.avg_pool1d"], true, 1),
    row("Normalize", &["math.l2_normalize"], What::Normalize),
    row("Pad", &["compat.v1.pad", "pad"], What::Pad),
    row("Take", &["compat.v1.gather", "gather"], What::Take),
    row("Tile", &["tile"], What::Tile),
    row("Repeat", &["repeat"], What::Repeat),
    row("Flip", &["reverse"], What::Flip),
    row("Roll", &["roll"], What::Roll),
    row("Cumsum", &["math.cumsum"], What::Cumsum),
    row("Argmax", &["math.argmax"], What::ArgMax { least: false }),
    row("Argmin", &["math.argmin"], What::ArgMax { least: true }),
    row("OneHot", &["one_hot"], What::OneHot),
    row("OnesLike", &["ones_like"], What::Like(1.0)),
    row("ZerosLike", &["zeros_like"], What::Like(0.0)),
    row(
        "SpaceToDepth",
        &["nn.space_to_depth"],
        What::Blocks { to_depth: true },
    ),
    row(
        "DepthToSpace",
        &["nn.depth_to_space"],
        What::Blocks { to_depth: false },
    ),
    function("Relu", &["nn.relu"], Activation::Relu),
    function("Relu6", &["nn.relu6"], Activation::Relu6),
    function(
        "Sigmoid",
        &["math.sigmoid", "nn.sigmoid"],
        Activation::Sigmoid,
    ),
    function("Silu", &["nn.silu"], Activation::Silu),
    function("Softplus", &["math.softplus"], Activation::Softplus),
    function("Softsign", &["nn.softsign"], Activation::Softsign),
    function("Selu", &["nn.selu"], Activation::Selu),
    function("LogSigmoid", &["math.log_sigmoid"], Activation::LogSigmoid),
    function("HardSilu", &[], Activation::HardSilu),
    function(
        "HardSigmoid",
        &[],
        Activation::HardSigmoid { slope: 1.0 / 6.0 },
    ),
    function("HardTanh", &[], Activation::HardTanh),
    function("TanhShrink", &[], Activation::TanhShrink),
    row("Squareplus", &[], What::Squareplus),
    row("Celu", &[], What::Bent(Activation::Celu)),
    row("HardShrink", &[], What::Bent(Activation::HardShrink)),
    row("SoftShrink", &[], What::Bent(Activation::SoftShrink)),
    row("Glu", &[], What::Glu),
    function("SparsePlus", &[], Activation::SparsePlus),
    function("SparseSigmoid", &[], Activation::SparseSigmoid),
    row("Gelu", &["nn.gelu"], What::Gelu),
    row("LeakyRelu", &["nn.leaky_relu"], What::LeakyRelu),
    row("Elu", &["nn.elu"], What::Elu),
    row(
        "LogSoftmax",
        &["nn.log_softmax"],
        What::Softmax { log: true },
    ),
];
