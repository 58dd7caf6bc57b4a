//! Starts processes on a thread of its own. The start returns when the new process runs its
//! program, and a file system that does not answer can delay that without end; only this thread
//! hangs then, and it is left behind.
//!
//! On Linux the processes die with the thread that has started them, so it lives as long as the
//! job.

use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long the system may take to begin a program.
pub const START_LIMIT: Duration = Duration::from_secs(30);

/// The thread, and the way to it.
pub struct Spawner {
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
    /// A start has taken too long: the thread is left behind.
    is_stuck: AtomicBool,
    limit: Duration,
}

struct Request {
    command: Command,
    answer: SyncSender<io::Result<Child>>,
}

impl Spawner {
    /// Starts the thread. A start of a process fails if it takes longer than `limit`.
    pub fn new(limit: Duration) -> io::Result<Spawner> {
        let (requests, received) = mpsc::sync_channel::<Request>(1);
        let thread = Builder::new().name("start".to_owned()).spawn(move || {
            for Request {
                mut command,
                answer,
            } in received
            {
                if let Err(late) = answer.send(command.spawn())
                    && let Ok(mut child) = late.0
                {
                    // It was given up, so it must not run.
                    let _ended = child.kill();
                    let _status = child.wait();
                }
            }
        })?;
        Ok(Spawner {
            requests: Some(requests),
            thread: Some(thread),
            is_stuck: AtomicBool::new(false),
            limit,
        })
    }

    /// Starts a process.
    ///
    /// # Errors
    /// The system's; [`TimedOut`](io::ErrorKind::TimedOut) if the program does not begin in time.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        let (answer, answered) = mpsc::sync_channel(0);
        let requests = self.requests.as_ref();
        let request = Request { command, answer };
        let is_sent = requests.is_some_and(|requests| requests.try_send(request).is_ok());
        if !is_sent || self.is_stuck.load(Ordering::Relaxed) {
            return Err(self.too_late());
        }
        match answered.recv_timeout(self.limit) {
            Ok(child) => child,
            Err(RecvTimeoutError::Timeout) => {
                self.is_stuck.store(true, Ordering::Relaxed);
                Err(self.too_late())
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn too_late(&self) -> io::Error {
        let seconds = self.limit.as_secs();
        let message = format!(
            "the system has not begun it within {seconds} s; the file system of the program does \
             not answer"
        );
        io::Error::new(io::ErrorKind::TimedOut, message)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && !self.is_stuck.load(Ordering::Relaxed)
        {
            // It does not panic, and it has nothing left to do.
            let _ended = thread.join();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;

    use super::*;

    /// Holds a lease on the file, so that who opens it waits, as for a file system that does not
    /// answer.
    const HOLD: &str = r#"
        $SIG{IO} = "IGNORE"; $| = 1;
        open(F, "<", $ARGV[0]) && fcntl(F, 1024, 1) or print("no lease: $!\n"), exit;
        print "held\n"; sleep 1000;
    "#;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ended = self.0.kill();
            let _status = self.0.wait();
        }
    }

    #[test]
    fn a_program_that_does_not_begin_is_given_up_and_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let text = format!("#!/bin/sh\n> {}/began", folder.path().display());
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let mut holder = Command::new("perl");
        holder
            .args(["-e", HOLD])
            .arg(&program)
            .stdout(Stdio::piped());
        let Ok(mut holder) = holder.spawn().map(Ended) else {
            println!("SKIPPED: no perl to hold a lease on a file");
            return;
        };
        let mut said = String::new();
        let stdout = holder.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut said).unwrap();
        if said.trim() != "held" {
            println!("SKIPPED: {said}");
            return;
        }
        let spawner = Spawner::new(Duration::from_secs(1)).unwrap();
        let error = spawner.spawn(Command::new(&program)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("within 1 s"), "{error}");
        let error = spawner.spawn(Command::new("true")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "not tried: {error}");
        // Not even this waits for the thread.
        drop(spawner);
        assert!(!folder.path().join("began").exists());
    }

    #[test]
    fn what_cannot_be_started_is_the_systems_error() {
        let spawner = Spawner::new(START_LIMIT).unwrap();
        let error = spawner.spawn(Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let mut child = spawner.spawn(Command::new("true")).unwrap();
        assert!(child.wait().unwrap().success());
    }
}
