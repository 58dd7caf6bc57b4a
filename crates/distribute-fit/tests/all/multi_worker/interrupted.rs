//! A worker that is told to end while it waits for another one: waits that nobody needs end at
//! once, what is worth something goes on.

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

/// How long a wait may go on that is to end: a second, and what a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(3);
/// For what takes long.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a wait is watched that goes on: several times what it takes to end one.
const GOES_ON: Duration = Duration::from_millis(800);

/// Where the chief lets the others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    AfterABatch,
    End,
}

/// Blocks at a place, on the chief.
struct Pause {
    place: Option<Place>,
    /// What is set after the first batch.
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

    /// As what saves, so that at the end it comes before what waits for the chief's save.
    fn saves(&self) -> bool {
        true
    }
}

/// Two workers that train, the chief of which pauses.
struct Job {
    reached: Receiver<()>,
    go: Sender<()>,
    /// Of the worker that is not the chief.
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
            let told = match is_chief {
                true => (Interruption::default(), Arc::default()),
                false => (interruption.clone(), flag.clone()),
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

    /// The chief is where the other one will wait for it.
    fn is_reached(&self) {
        self.reached.recv_timeout(LIMIT).unwrap();
    }

    /// The signal.
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

    /// The chief goes on: how both end.
    fn end(self) -> [Result<Outcome>; 2] {
        self.go.send(()).unwrap();
        self.outcomes
            .map(|outcome| outcome.recv_timeout(LIMIT).unwrap())
    }
}

/// Nothing is trained yet.
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

/// What the chief does between two steps takes long, but it lives: the training is not thrown away.
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

/// The worker has nothing left to do, and the save is the chief's.
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

/// All have agreed to save and end: the process of the chief may end with that of the worker, so
/// that one waits for it.
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
