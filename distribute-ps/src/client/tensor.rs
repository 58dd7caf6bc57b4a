//! From tensors to their bytes and back, without a copy.

use burn::tensor::{DType, Shape, TensorData};
use bytes::Bytes;

/// Lets a tensor's bytes be sent from where they lie.
struct TensorBytes(burn::tensor::Bytes);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

pub(super) fn tensor_bytes(data: TensorData) -> Bytes {
    Bytes::from_owner(TensorBytes(data.into_bytes()))
}

/// A tensor of these bytes.
pub(super) fn tensor(bytes: Vec<u8>, shape: Vec<usize>, dtype: DType) -> TensorData {
    TensorData::from_bytes_vec(bytes, Shape::from(shape), dtype)
}
