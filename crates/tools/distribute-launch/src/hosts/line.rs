//! What a connection to a child has to send besides the posts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::hosts::wire::Frame;

/// How many orders wait for one connection. An order that finds no room is given again later.
const ORDERS_MAX: usize = 256;

/// How a connection to a child ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// Another connection of the child has taken its place.
    Replaced,
    /// The job goes on without the child.
    Quit,
    /// The child is to find another parent, once it has the posts before this number.
    Move { after: u64 },
}

/// What to do next on a connection.
#[derive(Clone)]
pub enum Order {
    Send(Frame),
    End(Last),
}

/// One connection to a child.
#[derive(Default)]
pub struct ChildLine {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    orders: VecDeque<Frame>,
    last: Option<Last>,
}

impl ChildLine {
    pub fn new() -> Arc<ChildLine> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a frame sent before further posts.
    pub fn send(&self, frame: Frame) {
        let mut state = self.state();
        if state.orders.len() < ORDERS_MAX {
            state.orders.push_back(frame);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends the connection. A later reason to end it at once replaces a move.
    pub fn end(&self, last: Last) {
        let mut state = self.state();
        if matches!(state.last, None | Some(Last::Move { .. })) {
            state.last = Some(last);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// What to do next; `sent` is the number of the next post.
    pub fn take(&self, sent: u64) -> Option<Order> {
        let mut state = self.state();
        match state.last {
            Some(Last::Move { after }) if sent < after => {}
            Some(last) => return Some(Order::End(last)),
            None => {}
        }
        state.orders.pop_front().map(Order::Send)
    }

    /// Waits for what to do next.
    pub async fn next(&self, sent: u64) -> Order {
        loop {
            let changed = self.changed.notified();
            if let Some(order) = self.take(sent) {
                return order;
            }
            changed.await;
        }
    }
}
