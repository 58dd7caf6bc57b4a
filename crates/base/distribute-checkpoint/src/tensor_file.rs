//! `tensors.safetensors`: tensors streamed to and from a plain safetensors file.
//!
//! The `safetensors` crate builds and validates the header (sizes, offsets, no holes, no
//! overlap); the data is streamed, so that a save needs no second copy of the weights and a
//! restore reads and hashes every byte once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use burn::tensor::{BoolStore, DType, Element, TensorData};
use safetensors::Dtype;
use safetensors::tensor::{Metadata as Header, TensorInfo};

use super::error::{CheckpointError, Result};
use super::recorded::Recorded;

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
    pub(super) fn new(tensors: &'a BTreeMap<String, TensorData>, path: &Path) -> Result<Self> {
        let stored = tensors
            .iter()
            .map(|(name, tensor)| Ok((stored_dtype(name, tensor)?, name, tensor)));
        let mut sorted = stored.collect::<Result<Vec<_>>>()?;
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
            if restored_dtype(*dtype, None) != Some(tensor.dtype()) {
                dtypes.insert((*name).as_str(), tensor.dtype().name());
            }
        }
        let header = encode_header(infos, &dtypes)
            .map_err(|what| CheckpointError::unsupported("(header)", what.to_string()))?;
        if header.len() as u64 > MAX_HEADER_BYTES {
            let (count, bytes) = (sorted.len(), header.len());
            let what = format!(
                "{count} tensors need a header of {bytes} bytes, the limit is {MAX_HEADER_BYTES}"
            );
            let parameter = path.display().to_string();
            return Err(CheckpointError::unsupported(parameter, what));
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
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let text = if dtypes.is_empty() {
        None
    } else {
        Some([(DTYPES_KEY.to_string(), serde_json::to_string(dtypes)?)].into())
    };
    let mut bytes = serde_json::to_vec(&Header::new(text, infos)?)?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    Ok(bytes)
}

/// Reads and verifies all tensors. Memory is bounded by the size of the file.
pub(super) fn read_tensors(mut file: Recorded<'_>) -> Result<BTreeMap<String, TensorData>> {
    let header = read_header(&mut file)?;
    let dtypes = special_dtypes(&file, &header)?;
    let mut tensors = BTreeMap::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else {
            continue;
        };
        let dtype = restored_dtype(info.dtype, dtypes.get(&name)).ok_or_else(|| {
            let dtype = info.dtype;
            file.corrupt(format!("tensor {name:?} has the unknown dtype {dtype:?}"))
        })?;
        let tensor = read_tensor(&mut file, &name, info, dtype)?;
        tensors.insert(name, tensor);
    }
    file.finish()?;
    Ok(tensors)
}

fn read_header(file: &mut Recorded<'_>) -> Result<Header> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES || header_bytes + 8 > file.bytes() {
        return Err(file.corrupt(format!("its header claims {header_bytes} bytes")));
    }
    let mut bytes = vec![0; header_bytes as usize];
    file.read_exact(&mut bytes)?;
    let header: Header = serde_json::from_slice(&bytes)
        .map_err(|error| file.corrupt(format!("its header is not valid: {error}")))?;
    let (described, held) = (header.data_len() as u64, file.bytes() - 8 - header_bytes);
    if described != held {
        return Err(file.corrupt(format!(
            "its header describes {described} bytes of data, the file holds {held}"
        )));
    }
    Ok(header)
}

fn special_dtypes(file: &Recorded<'_>, header: &Header) -> Result<BTreeMap<String, String>> {
    let texts = header.metadata().as_ref();
    let Some(text) = texts.and_then(|texts| texts.get(DTYPES_KEY)) else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_str(text).map_err(|error| file.corrupt(format!("its dtypes: {error}")))
}

fn read_tensor(
    file: &mut Recorded<'_>,
    name: &str,
    info: &TensorInfo,
    dtype: DType,
) -> Result<TensorData> {
    let bytes = info.data_offsets.1 - info.data_offsets.0;
    // The vector has elements of the same width, so that burn finds its data aligned.
    let data = match dtype.size() {
        8 => read_elements::<u64>(file, bytes)?,
        4 => read_elements::<u32>(file, bytes)?,
        2 => read_elements::<u16>(file, bytes)?,
        _ => read_elements::<u8>(file, bytes)?,
    };
    if dtype == DType::Bool(BoolStore::Native) && data.as_bytes().iter().any(|byte| *byte > 1) {
        let what = format!("tensor {name:?} holds a boolean that is neither 0 nor 1");
        return Err(file.corrupt(what));
    }
    TensorData::try_from_bytes(data.into_bytes(), info.shape.clone(), dtype)
        .map_err(|error| file.corrupt(error.to_string()))
}

/// Reads `bytes` bytes as a flat tensor of `E`.
fn read_elements<E: Element + bytemuck::Pod>(
    file: &mut Recorded<'_>,
    bytes: usize,
) -> Result<TensorData> {
    let count = bytes / size_of::<E>();
    let mut elements: Vec<E> = Vec::new();
    let reserved = elements.try_reserve_exact(count);
    reserved.map_err(|error| file.failed(io::Error::new(io::ErrorKind::OutOfMemory, error)))?;
    elements.resize(count, bytemuck::Zeroable::zeroed());
    let buffer = bytemuck::cast_slice_mut(&mut elements);
    file.read_exact(buffer)?;
    if cfg!(target_endian = "big") {
        reverse_elements(buffer, size_of::<E>());
    }
    Ok(TensorData::new(elements, [count]))
}

/// burn's dtypes and their dtypes in the file. If several share a dtype in the file, the first
/// one is meant unless the file names another. Quantized tensors are not stored.
const DTYPES: [(DType, Dtype); 16] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
    (DType::Bool(BoolStore::Native), Dtype::BOOL),
    (DType::Flex32, Dtype::F32),
    (DType::Bool(BoolStore::U8), Dtype::U8),
    (DType::Bool(BoolStore::U32), Dtype::U32),
];

/// The dtype in the file for a tensor, or why it cannot be stored.
fn stored_dtype(name: &str, tensor: &TensorData) -> Result<Dtype> {
    if name.is_empty() || name == RESERVED_NAME {
        let what = "the name is reserved, choose another one";
        return Err(CheckpointError::unsupported(name, what));
    }
    let pair = DTYPES.iter().find(|(dtype, _)| *dtype == tensor.dtype());
    let stored = pair.map(|(_, stored)| *stored);
    stored.ok_or_else(|| CheckpointError::unsupported(name, "dequantize it before saving"))
}

/// The dtype that a stored dtype stands for; `special` is the name in the file, if any.
fn restored_dtype(stored: Dtype, special: Option<&String>) -> Option<DType> {
    let mut pairs = DTYPES.iter().filter(|(_, other)| *other == stored);
    let is_meant = |dtype: DType| special.is_none_or(|name| name == dtype.name());
    pairs
        .find(|(dtype, _)| is_meant(*dtype))
        .map(|(dtype, _)| *dtype)
}

/// The bytes of elements of `element_bytes` bytes each, in little-endian order.
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
