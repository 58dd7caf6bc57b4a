//! Messages out of the pieces in which HTTP/2 delivers them.

use bytes::{Buf, Bytes};

use crate::wire::{self, FrameHeader, OVERHEAD_BYTES, PREFIX_BYTES, WireError};

/// A received message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: FrameHeader,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    /// The payload arrived in one piece, and still lies where it was received.
    Piece(Bytes),
    /// The payload was put together from several pieces.
    Assembled(Vec<u8>),
}

impl Message {
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Piece(bytes) => bytes,
            Payload::Assembled(bytes) => bytes,
        }
    }

    /// Copies the payload out of the buffer in which it was received: a small payload keeps all of
    /// that buffer, with whatever else was in it.
    pub(crate) fn detach(&mut self) {
        if let Payload::Piece(bytes) = &self.payload {
            self.payload = Payload::Assembled(bytes.to_vec());
        }
    }

    /// Bytes that it took on the wire, which its sender may send again once it is consumed.
    pub(crate) fn wire_bytes(&self) -> usize {
        OVERHEAD_BYTES + self.payload().len()
    }
}

/// Cuts a stream of bytes into messages. Holds at most one incomplete message.
#[derive(Debug)]
pub(crate) struct Assembler {
    /// Most bytes of a message without its prefix.
    limit: usize,
    /// The beginning of a message that has not arrived as a whole.
    front: [u8; OVERHEAD_BYTES],
    front_bytes: usize,
    /// The header and payload length of the message that is being put together.
    partial: Option<(FrameHeader, usize)>,
    payload: Vec<u8>,
}

impl Assembler {
    pub(crate) fn new(limit: usize) -> Self {
        Assembler {
            limit,
            front: [0; OVERHEAD_BYTES],
            front_bytes: 0,
            partial: None,
            payload: Vec::new(),
        }
    }

    /// Takes memory of a consumed message back.
    pub(crate) fn recycle(&mut self, message: Message) {
        if let Payload::Assembled(mut bytes) = message.payload
            && self.partial.is_none()
            && self.payload.capacity() < bytes.capacity()
        {
            bytes.clear();
            self.payload = bytes;
        }
    }

    /// Takes the next message off the front of `bytes`, or all of them when they do not complete
    /// one. The length of a message is checked before memory is asked for it.
    pub(crate) fn next(&mut self, bytes: &mut Bytes) -> Result<Option<Message>, WireError> {
        if self.partial.is_none() {
            let missing = (OVERHEAD_BYTES - self.front_bytes).min(bytes.len());
            let end = self.front_bytes + missing;
            self.front[self.front_bytes..end].copy_from_slice(&bytes[..missing]);
            bytes.advance(missing);
            self.front_bytes = end;
            if end < PREFIX_BYTES {
                return Ok(None);
            }
            // The length is known, and refused, as early as possible.
            let prefix = std::array::from_fn(|at| self.front[at]);
            let payload_bytes = wire::decode_prefix(&prefix, self.limit)?;
            if end < OVERHEAD_BYTES {
                return Ok(None);
            }
            let header = std::array::from_fn(|at| self.front[PREFIX_BYTES + at]);
            let header = FrameHeader::decode(&header)?;
            self.front_bytes = 0;
            if bytes.len() >= payload_bytes {
                let payload = Payload::Piece(bytes.split_to(payload_bytes));
                return Ok(Some(Message { header, payload }));
            }
            self.payload.reserve_exact(payload_bytes);
            self.partial = Some((header, payload_bytes));
        }
        Ok(self.assemble(bytes))
    }

    /// Memory for the payload of an incomplete message, or kept for the next one.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn payload_capacity(&self) -> usize {
        self.payload.capacity()
    }

    fn assemble(&mut self, bytes: &mut Bytes) -> Option<Message> {
        let (header, payload_bytes) = self.partial?;
        let missing = (payload_bytes - self.payload.len()).min(bytes.len());
        self.payload.extend_from_slice(&bytes[..missing]);
        bytes.advance(missing);
        if self.payload.len() < payload_bytes {
            return None;
        }
        self.partial = None;
        let payload = Payload::Assembled(std::mem::take(&mut self.payload));
        Some(Message { header, payload })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::header::OperationHeader;
    use crate::operation::OperationKind;

    fn message(number: u64, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader {
            operation: OperationHeader::new(OperationKind::AllReduce, 1, 2),
            number,
        };
        let mut bytes = wire::encode_prefix(payload.len()).to_vec();
        bytes.extend(header.encode());
        bytes.extend(payload);
        bytes
    }

    proptest! {
        #[test]
        fn messages_survive_any_cuts(
            payloads in prop::collection::vec(0_usize..300, 1..6),
            cuts in prop::collection::vec(1_usize..200, 1..40),
        ) {
            let mut stream = Vec::new();
            for (number, bytes) in payloads.iter().enumerate() {
                stream.extend(message(number as u64, &vec![number as u8; *bytes]));
            }
            let mut assembler = Assembler::new(1000);
            let (mut rest, mut found) = (Bytes::from(stream), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !rest.is_empty() {
                let cut = cuts.next().unwrap().min(rest.len());
                let mut piece = rest.split_to(cut);
                while !piece.is_empty() {
                    if let Some(message) = assembler.next(&mut piece).unwrap() {
                        let payload = message.payload().to_vec();
                        found.push((message.header.number, payload));
                        assembler.recycle(message);
                    }
                }
            }
            let numbered = payloads.iter().enumerate();
            let sent: Vec<_> =
                numbered.map(|(n, bytes)| (n as u64, vec![n as u8; *bytes])).collect();
            prop_assert_eq!(found, sent);
        }

        #[test]
        fn garbage_never_panics_and_takes_no_memory(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut assembler = Assembler::new(128);
            let mut rest = Bytes::from(bytes);
            while !rest.is_empty() && assembler.next(&mut rest).is_ok() {}
            prop_assert!(assembler.payload_capacity() <= 128);
        }
    }
}
