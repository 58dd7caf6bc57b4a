//! The signals that reach the launcher.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::{Handle, Signals};

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::process::table::has_bit;
use crate::signals;
use crate::thread_scope::ThreadScope;

/// Turns signals to the launcher into events until it is dropped.
pub struct SignalWatch(Handle);

/// At this signal the launcher itself dies; the guard, if any, ends what is left.
const SIGNALS_TO_DIE: usize = 3;
impl SignalWatch {
    pub fn start(threads: &ThreadScope<'_, '_>, events: Events) -> Result<SignalWatch> {
        let failed = LaunchError::system("cannot listen to signals");
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let handled = signals::all().filter(|signal| !is_ignored(&status, *signal));
        let mut received = Signals::new(handled).map_err(failed)?;
        // A file that must not grow then causes a write error. A handler, unlike an ignored
        // signal, is not inherited by the processes.
        let _unused = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
        let watch = SignalWatch(received.handle());
        threads.spawn("signals", move || {
            let mut count = 0;
            for signal in received.forever() {
                count += usize::from(signals::insists(signal));
                if count >= SIGNALS_TO_DIE {
                    let _result = signal_hook::low_level::emulate_default_handler(signal);
                }
                events.try_send(Event::Signal(signal));
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

/// Whether this process was started with the signal ignored, as `nohup` does with SIGHUP and a
/// shell with SIGINT for background commands.
fn is_ignored(status: &str, signal: i32) -> bool {
    has_bit(status, "SigIgn:", signal)
}
