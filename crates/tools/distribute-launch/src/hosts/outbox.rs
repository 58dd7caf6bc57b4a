//! Posts that wait until the other side of a connection confirms them: a broken connection
//! loses none if another one follows in time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::posts::Post;

/// How many posts wait for one launcher, or for the relay, before it counts as lost.
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
    Post(Box<Post>),
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
    }

    /// Begins a connection that goes on with the post of number `received`; earlier ones have
    /// arrived. Returns the connection's number, or `None` if that post is gone.
    pub fn connect(&self, received: u64) -> Option<u64> {
        self.acknowledge(received);
        let mut state = self.state();
        if state.first != received {
            return None;
        }
        state.connection += 1;
        let connection = state.connection;
        drop(state);
        self.changed.notify_waiters();
        Some(connection)
    }

    /// Waits for the post of this number and returns it, for this connection.
    pub async fn next(&self, connection: u64, number: u64) -> Next {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.connection != connection {
                    return Next::Replaced;
                }
                let index = number.checked_sub(state.first);
                let index = index.and_then(|index| usize::try_from(index).ok());
                match (
                    index.and_then(|index| state.posts.get(index)),
                    state.farewell,
                ) {
                    (Some(post), _) => return Next::Post(Box::new(post.clone())),
                    (None, Some(farewell)) => return Next::Farewell(farewell),
                    (None, None) => {}
                }
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
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::hosts::wire::runtime;
    use crate::posts::PostBody;

    fn post(restart: u32) -> Post {
        Post {
            host: 0,
            restart,
            item: PostBody::WorkersDone,
        }
    }

    async fn next(outbox: &Outbox, connection: u64, number: u64) -> Option<u32> {
        let next = timeout(Duration::from_millis(20), outbox.next(connection, number)).await;
        match next {
            Ok(Next::Post(post)) => Some(post.restart),
            _ => None,
        }
    }

    #[test]
    fn a_second_connection_goes_on_with_what_has_not_arrived() {
        runtime().unwrap().block_on(async {
            let outbox = Outbox::new();
            let first = outbox.connect(0).unwrap();
            (0..5).for_each(|number| assert!(outbox.push(post(number))));
            for number in 0..5 {
                assert_eq!(next(&outbox, first, number).await, Some(number as u32));
            }
            // The other side has received two posts.
            let second = outbox.connect(2).unwrap();
            assert!(matches!(outbox.next(first, 5).await, Next::Replaced));
            assert_eq!(next(&outbox, second, 2).await, Some(2));
            assert_eq!(next(&outbox, second, 5).await, None);
            outbox.acknowledge(4);
            assert!(outbox.connect(3).is_none(), "the fourth is gone");
            outbox.close(Farewell::JobEnded);
            outbox.close(Farewell::Quit);
            let third = outbox.connect(4).unwrap();
            assert_eq!(next(&outbox, third, 4).await, Some(4));
            let end = outbox.next(third, 5).await;
            assert!(matches!(end, Next::Farewell(Farewell::JobEnded)));
        });
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
        runtime().unwrap().block_on(async {
            let connection = outbox.connect(0).unwrap();
            assert_eq!(next(&outbox, connection, 0).await, Some(2));
        });
    }
}
