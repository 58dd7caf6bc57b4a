//! Replicas that share a device compute one after the other: the way to the other replicas of one
//! that gives up its turn while it waits for them.

use std::ops::Deref;

use burn::tensor::TensorData;
use distribute_collectives::ReduceOp;
use distribute_collectives::turns::Paused;
pub(crate) use distribute_collectives::turns::{Turn, Turns};

use super::link::Link;
use super::log::Noted;
use crate::Result;
use crate::random::{PausedRandom, pause_random};

/// A replica's [`Link`], and the turn of its device if it shares that with others.
pub(crate) struct Turning {
    pub(crate) link: Box<dyn Link>,
    pub(crate) turn: Option<Turn>,
    /// What calls have given the replica, but for gradients.
    pub(super) noted: Noted,
}

impl Turning {
    pub(super) fn new(link: Box<dyn Link>, turn: Option<Turn>) -> Self {
        let noted = Noted::default();
        Self { link, turn, noted }
    }

    /// The link, for calls that wait for other replicas: the turn is given up until it is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        Waiting {
            link: &*self.link,
            noted: &self.noted,
            _paused: pause(self.turn.as_ref()),
        }
    }
}

/// A replica's [`Link`] while the replica has given up its turn.
pub(crate) struct Waiting<'a> {
    link: &'a dyn Link,
    noted: &'a Noted,
    _paused: Pause<'a>,
}

/// The calls whose results are noted, see [`Link`].
impl Waiting<'_> {
    pub(super) fn all_reduce(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        self.link.all_reduce(op, buffers)?;
        self.noted.reduced(buffers);
        Ok(())
    }

    pub(super) fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        let all = self.link.all_gather(mine)?;
        self.noted.gathered(&all);
        Ok(all)
    }
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
