//! What the threads of a job tell the one that decides.

use std::sync::mpsc::{self, Receiver, SyncSender};

use crate::error::LaunchError;
use crate::hosts::posts::Post;
use crate::report::outcome::Ending;

/// What can happen while a job runs.
pub enum Event {
    /// The process with this number has ended.
    Ended { index: usize, ending: Ending },
    /// The launcher got a signal.
    Signal(i32),
    /// A launcher has told all of them something.
    Post(Box<Post>),
    /// Output cannot be written.
    Broken(LaunchError),
}

/// The sending side. Its channel has room for all that the threads can have to tell: one ending
/// and one failure each, and a few signals.
#[derive(Clone)]
pub struct Events(SyncSender<Event>);

const SIGNALS_MAX: usize = 16;

/// The events of a job with this many processes.
pub fn channel(processes: usize) -> (Events, Receiver<Event>) {
    let (sender, receiver) = mpsc::sync_channel(4 * processes + SIGNALS_MAX);
    (Events(sender), receiver)
}

impl Events {
    /// Never blocks. Only what nobody waits for any more, or a signal after many, gets lost.
    pub fn send(&self, event: Event) {
        let _lost = self.0.try_send(event);
    }

    /// Waits for room; false if nobody receives any more.
    pub fn deliver(&self, event: Event) -> bool {
        self.0.send(event).is_ok()
    }
}
