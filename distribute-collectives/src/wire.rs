//! Data frames as bytes.
//!
//! A data frame is one gRPC message: the 5 bytes of gRPC's prefix (compression flag 0, length as
//! big-endian `u32`), then an encoded [`OperationHeader`] and the number of the frame among those
//! of its ordered pair of ranks and its kind of operation (little-endian `u64`), then the payload.
//! The header says which operation the payload belongs to, so that a receiver never combines what
//! was not meant for it.

use crate::header::{HeaderError, OperationHeader};

/// Bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = OperationHeader::BYTES + 8;

/// Bytes of gRPC's message prefix.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Bytes in front of a payload.
pub(crate) const OVERHEAD_BYTES: usize = PREFIX_BYTES + HEADER_BYTES;

/// The header of a frame, in front of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// The operation that the payload belongs to.
    pub(crate) operation: OperationHeader,
    /// Number of the frame, counted per ordered pair of ranks and kind of operation.
    pub(crate) number: u64,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("a compressed message (flag {0}), which was never agreed on")]
    Compressed(u8),
    #[error("a message of {0} bytes, shorter than its header of {HEADER_BYTES}")]
    Short(usize),
    #[error("a message of {bytes} bytes, but max_message_bytes is {limit}")]
    Long { bytes: usize, limit: usize },
}

/// Writes gRPC's prefix for a payload of `payload_bytes`, which is known to be small enough.
pub(crate) fn encode_prefix(payload_bytes: usize) -> [u8; PREFIX_BYTES] {
    let mut prefix = [0; PREFIX_BYTES];
    let bytes = u32::try_from(HEADER_BYTES + payload_bytes).unwrap_or(u32::MAX);
    prefix[1..].copy_from_slice(&bytes.to_be_bytes());
    prefix
}

/// Reads gRPC's prefix; returns the number of bytes of the payload.
pub(crate) fn decode_prefix(prefix: &[u8; PREFIX_BYTES], limit: usize) -> Result<usize, WireError> {
    if prefix[0] != 0 {
        return Err(WireError::Compressed(prefix[0]));
    }
    let bytes = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if bytes > limit {
        return Err(WireError::Long { bytes, limit });
    }
    bytes
        .checked_sub(HEADER_BYTES)
        .ok_or(WireError::Short(bytes))
}

impl FrameHeader {
    /// The bytes of the header.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..OperationHeader::BYTES].copy_from_slice(&self.operation.encode());
        bytes[OperationHeader::BYTES..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Reads a header.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let (mut operation, mut number) = ([0; OperationHeader::BYTES], [0; 8]);
        operation.copy_from_slice(&bytes[..OperationHeader::BYTES]);
        number.copy_from_slice(&bytes[OperationHeader::BYTES..]);
        Ok(FrameHeader {
            operation: OperationHeader::decode(&operation)?,
            number: u64::from_le_bytes(number),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::header::tests::headers;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(operation in headers(), number in any::<u64>()) {
            let header = FrameHeader { operation, number };
            prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_prefix_is_bounded(prefix in any::<[u8; PREFIX_BYTES]>(), limit in 0_usize..1 << 33) {
            if let Ok(payload) = decode_prefix(&prefix, limit) {
                prop_assert!(payload + HEADER_BYTES <= limit);
                prop_assert_eq!(encode_prefix(payload), prefix);
            }
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let prefix = |bytes: u32| {
            let mut prefix = [0; PREFIX_BYTES];
            prefix[1..].copy_from_slice(&bytes.to_be_bytes());
            prefix
        };
        assert_eq!(decode_prefix(&prefix(63), 100), Err(WireError::Short(63)));
        assert_eq!(decode_prefix(&prefix(64), 100), Ok(0));
        let long = WireError::Long {
            bytes: 101,
            limit: 100,
        };
        assert_eq!(decode_prefix(&prefix(101), 100), Err(long));
        assert_eq!(
            decode_prefix(&[1, 0, 0, 0, 64], 100),
            Err(WireError::Compressed(1))
        );
    }
}
