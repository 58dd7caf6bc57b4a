//! What the ranks tell each other before NCCL moves anything.

use std::fmt;

use super::element::ElementType;
use super::raw::DeviceBuffer;
use crate::communicator::Gathered;
use crate::error::Result;
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// Bytes of a record: the header, three words.
pub(super) const RECORD_BYTES: usize = OperationHeader::BYTES + 3 * 8;

/// Where the elements of an operation are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryPlace {
    /// In host memory, or there are none.
    HostMemory = 0,
    /// On the devices.
    DeviceMemory = 1,
}

impl fmt::Display for MemoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryPlace::HostMemory => "host memory",
            MemoryPlace::DeviceMemory => "device memory",
        })
    }
}

/// One rank's description of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) header: OperationHeader,
    pub(super) place: MemoryPlace,
    /// The type when it is none that buffers in host memory have.
    pub(super) element: Option<ElementType>,
    /// Bytes of the input and of the output; for `all_gather` only, where ranks may differ.
    pub(super) input_bytes: usize,
    pub(super) output_bytes: usize,
}

impl Record {
    /// An operation on host memory, which the header describes, or on nothing.
    pub(super) fn new(header: OperationHeader) -> Self {
        Record {
            header,
            place: MemoryPlace::HostMemory,
            element: None,
            input_bytes: 0,
            output_bytes: 0,
        }
    }

    /// An operation on device buffers, which may have different types.
    pub(super) fn of_device_memory(header: OperationHeader, buffers: &[DeviceBuffer<'_>]) -> Self {
        let mut record = Record::new(header);
        record.place = MemoryPlace::DeviceMemory;
        record.header.count = buffers.iter().map(DeviceBuffer::len).sum();
        record.header.buffers = buffers.len();
        let words = |buffer: &DeviceBuffer<'_>| [buffer.len() as u64, buffer.element() as u64];
        record.header = record.header.with_layout(buffers.iter().flat_map(words));
        let mut elements = buffers.iter().map(DeviceBuffer::element);
        let first = elements.next();
        if let Some(first) = first.filter(|first| elements.all(|other| other == *first)) {
            record.set_element(first);
        }
        record
    }

    /// Notes the one type of all elements.
    pub(super) fn set_element(&mut self, element: ElementType) {
        match element.dtype() {
            Some(dtype) => self.header.dtype = Some(dtype),
            None => self.element = Some(element),
        }
    }

    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..OperationHeader::BYTES].copy_from_slice(&self.header.encode());
        let element = self.element.map_or(0, |element| element as u64 + 1);
        let words = [
            self.place as u64 | element << 8,
            self.input_bytes as u64,
            self.output_bytes as u64,
        ];
        let words = words.map(u64::to_le_bytes);
        bytes[OperationHeader::BYTES..].copy_from_slice(words.as_flattened());
        bytes
    }

    /// Reads a record of another rank; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let parts = bytes.split_first_chunk::<{ OperationHeader::BYTES }>();
        let parts = parts.map(|(header, words)| (header, words.as_chunks::<8>()));
        let Some((header, ([place, input, output], []))) = parts else {
            let len = bytes.len();
            return Err(format!("a record of {len} bytes, not {RECORD_BYTES}"));
        };
        let header = OperationHeader::decode(header).map_err(|error| error.to_string())?;
        let size = |word: &[u8; 8]| {
            usize::try_from(u64::from_le_bytes(*word)).map_err(|error| error.to_string())
        };
        let place = u64::from_le_bytes(*place);
        let element = (place >> 8) as usize;
        Ok(Record {
            header,
            place: match place & 0xff {
                0 => MemoryPlace::HostMemory,
                _ => MemoryPlace::DeviceMemory,
            },
            element: ElementType::ALL
                .into_iter()
                .find(|e| *e as usize + 1 == element),
            input_bytes: size(input)?,
            output_bytes: size(output)?,
        })
    }

    /// The first difference to another rank's record, in words.
    pub(super) fn first_difference(&self, other: &Record) -> Option<String> {
        let name = |element: Option<ElementType>| element.map_or("another", ElementType::name);
        if self.header.kind == other.header.kind && self.place != other.place {
            let (a, b) = (self.place, other.place);
            return Some(format!(
                "the buffers are in {a} on one and in {b} on the other"
            ));
        }
        self.header.first_difference(&other.header).or_else(|| {
            (self.element != other.element).then(|| {
                let (a, b) = (name(self.element), name(other.element));
                format!("the elements are {a} on one and {b} on the other")
            })
        })
    }
}

/// Compares the records of all ranks; returns the bytes of their inputs.
pub(super) fn compare(gathered: &Gathered<u8>, sizes: &mut Vec<usize>) -> Result<()> {
    sizes.clear();
    let mut first: Option<Record> = None;
    let mut outputs = Vec::new();
    for (rank, bytes) in gathered.iter().enumerate() {
        let record = Record::decode(bytes);
        let difference = match (&first, &record) {
            (None, Ok(_)) => None,
            (Some(first), Ok(record)) => first.first_difference(record),
            (_, Err(what)) => Some(what.clone()),
        };
        if let Some(what) = difference {
            let header = first.map(|first| first.header);
            let unknown = OperationHeader::new(OperationKind::Barrier, 0, 0);
            return Err(header.unwrap_or(unknown).mismatch(0, rank, what));
        }
        if let Ok(record) = record {
            sizes.push(record.input_bytes);
            outputs.push(record.output_bytes);
            first.get_or_insert(record);
        }
    }
    let Some(first) = first.filter(|first| first.place == MemoryPlace::DeviceMemory) else {
        return Ok(());
    };
    let total = sizes
        .iter()
        .fold(0_usize, |sum, size| sum.saturating_add(*size));
    match outputs.iter().position(|output| *output < total) {
        None => Ok(()),
        Some(rank) => {
            let output = outputs[rank];
            let what = format!("its output has {output} bytes, but the inputs have {total}");
            Err(first.header.mismatch(0, rank, what))
        }
    }
}
