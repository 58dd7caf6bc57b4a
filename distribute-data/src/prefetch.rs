//! Background threads that produce items ahead of the loop that uses them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use distribute_core::{Error, Result};
use distribute_error::panic_text;

use crate::DataError;

/// Items that are produced ahead of time, by one thread, or by several in turn; it ends after the
/// first error.
///
/// Dropping it stops the threads and waits for them: at most the items in the making are finished.
pub(crate) struct Prefetch<T> {
    mode: Mode<T>,
}

type Items<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

/// What is called with each item; whether more are wanted.
pub(crate) type Emit<'a, T> = &'a mut dyn FnMut(Result<T>) -> bool;

enum Mode<T> {
    /// The threads, and whose item comes next.
    Threads(Vec<Reader<T>>, usize),
    Inline(Items<T>),
    Failed(Error),
    Done,
}

/// A thread that produces items.
struct Reader<T> {
    items: Receiver<Result<T>>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static> Prefetch<T> {
    /// At most `ahead` items are made and not yet taken; with 0 every item is made when it is
    /// asked for, on the calling thread.
    pub(crate) fn new(
        items: impl Iterator<Item = Result<T>> + Send + 'static,
        ahead: usize,
    ) -> Self {
        if ahead == 0 {
            return Self {
                mode: Mode::Inline(Box::new(items)),
            };
        }
        Self::in_turn(vec![items], ahead)
    }

    /// One item of each iterator in turn, until the one ends whose turn it is. Each has a thread;
    /// all together, at most `ahead` items are made and not yet taken, and one for each thread if
    /// there are more threads.
    pub(crate) fn in_turn(
        iterators: Vec<impl Iterator<Item = Result<T>> + Send + 'static>,
        ahead: usize,
    ) -> Self {
        let threads = iterators.len().max(1);
        let each = (0..).map(|thread| ahead / threads + usize::from(thread < ahead % threads));
        let sources = iterators.into_iter().map(|items| {
            move |emit: Emit<'_, T>| {
                for item in items {
                    if !emit(item) {
                        return;
                    }
                }
            }
        });
        Self::start(sources.zip(each))
    }

    /// What `source` emits on a thread of its own, for items that only this thread can make.
    /// At most `ahead` are made and not yet taken, and always one.
    #[cfg(feature = "dataset")]
    pub(crate) fn emitted(source: impl FnOnce(Emit<'_, T>) + Send + 'static, ahead: usize) -> Self {
        Self::start([(source, ahead)])
    }

    /// Starts a thread for each source.
    fn start<S>(sources: impl IntoIterator<Item = (S, usize)>) -> Self
    where
        S: FnOnce(Emit<'_, T>) + Send + 'static,
    {
        let mut readers = Vec::new();
        for (source, ahead) in sources {
            match Reader::start(source, ahead) {
                Ok(reader) => readers.push(reader),
                Err(source) => {
                    stop(readers);
                    let mode = Mode::Failed(DataError::Thread { source }.into());
                    return Self { mode };
                }
            }
        }
        Self {
            mode: Mode::Threads(readers, 0),
        }
    }
}

impl<T: Send + 'static> Reader<T> {
    fn start<S>(source: S, ahead: usize) -> std::io::Result<Self>
    where
        S: FnOnce(Emit<'_, T>) + Send + 'static,
    {
        // The item that waits to be sent is one of those ahead.
        let (sender, items) = sync_channel(ahead.saturating_sub(1));
        let body = move || {
            let mut emit = |item: Result<T>| {
                let is_last = item.is_err();
                sender.send(item).is_ok() && !is_last
            };
            // After a panic the source is not used again.
            let caught = catch_unwind(AssertUnwindSafe(|| source(&mut emit)));
            if let Err(payload) = caught {
                emit(Err(panicked(&*payload)));
            }
        };
        let builder = thread::Builder::new().name("distribute-prefetch".into());
        let thread = builder.spawn(body)?;
        Ok(Self { items, thread })
    }
}

/// Ends the threads, and waits for them.
fn stop<T>(readers: Vec<Reader<T>>) {
    // None may wait for room while another one is waited for.
    let (items, threads): (Vec<_>, Vec<_>) = readers
        .into_iter()
        .map(|reader| (reader.items, reader.thread))
        .unzip();
    drop(items);
    for thread in threads {
        // A panic has been sent as an error; one in a destructor has nowhere to go.
        let _ = thread.join();
    }
}

impl<T> Prefetch<T> {
    /// Ends the threads, and waits for them; there are no more items.
    pub(crate) fn stop(&mut self) {
        if let Mode::Threads(readers, _) = std::mem::replace(&mut self.mode, Mode::Done) {
            stop(readers);
        }
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let item = match &mut self.mode {
            Mode::Threads(readers, turn) => {
                let reader = readers.get(*turn);
                *turn = (*turn + 1) % readers.len().max(1);
                reader.and_then(|reader| reader.items.recv().ok())
            }
            Mode::Inline(items) => guarded(items),
            Mode::Failed(error) => Some(Err(error.clone())),
            Mode::Done => None,
        };
        if !matches!(item, Some(Ok(_))) {
            self.stop();
        }
        item
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The next item; a panic becomes an error.
fn guarded<T>(items: &mut Items<T>) -> Option<Result<T>> {
    // After a panic the iterator is not used again.
    catch_unwind(AssertUnwindSafe(|| items.next()))
        .unwrap_or_else(|payload| Some(Err(panicked(&*payload))))
}

fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = panic_text(payload).unwrap_or("a panic without a text");
    let message = text.to_string();
    DataError::Panicked { message }.into()
}
