//! The signals that reach the launcher.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::thread_scope::ThreadScope;

/// Turns signals to the launcher into events until it is dropped.
pub struct SignalWatch(Handle);

/// After this many signals the launcher itself gives way; the guard, if any, ends what is left.
const SIGNALS_TO_DIE: usize = 3;

impl SignalWatch {
    pub fn start(threads: &ThreadScope<'_, '_>, events: Events) -> Result<SignalWatch> {
        let handled = [SIGINT, SIGTERM, SIGHUP].into_iter();
        let mut signals = Signals::new(handled.filter(|signal| !is_ignored(*signal)))
            .map_err(LaunchError::system("cannot listen to signals"))?;
        let watch = SignalWatch(signals.handle());
        threads.spawn("signals", move || {
            for (count, signal) in signals.forever().enumerate() {
                if count + 1 >= SIGNALS_TO_DIE {
                    let _result = signal_hook::low_level::emulate_default_handler(signal);
                }
                events.send(Event::Signal(signal));
            }
        })?;
        Ok(watch)
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Whether this process was started with the signal switched off, as `nohup` does with SIGHUP and a
/// shell with SIGINT for what it runs in the background.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigIgn:"));
    let mask = masks
        .next()
        .map(|mask| u64::from_str_radix(mask.trim(), 16));
    matches!(mask, Some(Ok(mask)) if mask >> (signal - 1) & 1 == 1)
}
