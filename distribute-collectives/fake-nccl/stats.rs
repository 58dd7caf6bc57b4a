//! What exists, for tests that look for leaks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::settings;

static STATS: Mutex<BTreeMap<&'static str, i64>> = Mutex::new(BTreeMap::new());

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes a number and writes all of them down.
pub fn add(name: &'static str, change: i64) {
    update(name, |value| value + change);
}

/// Notes the largest number.
pub fn largest(name: &'static str, value: i64) {
    update(name, |old| old.max(value));
}

fn update(name: &'static str, change: impl FnOnce(i64) -> i64) {
    let mut stats = lock(&STATS);
    let value = stats.entry(name).or_default();
    *value = change(*value);
    let lines: Vec<String> = stats
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let path = settings::directory().join(format!("stats-{}", std::process::id()));
    let _ = std::fs::write(path, lines.join("\n"));
}
