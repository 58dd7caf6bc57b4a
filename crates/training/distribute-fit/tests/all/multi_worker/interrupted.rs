//! A worker that is told to end while it waits for another one: the wait ends at once if nothing is
//! lost by that, and goes on otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use distribute_core::collectives::Interruption;
use distribute_core::{MultiWorkerMirroredStrategy, Result};
use distribute_fit::callbacks::{Interrupt, ModelCheckpoint};
use distribute_fit::{Callback, Control, Fit, Outcome};
use tempfile::TempDir;

use crate::common::{Points, new_state, objective};
use crate::multi_worker::group::{cluster, free_addresses};

/// How long a wait that must end at once may take on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);
/// The limit of everything else.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a wait that must go on is watched: several times as long as it takes to end one.
const GOES_ON: Duration = Duration::from_millis(800);

/// Where the chief pauses, so that the other worker has to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    AfterABatch,
    End,
}

/// Blocks the chief at a place until it is told to go on.
struct Pause {
    place: Option<Place>,
    /// The flag that is set after the first batch.
    stop: Option<Arc<AtomicBool>>,
    reached: Sender<()>,
    go: Receiver<()>,
}

impl Pause {
    fn at(&mut self, place: Place) {
        if self.place == Some(place) {
            self.place = None;
            self.reached.send(()).unwrap();
            self.go.recv_timeout(LIMIT).unwrap();
        }
    }
}

impl Callback for Pause {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.at(Place::Begin);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        if let Some(flag) = self.stop.take() {
            flag.store(true, Ordering::Relaxed);
        }
        self.at(Place::AfterABatch);
        Ok(())
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.at(Place::End);
        Ok(())
    }

    /// Callbacks that save are called first at the end, so it pauses before the wait for the save.
    fn saves(&self) -> bool {
        true
    }
}

/// Two workers that train, and whose chief pauses.
struct Job {
    reached: Receiver<()>,
    go: Sender<()>,
    /// The interruption of the worker that is not the chief.
    interruption: Interruption,
    flag: Arc<AtomicBool>,
    outcomes: [Receiver<Result<Outcome>>; 2],
    _folder: TempDir,
}

impl Job {
    fn start(place: Place) -> Self {
        Self::start_with(place, false)
    }

    /// `stops`: the worker that is not the chief wants all to stop after the first batch.
    fn start_with(place: Place, stops: bool) -> Self {
        let folder = TempDir::new().unwrap();
        let (path, addresses) = (folder.path().to_path_buf(), free_addresses(2));
        let (reach, reached) = channel();
        let (go, going) = channel();
        let mut going = Some(going);
        let (interruption, flag) = (Interruption::default(), Arc::<AtomicBool>::default());
        let outcomes = [0, 1].map(|index| {
            let (done, outcome) = channel();
            let (cluster, path) = (cluster(&addresses, index), path.clone());
            let is_chief = index == 0;
            let pause = Pause {
                place: is_chief.then_some(place),
                stop: (stops && !is_chief).then(|| flag.clone()),
                reached: reach.clone(),
                go: going.take().unwrap_or_else(|| channel().1),
            };
            let told = if is_chief {
                (Interruption::default(), Arc::default())
            } else {
                (interruption.clone(), flag.clone())
            };
            std::thread::spawn(move || {
                let (interruption, flag) = told;
                let strategy = MultiWorkerMirroredStrategy::builder()
                    .cluster(cluster)
                    .interruption(interruption)
                    .build();
                let outcome = strategy.and_then(|strategy| {
                    let saver = ModelCheckpoint::with_workers(&strategy, path)?;
                    let data = Points::new(&strategy);
                    let history = Fit::new(&strategy)
                        .epochs(2)
                        .callback(Interrupt::new(flag))
                        .callback(pause)
                        .callback(saver)
                        .run(&mut new_state(&strategy), &data, objective)?;
                    Ok(history.outcome)
                });
                let _ = done.send(outcome);
            });
            outcome
        });
        Self {
            reached,
            go,
            interruption,
            flag,
            outcomes,
            _folder: folder,
        }
    }

    /// Waits until the chief pauses.
    fn is_reached(&self) {
        self.reached.recv_timeout(LIMIT).unwrap();
    }

    /// Does what a signal does to the worker that is not the chief.
    fn interrupt(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.interruption.raise();
    }

    fn goes_on(&self) {
        let outcome = self.outcomes[1].recv_timeout(GOES_ON);
        assert!(
            matches!(outcome, Err(RecvTimeoutError::Timeout)),
            "{outcome:?}"
        );
    }

    /// Lets the chief go on; how both workers end.
    fn end(self) -> [Result<Outcome>; 2] {
        self.go.send(()).unwrap();
        self.outcomes
            .map(|outcome| outcome.recv_timeout(LIMIT).unwrap())
    }
}

/// Nothing is trained yet, so nothing is lost.
#[test]
fn a_wait_before_the_first_step_ends_at_once_on_all_workers() {
    let job = Job::start(Place::Begin);
    job.is_reached();
    job.interrupt();
    let error = job.outcomes[1].recv_timeout(AT_ONCE).unwrap().unwrap_err();
    assert!(error.is_interruption(), "{error:?}");
    let said = error.to_string();
    let missing = "missing: rank 0 at 127.0.0.1";
    assert!(said.contains(missing), "{said}");
    let Job { go, outcomes, .. } = job;
    go.send(()).unwrap();
    let of_chief = outcomes[0].recv_timeout(LIMIT).unwrap().unwrap_err();
    assert!(of_chief.is_interruption(), "{of_chief:?}");
    let said = of_chief.to_string();
    assert!(said.contains("rank 1 was interrupted"), "{said}");
}

/// The chief is busy between two steps, but alive: the training goes on to a common end.
#[test]
fn a_busy_chief_is_waited_for_and_all_stop_after_the_same_step() {
    let job = Job::start(Place::AfterABatch);
    job.is_reached();
    job.interrupt();
    job.goes_on();
    for outcome in job.end() {
        assert_eq!(outcome.unwrap(), Outcome::Interrupted);
    }
}

/// The worker has nothing left to do; the chief completes the save without it.
#[test]
fn the_wait_for_the_last_save_of_the_chief_ends_at_once_and_the_chief_is_done() {
    let job = Job::start(Place::End);
    job.is_reached();
    job.interrupt();
    let error = job.outcomes[1].recv_timeout(AT_ONCE).unwrap().unwrap_err();
    assert!(error.is_interruption(), "{error:?}");
    assert!(error.to_string().contains("rank 0"), "{error}");
    let Job { go, outcomes, .. } = job;
    go.send(()).unwrap();
    let of_chief = outcomes[0].recv_timeout(LIMIT).unwrap();
    assert_eq!(of_chief.unwrap(), Outcome::Completed);
}

/// All workers have agreed to save and end. The worker waits for the chief, whose process might be
/// ended when the process of the worker ends.
#[test]
fn the_save_that_all_have_agreed_on_is_waited_for() {
    let job = Job::start_with(Place::End, true);
    job.is_reached();
    job.interrupt();
    job.goes_on();
    for outcome in job.end() {
        assert_eq!(outcome.unwrap(), Outcome::Interrupted);
    }
}
