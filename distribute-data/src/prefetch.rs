//! A background thread that produces items ahead of the loop that uses them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use distribute_core::{Error, Result};
use distribute_error::panic_text;

use crate::DataError;

/// Items of another iterator, produced ahead of time; it ends after the first error.
///
/// Dropping it stops the thread and waits for it: at most the item in the making is finished.
pub(crate) struct Prefetch<T> {
    mode: Mode<T>,
}

type Items<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

enum Mode<T> {
    Thread(Receiver<Result<T>>, JoinHandle<()>),
    Inline(Items<T>),
    Failed(Error),
    Done,
}

impl<T: Send + 'static> Prefetch<T> {
    /// At most `ahead` items are made and not yet taken; with 0 every item is made when it is
    /// asked for, on the calling thread.
    pub(crate) fn new(
        items: impl Iterator<Item = Result<T>> + Send + 'static,
        ahead: usize,
    ) -> Self {
        let mut items: Items<T> = Box::new(items);
        if ahead == 0 {
            return Self {
                mode: Mode::Inline(items),
            };
        }
        // The item that waits to be sent is one of those ahead.
        let (sender, receiver) = sync_channel(ahead - 1);
        let spawned = thread::Builder::new()
            .name("distribute-prefetch".into())
            .spawn(move || {
                while let Some(item) = guarded(&mut items) {
                    let last = item.is_err();
                    if sender.send(item).is_err() || last {
                        return;
                    }
                }
            });
        let mode = match spawned {
            Ok(thread) => Mode::Thread(receiver, thread),
            Err(source) => Mode::Failed(DataError::Thread { source }.into()),
        };
        Self { mode }
    }
}

impl<T> Prefetch<T> {
    fn stop(&mut self) {
        if let Mode::Thread(receiver, thread) = std::mem::replace(&mut self.mode, Mode::Done) {
            drop(receiver);
            // A panic has been sent as an error; one in a destructor has nowhere to go.
            let _ = thread.join();
        }
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let item = match &mut self.mode {
            Mode::Thread(receiver, _) => receiver.recv().ok(),
            Mode::Inline(items) => guarded(items),
            Mode::Failed(error) => Some(Err(error.clone())),
            Mode::Done => None,
        };
        if !matches!(item, Some(Ok(_))) {
            self.stop();
            self.mode = Mode::Done;
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
    catch_unwind(AssertUnwindSafe(|| items.next())).unwrap_or_else(|payload| {
        let text = panic_text(&*payload).unwrap_or("a panic without a text");
        let message = text.to_string();
        Some(Err(DataError::Panicked { message }.into()))
    })
}
