//! A launcher's own posts, which wait until they come back from the relay among the posts of all:
//! a connection that breaks, here or further up, loses none if another one follows in time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::posts::Post;

/// How many posts of one launcher wait for the relay before it counts as lost.
pub const WAITING_MAX: usize = 4096;

/// How a launcher, or the relay, leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// The job is over for all hosts.
    JobEnded,
    /// This side gives up.
    Quit,
}

/// What to send next on a connection.
pub enum Next {
    /// The post of this number.
    Post(u64, Box<Post>),
    Farewell(Farewell),
    /// Another connection has taken the place of this one.
    Replaced,
}

/// The posts of one direction, numbered from 0.
pub struct Outbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    posts: VecDeque<Post>,
    /// The number of the first post in `posts`: all before it have arrived.
    first: u64,
    /// The number of the post that is sent next.
    cursor: u64,
    farewell: Option<Farewell>,
    /// The number of the current connection.
    connection: u64,
    /// Whether the other side is lost: new posts are dropped.
    is_detached: bool,
    /// Whether the lost side is to be looked for again.
    wants_return: bool,
}

impl Outbox {
    pub fn new() -> Arc<Outbox> {
        Arc::new(Outbox {
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a post; returns false if too many wait.
    pub fn push(&self, post: Post) -> bool {
        let mut state = self.state();
        if state.is_detached {
            return true;
        }
        let has_room = state.posts.len() < WAITING_MAX;
        if has_room {
            state.posts.push_back(post);
        }
        drop(state);
        self.changed.notify_waiters();
        has_room
    }

    /// Ends the posts with a farewell. The first farewell counts.
    pub fn close(&self, farewell: Farewell) {
        self.state().farewell.get_or_insert(farewell);
        self.changed.notify_waiters();
    }

    pub fn is_closed(&self) -> bool {
        self.state().farewell.is_some()
    }

    /// The other side has confirmed all posts before this number.
    pub fn acknowledge(&self, received: u64) {
        let mut state = self.state();
        while state.first < received && state.posts.pop_front().is_some() {
            state.first += 1;
        }
        state.cursor = state.cursor.max(state.first);
    }

    /// What was sent may have been lost on its way: sends again all that is not confirmed.
    pub fn rewind(&self) {
        let mut state = self.state();
        state.cursor = state.first;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Begins a connection that goes on with the post of number `received`; earlier ones have
    /// arrived. Returns the connection's number, or `None` if that post is gone.
    pub fn connect(&self, received: u64) -> Option<u64> {
        self.acknowledge(received);
        let mut state = self.state();
        if state.first != received {
            return None;
        }
        state.cursor = received;
        state.connection += 1;
        let connection = state.connection;
        drop(state);
        self.changed.notify_waiters();
        Some(connection)
    }

    /// Takes what is to be sent next on this connection, if there is anything.
    pub fn take(&self, connection: u64) -> Option<Next> {
        let mut state = self.state();
        if state.connection != connection {
            return Some(Next::Replaced);
        }
        let number = state.cursor;
        let index = number.checked_sub(state.first);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(post) = index.and_then(|index| state.posts.get(index)).cloned() {
            state.cursor += 1;
            return Some(Next::Post(number, Box::new(post)));
        }
        state.farewell.map(Next::Farewell)
    }

    /// Waits for what is to be sent next on this connection.
    pub async fn next(&self, connection: u64) -> Next {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.take(connection) {
                return next;
            }
            changed.await;
        }
    }

    /// The other side is lost: drops all posts until it is found again.
    pub fn detach(&self) {
        let mut state = self.state();
        *state = State {
            farewell: state.farewell,
            connection: state.connection,
            is_detached: true,
            ..State::default()
        };
    }

    /// Asks for the other side to be looked for again.
    pub fn ask_for_return(&self) {
        self.state().wants_return = true;
        self.changed.notify_waiters();
    }

    /// Waits until the other side is to be looked for again; returns false if the outbox was
    /// closed.
    pub async fn return_is_wanted(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.farewell.is_some() || state.wants_return {
                    return state.farewell.is_none();
                }
            }
            changed.await;
        }
    }

    /// The other side is found again and knows nothing of earlier posts.
    pub fn attach(&self) {
        let mut state = self.state();
        state.is_detached = false;
        state.wants_return = false;
    }

    /// Waits until the outbox is closed.
    pub async fn closed(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_closed() {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posts::PostBody;

    fn post(restart: u32) -> Post {
        Post {
            host: 0,
            restart,
            item: PostBody::WorkersDone,
        }
    }

    /// The posts on their way over a connection.
    fn all(outbox: &Outbox, connection: u64) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        while let Some(Next::Post(number, post)) = outbox.take(connection) {
            all.push((number, post.restart));
        }
        all
    }

    #[test]
    fn a_second_connection_goes_on_with_what_has_not_arrived() {
        let outbox = Outbox::new();
        let first = outbox.connect(0).unwrap();
        (0..5).for_each(|number| assert!(outbox.push(post(number))));
        assert_eq!(
            all(&outbox, first),
            [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
        );
        // The other side has received two posts.
        let second = outbox.connect(2).unwrap();
        assert!(matches!(outbox.take(first), Some(Next::Replaced)));
        assert_eq!(all(&outbox, second), [(2, 2), (3, 3), (4, 4)]);
        outbox.acknowledge(4);
        assert!(outbox.connect(3).is_none(), "the fourth is gone");
        outbox.close(Farewell::JobEnded);
        outbox.close(Farewell::Quit);
        let third = outbox.connect(4).unwrap();
        assert_eq!(all(&outbox, third), [(4, 4)]);
        let end = outbox.take(third);
        assert!(matches!(end, Some(Next::Farewell(Farewell::JobEnded))));
    }

    #[test]
    fn what_was_lost_further_up_is_sent_again_on_the_same_connection() {
        let outbox = Outbox::new();
        let connection = outbox.connect(0).unwrap();
        (0..3).for_each(|number| assert!(outbox.push(post(number))));
        assert_eq!(all(&outbox, connection).len(), 3);
        outbox.acknowledge(1);
        outbox.rewind();
        assert_eq!(all(&outbox, connection), [(1, 1), (2, 2)]);
        outbox.acknowledge(3);
        outbox.rewind();
        assert!(all(&outbox, connection).is_empty());
    }

    #[test]
    fn waiting_posts_are_bounded_and_a_lost_side_drops_them() {
        let outbox = Outbox::new();
        (0..WAITING_MAX).for_each(|_| assert!(outbox.push(post(0))));
        assert!(!outbox.push(post(0)));
        outbox.detach();
        assert!(outbox.push(post(1)));
        outbox.attach();
        assert!(outbox.push(post(2)));
        let connection = outbox.connect(0).unwrap();
        assert_eq!(all(&outbox, connection), [(0, 2)]);
    }
}
