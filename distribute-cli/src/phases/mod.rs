//! The phases of a step, as the spans of the libraries tell them: written to a file by
//! `train --trace`, and added up for `train --metrics-addr`.
//!
//! A span is made and closed on one thread, and holds a lock for less than a microsecond at both
//! ends. What is to be written goes into a queue of a fixed size, which a thread of its own empties
//! twenty times a second: nobody has to wake it, which would cost more than all the rest. When the
//! queue is full an event is counted and left out, and no step waits.

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

/// What the spans are told apart by.
const TARGET: &str = "distribute::phase";

/// Collects the spans from the start of the program on; a cheap handle.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phases(Arc<Mutex<State>>);

/// How long the threads of this process were in a phase, all of them together.
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
    /// The row of each thread, by its name: threads that follow each other share one.
    rows: HashMap<String, Row>,
    totals: Totals,
    /// What is to be written, if anybody writes.
    queue: Option<Vec<Message>>,
    dropped: u64,
}

/// Events that may wait for the thread that writes: of 30 in a step those of hundreds of steps.
const QUEUE: usize = 16 * 1024;

#[derive(Debug, Clone, Copy)]
struct Row {
    number: u32,
    /// Whether its name is in the queue.
    is_named: bool,
}

/// What happened on one thread from a begin to an end, in nanoseconds of the clock of the host.
#[derive(Debug)]
struct Phase {
    name: &'static str,
    row: u32,
    begin: u64,
    end: u64,
    arguments: Arguments,
}

/// What goes to the thread that writes.
#[derive(Debug)]
enum Message {
    /// The name of a row.
    Row(u32, String),
    Phase(Phase),
}

impl Phases {
    /// Whether spans of this kind are wanted.
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

    /// A span says more of itself.
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

    /// How long the phases that have ended took.
    pub(crate) fn totals(&self) -> Totals {
        self.state().totals
    }

    /// From now on phases go into the queue as well.
    fn begin(&self) {
        self.state().queue = Some(Vec::with_capacity(QUEUE));
    }

    /// Swaps what is in the queue for a list that is empty.
    fn swap(&self, empty: &mut Vec<Message>) {
        if let Some(queue) = &mut self.state().queue {
            std::mem::swap(queue, empty);
        }
    }

    /// From now on phases do not go into the queue: what is in it, and how many were left out.
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

    /// Whether there was room in the queue. Without a queue nothing is lost.
    fn send(&mut self, message: Message) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let has_room = queue.len() < QUEUE;
        match has_room {
            true => queue.push(message),
            false => self.dropped += 1,
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

/// What a span says of itself.
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
