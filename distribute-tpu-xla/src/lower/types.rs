//! burn's types and scalars in StableHLO.

use burn::tensor::{DType, TensorData};
use distribute_core::burn_internals::ir::{ScalarIr, TensorIr};

use crate::stablehlo::{ElementType, Scalar, TensorType};

use super::error::{Result, unsupported};

/// burn's element type as StableHLO's.
pub(super) fn element_type(dtype: DType) -> Result<ElementType> {
    Ok(match dtype {
        DType::F64 => ElementType::F64,
        DType::F32 | DType::Flex32 => ElementType::F32,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::BF16,
        DType::I64 => ElementType::I64,
        DType::I32 => ElementType::I32,
        DType::I16 => ElementType::I16,
        DType::I8 => ElementType::I8,
        DType::U64 => ElementType::U64,
        DType::U32 => ElementType::U32,
        DType::U16 => ElementType::U16,
        DType::U8 => ElementType::U8,
        DType::Bool(_) => ElementType::I1,
        DType::QFloat(_) => return unsupported("quantized tensors are not covered"),
    })
}

/// The type of a tensor of the graph.
pub(super) fn tensor_type(tensor: &TensorIr) -> Result<TensorType> {
    Ok(TensorType::new(
        tensor.shape.to_vec(),
        element_type(tensor.dtype)?,
    ))
}

/// The type of recorded data.
pub(super) fn data_type(data: &TensorData) -> Result<TensorType> {
    Ok(TensorType::new(
        data.shape().to_vec(),
        element_type(data.dtype())?,
    ))
}

/// burn's scalar as StableHLO's.
pub(super) fn literal(scalar: ScalarIr) -> Scalar {
    match scalar {
        ScalarIr::Float(v) => Scalar::Float(v),
        ScalarIr::Int(v) => Scalar::Int(v),
        ScalarIr::UInt(v) => Scalar::UInt(v),
        ScalarIr::Bool(v) => Scalar::Bool(v),
    }
}

/// A scalar of the graph as a float.
pub(super) fn float(scalar: ScalarIr) -> f64 {
    match scalar {
        ScalarIr::Float(v) => v,
        ScalarIr::Int(v) => v as f64,
        ScalarIr::UInt(v) => v as f64,
        ScalarIr::Bool(v) => f64::from(u8::from(v)),
    }
}

/// A scalar of the graph as an integer; floats are truncated.
pub(super) fn integer(scalar: ScalarIr) -> i64 {
    match scalar {
        ScalarIr::Float(v) => v as i64,
        ScalarIr::Int(v) => v,
        ScalarIr::UInt(v) => v as i64,
        ScalarIr::Bool(v) => i64::from(v),
    }
}
