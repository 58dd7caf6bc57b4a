//! Lets the connections of unauthenticated peers in, as far as their [crowd](crate::crowd) has
//! room, and ends the ones that have to go.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::crowd::{Charge, Crowd, Id, More, Progress, Room};
use crate::pending::pending_connections_max;

/// How long a connection may stay open before its peer is authenticated.
const PENDING_LIFETIME: Duration = Duration::from_secs(10);

/// How many turns the other tasks of the process have before a connection is refused.
const TURNS: usize = 8;

/// What can be told to end. It ends when it is polled the next time.
pub(crate) trait Endable: Send + Sync {
    /// Ends it, unless its peer is authenticated.
    fn end(&self);
}

struct State {
    crowd: Crowd<Weak<dyn Endable>>,
    /// Woken when one leaves.
    waiting: Vec<Waker>,
}

/// The gate of a port.
pub(crate) struct Gate {
    state: Mutex<State>,
    /// One has left.
    left: Notify,
}

/// A random number; without random numbers always the same.
fn chance() -> u64 {
    getrandom::u64().unwrap_or(0)
}

impl Gate {
    pub(crate) fn new(charge: Charge) -> Arc<Gate> {
        Arc::new(Gate {
            state: Mutex::new(State {
                crowd: Crowd::new(charge),
                waiting: Vec::new(),
            }),
            left: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends connections until another one has room that comes from there; whether it gets it. Waits
    /// until what is ending has ended, if that has too much. Before it refuses, it lets the ones
    /// that are here go on with what they have: perhaps some are authenticated then.
    pub(crate) async fn make_room(&self, source: IpAddr) -> bool {
        self.expire();
        let mut turns = 0..TURNS;
        loop {
            let (max, now) = (pending_connections_max(), Instant::now());
            let room = self.lock().crowd.room(source, max, now, chance());
            match room {
                Room::Free => return true,
                Room::Refused if turns.next().is_some() => tokio::task::yield_now().await,
                Room::Refused => return false,
                Room::End(id) => self.end(id),
                Room::Wait => self.left.notified().await,
            }
        }
    }

    /// Takes a connection in, for which there is room.
    pub(crate) fn enter(self: &Arc<Self>, source: IpAddr, what: Weak<dyn Endable>) -> Place {
        let id = self.lock().crowd.enter(source, Instant::now(), what);
        Place {
            gate: self.clone(),
            id,
        }
    }

    fn end(&self, id: Id) {
        let ended = self.lock().crowd.end(id).and_then(Weak::upgrade);
        if let Some(ended) = ended {
            ended.end();
        }
    }

    /// Ends the connection that is the least likely to belong to a member.
    pub(crate) fn end_one(&self) {
        let one = self.lock().crowd.one_to_end(chance());
        if let Some(id) = one {
            self.end(id);
        }
    }

    /// Ends connections that were pending for too long.
    pub(crate) fn expire(&self) {
        let expired = self
            .lock()
            .crowd
            .older_than(PENDING_LIFETIME, Instant::now());
        expired.into_iter().for_each(|id| self.end(id));
    }
}

/// The place of a connection in the crowd of its port.
pub(crate) struct Place {
    gate: Arc<Gate>,
    id: Id,
}

impl Place {
    /// Notes how far the connection has come.
    pub(crate) fn note(&self, progress: Progress) {
        self.gate.lock().crowd.note(self.id, progress);
    }

    /// How many bytes may be read now, at most `wanted`. What was read is then
    /// [settled](Self::settle).
    pub(crate) fn poll_reserve(
        &self,
        context: &Context<'_>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.gate.lock();
        let one_to_end = match state.crowd.reserve(self.id, wanted, chance()) {
            More::Granted(granted) => return Poll::Ready(Ok(granted)),
            More::TooMuch => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            More::Wait(one_to_end) => one_to_end,
        };
        if !state.waiting.iter().any(|it| it.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        drop(state);
        if let Some(id) = one_to_end {
            self.gate.end(id);
        }
        Poll::Pending
    }

    /// Says how many of the granted bytes were read.
    pub(crate) fn settle(&self, granted: usize, read: usize) {
        self.gate.lock().crowd.settle(self.id, granted, read);
    }

    /// The connection has ended, or its peer is authenticated. Once is enough.
    pub(crate) fn leave(&self) {
        let mut state = self.gate.lock();
        if state.crowd.leave(self.id) {
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(Waker::wake);
            self.gate.left.notify_one();
        }
    }
}
