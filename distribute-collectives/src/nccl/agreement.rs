//! What the ranks tell each other before NCCL moves anything.

use super::element::ElementType;
use super::raw::DeviceBuffer;
use crate::communicator::Gathered;
use crate::error::Result;
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// Bytes of a record: the header, three words.
pub(super) const RECORD_BYTES: usize = OperationHeader::BYTES + 3 * 8;

/// One rank's description of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) header: OperationHeader,
    /// The elements are on the devices; else in host memory, or there are none.
    pub(super) on_devices: bool,
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
            on_devices: false,
            element: None,
            input_bytes: 0,
            output_bytes: 0,
        }
    }

    /// An operation on device buffers, which may have different types.
    pub(super) fn of_device_memory(header: OperationHeader, buffers: &[DeviceBuffer<'_>]) -> Self {
        let mut record = Record::new(header);
        record.on_devices = true;
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
            u64::from(self.on_devices) | element << 8,
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
            on_devices: place & 0xff != 0,
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
        if self.header.kind == other.header.kind && self.on_devices != other.on_devices {
            let (a, b) = if self.on_devices {
                ("device memory", "host memory")
            } else {
                ("host memory", "device memory")
            };
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
    let mut first = None::<Record>;
    for (rank, bytes) in gathered.iter().enumerate() {
        let compared = Record::decode(bytes).and_then(|record| {
            let difference = first.get_or_insert(record).first_difference(&record);
            difference.map_or(Ok(record.input_bytes), Err)
        });
        match compared {
            Ok(input_bytes) => sizes.push(input_bytes),
            Err(what) => {
                let unknown = OperationHeader::new(OperationKind::Barrier, 0, 0);
                let header = first.map_or(unknown, |first| first.header);
                return Err(header.mismatch(0, rank, what));
            }
        }
    }
    let total = sizes
        .iter()
        .fold(0_usize, |sum, size| sum.saturating_add(*size));
    // Above 0 for an all_gather only; memory of the host grows as needed.
    let Some(first) = first.filter(|first| first.on_devices && total > 0) else {
        return Ok(());
    };
    for (rank, record) in gathered.iter().map(Record::decode).enumerate() {
        if let Ok(Record { output_bytes, .. }) = record
            && output_bytes < total
        {
            let what = format!("its output has {output_bytes} bytes, but the inputs have {total}");
            return Err(first.header.mismatch(0, rank, what));
        }
    }
    Ok(())
}
