//! What threads and processes meet by: atomics, locks and the futex.
//!
//! In the tests with the feature `loom` these are loom's, so that the models in the modules
//! `models` run the code itself in every order that the memory model allows.

#[cfg(not(all(test, feature = "loom")))]
mod real {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};
    #[cfg(feature = "shm")]
    use std::time::Duration;

    #[cfg(feature = "shm")]
    use rustix::thread::futex::{self, Flags, Timespec};

    /// Sleeps for at most `nap` until another process wakes the word, unless it is no longer
    /// `expected`.
    #[cfg(feature = "shm")]
    pub(crate) fn futex_wait(word: &atomic::AtomicU32, expected: u32, nap: Duration) {
        let nap = Timespec::try_from(nap).ok();
        // Every outcome (woken, rung before, interrupted, timed out) means: look again.
        let _ = futex::wait(word, Flags::empty(), expected, nap.as_ref());
    }

    /// Wakes who sleeps on the word.
    #[cfg(feature = "shm")]
    pub(crate) fn futex_wake(word: &atomic::AtomicU32) {
        // Not `PRIVATE`: the sleeper is in another process. An error would mean that the address
        // is not mapped; it is.
        let _ = futex::wake(word, Flags::empty(), 1);
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use std::sync::PoisonError;
    use std::time::Duration;

    use loom::lazy_static;
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

    lazy_static! {
        /// The lock of the kernel's table, and all that sleep.
        static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// Like the real one, but without the timeout: code that relies on it then sleeps forever,
    /// which loom reports.
    pub(crate) fn futex_wait(word: &atomic::AtomicU32, expected: u32, _nap: Duration) {
        let table = SLEEPERS.0.lock().unwrap_or_else(PoisonError::into_inner);
        if word.load(atomic::Ordering::SeqCst) == expected {
            drop(SLEEPERS.1.wait(table));
        }
    }

    pub(crate) fn futex_wake(_word: &atomic::AtomicU32) {
        drop(SLEEPERS.0.lock());
        SLEEPERS.1.notify_all();
    }
}

#[cfg(all(test, feature = "loom"))]
pub(crate) use model::*;
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use real::*;

/// What a lock guards, also after a panic of a thread that held it: no lock of this crate is held
/// across code that can panic half-way through a change.
pub(crate) fn unpoisoned<G>(locked: std::sync::LockResult<G>) -> G {
    locked.unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether to poll before sleeping: a model would only see the same again and again.
pub(crate) const POLLS: bool = cfg!(not(all(test, feature = "loom")));
