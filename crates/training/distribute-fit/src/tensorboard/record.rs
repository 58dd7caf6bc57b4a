//! TFRecord framing, as in TensorFlow's `lib/io/record_writer.cc`:
//!
//! ```text
//! u64 length, u32 masked CRC32C of the length, the data, u32 masked CRC32C of the data
//! ```
//!
//! All numbers have their lowest byte first.

/// The record that holds `data`.
pub(crate) fn encode(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc32c(data).to_le_bytes());
    record
}

/// TensorFlow's `crc32c::Mask`: the CRC of data that itself contains CRCs would be weak.
pub(super) fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}
