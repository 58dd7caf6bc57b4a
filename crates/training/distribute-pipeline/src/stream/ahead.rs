//! Threads that read and make elements ahead of the loop that uses them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use distribute_error::panic_text;

use super::room::{Room, bytes_of};
use super::{SavedItem, Stream};
use crate::{BoxError, PipelineError, Result, State};

type Make<I, T> = dyn Fn(I) -> Result<T, BoxError> + Send + Sync;

/// Elements of a stream, each through a function, that threads make ahead of time; in the order of
/// the stream, unless it is not asked for. Dropping it ends the threads and waits for them.
///
/// One thread at a time reads from the stream and numbers what it reads; the functions run at the
/// same time. A state is taken while no thread works: it is the stream's, and what is made and not
/// yet taken.
pub(crate) struct Ahead<S: Stream, T> {
    shared: Arc<Shared<S, T>>,
    stage: &'static str,
    ordered: bool,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<S: Stream, T> {
    input: Mutex<S>,
    make: Box<Make<S::Item, T>>,
    /// The stage with the name of the user's function.
    name: String,
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

struct Queue<T> {
    /// What is made, by number, with the bytes it takes where these are limited.
    ready: BTreeMap<u64, (Result<T>, usize)>,
    /// The number of the next element that is read, and of the next one that is handed out.
    next_in: u64,
    next_out: u64,
    working: usize,
    is_reading: bool,
    has_ended: bool,
    is_paused: bool,
    is_stopped: bool,
    room: Room,
}

impl<S, T> Ahead<S, T>
where
    S: Stream + 'static,
    T: SavedItem + 'static,
{
    /// `name` is the stage with the name of its function, for messages.
    pub(crate) fn new(
        input: S,
        stage: &'static str,
        name: String,
        make: Box<Make<S::Item, T>>,
        room: Room,
    ) -> Self {
        let queue = Queue {
            ready: BTreeMap::new(),
            next_in: 0,
            next_out: 0,
            working: 0,
            is_reading: false,
            has_ended: false,
            is_paused: false,
            is_stopped: false,
            room,
        };
        let shared = Shared {
            input: Mutex::new(input),
            make,
            name,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            stage,
            ordered: true,
            threads: Vec::new(),
        }
    }

    /// Whether elements come in the order of the stream.
    pub(crate) fn set_ordered(&mut self, ordered: bool) {
        self.ordered = ordered;
    }

    /// Changes the room, before the first element is asked for.
    pub(crate) fn change_room(&mut self, change: impl FnOnce(&mut Room)) {
        change(&mut self.shared.queue().room);
    }

    pub(crate) fn next(&mut self) -> Result<Option<T>> {
        let wanted = self.shared.queue().room.threads();
        while self.threads.len() < wanted {
            self.start_thread()?;
        }
        let started = Instant::now();
        let mut waited = Duration::ZERO;
        let mut queue = self.shared.queue();
        loop {
            if let Some((number, item, bytes)) = queue.take(self.ordered) {
                queue.next_out = queue.next_out.max(number) + 1;
                queue.room.taken(bytes, waited);
                drop(queue);
                self.shared.changed.notify_all();
                return item.map(Some);
            }
            if queue.has_ended && queue.working == 0 {
                return Ok(None);
            }
            queue = self.shared.wait(queue);
            waited = started.elapsed();
        }
    }

    fn start_thread(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name(format!("pipeline-{}", self.stage));
        let thread = builder.spawn(move || shared.work());
        let thread = thread.map_err(|source| PipelineError::Thread {
            stage: self.stage,
            source: Arc::new(source),
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Calls `act` while no thread works.
    fn paused<R>(&self, act: impl FnOnce(&mut S, &mut Queue<T>) -> R) -> R {
        let mut queue = self.shared.queue();
        queue.is_paused = true;
        while queue.working > 0 {
            queue = self.shared.wait(queue);
        }
        let mut input = self.shared.input();
        // The threads go on also if the stream of a user panics.
        let result = catch_unwind(AssertUnwindSafe(|| act(&mut input, &mut queue)));
        queue.is_paused = false;
        drop((input, queue));
        self.shared.changed.notify_all();
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }

    pub(crate) fn start(&mut self, epoch: u64) -> Result<()> {
        self.paused(|input, queue| {
            queue.clear(0);
            input.start(epoch)
        })
    }

    pub(crate) fn state(&self) -> Result<State> {
        self.paused(|input, queue| {
            let first = queue.next_in - queue.ready.len() as u64;
            let state = State::new(self.stage).number(first).inner(input.state()?);
            queue.ready.values().try_fold(state, |state, (item, _)| {
                // An error is kept as its text.
                state.item(&item.as_ref().map_err(ToString::to_string))
            })
        })
    }

    pub(crate) fn restore(&mut self, state: &State) -> Result<()> {
        self.paused(|input, queue| {
            let mut state = state.read(self.stage)?;
            queue.clear(state.count()?);
            let items: Vec<Result<T, String>> = state.all_items()?;
            for item in items {
                let bytes = if queue.room.is_limited() {
                    bytes_of(&item)
                } else {
                    0
                };
                queue.room.added(bytes);
                let item = item.map_err(PipelineError::other);
                queue.ready.insert(queue.next_in, (item, bytes));
                queue.next_in = queue.next_in.saturating_add(1);
            }
            input.restore(state.inner()?)?;
            state.finish()
        })
    }

    pub(crate) fn with_input<R>(&self, ask: impl FnOnce(&S) -> R) -> R {
        ask(&self.shared.input())
    }
}

impl<T: serde::Serialize> Queue<T> {
    /// The next element, with its number and bytes.
    fn take(&mut self, ordered: bool) -> Option<(u64, Result<T>, usize)> {
        let first = self.ready.first_key_value().map(|(number, _)| *number)?;
        if ordered && first != self.next_out {
            return None;
        }
        let (item, bytes) = self.ready.remove(&first)?;
        Some((first, item, bytes))
    }

    fn clear(&mut self, number: u64) {
        self.ready.clear();
        self.room.clear();
        (self.next_in, self.next_out) = (number, number);
        self.has_ended = false;
    }

    fn may_read(&self) -> bool {
        let held = self.ready.len() + self.working;
        !self.is_paused && !self.is_reading && !self.has_ended && self.room.has_place(held)
    }
}

impl<S: Stream, T: SavedItem> Shared<S, T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> MutexGuard<'_, S> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue<T>>) -> MutexGuard<'a, Queue<T>> {
        self.changed
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread.
    fn work(&self) {
        loop {
            let mut queue = self.queue();
            while !queue.is_stopped && !queue.may_read() {
                queue = self.wait(queue);
            }
            if queue.is_stopped {
                return;
            }
            let number = queue.next_in;
            queue.next_in += 1;
            queue.is_reading = true;
            queue.working += 1;
            drop(queue);

            let (read, file) = self.read();
            let mut queue = self.queue();
            queue.is_reading = false;
            let Some(read) = read else {
                queue.has_ended = true;
                queue.next_in -= 1;
                queue.working -= 1;
                drop(queue);
                self.changed.notify_all();
                continue;
            };
            let is_limited = queue.room.is_limited();
            drop(queue);
            self.changed.notify_all();
            let made = read.and_then(|item| self.made(number, file, item, is_limited));
            let (made, bytes) = made.map_or_else(|error| (Err(error), 0), |(it, n)| (Ok(it), n));

            let mut queue = self.queue();
            queue.room.added(bytes);
            queue.ready.insert(number, (made, bytes));
            queue.working -= 1;
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// The next element of the stream, and its file.
    fn read(&self) -> (Option<Result<S::Item>>, Option<PathBuf>) {
        let mut input = self.input();
        // After a panic the stream is what it is, and its error has come.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let item = input.next().transpose();
            let file = input.file();
            (item, file)
        }));
        read.unwrap_or_else(|payload| (Some(Err(self.panicked(&*payload))), None))
    }

    /// What the function makes, and the bytes that this takes if they are limited.
    fn made(
        &self,
        number: u64,
        file: Option<PathBuf>,
        item: S::Item,
        is_limited: bool,
    ) -> Result<(T, usize)> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let made = (self.make)(item)?;
            let bytes = if is_limited { bytes_of(&made) } else { 0 };
            Ok::<_, BoxError>((made, bytes))
        }));
        match made {
            Ok(made) => {
                made.map_err(|error| PipelineError::element(self.name.clone(), number, file, error))
            }
            Err(payload) => Err(self.panicked(&*payload)),
        }
    }

    fn panicked(&self, payload: &(dyn std::any::Any + Send)) -> PipelineError {
        let text = panic_text(payload).unwrap_or("a panic without a text");
        PipelineError::Panicked {
            stage: self.name.clone(),
            message: text.trim_end().to_string(),
        }
    }
}

impl<S: Stream, T> Drop for Ahead<S, T> {
    fn drop(&mut self) {
        let mut queue = self
            .shared
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        queue.is_stopped = true;
        drop(queue);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Panics have come as errors; one in a destructor has nowhere to go.
            let _ = thread.join();
        }
    }
}
