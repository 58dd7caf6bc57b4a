//! The signals that reach the launcher.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::{Handle, Signals};

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::process::table::has_bit;
use crate::thread_scope::ThreadScope;

/// Turns signals to the launcher into events until it is dropped.
pub struct SignalWatch(Handle);

/// After this many signals the launcher itself gives way; the guard, if any, ends what is left.
const SIGNALS_TO_DIE: usize = 3;
/// By which people and schedulers ask, and insist.
const INSISTING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
/// By which schedulers and limits announce the end: what asks once, however often it comes. (A
/// limit of CPU time sends one every second.)
const ANNOUNCING: [i32; 7] = [
    SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
];

/// Whether a second signal of this kind kills the processes.
pub fn insists(signal: i32) -> bool {
    INSISTING.contains(&signal)
}

impl SignalWatch {
    pub fn start(threads: &ThreadScope<'_, '_>, events: Events) -> Result<SignalWatch> {
        let failed = LaunchError::system("cannot listen to signals");
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let handled = INSISTING.iter().chain(&ANNOUNCING);
        let handled = handled.filter(|signal| !is_ignored(&status, **signal));
        let mut signals = Signals::new(handled).map_err(failed)?;
        // A file that must not grow is then an error of the write. A handler, unlike a signal that
        // is ignored, is not handed on to the processes.
        let _unused = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
        let watch = SignalWatch(signals.handle());
        threads.spawn("signals", move || {
            let mut count = 0;
            for signal in signals.forever() {
                count += usize::from(insists(signal));
                if count >= SIGNALS_TO_DIE {
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
fn is_ignored(status: &str, signal: i32) -> bool {
    has_bit(status, "SigIgn:", signal)
}
