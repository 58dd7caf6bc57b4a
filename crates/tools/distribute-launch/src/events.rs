//! Events that the threads of a job send to the thread that decides.

use std::sync::mpsc::{self, Receiver, SyncSender};

use crate::error::LaunchError;
use crate::posts::Post;
use crate::report::outcome::Ending;

/// What can happen while a job runs.
pub enum Event {
    /// The process with this number has ended.
    Ended { index: usize, ending: Ending },
    /// The launcher got a signal.
    Signal(i32),
    /// A launcher has sent a post to all launchers.
    Post(Box<Post>),
    /// Output cannot be written.
    Broken(LaunchError),
}

/// The sending side. The channel has room for all events that the threads can cause: one ending
/// and one failure per process, and a few signals.
#[derive(Clone)]
pub struct Events(SyncSender<Event>);

const SIGNALS_MAX: usize = 16;

/// The events of a job with this many processes.
pub fn channel(processes: usize) -> (Events, Receiver<Event>) {
    let (sender, receiver) = mpsc::sync_channel(4 * processes + SIGNALS_MAX);
    (Events(sender), receiver)
}

impl Events {
    /// Never blocks. Drops the event if the channel is full of signals or the receiver is gone.
    pub fn try_send(&self, event: Event) {
        let _dropped = self.0.try_send(event);
    }

    /// Waits for room; returns false if the receiver is gone.
    pub fn send(&self, event: Event) -> bool {
        self.0.send(event).is_ok()
    }
}
