//! The phases of a step, from the spans of the libraries: written to a file by `train --trace`, and
//! added up for `train --metrics-addr`.
//!
//! A span is created and closed on one thread, and holds a lock for less than a microsecond at both
//! ends. Events go into a queue of a fixed size, which a separate thread empties twenty times a
//! second: waking it for each event would cost more than everything else. When the queue is full,
//! an event is dropped and counted, and no step waits.

mod clock;
mod merge;
mod trace;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::Metadata;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

pub(crate) use trace::Trace;

/// The target of the spans.
const TARGET: &str = "distribute::phase";

/// A cheap handle to the collector of spans.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phases(Arc<Mutex<State>>);

/// The total time of all threads of this process in each phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// In exchanges between replicas or workers, waiting included.
    pub(crate) exchange: Duration,
    /// Waiting for other replicas or workers, for a turn, or for a batch.
    pub(crate) waiting: Duration,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<Option<Phase>>,
    free: Vec<usize>,
    /// The row of each thread, by its name: later threads with the same name share it.
    rows: HashMap<String, Row>,
    totals: Totals,
    /// The queue of the trace, if there is one.
    queue: Option<Vec<Message>>,
    dropped: u64,
}

/// The size of the queue: hundreds of steps with 30 events each.
const QUEUE: usize = 16 * 1024;

#[derive(Debug, Clone, Copy)]
struct Row {
    number: u32,
    /// Whether the row's name has been queued.
    is_named: bool,
}

/// A phase of one thread, with begin and end in nanoseconds of the host's clock.
#[derive(Debug)]
struct Phase {
    name: &'static str,
    row: u32,
    begin: u64,
    end: u64,
    arguments: Arguments,
}

/// An entry of the queue.
#[derive(Debug)]
enum Message {
    /// The name of a row.
    Row(u32, String),
    Phase(Phase),
}

impl Phases {
    /// Whether spans of this kind are collected.
    pub(crate) fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == TARGET
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A span begins, on this thread.
    pub(crate) fn open(&self, span: &Attributes<'_>) -> Id {
        let mut arguments = Arguments::default();
        span.record(&mut arguments);
        let name = span.metadata().name();
        let mut state = self.state();
        let row = state.row();
        let begin = clock::now();
        state.put(Phase {
            name,
            row,
            begin,
            end: begin,
            arguments,
        })
    }

    /// Records further fields of a span.
    pub(crate) fn record(&self, id: &Id, values: &Record<'_>) {
        let mut state = self.state();
        if let Some(open) = state.open_mut(id) {
            values.record(&mut open.arguments);
        }
    }

    /// A span ends.
    pub(crate) fn close(&self, id: &Id) {
        let end = clock::now();
        let mut state = self.state();
        let Some(mut phase) = state.take(id) else {
            return;
        };
        phase.end = end;
        let time = Duration::from_nanos(end.saturating_sub(phase.begin));
        match phase.name {
            "exchange" => state.totals.exchange += time,
            "wait" | "turn" | "data" => state.totals.waiting += time,
            _ => {}
        }
        state.send(Message::Phase(phase));
    }

    /// The total times of the completed phases.
    pub(crate) fn totals(&self) -> Totals {
        self.state().totals
    }

    /// Starts queueing phases.
    fn begin(&self) {
        self.state().queue = Some(Vec::with_capacity(QUEUE));
    }

    /// Swaps the queue with an empty list.
    fn swap(&self, empty: &mut Vec<Message>) {
        if let Some(queue) = &mut self.state().queue {
            std::mem::swap(queue, empty);
        }
    }

    /// Stops queueing phases; returns the queue and the number of dropped events.
    fn end(&self) -> (Vec<Message>, u64) {
        let mut state = self.state();
        (state.queue.take().unwrap_or_default(), state.dropped)
    }
}

impl State {
    /// The row of the calling thread.
    fn row(&mut self) -> u32 {
        let thread = std::thread::current();
        let name = thread.name().map_or_else(
            || std::borrow::Cow::Owned(format!("{:?}", thread.id())),
            std::borrow::Cow::Borrowed,
        );
        let next = self.rows.len() as u32;
        let known = self.rows.get(&*name).copied();
        let row = known.unwrap_or(Row {
            number: next,
            is_named: false,
        });
        if known.is_none_or(|row| !row.is_named) {
            let is_named = self.send(Message::Row(row.number, name.to_string()));
            self.rows.insert(name.into_owned(), Row { is_named, ..row });
        }
        row.number
    }

    /// Whether there was room in the queue; true without a queue.
    fn send(&mut self, message: Message) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let has_room = queue.len() < QUEUE;
        if has_room {
            queue.push(message)
        } else {
            self.dropped += 1
        }
        has_room
    }

    fn put(&mut self, open: Phase) -> Id {
        let index = self.free.pop().unwrap_or(self.open.len());
        match self.open.get_mut(index) {
            Some(place) => *place = Some(open),
            None => self.open.push(Some(open)),
        }
        // An id is not 0.
        Id::from_u64(index as u64 + 1)
    }

    fn open_mut(&mut self, id: &Id) -> Option<&mut Phase> {
        let index = usize::try_from(id.into_u64() - 1).ok()?;
        self.open.get_mut(index)?.as_mut()
    }

    fn take(&mut self, id: &Id) -> Option<Phase> {
        let index = usize::try_from(id.into_u64() - 1).ok()?;
        let open = self.open.get_mut(index)?.take()?;
        self.free.push(index);
        Some(open)
    }
}

/// The fields of a span.
#[derive(Debug, Default)]
struct Arguments(Vec<(&'static str, Value)>);

impl Visit for Arguments {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), json!(format!("{value:?}"))));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), json!(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), json!(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.name(), json!(value)));
    }
}
