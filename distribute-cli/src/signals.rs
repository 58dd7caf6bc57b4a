//! Ctrl-C and the signals of a preemption.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::events::note;
use crate::failure::Failure;

/// What a shell reports for a program that SIGINT ended.
const ENDED_BY_SIGNAL: i32 = 130;

/// A flag that the first Ctrl-C (or SIGTERM, SIGHUP) sets. The second one ends the program at
/// once; a checkpoint that is being written then leaves the ones before it as they are. The first
/// one also wakes the calling thread where it is parked.
///
/// # Errors
/// If the system refuses the handler.
pub(crate) fn interrupt_flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let waiting = std::thread::current();
    let handler = move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(ENDED_BY_SIGNAL);
        }
        waiting.unpark();
        note("interrupted: finishing this step (once more ends at once)");
    };
    match ctrlc::set_handler(handler) {
        Ok(()) => Ok(flag),
        Err(error) => Err(Failure::failed(format!("cannot catch Ctrl-C ({error})"))),
    }
}
