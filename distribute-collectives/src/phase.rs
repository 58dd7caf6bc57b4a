//! What an operation looks like in a trace: spans of the target `distribute::phase`, which the
//! program `distribute-cli` writes to a file (`train --trace`). If spans of this
//! target, one costs a look at an atomic number.

use tracing::field::Empty;
use tracing::span::EnteredSpan;
use tracing::{Span, trace_span};

use crate::buffer::DType;
use crate::header::OperationHeader;

/// From the call of an operation to its return. `bytes` is the size of this rank's buffers, and
/// `transport` is that of [`Description`](crate::Description); `waited_for` is the rank that came
/// last, where the transport knows.
pub(crate) fn exchange(
    header: &OperationHeader,
    bytes: Option<usize>,
    transport: &str,
) -> EnteredSpan {
    let buffers = || header.count * header.dtype.map_or(0, DType::size_bytes);
    let span = trace_span!(
        target: "distribute::phase",
        "exchange",
        kind = %header.kind,
        sequence = header.sequence,
        bytes = bytes.unwrap_or_else(buffers),
        transport,
        waited_for = Empty,
    );
    span.entered()
}

/// While a replica waits for the turn of its device.
pub(crate) fn turn() -> EnteredSpan {
    trace_span!(target: "distribute::phase", "turn").entered()
}

/// While this rank waits until all others have called the operation too.
pub(crate) fn wait() -> EnteredSpan {
    trace_span!(target: "distribute::phase", "wait").entered()
}

/// Notes which rank an exchange has waited for: the one that came last.
pub(crate) fn waited_for(exchange: &Span, rank: usize) {
    exchange.record("waited_for", rank);
}
