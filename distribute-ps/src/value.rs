//! Arguments and results on their way between processes: MessagePack, and tensors as bytes in it.

use burn::tensor::{BoolStore, DType, TensorData};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;

/// How deeply values may be nested, as in JSON: deeper ones could take the whole stack.
const DEPTH_MAX: usize = 128;

/// A tensor in host memory, as an argument or a result of a step.
///
/// serde knows burn's [`TensorData`] through this wrapper: the elements travel as one run of
/// bytes, in the byte order of the machine.
///
/// ```
/// use distribute_core::TensorData;
/// use distribute_ps::HostTensor;
///
/// let rows = HostTensor::from(TensorData::from([[1.0_f32, 2.0], [3.0, 4.0]]));
/// let data: TensorData = rows.into();
/// assert_eq!(data.shape().to_vec(), [2, 2]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor(pub TensorData);

impl From<TensorData> for HostTensor {
    fn from(data: TensorData) -> Self {
        Self(data)
    }
}

impl From<HostTensor> for TensorData {
    fn from(tensor: HostTensor) -> Self {
        tensor.0
    }
}

/// What a tensor is on the way.
#[derive(Serialize, Deserialize)]
struct Sent<B> {
    dtype: DType,
    shape: Vec<usize>,
    bytes: B,
}

impl Serialize for HostTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sent = Sent {
            dtype: self.0.dtype(),
            shape: self.0.shape().to_vec(),
            bytes: serde_bytes::Bytes::new(self.0.as_bytes()),
        };
        sent.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HostTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Sent::<ByteBuf> {
            dtype,
            shape,
            bytes,
        } = Sent::deserialize(deserializer)?;
        if matches!(dtype, DType::QFloat(_)) {
            return Err(D::Error::custom("quantised tensors are not sent"));
        }
        let mut sizes = shape.iter().copied();
        let elements = sizes.try_fold(1_usize, usize::checked_mul);
        let expected = elements.and_then(|elements| elements.checked_mul(dtype.size()));
        if expected != Some(bytes.len()) {
            let found = bytes.len();
            let what = format!("{found} bytes for a tensor of {dtype:?} with shape {shape:?}");
            return Err(D::Error::custom(what));
        }
        let bytes = bytes.into_vec();
        // burn panics where it reads another one.
        if dtype == DType::Bool(BoolStore::Native) && bytes.iter().any(|byte| *byte > 1) {
            return Err(D::Error::custom("a boolean that is neither 0 nor 1"));
        }
        Ok(Self(TensorData::from_bytes_vec(bytes, shape, dtype)))
    }
}

/// A value in MessagePack.
pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    // With names of fields, so that a struct may leave out some.
    rmp_serde::to_vec_named(value).map_err(|error| error.to_string())
}

/// The way back.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut reader = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut reader);
    decoder.set_max_depth(DEPTH_MAX);
    let value = T::deserialize(&mut decoder).map_err(|error| error.to_string())?;
    match reader.len() {
        0 => Ok(value),
        rest => Err(format!("{rest} bytes are left over")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boolean_that_is_neither_true_nor_false_is_refused() {
        let mut bytes = encode(&HostTensor(TensorData::from([true, false]))).unwrap();
        assert!(decode::<HostTensor>(&bytes).is_ok());
        let last = bytes.last_mut().unwrap();
        assert_eq!(*last, 0);
        *last = 2;
        let reason = decode::<HostTensor>(&bytes).unwrap_err();
        assert!(reason.contains("neither 0 nor 1"), "{reason}");
    }

    #[test]
    fn values_and_tensors_come_back_as_they_were() {
        let data = TensorData::from([[1.0_f32, f32::NAN], [f32::INFINITY, -0.0]]);
        let value = (
            0.1_f32,
            HostTensor(data.clone()),
            vec![HostTensor(TensorData::from([true, false]))],
            Some("text".to_string()),
        );
        let bytes = encode(&value).unwrap();
        let back: (f32, HostTensor, Vec<HostTensor>, Option<String>) = decode(&bytes).unwrap();
        assert_eq!(back.1.0.as_bytes(), data.as_bytes());
        assert_eq!(back.1.0.shape(), data.shape());
        assert_eq!((back.0, &back.2, &back.3), (value.0, &value.2, &value.3));
        assert!(decode::<f32>(&encode(&f32::NAN).unwrap()).unwrap().is_nan());
        let nothing: () = decode(&encode(&()).unwrap()).unwrap();
        let _: () = nothing;
    }

    #[test]
    fn a_tensor_whose_bytes_do_not_fit_its_shape_is_refused() {
        #[derive(Serialize)]
        struct Wrong {
            dtype: DType,
            shape: Vec<usize>,
            bytes: Vec<u8>,
        }
        for shape in [vec![3], vec![usize::MAX, 2], vec![]] {
            let wrong = Wrong {
                dtype: DType::F32,
                shape,
                bytes: vec![0; 8],
            };
            let error = decode::<HostTensor>(&encode(&wrong).unwrap()).unwrap_err();
            assert!(error.contains("8 bytes for a tensor of F32"), "{error}");
        }
    }

    #[test]
    fn other_arguments_than_a_step_takes_are_refused() {
        let one = encode(&(1_u32,)).unwrap();
        assert!(decode::<(u32, u32)>(&one).is_err());
        assert!(decode::<(String,)>(&one).is_err());
        assert!(decode::<()>(&one).is_err());
        assert!(decode::<(u32,)>(&encode(&(1_u32, 2_u32)).unwrap()).is_err());
        assert!(decode::<(u32,)>(&one[..1]).is_err());
        assert!(decode::<(u32,)>(&[one, vec![0]].concat()).is_err());
    }
}
