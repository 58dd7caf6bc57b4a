//! The posts of the whole job in one order, as the relay has put them, and as every launcher has
//! them from its parent. A launcher reads its own posts from here, and so do its children.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::posts::Post;

/// Who has sent a post, and which of its posts this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// The number that the relay gave the launcher when it admitted it.
    pub member: u64,
    /// Counted from 0 for each launcher.
    pub number: u64,
}

/// A post with its sender; `None` for a post of the relay itself.
#[derive(Clone, Serialize, Deserialize)]
pub struct Entry {
    pub post: Post,
    pub sender: Option<Sender>,
}

/// An entry and its text as it is sent, which is the same for all children.
pub struct Line {
    pub entry: Entry,
    pub text: String,
}

/// What comes next in a log.
pub enum Next {
    Line(Arc<Line>),
    /// There is nothing more.
    Farewell,
}

/// The entries, numbered alike in all launchers.
pub struct Log {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    lines: VecDeque<Arc<Line>>,
    /// The number of the first entry in `lines`; all launchers have the earlier ones.
    first: u64,
    is_closed: bool,
}

impl Log {
    /// An empty log, whose first entry will have this number.
    pub fn new(first: u64) -> Arc<Log> {
        Arc::new(Log {
            state: Mutex::new(State {
                lines: VecDeque::new(),
                first,
                is_closed: false,
            }),
            changed: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry; returns how many are kept.
    pub fn push(&self, line: Line) -> usize {
        let mut state = self.state();
        state.lines.push_back(Arc::new(line));
        let kept = state.lines.len();
        drop(state);
        self.changed.notify_waiters();
        kept
    }

    /// Drops the entries before this number, which all launchers have.
    pub fn trim(&self, number: u64) {
        let mut state = self.state();
        while state.first < number && state.lines.pop_front().is_some() {
            state.first += 1;
        }
    }

    /// Ends the log.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_waiters();
    }

    /// The number of the first entry that is kept.
    pub fn first(&self) -> u64 {
        self.state().first
    }

    /// The number of the next entry.
    pub fn end(&self) -> u64 {
        let state = self.state();
        state.first + state.lines.len() as u64
    }

    /// Whether who has all entries before this number can go on from here.
    pub fn reaches(&self, number: u64) -> bool {
        (self.first()..=self.end()).contains(&number)
    }

    /// The entry of this number, or the end of the log; `None` if it has not come yet, or is gone.
    pub fn get(&self, number: u64) -> Option<Next> {
        let state = self.state();
        let index = number.checked_sub(state.first)?;
        let line = usize::try_from(index)
            .ok()
            .and_then(|at| state.lines.get(at));
        let is_over = line.is_none() && state.is_closed;
        let line = line.map(|line| Next::Line(Arc::clone(line)));
        line.or(is_over.then_some(Next::Farewell))
    }

    /// Waits for the entry of this number, or the end of the log.
    pub async fn next(&self, number: u64) -> Next {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.get(number) {
                return next;
            }
            changed.await;
        }
    }
}
