//! Locks.

use std::sync::{Mutex, PoisonError};

/// Locks, also after a panic elsewhere: the data behind these locks is valid at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
