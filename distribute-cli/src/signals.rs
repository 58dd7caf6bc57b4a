//! Ctrl-C and the signals of a preemption.
//!
//! What a signal does depends on what the process is about. While it trains, the running step is
//! finished and saved. While it waits (for other processes, for data, for a compiler) there is
//! nothing to finish: the wait ends, and if it does not know how, the process does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use distribute_core::collectives::Interruption;
use distribute_data::fit::{Callback, Control, Outcome};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::notes::note;

/// How long a wait may take to end by itself, saying what it waited for.
const GRACE: Duration = Duration::from_millis(700);

/// What a process is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It waits, reads or compiles: nothing is lost when it ends.
    Waiting,
    /// It makes steps.
    Training,
    /// It works for the chief, who ends it; without one, its wait ends.
    Serving,
    /// What was to be saved is.
    Trained,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The first signal.
    signal: Option<i32>,
}

#[derive(Debug)]
struct SignalsShared {
    flag: Arc<AtomicBool>,
    interruption: Interruption,
    state: Mutex<State>,
    changed: Condvar,
}

/// The signals that ask this process to end. The second one ends it at once; a checkpoint that is
/// being written then leaves the ones before it as they are.
#[derive(Debug, Clone)]
pub(crate) struct Signals(Arc<SignalsShared>);

impl Signals {
    /// Catches them from now on. The first one also wakes the calling thread where it is parked.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let failed = |error| Failure::failed(format!("cannot catch Ctrl-C ({error})"));
        let signals = Self(Arc::new(SignalsShared {
            flag: Arc::new(AtomicBool::new(false)),
            interruption: Interruption::default(),
            state: Mutex::new(State {
                phase: Phase::Waiting,
                signal: None,
            }),
            changed: Condvar::new(),
        }));
        let mut caught =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let (own, parked) = (signals.clone(), thread::current());
        thread::Builder::new()
            .name("signals".to_string())
            .spawn(move || {
                for signal in caught.forever() {
                    own.receive(signal);
                    parked.unpark();
                }
            })
            .map_err(failed)?;
        Ok(signals)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, signal: i32) {
        let phase = {
            let mut state = self.state();
            if state.signal.is_some() {
                drop(state);
                end(signal);
            }
            state.signal = Some(signal);
            state.phase
        };
        self.0.flag.store(true, Ordering::Relaxed);
        self.0.interruption.raise();
        match phase {
            Phase::Training => note("interrupted: finishing this step (once more ends at once)"),
            Phase::Serving => {
                note("interrupted: ending with the chief (once more ends at once)");
            }
            Phase::Waiting | Phase::Trained => {
                let own = self.clone();
                let watch = move || own.end_unless_it_changes(phase, signal);
                let watching = thread::Builder::new()
                    .name("end of a wait".to_string())
                    .spawn(watch);
                if watching.is_err() {
                    end(signal);
                }
            }
        }
    }

    /// Ends a process that goes on waiting.
    fn end_unless_it_changes(&self, phase: Phase, signal: i32) {
        let until = Instant::now() + GRACE;
        let mut state = self.state();
        while state.phase == phase {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                let what = match phase {
                    Phase::Trained => "interrupted after training",
                    _ => "interrupted before training began",
                };
                note(what);
                end(signal);
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn enter(&self, phase: Phase) {
        self.state().phase = phase;
        self.0.changed.notify_all();
    }

    /// From now on the process works for a chief.
    pub(crate) fn serve(&self) {
        self.enter(Phase::Serving);
    }

    /// Training is over.
    pub(crate) fn trained(&self) {
        self.enter(Phase::Trained);
    }

    /// Says when training has begun: where others or a compiler take part in the first step, when
    /// that has ended, and else at once.
    pub(crate) fn training(&self, after_a_step: bool) -> TrainingBegins {
        TrainingBegins {
            signals: self.clone(),
            after_a_step,
        }
    }

    /// Set by the first signal.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.flag)
    }

    /// Raised by the first signal.
    pub(crate) fn interruption(&self) -> Interruption {
        self.0.interruption.clone()
    }

    /// Whether there was one.
    pub(crate) fn was_raised(&self) -> bool {
        self.0.flag.load(Ordering::Relaxed)
    }

    /// How a process ends that has done this: what failed after a signal in a wait was the end of
    /// that wait.
    pub(crate) fn outcome(&self, done: Result<(), Failure>) -> Result<(), Failure> {
        let State { phase, signal } = *self.state();
        match (done, signal) {
            (Err(failure), Some(signal))
                if matches!(phase, Phase::Waiting | Phase::Serving)
                    || failure.is_interruption() =>
            {
                Err(failure.by_signal(signal))
            }
            (done, _) => done,
        }
    }
}

/// Ends the process as a shell reports the end by a signal. At once: destructors of a library's
/// global state, which `exit` would run, do not expect that one of its threads still compiles.
fn end(signal: i32) -> ! {
    signal_hook::low_level::exit(128 + signal)
}

/// A callback, see [`Signals::training`].
#[derive(Debug)]
pub(crate) struct TrainingBegins {
    signals: Signals,
    after_a_step: bool,
}

impl Callback for TrainingBegins {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> distribute_core::Result<()> {
        if !self.after_a_step {
            self.signals.enter(Phase::Training);
        }
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut Control<'_>) -> distribute_core::Result<()> {
        self.signals.enter(Phase::Training);
        Ok(())
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> distribute_core::Result<()> {
        // What is saved at the end, by whichever callback, is still training.
        self.signals.enter(Phase::Training);
        Ok(())
    }
}
