//! Progress messages while a step is compiled, which may take minutes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use distribute_tpu_xla::CompileProgress;

use crate::failure::Failure;
use crate::notes::note;

/// Interval between messages that the compiler is still running.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);

/// Reports the compiler's progress, and writes the program before it is compiled.
#[derive(Debug)]
pub(crate) struct CompileWatch {
    topology: String,
    dump: Option<(PathBuf, File)>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Ends the reporting thread when it is dropped.
    speaking: Option<Sender<()>>,
    /// Why the program could not be written.
    failed: Option<String>,
}

impl CompileWatch {
    /// Creates the file for the program, so that an error is reported at once.
    pub(crate) fn new(topology: &str, dump: Option<&Path>) -> Result<Self, Failure> {
        let open = |path: &Path| match File::create(path) {
            Ok(file) => Ok((path.to_path_buf(), file)),
            Err(error) => Err(Failure::usage(not_written(path, &error))),
        };
        Ok(Self {
            topology: topology.to_string(),
            dump: dump.map(open).transpose()?,
            state: Mutex::default(),
        })
    }

    /// What the compiler reports.
    pub(crate) fn on_progress(&self, progress: &CompileProgress<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            CompileProgress::Lowered {
                stablehlo,
                replicas,
            } => {
                let lines = stablehlo.lines().count();
                note(&format!(
                    "compiling for {}: {lines} lines of StableHLO for {replicas} replicas",
                    self.topology
                ));
                state.failed = self.write(stablehlo).err();
                state.speaking = note_until_dropped();
            }
            CompileProgress::Compiled { .. } => state.speaking = None,
            _ => {}
        }
    }

    fn write(&self, program: &str) -> Result<(), String> {
        let Some((path, file)) = &self.dump else {
            return Ok(());
        };
        let mut file: &File = file;
        file.write_all(program.as_bytes())
            .map_err(|error| not_written(path, &error))
    }

    /// # Errors
    /// If the program could not be written.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .failed
            .as_ref()
            .map_or(Ok(()), |why| Err(Failure::failed(why)))
    }
}

fn not_written(path: &Path, error: &std::io::Error) -> String {
    format!(
        "cannot write the program to {} ({error}); name another file with --dump-stablehlo",
        path.display()
    )
}

/// Reports regularly that the compiler is still running, if a thread can be started.
fn note_until_dropped() -> Option<Sender<()>> {
    let (sender, dropped) = channel();
    let started = Instant::now();
    let speak = move || {
        while dropped.recv_timeout(NOTE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let seconds = started.elapsed().as_secs();
            note(&format!("still compiling ({seconds} s)"));
        }
    };
    let thread = thread::Builder::new().name("compile-watch".to_string());
    thread.spawn(speak).ok().map(|_| sender)
}

/// Peak memory of this process, which includes the compiler; known only on Linux.
pub(crate) fn compiler_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}
