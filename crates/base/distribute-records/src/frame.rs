//! TFRecord framing, as in TensorFlow's `lib/io/record_writer.cc`:
//!
//! ```text
//! u64 length, u32 masked CRC32C of the length, the data, u32 masked CRC32C of the data
//! ```
//!
//! All numbers have their lowest byte first.

/// Bytes before the data of a record.
pub(crate) const HEADER_BYTES: u64 = 12;
/// Bytes behind the data of a record.
pub(crate) const FOOTER_BYTES: u64 = 4;

/// The record that holds `data`, with its frame: the bytes that TensorFlow's
/// `tf.io.TFRecordWriter` writes of it.
pub fn encode(data: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(header(data.len() as u64));
    record.extend(data);
    record.extend(masked_crc32c(data).to_le_bytes());
    record
}

/// The length of a record with its checksum.
pub(crate) fn header(length: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    let length = length.to_le_bytes();
    header[..8].copy_from_slice(&length);
    header[8..].copy_from_slice(&masked_crc32c(&length).to_le_bytes());
    header
}

/// The length that a header says, if its checksum is right.
pub(crate) fn length(bytes: &[u8; HEADER_BYTES as usize]) -> Option<u64> {
    let (length, _) = bytes.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(*length);
    (header(length) == *bytes).then_some(length)
}

/// TensorFlow's `crc32c::Mask` of a checksum: the CRC of data that itself contains CRCs would be
/// weak.
pub fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an empty record that TensorFlow 2.21 writes.
    #[test]
    fn an_empty_record_has_tensorflows_bytes() {
        let bytes = [
            0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2,
        ];
        assert_eq!(encode(&[]), bytes);
        assert_eq!(length(bytes.first_chunk().unwrap()), Some(0));
    }
}
