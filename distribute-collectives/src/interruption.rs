//! Ending waits from outside: what a program's handler of signals tells the library.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use crate::sync::unpoisoned;

type Wake = Arc<dyn Fn() + Send + Sync>;

/// Ends every wait for other processes that was given a clone of it: rendezvous, connecting, the
/// operations of a group, the wait for a coordinator, for workers and for servers. While it is
/// [held](Self::hold), a wait for processes that live goes on: a training in which all take part
/// ends by its own means.
///
/// A program keeps one and raises it in its handler of Ctrl-C and SIGTERM. It stays raised: waits
/// that begin later end at once. Cheap to clone.
///
/// ```
/// use distribute_collectives::{Interruption, ProcessGroupOptions};
///
/// let interruption = Interruption::default();
/// let options = ProcessGroupOptions::new(0, ["127.0.0.1:0", "127.0.0.1:1"])
///     .interruption(interruption.clone());
/// // In the handler:
/// interruption.raise();
/// let joined = options.bind()?.join(["127.0.0.1:2", "127.0.0.1:1"]);
/// assert!(joined.is_err());
/// # Ok::<(), distribute_collectives::CollectiveError>(())
/// ```
#[derive(Clone, Default)]
pub struct Interruption(Arc<State>);

#[derive(Default)]
struct State {
    raised: AtomicBool,
    /// Number of [`InterruptionHold`] values that live.
    held: AtomicUsize,
    /// What wakes those that wait, by their numbers.
    wakes: Mutex<BTreeMap<u64, Wake>>,
}

/// Keeps an [`Interruption`] from ending waits for processes that live, until it is dropped.
#[must_use = "dropping it lets the interruption end waits again"]
pub struct InterruptionHold(Arc<State>);

/// A wait that an [`Interruption`] wakes; dropping this value unregisters the wait.
#[must_use = "dropping it ends the listening"]
pub struct InterruptionListener {
    state: Arc<State>,
    number: u64,
}

impl State {
    fn wakes(&self) -> MutexGuard<'_, BTreeMap<u64, Wake>> {
        // No code of others runs under the lock.
        unpoisoned(self.wakes.lock())
    }
}

impl Interruption {
    /// Ends all waits, those that begin later included. Blocks only as long as waking them takes.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        let wakes: Vec<Wake> = self.0.wakes().values().cloned().collect();
        wakes.iter().for_each(|wake| wake());
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Until the result is dropped, only waits for a process that gives no sign of life end: what
    /// is under way is worth more than to end at once, and those who live are expected to come.
    /// Several may hold it.
    pub fn hold(&self) -> InterruptionHold {
        self.0.held.fetch_add(1, Ordering::SeqCst);
        InterruptionHold(self.0.clone())
    }

    /// Whether it is [held](Self::hold): some [`InterruptionHold`] lives.
    pub fn is_held(&self) -> bool {
        self.0.held.load(Ordering::SeqCst) > 0
    }

    /// Calls `wake` when this is raised, on the thread that raises it, or here and now if it was.
    /// It may be called more than once, also a moment after what is returned was dropped.
    pub fn on_raise(&self, wake: impl Fn() + Send + Sync + 'static) -> InterruptionListener {
        let wake: Wake = Arc::new(wake);
        let number = {
            let mut wakes = self.0.wakes();
            // Above all others that live: they are woken in the order in which they came.
            let number = wakes.last_key_value().map_or(0, |(last, _)| last + 1);
            wakes.insert(number, wake.clone());
            number
        };
        if self.is_raised() {
            wake();
        }
        InterruptionListener {
            state: self.0.clone(),
            number,
        }
    }

    /// Waits so long, and returns earlier when this is raised; whether it was.
    pub fn raised_within(&self, time: Duration) -> bool {
        let (sender, receiver) = sync_channel(1);
        let _listening = self.on_raise(move || {
            let _is_raised_already = sender.try_send(());
        });
        receiver.recv_timeout(time).is_ok()
    }

    /// Ready when this is raised.
    pub async fn raised(&self) {
        let mut _listening = None;
        std::future::poll_fn(|context| {
            // Registered first: a raise after the check wakes this task.
            let task = context.waker().clone();
            _listening = Some(self.on_raise(move || task.wake_by_ref()));
            if self.is_raised() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl fmt::Debug for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interruption")
            .field(&self.is_raised())
            .finish()
    }
}

impl Drop for InterruptionHold {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for InterruptionHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InterruptionHold")
    }
}

impl Drop for InterruptionListener {
    fn drop(&mut self) {
        self.state.wakes().remove(&self.number);
    }
}

impl fmt::Debug for InterruptionListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InterruptionListener")
            .field(&self.number)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_as_long_as_a_hold_lives() {
        let interruption = Interruption::default();
        let (one, other) = (interruption.hold(), interruption.clone().hold());
        drop(one);
        assert!(interruption.is_held());
        drop(other);
        assert!(!interruption.is_held());
    }

    #[test]
    fn a_wait_for_it_ends_when_it_is_raised() {
        let interruption = Interruption::default();
        assert!(!interruption.raised_within(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| interruption.raised_within(Duration::from_secs(60)));
            interruption.raise();
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn only_listeners_are_notified() {
        let interruption = Interruption::default();
        let heard = Arc::new(AtomicUsize::new(0));
        let count = || {
            let heard = heard.clone();
            move || {
                heard.fetch_add(1, Ordering::SeqCst);
            }
        };
        let gone = interruption.on_raise(count());
        let stays = interruption.on_raise(count());
        drop(gone);
        assert!(!interruption.is_raised());
        interruption.clone().raise();
        assert!(interruption.is_raised());
        assert_eq!(heard.load(Ordering::SeqCst), 1);
        let late = interruption.on_raise(count());
        assert_eq!(heard.load(Ordering::SeqCst), 2);
        drop((stays, late));
        assert!(interruption.0.wakes().is_empty());
    }
}
