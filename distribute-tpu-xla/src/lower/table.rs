//! Which function lowers which operation. The table dispatches and says what is covered: it has
//! every operation burn can record, so a new version of burn with another one does not compile
//! until it is here.

use distribute_core::burn_internals::ir::{
    ActivationOperationIr, BaseOperationIr, BoolOperationIr, DistributedOperationIr,
    FloatOperationIr, IntOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
};

use super::context::Context;
use super::error::{Result, unsupported};
use super::{
    activation, adaptive_pooling, arithmetic, attention, collective, convolution, float, index,
    integer, matmul, normalization, pooling, random, reduction, shape, sort,
};

/// One operation in the coverage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// burn's family, such as `Module`.
    pub family: &'static str,
    /// burn's name, such as `Conv2d`; the id of a custom operation.
    pub operation: &'static str,
    /// Whether a step may use it.
    pub covered: bool,
}

/// Families of operations: `lowered` have a function, `missing` are refused.
macro_rules! families {
    ($($family:ident, $name:literal, $ir:ident: lowered { $($op:ident => $lower:path,)* }
        missing { $($missing:ident,)* })*) => {
        $(
            /// Lowers one operation of this family.
            fn $family(cx: &mut Context, op: &$ir) -> Result<()> {
                match op {
                    $($ir::$op(op) => $lower(cx, op),)*
                    $($ir::$missing(_) => unsupported(NOT_COVERED),)*
                }
            }
        )*

        const FAMILIES: &[(&str, &[&str], &[&str])] = &[
            $(($name, &[$(stringify!($op)),*], &[$(stringify!($missing)),*]),)*
        ];

        $(impl Named for $ir {
            fn name(&self) -> &'static str {
                match self {
                    $($ir::$op(_) => stringify!($op),)*
                    $($ir::$missing(_) => stringify!($missing),)*
                }
            }
        })*
    };
}

const NOT_COVERED: &str = "it is not covered; docs/tpu-coverage.md lists what is";

/// The name of an operation inside its family.
trait Named {
    fn name(&self) -> &'static str;
}

families! {
    base, "Base", BaseOperationIr: lowered {
        Reshape => shape::reshape,
        SwapDims => shape::swap_dims,
        Permute => shape::permute,
        Flip => shape::flip,
        Expand => shape::expand,
        Unfold => shape::unfold,
        Slice => shape::slice,
        SliceAssign => shape::slice_assign,
        Select => index::select,
        SelectAssign => index::select_assign,
        MaskWhere => arithmetic::mask_where,
        MaskFill => arithmetic::mask_fill,
        Gather => index::gather,
        Scatter => index::scatter,
        ScatterNd => index::scatter_nd,
        GatherNd => index::gather_nd,
        Equal => arithmetic::equal,
        EqualElem => arithmetic::equal_elem,
        RepeatDim => shape::repeat_dim,
        Cat => shape::cat,
        Cast => integer::cast,
        Empty => shape::empty,
        Ones => shape::ones,
        Zeros => shape::zeros,
        NotEqual => arithmetic::not_equal,
        NotEqualElem => arithmetic::not_equal_elem,
        All => reduction::all,
        Any => reduction::any,
        AllDim => reduction::all_dim,
        AnyDim => reduction::any_dim,
    } missing {}

    numeric, "Numeric", NumericOperationIr: lowered {
        Add => arithmetic::add,
        AddScalar => arithmetic::add_scalar,
        Sub => arithmetic::sub,
        SubScalar => arithmetic::sub_scalar,
        Div => arithmetic::div,
        DivScalar => arithmetic::div_scalar,
        Rem => arithmetic::rem,
        RemScalar => arithmetic::rem_scalar,
        Mul => arithmetic::mul,
        MulScalar => arithmetic::mul_scalar,
        Abs => arithmetic::abs,
        Full => shape::full,
        MeanDim => reduction::mean_dim,
        Mean => reduction::mean,
        Sum => reduction::sum,
        SumDim => reduction::sum_dim,
        SumDims => reduction::sum_dims,
        Prod => reduction::prod,
        ProdDim => reduction::prod_dim,
        Greater => arithmetic::greater,
        GreaterElem => arithmetic::greater_elem,
        GreaterEqual => arithmetic::greater_equal,
        GreaterEqualElem => arithmetic::greater_equal_elem,
        Lower => arithmetic::lower,
        LowerElem => arithmetic::lower_elem,
        LowerEqual => arithmetic::lower_equal,
        LowerEqualElem => arithmetic::lower_equal_elem,
        ArgMax => reduction::argmax,
        ArgTopK => sort::arg_top_k,
        TopK => sort::top_k,
        TopKWithIndices => sort::top_k_with_indices,
        ArgMin => reduction::argmin,
        Max => reduction::max,
        MaxDimWithIndices => reduction::max_dim_with_indices,
        MinDimWithIndices => reduction::min_dim_with_indices,
        Min => reduction::min,
        MaxDim => reduction::max_dim,
        MinDim => reduction::min_dim,
        MaxAbs => reduction::max_abs,
        MaxAbsDim => reduction::max_abs_dim,
        Clamp => arithmetic::clamp,
        IntRandom => random::random,
        Powi => arithmetic::powi,
        PowiScalar => arithmetic::powi_scalar,
        CumSum => reduction::cumsum,
        CumProd => reduction::cumprod,
        CumMin => reduction::cummin,
        CumMax => reduction::cummax,
        Neg => arithmetic::neg,
        Sign => arithmetic::sign,
        ClampMin => arithmetic::clamp_min,
        ClampMax => arithmetic::clamp_max,
        Sort => sort::sort,
        SortWithIndices => sort::sort_with_indices,
        ArgSort => sort::argsort,
        Pad => shape::pad,
    } missing {}

    float_family, "Float", FloatOperationIr: lowered {
        Exp => float::exp,
        Log => float::log,
        Log1p => float::log1p,
        Erf => float::erf,
        PowfScalar => arithmetic::powf_scalar,
        Sqrt => float::sqrt,
        Cos => float::cos,
        Cosh => float::cosh,
        Sin => float::sin,
        Sinh => float::sinh,
        Tan => float::tan,
        Tanh => float::tanh,
        ArcCos => float::acos,
        ArcCosh => float::acosh,
        ArcSin => float::asin,
        ArcSinh => float::asinh,
        ArcTan => float::atan,
        ArcTanh => float::atanh,
        ArcTan2 => float::atan2,
        Round => float::round,
        Floor => float::floor,
        Ceil => float::ceil,
        Trunc => float::trunc,
        IntoInt => integer::into_int,
        Matmul => matmul::matmul,
        Cross => float::cross,
        Random => random::random,
        Recip => float::recip,
        IsNan => float::is_nan,
        IsInf => float::is_inf,
        Powf => arithmetic::powf,
        Hypot => float::hypot,
    } missing { Quantize, Dequantize, GridSample2d, }

    int_family, "Int", IntOperationIr: lowered {
        IntoFloat => integer::cast,
        BitwiseAnd => integer::and,
        BitwiseAndScalar => integer::and_scalar,
        BitwiseOr => integer::or,
        BitwiseOrScalar => integer::or_scalar,
        BitwiseXor => integer::xor,
        BitwiseXorScalar => integer::xor_scalar,
        BitwiseNot => integer::not,
        BitwiseLeftShift => integer::shift_left,
        BitwiseLeftShiftScalar => integer::shift_left_scalar,
        BitwiseRightShift => integer::shift_right,
        BitwiseRightShiftScalar => integer::shift_right_scalar,
        Matmul => matmul::matmul,
    } missing {}

    bool_family, "Bool", BoolOperationIr: lowered {
        IntoFloat => integer::cast,
        IntoInt => integer::cast,
        Not => integer::not,
        And => integer::and,
        Or => integer::or,
        Xor => integer::xor,
    } missing {}

    module_family, "Module", ModuleOperationIr: lowered {
        BatchNorm => normalization::batch_norm,
        Embedding => index::embedding,
        EmbeddingBackward => index::embedding_backward,
        Linear => matmul::linear,
        LinearXBackward => matmul::linear_x_backward,
        LinearWeightBackward => matmul::linear_weight_backward,
        LinearBiasBackward => matmul::linear_bias_backward,
        Conv1d => convolution::conv1d,
        Conv1dXBackward => convolution::conv1d_x_backward,
        Conv1dWeightBackward => convolution::conv1d_weight_backward,
        Conv1dBiasBackward => convolution::conv1d_bias_backward,
        Conv2d => convolution::conv2d,
        Conv2dXBackward => convolution::conv2d_x_backward,
        Conv2dWeightBackward => convolution::conv2d_weight_backward,
        Conv2dBiasBackward => convolution::conv2d_bias_backward,
        Conv3d => convolution::conv3d,
        Conv3dXBackward => convolution::conv3d_x_backward,
        Conv3dWeightBackward => convolution::conv3d_weight_backward,
        Conv3dBiasBackward => convolution::conv3d_bias_backward,
        ConvTranspose1d => convolution::conv_transpose1d,
        ConvTranspose2d => convolution::conv_transpose2d,
        ConvTranspose3d => convolution::conv_transpose3d,
        ConvTranspose1dWeightBackward => convolution::conv_transpose1d_weight_backward,
        ConvTranspose1dBiasBackward => convolution::conv_transpose1d_bias_backward,
        ConvTranspose2dWeightBackward => convolution::conv_transpose2d_weight_backward,
        ConvTranspose2dBiasBackward => convolution::conv_transpose2d_bias_backward,
        ConvTranspose3dWeightBackward => convolution::conv_transpose3d_weight_backward,
        ConvTranspose3dBiasBackward => convolution::conv_transpose3d_bias_backward,
        AvgPool1d => pooling::avg_pool1d,
        AvgPool2d => pooling::avg_pool2d,
        AvgPool1dBackward => pooling::avg_pool1d_backward,
        AvgPool2dBackward => pooling::avg_pool2d_backward,
        AdaptiveAvgPool1d => adaptive_pooling::adaptive_avg_pool1d,
        AdaptiveAvgPool2d => adaptive_pooling::adaptive_avg_pool2d,
        AdaptiveAvgPool1dBackward => adaptive_pooling::adaptive_avg_pool1d_backward,
        AdaptiveAvgPool2dBackward => adaptive_pooling::adaptive_avg_pool2d_backward,
        AdaptiveAvgPool3d => adaptive_pooling::adaptive_avg_pool3d,
        AdaptiveAvgPool3dBackward => adaptive_pooling::adaptive_avg_pool3d_backward,
        MaxPool1d => pooling::max_pool1d,
        MaxPool1dWithIndices => pooling::max_pool1d_with_indices,
        MaxPool1dWithIndicesBackward => pooling::max_pool1d_backward,
        MaxPool2d => pooling::max_pool2d,
        MaxPool2dWithIndices => pooling::max_pool2d_with_indices,
        MaxPool2dWithIndicesBackward => pooling::max_pool2d_backward,
        Attention => attention::attention,
        LayerNorm => normalization::layer_norm,
    } missing {
        DeformableConv2d, DeformableConv2dBackward, Interpolate, InterpolateBackward,
        CtcLoss, CtcLossBackward, Unfold4d,
    }

    activation_family, "Activation", ActivationOperationIr: lowered {
        Relu => activation::relu,
        ReluBackward => activation::relu_backward,
        LeakyRelu => activation::leaky_relu,
        PRelu => activation::prelu,
        Gelu => activation::gelu,
        GeluBackward => activation::gelu_backward,
        Sigmoid => activation::sigmoid,
        SigmoidBackward => activation::sigmoid_backward,
        HardSigmoid => activation::hard_sigmoid,
        LogSigmoid => activation::log_sigmoid,
        LogSigmoidBackward => activation::log_sigmoid_backward,
        Softmax => activation::softmax,
        LogSoftmax => activation::log_softmax,
        Softmin => activation::softmin,
    } missing {}
}

/// Lowers one operation.
pub(super) fn lower_operation(cx: &mut Context, op: &OperationIr) -> Result<()> {
    match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            base(cx, op)
        }
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => numeric(cx, op),
        OperationIr::Float(_, op) => float_family(cx, op),
        OperationIr::Int(op) => int_family(cx, op),
        OperationIr::Bool(op) => bool_family(cx, op),
        OperationIr::Module(op) => module_family(cx, op),
        OperationIr::Activation(op) => activation_family(cx, op),
        OperationIr::Distributed(DistributedOperationIr::AllReduce(op)) => {
            collective::distributed(cx, op)
        }
        OperationIr::Custom(op) => collective::custom(cx, op),
        // Inputs and recorded values are there when they are asked for, tensors live as long as
        // the program needs them, and a program's collectives are part of it.
        OperationIr::Init(_)
        | OperationIr::Drop(_)
        | OperationIr::Distributed(DistributedOperationIr::SyncCollective) => Ok(()),
    }
}

/// burn's name of an operation, such as `Module.Conv2d`.
pub(super) fn operation_name(op: &OperationIr) -> String {
    let (family, name) = match op {
        OperationIr::BaseFloat(op) => ("BaseFloat", op.name()),
        OperationIr::BaseInt(op) => ("BaseInt", op.name()),
        OperationIr::BaseBool(op) => ("BaseBool", op.name()),
        OperationIr::NumericFloat(_, op) => ("NumericFloat", op.name()),
        OperationIr::NumericInt(_, op) => ("NumericInt", op.name()),
        OperationIr::Float(_, op) => ("Float", op.name()),
        OperationIr::Int(op) => ("Int", op.name()),
        OperationIr::Bool(op) => ("Bool", op.name()),
        OperationIr::Module(op) => ("Module", op.name()),
        OperationIr::Activation(op) => ("Activation", op.name()),
        OperationIr::Distributed(DistributedOperationIr::AllReduce(_)) => {
            ("Distributed", "AllReduce")
        }
        OperationIr::Distributed(DistributedOperationIr::SyncCollective) => {
            ("Distributed", "SyncCollective")
        }
        OperationIr::Custom(op) => ("Custom", op.id.as_str()),
        OperationIr::Init(_) => ("Init", "Init"),
        OperationIr::Drop(_) => ("Drop", "Drop"),
    };
    format!("{family}.{name}")
}

/// Every operation that burn can record, and whether a step that runs on XLA may use it.
pub fn coverage() -> Vec<Coverage> {
    let mut table = Vec::new();
    for (family, lowered, missing) in FAMILIES {
        let lowered = lowered.iter().map(|op| (*op, true));
        let missing = missing.iter().map(|op| (*op, false));
        table.extend(lowered.chain(missing).map(|(operation, covered)| Coverage {
            family,
            operation,
            covered,
        }));
    }
    for (family, operation) in [
        ("Distributed", "AllReduce"),
        ("Distributed", "SyncCollective"),
        ("Init", "Init"),
        ("Drop", "Drop"),
    ] {
        table.push(Coverage {
            family,
            operation,
            covered: true,
        });
    }
    table.extend(collective::CUSTOM.iter().map(|(operation, _)| Coverage {
        family: "Custom",
        operation,
        covered: true,
    }));
    table
}
