//! The clocks of several hosts.

use std::fs;

use distribute_core::{Result, WorkerGroup};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Number of exchanges that compare two clocks: the fastest one in each direction counts.
const ROUNDS: usize = 16;

/// The monotonic clock of this host in nanoseconds. All processes of a host share it.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time on a process' clock when worker 0's clock shows 0, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Offset {
    pub(super) nanoseconds: f64,
    /// The maximum error of the offset.
    pub(super) error: f64,
}

/// A worker's message in a round: the id of its clock, its time before this exchange, and its time
/// after the previous one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Reading {
    clock: String,
    run: String,
    before: u64,
    after: Option<u64>,
}

/// The offset of this worker's clock to the chief's, and the common name of the run. All workers
/// call it together.
///
/// Workers of one host share a clock. Between hosts, every exchange bounds the offset, because no
/// worker leaves an exchange before all have entered it.
pub(super) fn compare(workers: &WorkerGroup) -> Result<(Offset, String)> {
    compare_as(workers, &name())
}

/// [`compare`] with the clock of this id.
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
    // The chief itself, and workers on its host, which took part only for the others.
    if has_clock_of_chief {
        Ok((Offset::default(), of_chief))
    } else {
        Ok((bounds.offset(), of_chief))
    }
}

/// The bounds of the offset between two clocks.
#[derive(Debug, Default)]
struct Bounds {
    least: Option<f64>,
    most: Option<f64>,
    /// The time of this worker's clock before the last exchange.
    last_before: Option<u64>,
}

impl Bounds {
    /// This worker left an exchange at `left` on its clock; the other one had entered it at
    /// `entered` on its own clock.
    fn add(&mut self, left: u64, entered: u64) {
        let most = difference(left, entered);
        self.most = Some(self.most.map_or(most, |known| known.min(most)));
    }

    /// The other one left the previous exchange at this time on its clock.
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

/// An id that only processes with the same clock share: the boot id of the host, and the time
/// namespace, in which a container may have its own clock. If it is unknown, no clock is shared.
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

    /// The computed offset of a worker whose clock is ahead of the chief's by `ahead`, from
    /// exchanges that begin and end at these true times of the chief and of the worker.
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
        // The last one to enter leaves soon after; the other one has waited.
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
        let workers: Vec<_> = group
            .into_iter()
            .zip(clocks)
            .map(|(endpoint, clock)| {
                std::thread::spawn(move || {
                    let options = CommunicationOptions::default();
                    let workers = WorkerGroup::new(Box::new(endpoint), 1, options).unwrap();
                    compare_as(&workers, clock).unwrap()
                })
            })
            .collect();
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
