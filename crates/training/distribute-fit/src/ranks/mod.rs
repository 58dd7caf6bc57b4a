//! How the ranks of a run compare: whose steps take longer, and why.
//!
//! Every worker measures its own batches, and at the end of a window, a number of batches that is
//! the same on all of them, all tell each other. The rule is in
//! [`stragglers`](distribute_core::collectives::stragglers). All workers have the same numbers, so
//! all come to the same judgement.

mod clock;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use distribute_core::collectives::stragglers::{
    Change, Shares, Slow, Standing, StepTimes, Stragglers,
};
use distribute_core::{Result, WorkerGroup};
use gethostname::gethostname;
use serde::{Deserialize, Serialize};

pub(super) use self::clock::Lap;
use self::clock::{Clock, Window};

/// How often ranks are compared, unless a run says otherwise.
pub(super) const EVERY: Duration = Duration::from_secs(2);
/// The batches of the first window, in which caches fill: it only measures how long a batch takes.
const FIRST_BATCHES: usize = 8;
/// The most batches of a window.
const BATCHES_MAX: usize = 1 << 20;
/// The file in which a slow rank asks its launcher to go on without it. There is none if it
/// need not.
const VARIABLE: &str = "DISTRIBUTE_SLOW";

/// How the ranks of a whole run compare ([`History::ranks`](super::History::ranks)).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RankReport {
    /// The name of each rank's host.
    pub hosts: Vec<String>,
    /// How the steps of each rank divide.
    pub shares: Vec<Shares>,
    /// The last 100 times that ranks were slow and have recovered, then the ranks that were slow
    /// at the end.
    pub slow: Vec<Slow>,
}

impl RankReport {
    /// A sentence about each entry of [`slow`](Self::slow).
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        let slow = self.slow.iter();
        slow.map(|slow| slow.on(host(&self.hosts, slow.rank)).to_string())
    }
}

fn host(hosts: &[String], rank: usize) -> &str {
    hosts.get(rank).map_or("", String::as_str)
}

/// What a worker says at the end of a window: times in microseconds, of all its batches.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Said {
    compute: u64,
    data: u64,
    exchange: u64,
    other: u64,
    /// Where it is; only in the first window.
    host: Option<String>,
}

impl Said {
    fn times(&self, batches: usize) -> StepTimes {
        let per_batch = |micros: u64| micros as f64 * 1e-6 / batches.max(1) as f64;
        StepTimes {
            compute: per_batch(self.compute),
            data: per_batch(self.data),
            exchange: per_batch(self.exchange),
            other: per_batch(self.other),
        }
    }

    fn total(&self) -> Duration {
        let parts = [self.compute, self.data, self.exchange, self.other];
        let micros = parts.into_iter().fold(0, u64::saturating_add);
        Duration::from_micros(micros)
    }
}

/// The ranks of a run, as one of them sees them.
pub(super) struct Ranks {
    workers: WorkerGroup,
    every: Duration,
    clock: Clock,
    /// The batches of the running window.
    batches: usize,
    watched: Option<Stragglers>,
    hosts: Vec<String>,
    /// Where this rank asks to be left out.
    request: Option<PathBuf>,
}

impl Ranks {
    /// `None` if there is nothing to compare: one worker, or an interval of zero.
    pub(super) fn new(workers: Option<&WorkerGroup>, every: Duration) -> Option<Self> {
        let workers = workers.filter(|workers| workers.num_workers() > 1)?;
        let path = std::env::var_os(VARIABLE).filter(|path: &OsString| !path.is_empty());
        (!every.is_zero()).then(|| Self {
            workers: workers.clone(),
            every,
            clock: Clock::new(),
            batches: FIRST_BATCHES,
            watched: None,
            hosts: Vec::new(),
            request: path.map(PathBuf::from),
        })
    }

    /// The time from the last lap until now was for this.
    pub(super) fn lap(&mut self, lap: Lap) {
        self.clock.lap(lap, self.workers.exchange_time());
    }

    /// The time from the last lap until now does not count: no batches were trained on.
    pub(super) fn pause(&mut self) {
        self.clock.pause(self.workers.exchange_time());
    }

    /// A batch is done, after which `step` updates were made. At the end of a window all workers
    /// exchange their times, and rank 0 and the rank itself say who has become slow.
    ///
    /// # Errors
    /// The errors of a call between workers.
    pub(super) fn batch_done(&mut self, step: u64) -> Result<()> {
        let Some(window) = self.clock.batch_done(self.batches) else {
            return Ok(());
        };
        let own = said(&window, self.watched.is_none());
        let all: Vec<Said> = self
            .workers
            .all_gather_json("how long the steps take", &own)?;
        let longest = all.iter().map(Said::total).max().unwrap_or_default();
        self.batches = next_window(self.batches, longest, self.every);
        let times: Vec<StepTimes> = all.iter().map(|said| said.times(window.batches)).collect();
        match &mut self.watched {
            None => {
                self.watched = Some(Stragglers::new(all.len()));
                let hosts = all.into_iter().map(|said| said.host.unwrap_or_default());
                self.hosts = hosts.collect();
            }
            Some(watched) => {
                let changes = watched.window(window.first_step, &times);
                changes.iter().for_each(|change| self.tell(change));
            }
        }
        self.clock.begin(step);
        self.pause();
        Ok(())
    }

    /// A run begins, after this many updates.
    pub(super) fn begin(&mut self, step: u64) {
        self.clock.begin(step);
        self.ask(None);
    }

    fn tell(&self, change: &Change) {
        let (slow, line) = match change {
            Change::Slow(slow) => (slow, self.slow(slow)),
            Change::Recovered(slow) => (slow, self.recovered(slow)),
            _ => return,
        };
        let is_own = slow.rank == self.workers.index();
        if is_own || self.workers.is_chief() {
            tracing::warn!("{line}");
        }
        if is_own {
            self.ask(slow.until_step.is_none().then_some(&line));
        }
    }

    fn slow(&self, slow: &Slow) -> String {
        let mut line = slow.on(host(&self.hosts, slow.rank)).to_string();
        if let Some(ratio) = slow.past_ratio {
            line += &format!(", {ratio:.1} x as long as before");
        }
        let percent = 100.0 * slow.held_up;
        line + &format!("; the others wait {percent:.0} % of each step for it")
    }

    fn recovered(&self, slow: &Slow) -> String {
        let line = slow.on(host(&self.hosts, slow.rank));
        let rank = slow.rank;
        format!("rank {rank} is as fast as the others again: {line}")
    }

    /// Asks the launcher to go on without this rank, for this reason, or no longer does.
    fn ask(&self, why: Option<&String>) {
        let Some(path) = &self.request else {
            return;
        };
        let done = match why {
            Some(why) => fs::write(path, why),
            None => fs::remove_file(path).or(Ok(())),
        };
        if let Err(error) = done {
            let path = path.display();
            tracing::warn!(%error, "cannot ask the launcher to go on without this rank: {path}");
        }
    }

    /// How the ranks stand, in the last window.
    pub(super) fn standings(&self) -> &[Standing] {
        self.watched.as_ref().map_or(&[], Stragglers::standings)
    }

    /// How the ranks compare in the whole run; `None` before the second window.
    pub(super) fn report(&self) -> Option<RankReport> {
        let watched = self.watched.as_ref()?;
        Some(RankReport {
            hosts: self.hosts.clone(),
            shares: watched.shares()?,
            slow: watched.slow(),
        })
    }
}

fn said(window: &Window, is_first: bool) -> Said {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Said {
        compute: micros(window.compute),
        data: micros(window.data),
        exchange: micros(window.exchange),
        other: micros(window.other),
        host: is_first.then(|| gethostname().to_string_lossy().into_owned()),
    }
}

/// The batches of the next window, which is to last for `every`, after one of `batches` that took
/// the slowest rank `longest`.
fn next_window(batches: usize, longest: Duration, every: Duration) -> usize {
    let longest = longest.max(Duration::from_micros(1));
    let next = batches as f64 * every.as_secs_f64() / longest.as_secs_f64();
    (next.round() as usize).clamp(1, BATCHES_MAX)
}
