//! The clocks of several hosts.

use std::fs;

use distribute_core::{Result, WorkerGroup};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Exchanges by which two clocks are compared: the shortest way of each direction counts.
const ROUNDS: usize = 16;

/// The clock of this host that does not jump, in nanoseconds. All processes of a host share it.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What stands on the clock of a process when it is 0 on that of worker 0, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Offset {
    pub(super) nanoseconds: f64,
    /// The true offset is not further away.
    pub(super) error: f64,
}

/// What one worker says in a round: which clock it has, what it showed before this exchange, and
/// what after the one before.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Reading {
    clock: String,
    run: String,
    before: u64,
    after: Option<u64>,
}

/// The offset of this worker's clock to that of the chief, and the name of the run, which all
/// workers have in common. All workers call it together.
///
/// Workers of one host share a clock. Of others the offset is bounded by what must follow what: no
/// worker leaves an exchange before all have entered it.
pub(super) fn compare(workers: &WorkerGroup) -> Result<(Offset, String)> {
    compare_as(workers, &name())
}

/// [`compare`] with a clock of this name.
fn compare_as(workers: &WorkerGroup, clock: &str) -> Result<(Offset, String)> {
    let run = format!("{}-{}", std::process::id(), now());
    let mut bounds = Bounds::default();
    let mut after = None;
    let mut of_chief = String::new();
    let mut has_clock_of_chief = false;
    for round in 0..=ROUNDS {
        let own = Reading {
            clock: clock.to_owned(),
            run: run.clone(),
            before: now(),
            after,
        };
        let all = workers.all_gather_json("the clocks", &own)?;
        let left = now();
        let Some(chief) = all.first() else { break };
        if round == 0 {
            of_chief.clone_from(&chief.run);
            has_clock_of_chief = chief.clock == clock;
            if all.iter().all(|other| other.clock == chief.clock) {
                return Ok((Offset::default(), of_chief));
            }
        }
        bounds.add(left, chief.before);
        bounds.add_return(chief.after);
        bounds.last_before = Some(own.before);
        after = Some(left);
    }
    // The chief itself, and who made the rounds for the workers of other hosts only.
    match has_clock_of_chief {
        true => Ok((Offset::default(), of_chief)),
        false => Ok((bounds.offset(), of_chief)),
    }
}

/// Between what the offset of a clock to another one lies.
#[derive(Debug, Default)]
struct Bounds {
    least: Option<f64>,
    most: Option<f64>,
    /// What the own clock showed before the last exchange.
    last_before: Option<u64>,
}

impl Bounds {
    /// This worker left an exchange when its clock showed `left`; the other one had entered it when
    /// its own showed `entered`.
    fn add(&mut self, left: u64, entered: u64) {
        let most = difference(left, entered);
        self.most = Some(self.most.map_or(most, |known| known.min(most)));
    }

    /// The other one left the exchange before when its clock showed this.
    fn add_return(&mut self, left: Option<u64>) {
        if let (Some(entered), Some(left)) = (self.last_before, left) {
            let least = difference(entered, left);
            self.least = Some(self.least.map_or(least, |known| known.max(least)));
        }
    }

    fn offset(&self) -> Offset {
        let (Some(least), Some(most)) = (self.least, self.most) else {
            return Offset::default();
        };
        Offset {
            nanoseconds: f64::midpoint(least, most),
            error: (most - least).abs() / 2.0,
        }
    }
}

fn difference(own: u64, other: u64) -> f64 {
    (i128::from(own) - i128::from(other)) as f64
}

/// What only processes with one clock have in common: the boot of the host, and the namespace in
/// which a container may have a clock of its own. A process that cannot find out shares no clock.
fn name() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = fs::read_link("/proc/self/ns/time");
    match (boot, space) {
        (Ok(boot), Ok(space)) => format!("{} {}", boot.trim(), space.display()),
        (Ok(boot), Err(_)) => boot.trim().to_string(),
        _ => format!("process {} at {}", std::process::id(), now()),
    }
}

#[cfg(test)]
mod tests {
    use distribute_core::CommunicationOptions;
    use distribute_core::collectives::{GroupOptions, in_process};

    use super::*;

    /// The offset that a worker finds whose clock is ahead of the chief's by so much, in exchanges
    /// that begin and end at these true times: of the chief, and of the worker.
    fn found(ahead: i64, exchanges: &[([u64; 2], [u64; 2])]) -> Offset {
        let own = |time: u64| time.checked_add_signed(ahead).unwrap();
        let mut bounds = Bounds::default();
        let mut chief_left = None;
        for (chief, worker) in exchanges {
            bounds.add(own(worker[1]), chief[0]);
            bounds.add_return(chief_left);
            bounds.last_before = Some(own(worker[0]));
            chief_left = Some(chief[1]);
        }
        bounds.offset()
    }

    #[test]
    fn the_true_offset_is_within_the_error() {
        // The one that comes last leaves soon after; the other one has waited.
        let exchanges = [
            ([1_000, 1_500], [1_400, 1_450]),
            ([2_000, 2_100], [1_600, 2_060]),
            ([2_200, 2_290], [2_210, 2_280]),
            ([3_000, 3_100], [3_050, 3_095]),
        ];
        for ahead in [-900, 0, 77, 1_000_000] {
            let offset = found(ahead, &exchanges);
            let off = (offset.nanoseconds - ahead as f64).abs();
            assert!(off <= offset.error, "{ahead}: {offset:?}");
            assert!(offset.error <= 80.0, "{ahead}: {offset:?}");
        }
    }

    #[test]
    fn a_worker_with_the_clock_of_the_chief_is_exact_beside_one_of_another_host() {
        let clocks = ["here", "here", "there"];
        let group = in_process(clocks.len(), GroupOptions::default()).unwrap();
        let workers = group.into_iter().zip(clocks).map(|(endpoint, clock)| {
            std::thread::spawn(move || {
                let options = CommunicationOptions::default();
                let workers = WorkerGroup::new(Box::new(endpoint), 1, options).unwrap();
                compare_as(&workers, clock).unwrap()
            })
        });
        let workers: Vec<_> = workers.collect();
        let found = workers.into_iter().map(|worker| worker.join().unwrap());
        let (offsets, runs): (Vec<_>, Vec<_>) = found.unzip();
        assert_eq!(offsets[..2], [Offset::default(); 2]);
        assert!(offsets[2].error > 0.0, "{offsets:?}");
        assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
    }

    #[test]
    fn processes_of_a_host_have_one_clock() {
        assert_eq!(name(), name());
        assert!(now() <= now());
    }
}
