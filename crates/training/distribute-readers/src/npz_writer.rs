//! Arrays as NumPy's `.npz`.

use std::io::{Cursor, Write};
use std::path::Path;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::array::{Array, Values, with_values};
use crate::error::ReadError;

/// The bytes before the header's text: the magic, the version and the length.
const PREFIX: usize = 10;
/// NumPy's headers end at a multiple of this.
const ALIGNMENT: usize = 64;

/// The bytes of an archive that `numpy.load` reads: these arrays by their keys, uncompressed.
///
/// # Errors
/// [`ReadError::Malformed`] if two arrays have the same key, or the archive would be too large.
pub fn write_npz(arrays: &[(&str, &Array)]) -> Result<Vec<u8>, ReadError> {
    let wrong =
        |error: &dyn std::fmt::Display| ReadError::malformed(Path::new("npz"), error.to_string());
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true);
    for (key, array) in arrays {
        let started = archive.start_file(format!("{key}.npy"), options);
        started.map_err(|error| wrong(&error))?;
        archive
            .write_all(&npy(array))
            .map_err(|error| wrong(&error))?;
    }
    let written = archive.finish().map_err(|error| wrong(&error))?;
    Ok(written.into_inner())
}

/// A `.npy` file in little-endian order, row major.
fn npy(array: &Array) -> Vec<u8> {
    let kind = match array.values() {
        Values::U8(_) => "|u1",
        Values::I8(_) => "|i1",
        Values::I16(_) => "<i2",
        Values::I32(_) => "<i4",
        Values::I64(_) => "<i8",
        Values::F32(_) => "<f4",
        Values::F64(_) => "<f8",
    };
    // Python writes a tuple of one with a comma.
    let shape: String = array
        .shape()
        .iter()
        .map(|extent| format!("{extent},"))
        .collect();
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    let end = (PREFIX + header.len() + 1).next_multiple_of(ALIGNMENT);
    header += &" ".repeat(end - PREFIX - header.len() - 1);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    // A header of so few axes is short.
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    with_values!(array.values(), values => {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_npz_arrays;

    #[test]
    fn arrays_are_read_back() {
        let index = Array::new(vec![3], Values::I64(vec![4, 0, -1])).unwrap();
        let values = Array::new(vec![3, 2], Values::F32(vec![0.5; 6])).unwrap();
        let bytes = write_npz(&[("index", &index), ("values", &values)]).unwrap();
        let read = parse_npz_arrays(&bytes, "written.npz").unwrap();
        assert_eq!(read[0], ("index".to_string(), index));
        assert_eq!(read[1], ("values".to_string(), values));
    }
}
