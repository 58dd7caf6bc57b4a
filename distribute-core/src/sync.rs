//! Locks, and what a panic leaves behind.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Locks, also after a panic elsewhere: the data behind these locks is valid at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value behind a lock, once no other thread can use it.
pub(crate) fn unlocked<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic said.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = distribute_error::panic_text(payload);
    text.unwrap_or("(a panic without a message)").to_string()
}
