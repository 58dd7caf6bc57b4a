//! The threads of a job or an attempt.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};

use crate::error::{LaunchError, Result};

/// Starts threads and joins them. A [`std::thread::scope`] alone waits until the threads'
/// functions have returned, not until the system has ended the threads.
#[derive(Clone)]
pub struct ThreadScope<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    threads: Arc<Mutex<Threads<'scope>>>,
}

type Threads<'scope> = Vec<ScopedJoinHandle<'scope, ()>>;

impl<'scope, 'env> ThreadScope<'scope, 'env> {
    /// Runs `work` with a new scope, and returns when all its threads have ended: when `work`
    /// returns, the threads must have nothing left to wait for.
    pub fn run<T>(work: impl for<'s> FnOnce(&ThreadScope<'s, 'env>) -> T) -> T {
        thread::scope(|scope| {
            let threads = ThreadScope {
                scope,
                threads: Arc::default(),
            };
            let result = work(&threads);
            threads.join();
            result
        })
    }

    /// Starts a thread with a name.
    pub fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'scope) -> Result<()> {
        let builder = thread::Builder::new().name(name.to_owned());
        let spawned = builder
            .spawn_scoped(self.scope, run)
            .map_err(LaunchError::system::<io::Error>("cannot start a thread"))?;
        let mut threads = self.threads();
        let ended: Threads<'scope> = threads
            .extract_if(.., |thread| thread.is_finished())
            .collect();
        threads.push(spawned);
        drop(threads);
        join(ended);
        Ok(())
    }

    fn join(&self) {
        loop {
            let threads = std::mem::take(&mut *self.threads());
            if threads.is_empty() {
                return;
            }
            join(threads);
        }
    }

    fn threads(&self) -> MutexGuard<'_, Threads<'scope>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn join(threads: Threads<'_>) {
    for thread in threads {
        // None of the threads panics; one that does has ended as well.
        let _panicked = thread.join();
    }
}
