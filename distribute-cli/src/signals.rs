//! Ctrl-C, and the signals of preemptions and batch systems.
//!
//! The effect of a signal depends on the phase of the process. While it trains, the running step is
//! finished and saved. While it waits (for other processes, for data, for a compiler), the wait
//! ends with an error, or if the wait cannot be interrupted, the process ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use distribute_core::collectives::Interruption;
use distribute_fit::{Callback, Control, Outcome};

use crate::failure::Failure;
use crate::notes::note;
use crate::signal_table::{Meaning, name, saving};

/// Time for an interrupted wait to end with its own error.
const GRACE: Duration = Duration::from_millis(700);

/// The phase of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waiting, reading or compiling: nothing is lost when the process ends.
    Waiting,
    /// Making steps.
    Training,
    /// Working for the chief, which ends the process; without a chief, its wait ends.
    Serving,
    /// Everything is saved.
    Trained,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The first signal.
    signal: Option<i32>,
    /// Whether an order has come: the next order ends the process at once.
    ordered: bool,
}

/// The effect of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The process ends now.
    End,
    /// The first signal: the current phase ends.
    Begin,
    /// The end has begun already.
    Wait,
}

impl State {
    fn receive(&mut self, signal: i32) -> Next {
        let is_order = Meaning::of(signal) == Meaning::Order;
        if is_order && self.ordered {
            return Next::End;
        }
        self.ordered |= is_order;
        match self.signal {
            Some(_) => Next::Wait,
            None => {
                self.signal = Some(signal);
                Next::Begin
            }
        }
    }
}

#[derive(Debug)]
struct SignalsShared {
    flag: Arc<AtomicBool>,
    interruption: Interruption,
    state: Mutex<State>,
    changed: Condvar,
}

/// The signals that ask this process to end ([`Meaning`]). The second order ends it at once; a
/// checkpoint that is being written then leaves the ones before it as they are.
#[derive(Debug, Clone)]
pub(crate) struct Signals(Arc<SignalsShared>);

impl Signals {
    /// Installs the handlers. The first signal also wakes the calling thread if it is parked.
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
                ordered: false,
            }),
            changed: Condvar::new(),
        }));
        let mut caught = signal_hook::iterator::Signals::new(saving()).map_err(failed)?;
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
        let (next, phase) = {
            let mut state = self.state();
            (state.receive(signal), state.phase)
        };
        let name = name(signal);
        let is_order = Meaning::of(signal) == Meaning::Order;
        match next {
            Next::End => end(signal),
            Next::Wait if is_order => {
                return note(&format!("{name}: ending already (once more ends at once)"));
            }
            // The system may repeat it every second.
            Next::Wait => return,
            Next::Begin => {}
        }
        let hurry = if is_order {
            "once more ends at once"
        } else {
            "SIGTERM twice ends at once"
        };
        self.0.flag.store(true, Ordering::Relaxed);
        self.0.interruption.raise();
        match phase {
            Phase::Training => note(&format!("{name}: finishing this step ({hurry})")),
            Phase::Serving => note(&format!("{name}: ending with the chief ({hurry})")),
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

    /// Ends a process whose wait does not end.
    fn end_unless_it_changes(&self, phase: Phase, signal: i32) {
        let until = Instant::now() + GRACE;
        let mut state = self.state();
        while state.phase == phase {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                let when = match phase {
                    Phase::Trained => "after training",
                    _ => "before training began",
                };
                note(&format!("interrupted by {} {when}", name(signal)));
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

    /// A callback that marks the begin of training: after the first step if other processes or a
    /// compiler take part in it, otherwise at once.
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

    /// Whether a signal has come.
    pub(crate) fn was_raised(&self) -> bool {
        self.0.flag.load(Ordering::Relaxed)
    }

    /// The result of the process: an error after a signal in a wait counts as the end of the wait.
    pub(crate) fn outcome(&self, done: Result<(), Failure>) -> Result<(), Failure> {
        let State { phase, signal, .. } = *self.state();
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
        // Saving at the end, by any callback, is still part of training.
        self.signals.enter(Phase::Training);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXCPU};

    use super::{Next, Phase, State};

    /// The effects of consecutive signals.
    fn received(signals: &[i32]) -> Vec<Next> {
        let mut state = State {
            phase: Phase::Training,
            signal: None,
            ordered: false,
        };
        signals.iter().map(|it| state.receive(*it)).collect()
    }

    #[test]
    fn the_second_order_ends_at_once_and_a_notice_never_does() {
        use Next::{Begin, End, Wait};
        assert_eq!(received(&[SIGINT, SIGTERM]), [Begin, End]);
        // The system repeats the first every second; a batch system sends the last one at its
        // limit, however much earlier it has sent a notice.
        let repeated = received(&[SIGXCPU, SIGXCPU, SIGUSR1, SIGTERM, SIGUSR1, SIGTERM]);
        assert_eq!(repeated, [Begin, Wait, Wait, Wait, Wait, End]);
    }
}
