//! What every process of a check does: it answers, and does what rank 0 asks for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_net::peers::Connection;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::attempt::{Attempt, Outcome};
use crate::dial::{ANSWER_LIMIT, Identity, answers};
use crate::error::{PeersError, Result};
use crate::meaning::{Side, meaning};
use crate::measure::{self, Figures};
use crate::messages::{Answer, Card, Opening, Order, Reply, Target, receive, send};
use crate::options::PeersOptions;
use crate::serve::Visitor;

/// Attempts to reach others at the same time.
const ATTEMPTS_MAX: usize = 32;
/// How long one measurement may take, whatever the link carries.
pub(crate) const MEASURE_LIMIT: Duration = Duration::from_secs(4);
/// What rank 0 needs at most from the end of its wait to the report.
pub(crate) const REPORT_LIMIT: Duration = Duration::from_secs(60);
/// How long a process that has not met rank 0 still answers the others.
const LINGER: Duration = Duration::from_secs(15);
/// When a wait is reported.
pub(crate) const SAY_AFTER: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A process of a check.
pub(crate) struct Member {
    pub(crate) identity: Arc<Identity>,
    pub(crate) options: PeersOptions,
    pub(crate) card: Card,
}

impl Member {
    /// The address of a rank: the one in this process' own list, as in a job, else what rank 0
    /// says.
    fn address_of(&self, target: &Target) -> Option<String> {
        let listed = self.options.addresses.get(target.rank).cloned().flatten();
        listed.or_else(|| target.address.clone())
    }

    /// Does what rank 0 asks for. Takes at most some seconds.
    pub(crate) async fn obey(&self, order: Order) -> Answer {
        match order {
            Order::Time => Answer::Time((self.options.clock)()),
            Order::Reach(targets) => Answer::Reached(self.reach(targets).await),
            Order::Measure(target, time) => Answer::Measured(self.measure(&target, time).await),
            Order::Done(_) => Answer::Done,
        }
    }

    /// Tries the addresses of these ranks.
    pub(crate) async fn reach(&self, targets: Vec<Target>) -> Vec<Attempt> {
        let (permits, mut running) = (Arc::new(Semaphore::new(ATTEMPTS_MAX)), JoinSet::new());
        let mut done = Vec::new();
        for target in targets {
            let Some(address) = self.address_of(&target) else {
                done.push(unknown(target.rank));
                continue;
            };
            let (identity, permits) = (self.identity.clone(), permits.clone());
            running.spawn(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                identity.probe(target.rank, &address).await
            });
        }
        while let Some(attempt) = running.join_next().await {
            done.extend(attempt);
        }
        done.sort_by_key(|attempt| attempt.rank);
        done
    }

    async fn measure(&self, target: &Target, time: Duration) -> Result<Figures, String> {
        let address = self.address_of(target).unwrap_or_default();
        let (attempt, connection) = self.identity.dial(target.rank, &address).await;
        let mut connection = connection.ok_or_else(|| plain(&attempt.outcome))?;
        let welcome = answers(&mut connection, &Opening::Measure).await;
        welcome.map_err(|outcome| plain(&outcome))?;
        let measured = timeout(MEASURE_LIMIT, measure::measure(&mut connection, time)).await;
        match measured {
            Ok(figures) => figures.map_err(|error| format!("the connection broke: {error}")),
            Err(_) => Err(format!(
                "32 KiB did not arrive within {MEASURE_LIMIT:.0?}: the path loses large packets (make \
                 the MTU of all its parts the same), or it is slower than 8 KiB/s"
            )),
        }
    }

    /// Meets rank 0: dials it until it answers, or until it comes by itself.
    ///
    /// # Errors
    /// [`PeersError::NoLeader`] after the time for it, with what was tried; then this process has
    /// still answered others for a while. [`PeersError::Refused`] at once.
    pub(crate) async fn meet(&self, visitors: &mut mpsc::Receiver<Visitor>) -> Result<Connection> {
        let (begun, mut pause, mut said) = (Instant::now(), PAUSE_MIN, false);
        let mut last = unknown(0);
        loop {
            let tried = tokio::select! {
                tried = self.join() => tried,
                met = self.led(visitors, &last) => return Ok(met),
            };
            match tried {
                Ok(met) => return Ok(met),
                Err(Tried::Refused(why)) => {
                    let rank = self.identity.rank;
                    return Err(PeersError::Refused { rank, why });
                }
                Err(Tried::Failed(attempt)) => last = *attempt,
            }
            let waited = begun.elapsed();
            let left = self.options.timeout.saturating_sub(waited);
            if left.is_zero() {
                break;
            }
            let is_final = matches!(last.outcome, Outcome::Untrusted(_));
            if (is_final || waited > SAY_AFTER) && !std::mem::replace(&mut said, true) {
                let (rank, why) = (self.identity.rank, self.explain(&last));
                let left = left.as_secs();
                (self.options.note)(&format!(
                    "rank {rank} cannot reach rank 0: {why} (tries for {left} s more)"
                ));
            }
            tokio::select! {
                () = sleep(pause.min(left)) => {}
                met = self.led(visitors, &last) => return Ok(met),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(self.without_leader(begun.elapsed(), &last).await)
    }

    /// Waits until rank 0 comes by itself, and tells it why this process does not reach it.
    async fn led(&self, visitors: &mut mpsc::Receiver<Visitor>, last: &Attempt) -> Connection {
        loop {
            let Some(Visitor::Leader(mut connection)) = visitors.recv().await else {
                // The service, which holds the other end, lives as long as this process.
                sleep(PAUSE_MAX).await;
                continue;
            };
            let mut card = self.card.clone();
            card.leader = (!last.outcome.is_reached()).then(|| last.clone());
            let here = Reply::Here(Box::new(card));
            if send(&mut connection, &here, ANSWER_LIMIT).await.is_ok() {
                return connection;
            }
        }
    }

    /// One attempt to join rank 0.
    async fn join(&self) -> Result<Connection, Tried> {
        let leader = self.options.leader();
        let (mut attempt, connection) = self.identity.dial(0, leader).await;
        let Some(mut connection) = connection else {
            return Err(Tried::Failed(Box::new(attempt)));
        };
        let mut card = self.card.clone();
        card.from = attempt.from;
        let opening = Opening::Join(Box::new(card));
        match answers(&mut connection, &opening).await {
            Ok(()) => Ok(connection),
            Err(Outcome::Untrusted(why)) => Err(Tried::Refused(why)),
            Err(outcome) => {
                attempt.outcome = outcome;
                Err(Tried::Failed(Box::new(attempt)))
            }
        }
    }

    fn explain(&self, attempt: &Attempt) -> String {
        let own = Side::of(&self.card);
        meaning(attempt, Some(&own), None)
    }

    /// What this process could reach at all; answers the others for a while.
    async fn without_leader(&self, waited: Duration, last: &Attempt) -> PeersError {
        let (rank, why) = (self.identity.rank, self.explain(last));
        let listed = self.options.addresses.iter().enumerate().skip(1);
        let others = listed.filter(|(other, address)| *other != rank && address.is_some());
        let targets = others.map(|(other, _)| Target {
            rank: other,
            address: None,
        });
        for attempt in self.reach(targets.collect()).await {
            let said = match attempt.outcome {
                Outcome::Reached => format!("reaches rank {} at {}", attempt.rank, attempt.address),
                _ => format!(
                    "does not reach rank {}: {}",
                    attempt.rank,
                    self.explain(&attempt)
                ),
            };
            (self.options.note)(&format!("rank {rank} {said}"));
        }
        let seconds = LINGER.as_secs();
        (self.options.note)(&format!(
            "rank {rank} could not reach rank 0: {why}; it answers the others for {seconds} s more"
        ));
        sleep(LINGER).await;
        PeersError::NoLeader { rank, waited, why }
    }

    /// Does what rank 0 asks for until it is over; returns how many problems there are.
    ///
    /// # Errors
    /// [`PeersError::LeaderLost`].
    pub(crate) async fn follow(&self, mut leader: Connection) -> Result<usize> {
        let lost = |source| PeersError::LeaderLost {
            rank: self.identity.rank,
            source,
        };
        let limit = self.options.timeout.saturating_add(REPORT_LIMIT);
        loop {
            let order = receive(&mut leader, limit).await.map_err(lost)?;
            let problems = match order {
                Order::Done(problems) => Some(problems),
                _ => None,
            };
            let answer = self.obey(order).await;
            let sent = send(&mut leader, &answer, ANSWER_LIMIT).await;
            if let Some(problems) = problems {
                return Ok(problems);
            }
            sent.map_err(lost)?;
        }
    }
}

/// Why an attempt to join did not succeed.
enum Tried {
    /// Perhaps the next one does.
    Failed(Box<Attempt>),
    /// Rank 0 refuses this process.
    Refused(String),
}

/// An attempt that was not made.
fn unknown(rank: usize) -> Attempt {
    Attempt {
        rank,
        address: String::new(),
        resolved: None,
        from: None,
        interface: None,
        seconds: 0.0,
        outcome: Outcome::Unknown,
    }
}

/// An outcome between processes that have reached each other before.
fn plain(outcome: &Outcome) -> String {
    format!("it could be reached before, and not to measure it ({outcome:?})")
}
