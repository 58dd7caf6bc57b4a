//! Which ranks of a group are slow for long: the rule, without clocks, threads or messages.
//!
//! In a synchronous job all steps take equally long on all ranks; only how a step divides into a
//! rank's *own time*, in which it computes or waits for its data, and the time in exchanges, in
//! which it also waits for the others, differs. So the rule compares own times, window by window,
//! where a *window* is a number of steps that is the same on all ranks:
//!
//! - A rank is *late* in a window if its own time is more than [`SLOW`] times the median of all
//!   ranks, if it is above the median by more than four standard deviations (as the median absolute
//!   deviation estimates them), and if what it takes more is at least a twentieth of the step.
//! - A rank that is late in [`WINDOWS`] windows in a row is slow, since the first of them. It stays
//!   slow until its own time is below [`FINE`] times the median in as many windows in a row.
//!
//! The median is the lower one: of two ranks the faster one, and where one host of two is slow the
//! other host's. A rank is also compared with its own past, an exponential average of its windows
//! in which it was not late: this says whether it has become slow or always was.

use std::fmt;

#[cfg(test)]
mod tests;

/// How many times the median's own time a late rank takes.
pub const SLOW: f64 = 1.25;
/// How many times the median's own time a slow rank takes at most when it has recovered.
pub const FINE: f64 = 1.15;
/// How many windows in a row decide.
pub const WINDOWS: u32 = 3;

/// The part of a step that a late rank holds up the others for, at least.
const HELD_UP_MIN: f64 = 0.05;
/// How many standard deviations a late rank is above the median.
const DEVIATIONS: f64 = 4.0;
/// The standard deviation of a normal distribution, in median absolute deviations.
const DEVIATION: f64 = 1.4826;
/// The weight of the newest window in a rank's past.
const NEWEST: f64 = 0.1;
/// A shorter past says nothing.
const PAST_WINDOWS_MIN: u32 = 3;

/// What a rank did with its time, in seconds per step, on average over a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTimes {
    /// In the step, but for its exchanges.
    pub compute: f64,
    /// Waiting for the next batch.
    pub data: f64,
    /// In exchanges between ranks, waiting for other ranks included.
    pub exchange: f64,
    /// Between the steps: callbacks, checkpoints.
    pub other: f64,
}

impl StepTimes {
    /// What a rank takes by itself, in seconds per step.
    fn own(&self) -> f64 {
        self.compute + self.data
    }

    fn step(&self) -> f64 {
        self.own() + self.exchange + self.other
    }

    /// Without what no clock measures.
    fn checked(self) -> Self {
        let checked = |time: f64| if time.is_finite() { time.max(0.0) } else { 0.0 };
        Self {
            compute: checked(self.compute),
            data: checked(self.data),
            exchange: checked(self.exchange),
            other: checked(self.other),
        }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            compute: self.compute + more.compute,
            data: self.data + more.data,
            exchange: self.exchange + more.exchange,
            other: self.other + more.other,
        }
    }
}

/// How a rank's step divides; the parts are fractions whose sum is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// In the step, but for its exchanges.
    pub compute: f64,
    /// Waiting for the next batch.
    pub data: f64,
    /// Moving data between ranks: the time in exchanges of the rank that spends least in them,
    /// because it is the last one to come.
    pub exchange: f64,
    /// Waiting in exchanges for other ranks: the rest of the time in exchanges.
    pub waiting: f64,
    /// Between the steps: callbacks, checkpoints.
    pub other: f64,
}

/// The shares of all ranks, by rank.
pub fn shares(times: &[StepTimes]) -> Vec<Shares> {
    let times: Vec<StepTimes> = times.iter().map(|times| times.checked()).collect();
    let exchange = times.iter().map(|times| times.exchange);
    let least = exchange.fold(f64::INFINITY, f64::min);
    let of_rank = |times: &StepTimes| {
        let step = times.step();
        let share = |time: f64| if step > 0.0 { time / step } else { 0.0 };
        Shares {
            compute: share(times.compute),
            data: share(times.data),
            exchange: share(least),
            waiting: share(times.exchange - least),
            other: share(times.other),
        }
    };
    times.iter().map(of_rank).collect()
}

/// What a slow rank does longer than the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It computes.
    Compute,
    /// It waits for its data.
    Data,
}

/// A rank that is, or was, slow for long.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Slow {
    /// The rank.
    pub rank: usize,
    /// What it does longer than the others.
    pub cause: Cause,
    /// Its time for that, in seconds per step.
    pub seconds: f64,
    /// The same of the median.
    pub median_seconds: f64,
    /// The part of a step that the others wait for this rank, from 0 to 1.
    pub held_up: f64,
    /// The first step at which it was slow.
    pub since_step: u64,
    /// The first step at which it was no longer slow, once it has recovered.
    pub until_step: Option<u64>,
    /// How many times as long as in its own past it takes, if it has one.
    pub past_ratio: Option<f64>,
    /// The number of ranks.
    ranks: usize,
}

impl Slow {
    /// How many times as long as the median it takes; `None` if the median takes no time.
    pub fn ratio(&self) -> Option<f64> {
        let ratio = self.seconds / self.median_seconds;
        ratio.is_finite().then_some(ratio)
    }

    /// The sentence about the rank, which is on this host:
    /// `rank 5 on host b computes 1.8 x as long as the median since step 1200`.
    pub fn on<'a>(&'a self, host: &'a str) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| self.write(f, host))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, host: &str) -> fmt::Result {
        let rank = self.rank;
        write!(f, "rank {rank}")?;
        if !host.is_empty() {
            write!(f, " on host {host}")?;
        }
        let against = match (self.ranks, rank) {
            (2, _) => format!("rank {}", 1 - rank.min(1)),
            _ => "the median".to_string(),
        };
        let past = self.until_step.is_some();
        match (self.cause, self.ratio()) {
            (Cause::Compute, Some(ratio)) => {
                let verb = if past { "computed" } else { "computes" };
                write!(f, " {verb} {ratio:.1} x as long as {against}")?;
            }
            (cause, _) => {
                let verb = match (cause, past) {
                    (Cause::Compute, false) => "computes",
                    (Cause::Compute, true) => "computed",
                    (Cause::Data, false) => "waits for data",
                    (Cause::Data, true) => "waited for data",
                };
                let (own, median) = (short(self.seconds), short(self.median_seconds));
                write!(f, " {verb} {own} a step, {against} {median},")?;
            }
        }
        match self.until_step {
            None => write!(f, " since step {}", self.since_step),
            Some(until) => write!(f, " from step {} to step {until}", self.since_step),
        }
    }
}

/// A time in three digits.
fn short(seconds: f64) -> impl fmt::Display {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    fmt::from_fn(move |f| write!(f, "{value:.digits$} {unit}"))
}

/// What has changed with a window.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// A rank has been slow for long.
    Slow(Slow),
    /// A slow rank is as fast as the others again.
    Recovered(Slow),
}

/// How a rank stands against the others and its past, in the last window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Standing {
    /// How its step divides.
    pub shares: Shares,
    /// Its own time (computing, and waiting for data) divided by the median of all ranks.
    pub ratio: f64,
    /// Its own time divided by the exponential average of earlier windows in which it was not
    /// late; `None` in its first windows.
    pub past_ratio: Option<f64>,
    /// Whether it is slow for long.
    pub is_slow: bool,
}

/// What is known of one rank.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    /// The windows in a row in which it was late, or, once it is slow, was not.
    in_a_row: u32,
    is_slow: bool,
    /// Sums since it is late.
    streak: Option<Streak>,
    /// The exponential average of its own time, and the number of windows in it.
    past: f64,
    past_windows: u32,
    /// All windows.
    all: StepTimes,
}

/// A time in which a rank is late or slow.
#[derive(Debug, Clone, Copy, Default)]
struct Streak {
    since_step: u64,
    /// The first step of the windows in which it was fine again.
    fine_since: Option<u64>,
    windows: f64,
    own: StepTimes,
    median: StepTimes,
    held_up: f64,
}

/// The medians of a window.
struct Medians {
    times: StepTimes,
    own: f64,
    step: f64,
    /// How far above the median a rank of the same kind may be.
    spread: f64,
}

impl Medians {
    fn of(times: &[StepTimes]) -> Self {
        let median = |of: fn(&StepTimes) -> f64| lower_median(times.iter().map(of));
        let own = median(StepTimes::own);
        let deviations = times.iter().map(|times| (times.own() - own).abs());
        Self {
            times: StepTimes {
                compute: median(|times| times.compute),
                data: median(|times| times.data),
                exchange: median(|times| times.exchange),
                other: median(|times| times.other),
            },
            own,
            step: median(StepTimes::step),
            spread: DEVIATIONS * DEVIATION * lower_median(deviations),
        }
    }

    fn ratio(&self, times: &StepTimes) -> f64 {
        match times.own() / self.own {
            ratio if ratio.is_finite() => ratio,
            // Nothing was measured, or nothing but waiting.
            _ => 1.0,
        }
    }

    /// The part of a step that the others wait for a rank.
    fn held_up(&self, times: &StepTimes) -> f64 {
        let more = (times.own() - self.own).max(0.0);
        if self.step > 0.0 {
            (more / self.step).min(1.0)
        } else {
            0.0
        }
    }

    fn is_late(&self, times: &StepTimes) -> bool {
        let own = times.own();
        own > SLOW * self.own && own - self.own > self.spread && self.held_up(times) >= HELD_UP_MIN
    }

    fn is_fine(&self, times: &StepTimes) -> bool {
        times.own() < FINE * self.own || self.held_up(times) < HELD_UP_MIN / 2.0
    }
}

/// The median; of an even number of values the lower one of the two in the middle.
fn lower_median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

/// Watches the ranks of a group, window by window.
#[derive(Debug, Clone)]
pub struct Stragglers {
    ranks: Vec<Rank>,
    standings: Vec<Standing>,
    /// What has passed.
    recovered: Vec<Slow>,
}

impl Stragglers {
    /// How many recoveries are kept for the report at the end.
    const RECOVERED_MAX: usize = 100;

    /// A group of this many ranks, of which nothing is known.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks: vec![Rank::default(); ranks],
            standings: Vec::new(),
            recovered: Vec::new(),
        }
    }

    /// Takes the times of all ranks in a window, which began with this step. Returns what has
    /// changed, by rank. Times of another number of ranks are left out.
    pub fn window(&mut self, first_step: u64, times: &[StepTimes]) -> Vec<Change> {
        if times.len() != self.ranks.len() {
            return Vec::new();
        }
        let times: Vec<StepTimes> = times.iter().map(|times| times.checked()).collect();
        let medians = Medians::of(&times);
        let mut changes = Vec::new();
        let ranks = self.ranks.len();
        for (number, (rank, times)) in self.ranks.iter_mut().zip(&times).enumerate() {
            let change = rank.window(first_step, times, &medians);
            let slow = |until| rank.slow(number, ranks, until);
            match change {
                Some(Turn::Slow) => changes.extend(slow(None).map(Change::Slow)),
                Some(Turn::Recovered) => {
                    let until = rank.streak.and_then(|streak| streak.fine_since);
                    let slow = slow(until);
                    rank.streak = None;
                    changes.extend(slow.map(Change::Recovered));
                    self.recovered.extend(slow);
                }
                None => {}
            }
        }
        let surplus = self.recovered.len().saturating_sub(Self::RECOVERED_MAX);
        self.recovered.drain(..surplus);
        let all = self.ranks.iter().zip(&times).zip(shares(&times));
        let standings = all.map(|((rank, times), shares)| Standing {
            shares,
            ratio: medians.ratio(times),
            past_ratio: rank.past_ratio(times.own()),
            is_slow: rank.is_slow,
        });
        self.standings = standings.collect();
        changes
    }

    /// How the ranks stand, by rank; empty before the first window.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// How the ranks' steps divide, over all windows; `None` before the first one.
    pub fn shares(&self) -> Option<Vec<Shares>> {
        let all: Vec<StepTimes> = self.ranks.iter().map(|rank| rank.all).collect();
        (!self.standings.is_empty()).then(|| shares(&all))
    }

    /// The ranks that are slow, and the last 100 times that ranks were slow and have recovered:
    /// these first, in the order of their recoveries.
    pub fn slow(&self) -> Vec<Slow> {
        let ranks = self.ranks.iter().enumerate();
        let slow = ranks.filter(|(_, rank)| rank.is_slow);
        let slow = slow.filter_map(|(number, rank)| rank.slow(number, self.ranks.len(), None));
        self.recovered.iter().copied().chain(slow).collect()
    }
}

/// How a rank's standing has changed.
enum Turn {
    Slow,
    Recovered,
}

impl Rank {
    fn window(&mut self, step: u64, times: &StepTimes, medians: &Medians) -> Option<Turn> {
        let is_late = medians.is_late(times);
        self.all = self.all.plus(*times);
        if !is_late && !self.is_slow {
            self.remember(times.own());
        }
        if !self.is_slow && !is_late {
            self.in_a_row = 0;
            self.streak = None;
            return None;
        }
        let streak = self.streak.get_or_insert(Streak {
            since_step: step,
            ..Streak::default()
        });
        if self.is_slow && medians.is_fine(times) {
            streak.fine_since.get_or_insert(step);
            self.in_a_row += 1;
        } else {
            streak.fine_since = None;
            streak.windows += 1.0;
            streak.own = streak.own.plus(*times);
            streak.median = streak.median.plus(medians.times);
            streak.held_up += medians.held_up(times);
            self.in_a_row = if self.is_slow { 0 } else { self.in_a_row + 1 };
        }
        if self.in_a_row < WINDOWS {
            return None;
        }
        self.in_a_row = 0;
        self.is_slow = !self.is_slow;
        Some(if self.is_slow {
            Turn::Slow
        } else {
            Turn::Recovered
        })
    }

    /// Adds a window to the past.
    fn remember(&mut self, own: f64) {
        self.past = match self.past_windows {
            0 => own,
            _ => self.past + NEWEST * (own - self.past),
        };
        self.past_windows = self.past_windows.saturating_add(1);
    }

    fn past_ratio(&self, own: f64) -> Option<f64> {
        let ratio = own / self.past;
        (self.past_windows >= PAST_WINDOWS_MIN && ratio.is_finite()).then_some(ratio)
    }

    /// The time in which it was slow; `None` if it was not.
    fn slow(&self, rank: usize, ranks: usize, until_step: Option<u64>) -> Option<Slow> {
        let streak = self.streak.filter(|streak| streak.windows > 0.0)?;
        let (own, median) = (streak.own, streak.median);
        let is_data = own.data - median.data > own.compute - median.compute;
        let (cause, seconds, median_seconds) = match is_data.then_some(Cause::Data) {
            Some(data) => (data, own.data, median.data),
            None => (Cause::Compute, own.compute, median.compute),
        };
        Some(Slow {
            rank,
            cause,
            seconds: seconds / streak.windows,
            median_seconds: median_seconds / streak.windows,
            held_up: streak.held_up / streak.windows,
            since_step: streak.since_step,
            until_step,
            past_ratio: self.past_ratio(own.own() / streak.windows),
            ranks,
        })
    }
}
