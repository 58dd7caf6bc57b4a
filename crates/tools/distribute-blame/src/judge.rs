//! Which rank the others waited for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use distribute_collectives::flight_record::{Line, Outcome};

use crate::call::Call as _;
use crate::slow::slow;
use crate::{Blame, Record};

pub(crate) fn judge(
    group: String,
    generation: u64,
    world_size: usize,
    records: Vec<Record>,
) -> Blame {
    let mut notes = Vec::new();
    let mut ranks: BTreeMap<usize, Record> = BTreeMap::new();
    for record in records {
        let head = &record.head;
        let other =
            (&head.group, head.generation, head.world_size) != (&group, generation, world_size);
        let (name, rank) = (&head.group, head.rank);
        if other {
            notes.push(format!(
                "the record of rank {rank} of {name} (generation {}, {} ranks) was not used",
                head.generation, head.world_size
            ));
            continue;
        }
        match ranks.entry(rank) {
            Entry::Vacant(entry) => {
                entry.insert(record);
            }
            Entry::Occupied(_) => {
                notes.push(format!(
                    "there is a second record of rank {rank}; it was not used"
                ));
            }
        }
    }
    let mut blame = Blame {
        group,
        generation,
        world_size,
        sequence: None,
        lagging: Vec::new(),
        late: Vec::new(),
        diverging: Vec::new(),
        missing: (0..world_size)
            .filter(|rank| !ranks.contains_key(rank))
            .collect(),
        slow: Vec::new(),
        findings: Vec::new(),
        notes,
    };
    let ranks: Vec<Rank> = ranks.values().map(Rank::new).collect();
    find(&mut blame, &ranks);
    let calls = ranks.iter().map(|rank| (rank.number(), rank.calls.clone()));
    for (rank, finding) in slow(&calls.collect::<Vec<_>>()) {
        blame.slow.push(rank);
        blame.findings.push(finding);
    }
    if !blame.missing.is_empty() {
        blame.findings.push(format!(
            "{} left no record: killed, stuck outside of any operation, or still running",
            numbers(&blame.missing)
        ));
    }
    blame
}

/// One rank's record, by operation.
struct Rank<'a> {
    record: &'a Record,
    /// The collective operations; the last try of each.
    calls: BTreeMap<u64, &'a Line>,
}

impl<'a> Rank<'a> {
    fn new(record: &'a Record) -> Self {
        let collective = record.lines.iter().filter(|line| !line.is_point_to_point());
        Rank {
            record,
            calls: collective.map(|line| (line.sequence, line)).collect(),
        }
    }

    fn number(&self) -> usize {
        self.record.head.rank
    }

    /// Whether the record does not have all operations any more.
    fn has_forgotten(&self) -> bool {
        self.record.head.operations > self.record.lines.len() as u64
    }

    /// The first operation that the record can say anything about.
    fn first(&self) -> u64 {
        if !self.has_forgotten() {
            return 0;
        }
        // Point-to-point calls have the number of the next collective operation: when only they are
        // left, all before it were begun.
        let next = self.record.lines.iter().map(|line| line.sequence).max();
        let first = self.calls.keys().next().copied();
        first.or(next).unwrap_or(0)
    }

    fn wall_us(&self, time_us: u64) -> u64 {
        self.record.head.started_unix_us.saturating_add(time_us)
    }

    /// How long the rank has been in an operation.
    fn waited_us(&self, line: &Line) -> u64 {
        let end = line.end_us.unwrap_or(self.record.head.written_us);
        end.saturating_sub(line.begin_us)
    }

    /// The last thing this rank did, in words.
    fn last_operation(&self) -> String {
        let Some(line) = self.record.lines.last() else {
            return "it has begun no operation at all".to_string();
        };
        let outcome = match line.outcome {
            Outcome::Done => "done".to_string(),
            Outcome::Running => format!("still in it after {}", seconds(self.waited_us(line))),
            Outcome::Timeout | Outcome::Error => {
                line.error.clone().unwrap_or_else(|| "failed".to_string())
            }
        };
        let call = if line.is_point_to_point() {
            format!("a {}", line.in_full())
        } else {
            format!("{} ({})", line.sequence, line.brief())
        };
        format!("its last operation was {call}, {outcome}")
    }
}

/// Looks for the first operation that not all ranks began, or not with the same call.
fn find(blame: &mut Blame, ranks: &[Rank]) {
    let first = ranks.iter().map(Rank::first).max().unwrap_or(0);
    let mut sequences: Vec<u64> = ranks
        .iter()
        .flat_map(|rank| rank.calls.keys().copied())
        .collect();
    sequences.retain(|sequence| *sequence >= first);
    sequences.sort_unstable();
    sequences.dedup();
    for sequence in &sequences {
        blame.sequence = Some(*sequence);
        let in_it: Vec<(&Rank, &Line)> = ranks
            .iter()
            .filter_map(|rank| Some((rank, *rank.calls.get(sequence)?)))
            .collect();
        let absent: Vec<&Rank> = ranks
            .iter()
            .filter(|rank| !rank.calls.contains_key(sequence))
            .collect();
        let differs = diverging(blame, &in_it) | lagging(blame, &in_it, &absent);
        let failed = in_it.iter().any(|(_, line)| line.error.is_some());
        if failed && !differs {
            late(blame, &in_it);
        }
        if failed || differs {
            return errors(blame, &in_it);
        }
    }
    waiting(blame, ranks);
}

/// Ranks that made another call than most.
fn diverging(blame: &mut Blame, in_it: &[(&Rank, &Line)]) -> bool {
    let mut calls: Vec<(&Line, Vec<usize>)> = Vec::new();
    for (rank, line) in in_it {
        match calls.iter_mut().find(|(call, _)| call.is_same_call(line)) {
            Some((_, ranks)) => ranks.push(rank.number()),
            None => calls.push((line, vec![rank.number()])),
        }
    }
    if calls.len() < 2 {
        return false;
    }
    // The largest set first; sets of one size stay in the order of their first ranks.
    calls.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let majority = calls[0].1.len() > calls[1].1.len();
    let others = calls.iter().skip(usize::from(majority));
    blame.diverging = others.flat_map(|(_, ranks)| ranks.clone()).collect();
    blame.diverging.sort_unstable();
    let same_words = calls
        .iter()
        .all(|(call, _)| call.in_full() == calls[0].0.in_full());
    let called = |(call, ranks): &(&Line, Vec<usize>)| {
        let layout = if same_words {
            format!(" (layout {})", call.layout)
        } else {
            String::new()
        };
        format!("{} called {}{layout}", numbers(ranks), call.in_full())
    };
    let calls: Vec<String> = calls.iter().rev().map(called).collect();
    blame.findings.push(format!(
        "the calls differ in operation {}: {}",
        in_it[0].1.sequence,
        calls.join("; ")
    ));
    true
}

/// Ranks that never began what others wait in.
fn lagging(blame: &mut Blame, in_it: &[(&Rank, &Line)], absent: &[&Rank]) -> bool {
    let Some((_, line)) = in_it.first() else {
        return false;
    };
    let waiting: Vec<usize> = in_it.iter().map(|(rank, _)| rank.number()).collect();
    let waited = in_it.iter().map(|(rank, line)| rank.waited_us(line)).max();
    for rank in absent {
        blame.lagging.push(rank.number());
        blame.findings.push(format!(
            "rank {} never began operation {} ({}), {} waited {} in it; {}",
            rank.number(),
            line.sequence,
            line.brief(),
            numbers(&waiting),
            seconds(waited.unwrap_or(0)),
            rank.last_operation()
        ));
    }
    !absent.is_empty()
}

/// Ranks that began an operation after another one had waited for them in vain. When the operation
/// ended for another reason than a deadline, the order in which ranks came says nothing.
fn late(blame: &mut Blame, in_it: &[(&Rank, &Line)]) {
    let failed = in_it.iter().filter(|(_, line)| line.error.is_some());
    let first = failed
        .filter_map(|(rank, line)| Some((rank.wall_us(line.end_us?), line.outcome)))
        .min_by_key(|(end, _)| *end);
    let Some((gave_up, Outcome::Timeout)) = first else {
        return;
    };
    for (rank, line) in in_it {
        let begin = rank.wall_us(line.begin_us);
        if begin > gave_up {
            blame.late.push(rank.number());
            blame.findings.push(format!(
                "rank {} began operation {} ({}) {} after the first rank had given it up",
                rank.number(),
                line.sequence,
                line.brief(),
                seconds(begin - gave_up)
            ));
        }
    }
}

/// The ranks' reports about an operation.
fn errors(blame: &mut Blame, in_it: &[(&Rank, &Line)]) {
    let mut texts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, line) in in_it {
        let Some(error) = line.error.as_deref() else {
            continue;
        };
        match texts.iter_mut().find(|(text, _)| *text == error) {
            Some((_, ranks)) => ranks.push(rank.number()),
            None => texts.push((error, vec![rank.number()])),
        }
    }
    for (text, ranks) in texts {
        blame
            .findings
            .push(format!("{} reported: {text}", numbers(&ranks)));
    }
}

/// All ranks made the same calls and none failed.
fn waiting(blame: &mut Blame, ranks: &[Rank]) {
    let last = blame.sequence.and_then(|sequence| {
        let line = ranks.iter().find_map(|rank| rank.calls.get(&sequence))?;
        Some((sequence, line.brief()))
    });
    let Some((sequence, call)) = last else {
        let forgotten: Vec<usize> = ranks
            .iter()
            .filter(|rank| rank.has_forgotten())
            .map(Rank::number)
            .collect();
        blame.findings.push(if forgotten.is_empty() {
            "no operation has begun".to_string()
        } else {
            format!(
                "no difference in the remaining records: {} made too many calls since, so no \
                 operation is in all records",
                numbers(&forgotten)
            )
        });
        return;
    };
    let running = |rank: &&Rank| {
        let line = rank.calls.get(&sequence);
        line.is_some_and(|line| line.outcome == Outcome::Running)
    };
    let running: Vec<usize> = ranks.iter().filter(running).map(Rank::number).collect();
    blame.findings.push(if running.is_empty() {
        format!("no difference: all ended operation {sequence} ({call})")
    } else {
        format!(
            "no difference: {} still in operation {sequence} ({call})",
            numbers(&running)
        )
    });
}

/// `rank 2` or `ranks 0, 1, 3`.
fn numbers(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", list.join(", "))
}

fn seconds(micros: u64) -> String {
    format!("{:.1} s", micros as f64 / 1e6)
}
