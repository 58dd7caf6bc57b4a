//! Rank 0: it waits for the others, and asks each of them to do its part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_net::peers::Connection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::attempt::Attempt;
use crate::dial::{ANSWER_LIMIT, CONNECT_LIMIT};
use crate::findings::Findings;
use crate::measure::{FAR, median};
use crate::member::{MEASURE_LIMIT, Member, SAY_AFTER};
use crate::messages::{Answer, Card, Opening, Order, Reply, Target, receive, send};
use crate::rounds::{Pair, Plan, pairs, plan};
use crate::seat::Seat;
use crate::serve::Visitor;
use crate::words::ranks;

/// How long a process may take to try all its targets, a few at a time.
const REACH_LIMIT: Duration = Duration::from_secs(20);
/// How long a process may take to measure one link.
const EDGE_LIMIT: Duration = Duration::from_secs(17);
/// What all measurements together may take, and about what they should.
const MEASURING_LIMIT: Duration = Duration::from_secs(20);
const MEASURING: Duration = Duration::from_secs(5);
/// What one measurement of a direction may take on a link that is quick enough.
const SLOT_MIN: Duration = Duration::from_millis(20);
const SLOT_MAX: Duration = Duration::from_millis(125);
/// Links that seem slow and are measured again.
const LOOKS_MAX: usize = 8;
/// Processes whose clocks are compared at a time.
const CLOCKS_AT_A_TIME: usize = 8;
/// Processes that have not come and are dialled at a time.
const DIALS_MAX: usize = 32;

/// Rank 0 of a check.
pub(crate) struct Leader {
    own: Arc<Member>,
    seats: BTreeMap<usize, Seat>,
    /// Who came twice, or with something that does not fit.
    pub(crate) turned_away: BTreeSet<String>,
}

impl Leader {
    pub(crate) fn new(own: Arc<Member>) -> Self {
        let seats = BTreeMap::from([(0, Seat::new(own.card.clone(), None))]);
        Self {
            own,
            seats,
            turned_away: BTreeSet::new(),
        }
    }

    fn size(&self) -> usize {
        self.own.identity.size
    }

    /// The whole check.
    pub(crate) async fn check(&mut self, visitors: &mut mpsc::Receiver<Visitor>) -> Findings {
        let begun = Instant::now();
        self.wait_for_all(visitors).await;
        let met = begun.elapsed();
        self.compare_clocks().await;
        let pairs = pairs(self.size());
        let attempts = self.reach(&pairs).await;
        let (plan, slot) = self.plan(&pairs, &attempts);
        let mut findings = Findings {
            guests: BTreeMap::new(),
            attempts,
            figures: BTreeMap::new(),
            plan,
            slot,
            pairs,
            met,
        };
        self.measure(&mut findings).await;
        let guests = self
            .seats
            .iter()
            .map(|(rank, seat)| (*rank, seat.guest.clone()));
        findings.guests = guests.collect();
        findings
    }

    /// Tells all that it is over.
    pub(crate) async fn end(&mut self, problems: usize) {
        let all = self.seats.keys();
        let orders = all.map(|rank| (*rank, Order::Done(problems))).collect();
        self.ask_all(orders, ANSWER_LIMIT).await;
    }

    /// Waits for all processes, and goes to those that do not come.
    async fn wait_for_all(&mut self, visitors: &mut mpsc::Receiver<Visitor>) {
        let begun = tokio::time::Instant::now();
        let deadline = begun
            + self
                .own
                .options
                .timeout
                .min(Duration::from_secs(365 * 24 * 3600));
        let mut next = (begun + SAY_AFTER).min(deadline);
        let mut dialling: JoinSet<Option<(Card, Connection)>> = JoinSet::new();
        let mut said = false;
        while self.seats.len() < self.size() {
            tokio::select! {
                visitor = visitors.recv() => {
                    if let Some(Visitor::Member(card, line)) = visitor {
                        self.admit(card, line).await;
                    }
                }
                Some(found) = dialling.join_next() => {
                    if let Ok(Some((card, line))) = found
                        && !self.seats.contains_key(&card.rank)
                    {
                        self.seats.insert(card.rank, Seat::new(card, Some(line)));
                    }
                }
                () = sleep_until(next) => {
                    if tokio::time::Instant::now() >= deadline {
                        return;
                    }
                    next = (next + SAY_AFTER).min(deadline);
                    let missing = self.missing();
                    if !std::mem::replace(&mut said, true) {
                        let left = deadline.duration_since(tokio::time::Instant::now());
                        let left = left.as_secs_f64().ceil();
                        let who = ranks(&missing);
                        let note = format!("waits for {who}, for at most {left} s more");
                        (self.own.options.note)(&note);
                    }
                    if dialling.is_empty() {
                        for rank in missing.into_iter().take(DIALS_MAX) {
                            dialling.spawn(lead(self.own.clone(), rank));
                        }
                    }
                }
            }
        }
    }

    fn missing(&self) -> Vec<usize> {
        let all = 0..self.size();
        all.filter(|rank| !self.seats.contains_key(rank)).collect()
    }

    async fn admit(&mut self, card: Box<Card>, mut line: Connection) {
        let rank = card.rank;
        let from = line
            .peer_addr()
            .map_or(String::new(), |it| it.ip().to_string());
        if let Some(seat) = self.seats.get_mut(&rank) {
            let alive = seat
                .ask(&self.own, Order::Time, ANSWER_LIMIT)
                .await
                .is_some();
            if alive {
                let why = format!(
                    "rank {rank} is there already, on {}",
                    seat.guest.card.facts.host
                );
                self.turned_away.insert(format!("{from}: {why}"));
                let refused = Reply::Refused(why);
                let _it_may_be_gone = send(&mut line, &refused, ANSWER_LIMIT).await;
                return;
            }
        }
        if send(&mut line, &Reply::Welcome, ANSWER_LIMIT).await.is_ok() {
            self.seats.insert(rank, Seat::new(*card, Some(line)));
        }
    }

    /// Asks many processes at the same time.
    async fn ask_all(
        &mut self,
        orders: BTreeMap<usize, Order>,
        limit: Duration,
    ) -> BTreeMap<usize, Answer> {
        let mut running = JoinSet::new();
        for (rank, order) in orders {
            let Some(mut seat) = self.seats.remove(&rank) else {
                continue;
            };
            let own = self.own.clone();
            running.spawn(async move {
                let answer = seat.ask(&own, order, limit).await;
                (rank, seat, answer)
            });
        }
        let mut answers = BTreeMap::new();
        while let Some(done) = running.join_next().await {
            if let Ok((rank, seat, answer)) = done {
                self.seats.insert(rank, seat);
                answers.extend(answer.map(|answer| (rank, answer)));
            }
        }
        answers
    }

    /// A few exchanges with each process; only some processes at a time, as more of them would
    /// disturb each other.
    async fn compare_clocks(&mut self) {
        let ranks: Vec<usize> = self
            .seats
            .keys()
            .copied()
            .filter(|rank| *rank > 0)
            .collect();
        for some in ranks.chunks(CLOCKS_AT_A_TIME) {
            let mut running = JoinSet::new();
            for rank in some {
                let Some(mut seat) = self.seats.remove(rank) else {
                    continue;
                };
                let own = self.own.clone();
                running.spawn(async move {
                    seat.guest.clock = seat.compare_clocks(&own).await;
                    seat
                });
            }
            while let Some(done) = running.join_next().await {
                if let Ok(seat) = done {
                    self.seats.insert(seat.guest.card.rank, seat);
                }
            }
        }
    }

    /// Lets each process try the ranks that it has a pair with, and rank 0. Those that have not
    /// come are tried where they are listed.
    async fn reach(&mut self, pairs: &[Pair]) -> BTreeMap<Pair, Vec<Attempt>> {
        let mut wanted: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let with_leader = (1..self.size()).map(|rank| (rank, 0));
        let both = pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        for (from, to) in both.chain(with_leader) {
            wanted.entry(from).or_default().insert(to);
        }
        let present = wanted
            .into_iter()
            .filter(|(rank, _)| self.seats.contains_key(rank));
        let orders = present.map(|(from, to)| {
            (
                from,
                Order::Reach(to.iter().map(|it| self.target(*it)).collect()),
            )
        });
        let orders: BTreeMap<usize, Order> = orders.collect();
        let answers = self.ask_all(orders, REACH_LIMIT).await;
        let mut found: BTreeMap<Pair, Vec<Attempt>> = BTreeMap::new();
        for (from, answer) in answers {
            if let Answer::Reached(attempts) = answer {
                for attempt in attempts {
                    found.entry((from, attempt.rank)).or_default().push(attempt);
                }
            }
        }
        found
    }

    fn target(&self, rank: usize) -> Target {
        let card = self.seats.get(&rank).map(|seat| &seat.guest.card);
        let listed = || self.own.options.addresses.get(rank).cloned().flatten();
        Target {
            rank,
            address: card.and_then(|card| card.address.clone()).or_else(listed),
        }
    }

    /// The rounds, of the pairs that have reached each other in a direction; and how long each
    /// measurement of a direction may take, so that all of them end in some seconds.
    fn plan(&self, pairs: &[Pair], attempts: &BTreeMap<Pair, Vec<Attempt>>) -> (Plan, Duration) {
        let mut hosts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut host_of = BTreeMap::new();
        for (rank, seat) in &self.seats {
            let network = &*seat.guest.card.facts.network;
            // One that does not say is on a host of its own.
            let host = match network {
                "" => self.size() + rank,
                network => *hosts.entry(network).or_insert(*rank),
            };
            host_of.insert(*rank, host);
        }
        let reached = |from, to| is_reached(attempts, (from, to));
        let usable = pairs
            .iter()
            .filter(|(a, b)| reached(*a, *b) || reached(*b, *a));
        let usable: Vec<Pair> = usable.copied().collect();
        let plan = plan(&usable, |rank| host_of.get(&rank).copied().unwrap_or(rank));
        let count = u32::try_from(plan.rounds.len().max(1)).unwrap_or(u32::MAX);
        let slot = (MEASURING / count / 2).clamp(SLOT_MIN, SLOT_MAX);
        (plan, slot)
    }

    async fn measure(&mut self, findings: &mut Findings) {
        let begun = Instant::now();
        let rounds = std::mem::take(&mut findings.plan.rounds);
        for round in rounds {
            if begun.elapsed() > MEASURING_LIMIT {
                findings.plan.left_out += round.len();
                continue;
            }
            let there = round.iter().copied();
            let back = round.iter().map(|(a, b)| (*b, *a));
            for directions in [there.collect::<Vec<Pair>>(), back.collect()] {
                self.measure_all(directions, findings).await;
            }
            findings.plan.rounds.push(round);
        }
        self.look_again(findings).await;
    }

    /// Measures links again that seem far slower than the others, one after the other: a process
    /// that was kept from computing for a moment looks like one. The better figures count.
    async fn look_again(&mut self, findings: &mut Findings) {
        let host = |rank: &usize| {
            self.seats
                .get(rank)
                .map(|seat| &seat.guest.card.facts.network)
        };
        let is_local = |pair: &Pair| host(&pair.0) == host(&pair.1);
        let mut slow = Vec::new();
        for local in [false, true] {
            let of_kind = findings
                .figures
                .iter()
                .filter(|(pair, _)| is_local(pair) == local);
            let rates = of_kind.filter_map(|(pair, it)| Some((*pair, it.as_ref().ok()?)));
            let rates: Vec<(Pair, f64)> = rates
                .map(|(pair, figures)| (pair, figures.bytes_per_second))
                .collect();
            let median = median(rates.iter().map(|(_, rate)| *rate).collect());
            let far = rates
                .into_iter()
                .filter(|(_, rate)| median.is_some_and(|it| rate * FAR < it));
            slow.extend(far);
        }
        slow.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (pair, _) in slow.into_iter().take(LOOKS_MAX) {
            let Some(Ok(before)) = findings.figures.get(&pair).cloned() else {
                continue;
            };
            self.measure_all(vec![pair], findings).await;
            let better = match findings.figures.get(&pair) {
                Some(Ok(again)) => before.better(again),
                _ => before,
            };
            findings.figures.insert(pair, Ok(better));
        }
    }

    /// Measures one direction of each pair of a round, at the same time.
    async fn measure_all(&mut self, directions: Vec<Pair>, findings: &mut Findings) {
        let is_there = |rank: &usize| {
            self.seats
                .get(rank)
                .is_some_and(|it| it.guest.lost.is_none())
        };
        let usable = directions.into_iter().filter(|direction| {
            let both = is_there(&direction.0) && is_there(&direction.1);
            both && is_reached(&findings.attempts, *direction)
        });
        let usable: BTreeMap<usize, usize> = usable.collect();
        let orders = usable
            .iter()
            .map(|(from, to)| (*from, Order::Measure(self.target(*to), findings.slot)));
        let orders = orders.collect();
        let answers = self.ask_all(orders, EDGE_LIMIT).await;
        for (from, answer) in answers {
            if let (Answer::Measured(figures), Some(to)) = (answer, usable.get(&from)) {
                findings.figures.insert((from, *to), figures);
            }
        }
    }
}

fn is_reached(attempts: &BTreeMap<Pair, Vec<Attempt>>, direction: Pair) -> bool {
    let mut of = attempts.get(&direction).into_iter().flatten();
    of.any(|attempt| attempt.outcome.is_reached())
}

/// Dials a process that has not come.
async fn lead(own: Arc<Member>, rank: usize) -> Option<(Card, Connection)> {
    let address = own.options.addresses.get(rank).cloned().flatten()?;
    let limit = CONNECT_LIMIT * 2 + ANSWER_LIMIT * 3;
    let asked = async {
        let (_, line) = own.identity.dial(rank, &address).await;
        let mut line = line?;
        send(&mut line, &Opening::Lead, ANSWER_LIMIT).await.ok()?;
        match receive(&mut line, ANSWER_LIMIT).await.ok()? {
            Reply::Here(card) if card.rank == rank => Some((*card, line)),
            _ => None,
        }
    };
    timeout(limit, asked).await.ok().flatten()
}

// Who measures has an answer before rank 0 gives it up.
const _: () = assert!(
    EDGE_LIMIT.as_secs()
        > MEASURE_LIMIT.as_secs() + 2 * CONNECT_LIMIT.as_secs() + 2 * ANSWER_LIMIT.as_secs()
);
