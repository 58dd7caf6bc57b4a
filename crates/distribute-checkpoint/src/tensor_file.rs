//! `tensors.safetensors`: tensors streamed to and from a plain safetensors file.
//!
//! The `safetensors` crate builds and validates the header (sizes, offsets, no holes, no
//! overlap); the data is streamed, so that a save needs no second copy of the weights and a
//! restore reads and hashes every byte once.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::path::Path;

use burn::tensor::{BoolStore, DType, Element, TensorData};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata as Header, TensorInfo};

use super::error::{CheckpointError, READ};
use super::filesystem::ReadableFile;
use super::marker::{FileRecord, Hashing};

/// Upper bound of the header: about 100,000 tensors. Enforced when saving too, so that nothing is
/// written that could not be read again.
const MAX_HEADER_BYTES: u64 = 16 * 1024 * 1024;

/// The safetensors key reserved for free text.
const RESERVED_NAME: &str = "__metadata__";

/// The free-text entry with the dtypes that safetensors has no name for.
const DTYPES_KEY: &str = "distribute.dtypes";

/// A safetensors header and the tensors in the order in which their data follows.
pub(super) struct PreparedTensors<'a> {
    header: Vec<u8>,
    tensors: Vec<&'a TensorData>,
}

impl<'a> PreparedTensors<'a> {
    pub(super) fn new(
        tensors: &'a BTreeMap<String, TensorData>,
        path: &Path,
    ) -> Result<Self, CheckpointError> {
        let mut sorted = tensors
            .iter()
            .map(|(name, tensor)| Ok((stored_dtype(name, tensor)?, name, tensor)))
            .collect::<Result<Vec<_>, CheckpointError>>()?;
        // The widest elements first, as the safetensors crate does: every tensor is aligned.
        sorted.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(right.1)));

        let mut offset = 0;
        let mut infos = Vec::with_capacity(sorted.len());
        let mut dtypes = BTreeMap::new();
        for (dtype, name, tensor) in &sorted {
            let end = offset + tensor.as_bytes().len();
            let info = TensorInfo {
                dtype: *dtype,
                shape: tensor.shape().to_vec(),
                data_offsets: (offset, end),
            };
            infos.push(((*name).clone(), info));
            offset = end;
            if restored_dtype(*dtype) != Some(tensor.dtype()) {
                dtypes.insert((*name).as_str(), tensor.dtype().name());
            }
        }
        let header = encode_header(infos, &dtypes).map_err(|what| {
            let parameter = "(header)".to_string();
            CheckpointError::Unsupported { parameter, what }
        })?;
        if header.len() as u64 > MAX_HEADER_BYTES {
            return Err(CheckpointError::Unsupported {
                parameter: path.display().to_string(),
                what: format!(
                    "{} tensors need a header of {} bytes, the limit is {MAX_HEADER_BYTES}",
                    sorted.len(),
                    header.len()
                ),
            });
        }
        let tensors = sorted.into_iter().map(|(_, _, tensor)| tensor).collect();
        Ok(Self { header, tensors })
    }

    pub(super) fn write_to(&self, writer: &mut dyn Write) -> io::Result<()> {
        writer.write_all(&(self.header.len() as u64).to_le_bytes())?;
        writer.write_all(&self.header)?;
        for tensor in &self.tensors {
            writer.write_all(&little_endian(tensor.as_bytes(), tensor.dtype().size()))?;
        }
        Ok(())
    }
}

fn encode_header(
    infos: Vec<(String, TensorInfo)>,
    dtypes: &BTreeMap<&str, &str>,
) -> Result<Vec<u8>, String> {
    let text = if dtypes.is_empty() {
        None
    } else {
        let dtypes = serde_json::to_string(dtypes).map_err(|error| error.to_string())?;
        Some(HashMap::from([(DTYPES_KEY.to_string(), dtypes)]))
    };
    let header = Header::new(text, infos).map_err(|error| error.to_string())?;
    let mut bytes = serde_json::to_vec(&header).map_err(|error| error.to_string())?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    Ok(bytes)
}

/// Reads and verifies all tensors. Memory is bounded by the size of the file, which must be the
/// recorded one.
pub(super) fn read_tensors(
    path: &Path,
    file: ReadableFile,
    record: &FileRecord,
) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
    let file_bytes = file.bytes;
    let mut reader = Hashing::new(file.reader);
    let header = read_header(path, &mut reader, file_bytes)?;
    let dtypes = special_dtypes(path, &header)?;
    let mut tensors = BTreeMap::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else {
            continue;
        };
        let dtype = match dtypes.get(&name) {
            Some(dtype) => special_dtype(dtype, info.dtype),
            None => restored_dtype(info.dtype),
        };
        let dtype = dtype.ok_or_else(|| {
            let what = format!("tensor {name:?} has the unknown dtype {:?}", info.dtype);
            CheckpointError::corrupt(path, what)
        })?;
        let tensor = read_tensor(path, &mut reader, &name, info, dtype)?;
        tensors.insert(name, tensor);
    }
    if reader.record().sha256 != record.sha256 {
        return Err(CheckpointError::corrupt(path, "its SHA-256 does not match"));
    }
    Ok(tensors)
}

fn read_header(
    path: &Path,
    reader: &mut dyn Read,
    file_bytes: u64,
) -> Result<Header, CheckpointError> {
    let mut length = [0; 8];
    read_exact(path, reader, &mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES || header_bytes + 8 > file_bytes {
        let what = format!("its header claims {header_bytes} bytes");
        return Err(CheckpointError::corrupt(path, what));
    }
    let mut bytes = vec![0; header_bytes as usize];
    read_exact(path, reader, &mut bytes)?;
    let header: Header = serde_json::from_slice(&bytes).map_err(|error| {
        CheckpointError::corrupt(path, format!("its header is not valid: {error}"))
    })?;
    if header.data_len() as u64 != file_bytes - 8 - header_bytes {
        let what = format!(
            "its header describes {} bytes of data, the file holds {}",
            header.data_len(),
            file_bytes - 8 - header_bytes
        );
        return Err(CheckpointError::corrupt(path, what));
    }
    Ok(header)
}

fn special_dtypes(
    path: &Path,
    header: &Header,
) -> Result<BTreeMap<String, String>, CheckpointError> {
    match header
        .metadata()
        .as_ref()
        .and_then(|text| text.get(DTYPES_KEY))
    {
        Some(text) => serde_json::from_str(text)
            .map_err(|error| CheckpointError::corrupt(path, format!("its dtypes: {error}"))),
        None => Ok(BTreeMap::new()),
    }
}

fn read_tensor(
    path: &Path,
    reader: &mut dyn Read,
    name: &str,
    info: &TensorInfo,
    dtype: DType,
) -> Result<TensorData, CheckpointError> {
    let bytes = info.data_offsets.1 - info.data_offsets.0;
    // The vector has the element's own type, so that burn finds its data aligned.
    let data = match dtype {
        DType::F64 => read_elements::<f64>(path, reader, bytes)?,
        DType::F32 | DType::Flex32 => read_elements::<f32>(path, reader, bytes)?,
        DType::F16 => read_elements::<f16>(path, reader, bytes)?,
        DType::BF16 => read_elements::<bf16>(path, reader, bytes)?,
        DType::I64 => read_elements::<i64>(path, reader, bytes)?,
        DType::I32 => read_elements::<i32>(path, reader, bytes)?,
        DType::I16 => read_elements::<i16>(path, reader, bytes)?,
        DType::I8 => read_elements::<i8>(path, reader, bytes)?,
        DType::U64 => read_elements::<u64>(path, reader, bytes)?,
        DType::U32 | DType::Bool(BoolStore::U32) => read_elements::<u32>(path, reader, bytes)?,
        DType::U16 => read_elements::<u16>(path, reader, bytes)?,
        DType::U8 | DType::Bool(_) => read_elements::<u8>(path, reader, bytes)?,
        DType::QFloat(_) => {
            return Err(CheckpointError::corrupt(
                path,
                "quantized tensors are not stored",
            ));
        }
    };
    if dtype == DType::Bool(BoolStore::Native) && data.as_bytes().iter().any(|byte| *byte > 1) {
        let what = format!("tensor {name:?} holds a boolean that is neither 0 nor 1");
        return Err(CheckpointError::corrupt(path, what));
    }
    TensorData::try_from_bytes(data.into_bytes(), info.shape.clone(), dtype)
        .map_err(|error| CheckpointError::corrupt(path, error.to_string()))
}

/// Reads `bytes` bytes as a flat tensor of `E`.
fn read_elements<E: Element + bytemuck::Pod>(
    path: &Path,
    reader: &mut dyn Read,
    bytes: usize,
) -> Result<TensorData, CheckpointError> {
    let count = bytes / size_of::<E>();
    let mut elements: Vec<E> = Vec::new();
    elements.try_reserve_exact(count).map_err(|error| {
        let source = io::Error::new(io::ErrorKind::OutOfMemory, error);
        CheckpointError::from_io(path, READ, source)
    })?;
    elements.resize(count, bytemuck::Zeroable::zeroed());
    let buffer = bytemuck::cast_slice_mut(&mut elements);
    read_exact(path, reader, buffer)?;
    if cfg!(target_endian = "big") {
        reverse_elements(buffer, size_of::<E>());
    }
    Ok(TensorData::new(elements, [count]))
}

fn read_exact(
    path: &Path,
    reader: &mut dyn Read,
    buffer: &mut [u8],
) -> Result<(), CheckpointError> {
    reader.read_exact(buffer).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            CheckpointError::corrupt(path, "it is truncated")
        } else {
            CheckpointError::from_io(path, READ, error)
        }
    })
}

/// The dtype in the file for a tensor, or why it cannot be stored.
fn stored_dtype(name: &str, tensor: &TensorData) -> Result<Dtype, CheckpointError> {
    let unsupported = |what: &str| CheckpointError::Unsupported {
        parameter: name.to_string(),
        what: what.to_string(),
    };
    if name.is_empty() || name == RESERVED_NAME {
        return Err(unsupported("the name is reserved, choose another one"));
    }
    // Every dtype is spelled out, so that a new one has to be placed before this compiles.
    Ok(match tensor.dtype() {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 | DType::Bool(BoolStore::U32) => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 | DType::Bool(BoolStore::U8) => Dtype::U8,
        DType::Bool(BoolStore::Native) => Dtype::BOOL,
        DType::QFloat(_) => return Err(unsupported("dequantize it before saving")),
    })
}

/// The dtype that a stored one stands for when nothing else is said.
fn restored_dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// The dtypes of burn that share a stored dtype with another one.
fn special_dtype(name: &str, stored: Dtype) -> Option<DType> {
    [
        (DType::Flex32, Dtype::F32),
        (DType::Bool(BoolStore::U8), Dtype::U8),
        (DType::Bool(BoolStore::U32), Dtype::U32),
    ]
    .into_iter()
    .find(|(dtype, needed)| dtype.name() == name && *needed == stored)
    .map(|(dtype, _)| dtype)
}

/// The bytes of elements of `element_bytes` bytes each, the lowest byte first.
pub(super) fn little_endian(bytes: &[u8], element_bytes: usize) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        return Cow::Borrowed(bytes);
    }
    let mut bytes = bytes.to_vec();
    reverse_elements(&mut bytes, element_bytes);
    Cow::Owned(bytes)
}

fn reverse_elements(bytes: &mut [u8], element_bytes: usize) {
    bytes
        .chunks_exact_mut(element_bytes.max(1))
        .for_each(<[u8]>::reverse);
}
