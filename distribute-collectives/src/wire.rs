//! Operation headers and data frames as bytes.
//!
//! A data frame is one gRPC message: the 5 bytes of gRPC's prefix (compression flag 0, length as
//! big-endian `u32`), then 64 bytes of header, then the payload. The header says which operation
//! the payload belongs to, so that a receiver never combines what was not meant for it:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, [`VERSION`] |
//! | 1 | flags: bit 0 point-to-point, bit 1 the operation has a root |
//! | 2 | kind |
//! | 3 | element type plus 1, 0 for none |
//! | 4 | reduction plus 1, 0 for none |
//! | 5..8 | zero |
//! | 8..16 | generation |
//! | 16..24 | sequence |
//! | 24..32 | count |
//! | 32..40 | layout |
//! | 40..48 | buffers |
//! | 48..56 | root, 0 for none |
//! | 56..64 | number of the frame among those of its ordered pair of ranks and its flag |
//!
//! Numbers are little-endian.

use crate::buffer::DType;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::reduce::ReduceOp;

/// The version of this layout.
pub(crate) const VERSION: u8 = 1;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;

/// Bytes of gRPC's message prefix.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Bytes in front of a payload.
pub(crate) const OVERHEAD_BYTES: usize = PREFIX_BYTES + HEADER_BYTES;

const POINT_TO_POINT: u8 = 1;
const HAS_ROOT: u8 = 2;

/// What stands in front of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// The operation that the payload belongs to.
    pub(crate) operation: OperationHeader,
    /// Whether it belongs to `send` or `recv` (also the answer to a `send`).
    pub(crate) point_to_point: bool,
    /// Number of the frame among those of its ordered pair of ranks and its kind of operation.
    pub(crate) number: u64,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("a frame of version {0}, this program speaks version {VERSION}")]
    Version(u8),
    #[error("byte {offset} of a frame header is {value}, which has no meaning")]
    Value { offset: usize, value: u8 },
    #[error("a number in a frame header is too large for this machine")]
    Number,
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
        let operation = &self.operation;
        let mut bytes = [0; HEADER_BYTES];
        let root = operation.root;
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        bytes[0] = VERSION;
        bytes[1] = flag(self.point_to_point, POINT_TO_POINT) | flag(root.is_some(), HAS_ROOT);
        bytes[2] = operation.kind as u8;
        bytes[3] = operation.dtype.map_or(0, |dtype| dtype as u8 + 1);
        bytes[4] = operation.op.map_or(0, |op| op as u8 + 1);
        let numbers = [
            operation.generation,
            operation.sequence,
            operation.count as u64,
            operation.layout,
            operation.buffers as u64,
            root.unwrap_or(0) as u64,
            self.number,
        ];
        for (to, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads a header.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[0] != VERSION {
            return Err(WireError::Version(bytes[0]));
        }
        let bad = |offset: usize| WireError::Value {
            offset,
            value: bytes[offset],
        };
        let flags = bytes[1];
        if flags & !(POINT_TO_POINT | HAS_ROOT) != 0 {
            return Err(bad(1));
        }
        if let Some(offset) = (5..8).find(|&offset| bytes[offset] != 0) {
            return Err(bad(offset));
        }
        let known = |kind: &&OperationKind| **kind as u8 == bytes[2];
        let kind = OperationKind::ALL.iter().find(known).ok_or(bad(2))?;
        let dtype = optional(bytes[3], &DType::ALL, |dtype| dtype as u8).ok_or(bad(3))?;
        let op = optional(bytes[4], &ReduceOp::ALL, |op| op as u8).ok_or(bad(4))?;
        let size = |offset| usize::try_from(number(bytes, offset)).map_err(|_| WireError::Number);
        let root = size(48)?;
        if flags & HAS_ROOT == 0 && root != 0 {
            return Err(bad(48));
        }
        Ok(FrameHeader {
            operation: OperationHeader {
                generation: number(bytes, 8),
                sequence: number(bytes, 16),
                kind: *kind,
                dtype,
                op,
                root: (flags & HAS_ROOT != 0).then_some(root),
                count: size(24)?,
                buffers: size(40)?,
                layout: number(bytes, 32),
            },
            point_to_point: flags & POINT_TO_POINT != 0,
            number: number(bytes, 56),
        })
    }
}

fn number(bytes: &[u8; HEADER_BYTES], offset: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(number)
}

/// 0 is `None`; else the value whose code is one less. The outer `None`: there is no such value.
fn optional<T: Copy>(byte: u8, all: &[T], code: impl Fn(T) -> u8) -> Option<Option<T>> {
    match byte.checked_sub(1) {
        None => Some(None),
        Some(wanted) => {
            let found = all.iter().find(|value| code(**value) == wanted);
            found.map(|value| Some(*value))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = FrameHeader> {
        let names = (
            proptest::sample::select(&OperationKind::ALL[..]),
            proptest::option::of(proptest::sample::select(&DType::ALL[..])),
            proptest::option::of(proptest::sample::select(&ReduceOp::ALL[..])),
            any::<bool>(),
        );
        let numbers = (any::<[u64; 4]>(), any::<[usize; 2]>());
        (names, numbers, proptest::option::of(any::<usize>())).prop_map(
            |((kind, dtype, op, point_to_point), (wide, sizes), root)| FrameHeader {
                operation: OperationHeader {
                    generation: wide[0],
                    sequence: wide[1],
                    kind,
                    dtype,
                    op,
                    root,
                    count: sizes[0],
                    buffers: sizes[1],
                    layout: wide[2],
                },
                point_to_point,
                number: wide[3],
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(header in headers()) {
            prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn no_bytes_panic_and_accepted_ones_are_canonical(
            mut bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES),
            plausible in any::<bool>(),
        ) {
            if plausible {
                let (flags, kind) = (bytes[1] & 3, bytes[2] & 7);
                bytes[..8].copy_from_slice(&[VERSION, flags, kind, 0, 0, 0, 0, 0]);
            }
            let bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
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
