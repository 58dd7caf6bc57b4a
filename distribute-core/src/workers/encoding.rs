//! Lists of tensors as bytes, for their way between processes: a JSON header with the call, the
//! types and the shapes behind its length (u64), then the elements in the byte order of the
//! machine.

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use crate::trace::TensorSpec;
use crate::{Error, Result};

/// The size of such a tensor in bytes; `None` if no memory could hold it.
fn size(form: &TensorSpec) -> Option<usize> {
    let sizes = form.shape.iter();
    let elements = sizes.copied().try_fold(1_usize, usize::checked_mul)?;
    elements.checked_mul(form.dtype.size())
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Which call it is, with what all workers must agree in.
    call: String,
    forms: Vec<Vec<TensorSpec>>,
}

/// The lists of a worker's replicas as bytes.
pub(super) fn encode(call: &str, lists: &[Vec<TensorData>]) -> Result<Vec<u8>> {
    let header = Header {
        call: call.to_string(),
        forms: lists
            .iter()
            .map(|list| list.iter().map(TensorSpec::of).collect())
            .collect(),
    };
    let header = serde_json::to_vec(&header).map_err(Error::internal)?;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&header);
    for data in lists.iter().flatten() {
        bytes.extend_from_slice(data.as_bytes());
    }
    Ok(bytes)
}

/// The way back: the call and the lists.
pub(super) fn decode(bytes: &[u8]) -> Result<(String, Vec<Vec<TensorData>>)> {
    decoded(bytes).ok_or_else(unreadable)
}

fn decoded(bytes: &[u8]) -> Option<(String, Vec<Vec<TensorData>>)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, mut rest) = rest.split_at_checked(length)?;
    let Header { call, forms } = serde_json::from_slice(header).ok()?;
    let mut lists = Vec::with_capacity(forms.len());
    for forms in forms {
        let mut list = Vec::with_capacity(forms.len());
        for form in forms {
            let (elements, left) = rest.split_at_checked(size(&form)?)?;
            list.push(tensor(&form, elements));
            rest = left;
        }
        lists.push(list);
    }
    rest.is_empty().then_some((call, lists))
}

/// A tensor of this form from as many bytes as it has.
pub(super) fn tensor(form: &TensorSpec, elements: &[u8]) -> TensorData {
    TensorData::from_bytes_vec(elements.to_vec(), form.shape.clone(), form.dtype)
}

/// Lists that each stand behind their length.
pub(crate) fn lists(mut flat: &[i64]) -> Option<Vec<&[i64]>> {
    let mut lists = Vec::new();
    while let Some((length, rest)) = flat.split_first() {
        let (list, rest) = rest.split_at_checked(usize::try_from(*length).ok()?)?;
        lists.push(list);
        flat = rest;
    }
    Some(lists)
}

pub(crate) fn unreadable() -> Error {
    Error::invalid(
        "another worker sent a value that cannot be read: run the same program on all workers",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Vec<Vec<TensorData>> {
        vec![
            vec![
                TensorData::new(vec![1.5_f32, -2.0], [2]),
                TensorData::new(vec![true, false, true], [3, 1]),
            ],
            Vec::new(),
            vec![TensorData::new(Vec::<i64>::new(), [0, 7])],
        ]
    }

    #[test]
    fn lists_come_back_as_they_were() {
        let bytes = encode("reduce sum", &lists()).unwrap();
        assert_eq!(decode(&bytes).unwrap(), ("reduce sum".to_string(), lists()));
    }

    #[test]
    fn bytes_that_were_cut_or_made_up_are_an_error() {
        let bytes = encode("gather 0", &lists()).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(decode(&longer).is_err());
        let header =
            br#"{"call":"","forms":[[{"dtype":"F32","shape":[4294967296,4294967296,2]}]]}"#;
        let mut huge = (header.len() as u64).to_le_bytes().to_vec();
        huge.extend_from_slice(header);
        assert!(decode(&huge).is_err());
    }
}
