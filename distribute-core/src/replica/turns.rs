//! Replicas that share a device compute one after the other: the way to the other replicas of one
//! that gives up its turn while it waits for them.

use std::ops::Deref;

use distribute_collectives::turns::Paused;
pub(crate) use distribute_collectives::turns::{Turn, Turns};

use super::link::Link;

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
            _paused: self.turn.as_ref().map(Turn::pause),
        }
    }
}

/// A replica's [`Link`] while the replica has given up its turn.
pub(crate) struct Waiting<'a> {
    link: &'a dyn Link,
    _paused: Option<Paused<'a>>,
}

impl<'a> Deref for Waiting<'a> {
    type Target = dyn Link + 'a;

    fn deref(&self) -> &Self::Target {
        self.link
    }
}

#[cfg(test)]
mod tests;
