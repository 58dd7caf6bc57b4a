//! Workers that are slow for so long that the job is to go on without them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::file_tasks::FileTasks;
use crate::job::task::Role;
use crate::posts::PostBody;
use crate::report::slow_request;
use crate::run::attempt::Attempt;
use crate::run::attempt::phase::Phase;
use crate::run::session::Session;
use crate::run::start::Starter;

/// How often to look whether a worker says that it is slow.
const INTERVAL: Duration = Duration::from_millis(500);

/// The workers of this host that say that they are slow, in a job that drops such workers.
pub struct SlowWorkers {
    /// How long a worker is slow before the job goes on without it; `None`: it never does.
    after: Option<Duration>,
    /// When to look next.
    due: Instant,
    /// Since when each process says so.
    since: BTreeMap<usize, Instant>,
    /// Whether it was asked, in this attempt, to go on without one.
    is_asked: bool,
}

impl SlowWorkers {
    pub fn new(after: Option<Duration>) -> SlowWorkers {
        SlowWorkers {
            after,
            due: Instant::now(),
            since: BTreeMap::new(),
            is_asked: false,
        }
    }

    /// When to look next.
    pub fn due(&self) -> Option<Instant> {
        let looks = self.after.is_some() && !self.is_asked;
        looks.then_some(self.due)
    }

    /// Returns, once per attempt, the number of a process that has been slow for long enough, and
    /// what it says.
    fn look(&mut self, paths: &[(usize, PathBuf)], files: &FileTasks) -> Option<(usize, String)> {
        let after = self.after?;
        let now = Instant::now();
        if self.is_asked || now < self.due {
            return None;
        }
        self.due = now + INTERVAL;
        for (index, path) in paths {
            let Some(line) = slow_request::read(path, files) else {
                self.since.remove(index);
                continue;
            };
            let since = *self.since.entry(*index).or_insert(now);
            if now.duration_since(since) >= after {
                self.is_asked = true;
                return Some((*index, line));
            }
        }
        None
    }
}

impl Attempt<'_> {
    /// Asks host 0 to go on without this host, or decides it if this is the only host, when a
    /// worker has been slow for long enough.
    pub(super) fn look_for_slow_workers(
        &mut self,
        session: &mut Session<'_>,
        starter: &Starter<'_, '_, '_>,
    ) {
        if self.phase.current() != Phase::Running {
            return;
        }
        let paths = self.members.slow_requests(Role::Worker);
        let Some((index, why)) = self.slow.look(&paths, session.logs.files()) else {
            return;
        };
        if session.group.is_some() {
            return session.post(PostBody::Slow(why));
        }
        let place = starter.place_of(index);
        let membership = session.membership.as_mut();
        let is_dropped = membership.is_some_and(|it| it.note_slow(0, place));
        self.answer(&why, "this worker", is_dropped, session.job.workers.least);
    }

    /// Host 0 has decided about a host of which a worker is slow.
    pub(super) fn slow_host(&mut self, host: usize, why: &str, is_dropped: bool, least: usize) {
        self.answer(why, &format!("host {host}"), is_dropped, least);
    }

    fn answer(&mut self, why: &str, whom: &str, is_dropped: bool, least: usize) {
        if !is_dropped {
            return self.log(&format!(
                "{why}: the job goes on with it all the same, because too few of its at least \
                 {least} workers would be left (--drop-stragglers)"
            ));
        }
        self.log(&format!("{why}: the job goes on without {whom}"));
        if self.phase.current() == Phase::Running {
            self.ask_to_save();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_worker_that_stays_slow_is_given_up_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let files = &FileTasks::default();
        let paths: Vec<(usize, PathBuf)> = ["a", "b"]
            .into_iter()
            .map(|name| folder.path().join(name))
            .enumerate()
            .collect();
        let mut slow = SlowWorkers::new(Some(Duration::from_secs(3600)));
        std::fs::write(&paths[1].1, "slow").unwrap();
        assert_eq!(slow.look(&paths, files), None);
        assert_eq!(slow.since.keys().collect::<Vec<_>>(), [&1]);
        // It has recovered.
        std::fs::remove_file(&paths[1].1).unwrap();
        slow.due = Instant::now();
        assert_eq!(slow.look(&paths, files), None);
        assert!(slow.since.is_empty());
        std::fs::write(&paths[0].1, "slow").unwrap();
        slow.after = Some(Duration::ZERO);
        slow.due = Instant::now();
        assert_eq!(slow.look(&paths, files), Some((0, "slow".to_owned())));
        slow.due = Instant::now();
        assert_eq!(slow.look(&paths, files), None);
        assert_eq!(slow.due(), None);
    }
}
