//! Tensors of the golden schema.

use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData, bf16, f16};
use serde_json::Value;

use crate::json::counts;
use crate::outcome::Failure;

/// A tensor; a bare number becomes an f32 scalar, a list an f32 vector.
pub(crate) fn tensor(value: &Value) -> Result<TensorData, Failure> {
    let Some(dtype) = value.get("dtype") else {
        let data = match value.as_array() {
            Some(list) => TensorData::new(numbers(list)?, [list.len()]),
            None => TensorData::new(vec![number(value)?], Shape::new([])),
        };
        return Ok(data.convert_dtype(DType::F32));
    };
    let malformed = || Failure::schema(format!("not a tensor: {value}"));
    let shape = Shape::from(counts(&value["shape"]).ok_or_else(malformed)?);
    let data = value["data"].as_array().ok_or_else(malformed)?;
    if data.len() != shape.num_elements() {
        return Err(malformed());
    }
    if dtype == "bool" {
        let values: Option<Vec<bool>> = data.iter().map(Value::as_bool).collect();
        return Ok(TensorData::new(values.ok_or_else(malformed)?, shape));
    }
    typed(numbers(data)?, shape, dtype.as_str().unwrap_or_default())
}

/// The bytes of an element of a type that the files name.
pub(crate) fn element_bytes(dtype: &str) -> Result<usize, Failure> {
    Ok(match dtype {
        "bool" | "uint8" | "int8" => 1,
        "float16" | "bfloat16" | "int16" | "uint16" => 2,
        "float32" | "int32" | "uint32" => 4,
        "float64" | "int64" | "uint64" | "complex64" => 8,
        "complex128" => 16,
        other => return Err(Failure::schema(format!("unknown dtype `{other}`"))),
    })
}

fn typed(values: Vec<f64>, shape: Shape, name: &str) -> Result<TensorData, Failure> {
    macro_rules! cast {
        ($type:ty) => {
            TensorData::new(
                values.iter().map(|v| *v as $type).collect::<Vec<_>>(),
                shape,
            )
        };
    }
    Ok(match name {
        "float32" => cast!(f32),
        "float64" => TensorData::new(values, shape),
        "int32" => cast!(i32),
        "int64" => cast!(i64),
        "uint8" => cast!(u8),
        "float16" => {
            let values: Vec<f16> = values.iter().map(|v| f16::from_f64(*v)).collect();
            TensorData::new(values, shape)
        }
        "bfloat16" => {
            let values: Vec<bf16> = values.iter().map(|v| bf16::from_f64(*v)).collect();
            TensorData::new(values, shape)
        }
        other => return Err(Failure::schema(format!("unknown dtype `{other}`"))),
    })
}

fn numbers(list: &[Value]) -> Result<Vec<f64>, Failure> {
    list.iter().map(number).collect()
}

/// A number; the non-finite ones are texts.
pub(crate) fn number(value: &Value) -> Result<f64, Failure> {
    match value.as_str() {
        Some("NaN") => Ok(f64::NAN),
        Some("Infinity") => Ok(f64::INFINITY),
        Some("-Infinity") => Ok(f64::NEG_INFINITY),
        _ => value
            .as_f64()
            .ok_or_else(|| Failure::schema(format!("{value} is not a number"))),
    }
}

/// A scalar.
pub(crate) fn scalar(value: f32) -> TensorData {
    TensorData::new(vec![value], Shape::new([]))
}

/// The same elements in another shape.
pub(crate) fn reshaped(data: &TensorData, shape: &[usize]) -> TensorData {
    let shape = Shape::from(shape.to_vec());
    TensorData::from_bytes_vec(data.as_bytes().to_vec(), shape, data.dtype())
}

/// burn's smallest tensor has one axis; here it is a scalar.
pub(crate) fn as_scalar(data: TensorData) -> TensorData {
    if data.shape()[..] == [1] {
        return reshaped(&data, &[]);
    }
    data
}

/// The shape of a tensor on a device: a scalar gets an axis.
fn with_axes(data: TensorData) -> TensorData {
    if data.rank() == 0 {
        return reshaped(&data, &[1]);
    }
    data
}

/// A float tensor on a device.
pub(crate) fn float<const D: usize>(value: &Value, device: &Device) -> Result<Tensor<D>, Failure> {
    let data = with_axes(tensor(value)?);
    if data.rank() != D {
        return Err(Failure::schema(format!(
            "a tensor of rank {D} was expected: {value}"
        )));
    }
    let dtype = data.dtype();
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// An integer tensor on a device.
pub(crate) fn int<const D: usize>(
    value: &Value,
    device: &Device,
) -> Result<Tensor<D, Int>, Failure> {
    let data = with_axes(tensor(value)?);
    if data.rank() != D || !(data.dtype().is_int() || data.dtype().is_uint()) {
        return Err(Failure::schema(format!(
            "integers of rank {D} were expected: {value}"
        )));
    }
    let dtype = data.dtype();
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// The number of axes of a tensor of a file.
pub(crate) fn rank(value: &Value) -> usize {
    value["shape"].as_array().map_or(0, Vec::len)
}

/// Whether the elements are integers.
pub(crate) fn is_int(value: &Value) -> bool {
    value["dtype"]
        .as_str()
        .is_some_and(|name| name.contains("int"))
}
