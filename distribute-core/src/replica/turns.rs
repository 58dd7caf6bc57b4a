//! Replicas that share a device compute one after the other: the way to the other replicas of one
//! that gives up its turn while it waits for them.

use std::ops::Deref;

use distribute_collectives::turns::Paused;
pub(crate) use distribute_collectives::turns::{Turn, Turns};

use super::link::Link;
use crate::random::{PausedRandom, pause_random};

/// A replica's [`Link`], and the turn of its device if it shares that with others.
pub(crate) struct Turning {
    pub(crate) link: Box<dyn Link>,
    pub(crate) turn: Option<Turn>,
}

impl Turning {
    /// The link, for calls that wait for other replicas: the turn is given up until it is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        Waiting {
            link: &*self.link,
            _paused: pause(self.turn.as_ref()),
        }
    }
}

/// A replica's [`Link`] while the replica has given up its turn.
pub(crate) struct Waiting<'a> {
    link: &'a dyn Link,
    _paused: Pause<'a>,
}

/// A replica that waits for others: it has given up the turn of its device and burn's generator.
pub(crate) struct Pause<'a> {
    // The turn comes back first: only a replica that computes holds the generator.
    _turn: Option<Paused<'a>>,
    _random: PausedRandom,
}

/// Gives up what other replicas may wait for, until the guard is dropped.
pub(crate) fn pause(turn: Option<&Turn>) -> Pause<'_> {
    let random = pause_random();
    Pause {
        _turn: turn.map(Turn::pause),
        _random: random,
    }
}

impl<'a> Deref for Waiting<'a> {
    type Target = dyn Link + 'a;

    fn deref(&self) -> &Self::Target {
        self.link
    }
}

#[cfg(test)]
mod tests;
