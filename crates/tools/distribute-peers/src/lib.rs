//! Finds out which processes of a job reach each other, over which interfaces, and how fast.
//!
//! Every process of the job calls [`check`] with the addresses that the job would have. They meet
//! at rank 0, with the handshake and the token of a job; rank 0 waits for a limited time and goes
//! on with those that have come. Then each process dials the others at their addresses, links are
//! measured in rounds in which no host is part of two pairs, clocks and versions are compared, and
//! rank 0 has a [`Report`]. `distribute-cli doctor --peers` prints it.
//!
//! - `member` is what every process does, `leader` what rank 0 asks for; `messages` is what they
//!   say, `serve` what answers on the ports and `dial` what dials them.
//! - `rounds` chooses the pairs and their rounds, `measure` measures one link, `clock` compares two
//!   clocks.
//! - `judge` says what is wrong, and `meaning` what a failed attempt means; `text` prints it.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod attempt;
mod bind;
mod clock;
mod dial;
mod error;
mod facts;
mod findings;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod interfaces;
mod judge;
mod leader;
mod meaning;
mod measure;
mod member;
mod messages;
mod options;
mod report;
mod rounds;
mod seat;
mod serve;
#[cfg(test)]
mod tests;
mod text;
mod words;

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

pub use attempt::{Attempt, Outcome};
pub use clock::ClockOffset;
pub use error::{PeersError, Result};
pub use facts::Facts;
pub use interfaces::{Interface, interfaces};
pub use options::PeersOptions;
pub use report::{EdgeReport, Finding, FindingKind, Method, RankReport, Report};

use bind::Bound;
use judge::judge;
use leader::Leader;
use member::Member;
use serve::Service;

/// Visitors that wait for rank 0.
const VISITORS: usize = 1024;

/// Takes part in a check; rank 0 calls `show` with the report before the others hear that it is
/// over. Returns the number of problems, which is the same on all ranks. Blocks until the check is
/// over: the time to wait for others at most, and some seconds.
///
/// # Errors
/// [`PeersError::Net`] when this process cannot listen, or with wrong certificates;
/// [`PeersError::InvalidOption`]; on other ranks than 0 [`PeersError::NoLeader`],
/// [`PeersError::LeaderLost`] and [`PeersError::Refused`]; [`PeersError::System`].
pub fn check(options: PeersOptions, show: impl FnOnce(&Report)) -> Result<usize> {
    options.check()?;
    let bound = Bound::bind(&options)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().map_err(PeersError::System)?;
    let done = runtime.block_on(take_part(bound, options, show));
    // The system's look-up of a name cannot be called off.
    runtime.shutdown_background();
    done
}

async fn take_part(
    bound: Bound,
    options: PeersOptions,
    show: impl FnOnce(&Report),
) -> Result<usize> {
    let (visitors, mut come) = mpsc::channel(VISITORS);
    let identity = Arc::new(bound.identity);
    let service = Service::new(identity.clone(), visitors);
    for listener in bound.listeners {
        service.listen(listener).map_err(PeersError::System)?;
    }
    let listed = options.addresses.clone();
    let own = Arc::new(Member {
        identity,
        options,
        card: bound.card,
    });
    if own.identity.rank > 0 {
        let leader = own.meet(&mut come).await?;
        return own.follow(leader).await;
    }
    let begun = Instant::now();
    let mut leader = Leader::new(own.clone());
    let findings = leader.check(&mut come).await;
    let mut turned_away = service.turned_away.all();
    turned_away.extend(leader.turned_away.iter().cloned());
    let mut report = Report::of(&findings, &listed, begun.elapsed());
    judge(&mut report, &findings.guests, &listed, &turned_away);
    show(&report);
    leader.end(report.problems.len()).await;
    Ok(report.problems.len())
}
