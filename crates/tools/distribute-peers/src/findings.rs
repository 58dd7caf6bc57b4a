//! What was found, before anything is said about it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::attempt::Attempt;
use crate::clock::ClockOffset;
use crate::measure::Figures;
use crate::messages::Card;
use crate::rounds::{Pair, Plan};

/// A process that has come.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    pub(crate) card: Card,
    /// Where its connection to rank 0 comes from, as rank 0 sees it.
    pub(crate) seen: Option<IpAddr>,
    pub(crate) clock: Option<ClockOffset>,
    /// Why it does not take part any more.
    pub(crate) lost: Option<String>,
}

impl Guest {
    pub(crate) fn new(card: Card, seen: Option<IpAddr>) -> Self {
        Self {
            card,
            seen,
            clock: None,
            lost: None,
        }
    }
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) guests: BTreeMap<usize, Guest>,
    /// By the rank that dialled and the one that was dialled.
    pub(crate) attempts: BTreeMap<Pair, Vec<Attempt>>,
    /// By the rank that measured and the one that it dialled.
    pub(crate) figures: BTreeMap<Pair, Result<Figures, String>>,
    pub(crate) plan: Plan,
    pub(crate) slot: Duration,
    pub(crate) pairs: Vec<Pair>,
    /// How long rank 0 waited for the others.
    pub(crate) met: Duration,
}
