//! The file of a trace, in the format of Chrome's traces, which Perfetto reads too
//! (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>).

use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Message, Phase, Phases};

/// How long an event may be in memory before it is in the file.
const FLUSH: Duration = Duration::from_millis(250);
/// How often the queue is emptied.
const INTERVAL: Duration = Duration::from_millis(50);
/// The number of bytes that may be in memory.
const BUFFER: usize = 64 * 1024;
/// The end of the list of events.
const END: &str = "\n]\n";

/// A list of events that is complete JSON after every write, however the process ends.
#[derive(Debug)]
pub(super) struct TraceFile {
    file: File,
    /// The position of the next event, which overwrites the end of the list.
    next: u64,
    buffer: String,
    is_empty: bool,
}

impl TraceFile {
    /// Replaces the file by an empty list.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let options = File::options();
        let file = options
            .clone()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        // Pipes and devices have neither locks nor a length.
        if file.metadata()?.is_file() {
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another run writes it",
                ));
            }
            file.set_len(0)?;
        }
        let mut file = Self {
            file,
            next: 0,
            buffer: "[".to_string(),
            is_empty: true,
        };
        file.flush()?;
        Ok(file)
    }

    /// Adds an event, which is one line of JSON.
    pub(super) fn add(&mut self, event: &str) -> io::Result<()> {
        self.buffer
            .push_str(if self.is_empty { "\n" } else { ",\n" });
        self.buffer.push_str(event);
        self.is_empty = false;
        if self.buffer.len() >= BUFFER {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Writes all pending events, in one write.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let new = self.buffer.len();
        self.buffer.push_str(END);
        let written = self.file.write_all_at(self.buffer.as_bytes(), self.next);
        self.buffer.clear();
        self.next += new as u64;
        written
    }
}

/// An event of this process with this name.
pub(super) fn metadata(pid: usize, tid: u32, name: &str, arguments: &Value) -> String {
    json!({"name": name, "ph": "M", "pid": pid, "tid": tid, "args": arguments}).to_string()
}

/// Writes a phase as an event of the process `pid` after `line`.
fn write_phase(line: &mut String, pid: usize, phase: &Phase) {
    // A barrier moves no data: it counts as a wait.
    let is_barrier = phase
        .arguments
        .0
        .iter()
        .any(|(_, value)| value == "barrier");
    let name = if is_barrier { "barrier" } else { phase.name };
    let took = phase.end.saturating_sub(phase.begin);
    // Writing into memory does not fail.
    let _ = write!(
        line,
        "{{\"name\":\"{name}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{pid},\"tid\":{},\"ts\":{}.{:03},\
         \"dur\":{}.{:03}",
        phase.name,
        phase.row,
        phase.begin / 1000,
        phase.begin % 1000,
        took / 1000,
        took % 1000
    );
    let mut between = ",\"args\":{";
    for (name, value) in &phase.arguments.0 {
        let _ = write!(line, "{between}\"{name}\":{value}");
        between = ",";
    }
    if !phase.arguments.0.is_empty() {
        line.push('}');
    }
    line.push('}');
}

/// Writes the queue until the other end of `stop` is dropped. After an error it continues to empty
/// the queue, and returns the error at the end.
pub(super) fn run(
    phases: &Phases,
    stop: &Receiver<()>,
    mut file: TraceFile,
    pid: usize,
) -> io::Result<()> {
    let mut outcome = Ok(());
    let mut messages = Vec::with_capacity(super::QUEUE);
    let mut flushed = Instant::now();
    while stop.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        phases.swap(&mut messages);
        outcome = outcome.and_then(|()| write_all(&mut file, pid, &messages));
        messages.clear();
        if outcome.is_ok() && flushed.elapsed() >= FLUSH {
            outcome = file.flush();
            flushed = Instant::now();
        }
    }
    let (messages, dropped) = phases.end();
    outcome?;
    write_all(&mut file, pid, &messages)?;
    let lost = json!({"count": dropped});
    file.add(&metadata(pid, 0, "dropped_events", &lost))?;
    file.flush()
}

fn write_all(file: &mut TraceFile, pid: usize, messages: &[Message]) -> io::Result<()> {
    let mut line = String::new();
    for message in messages {
        match message {
            Message::Phase(phase) => {
                line.clear();
                write_phase(&mut line, pid, phase);
                file.add(&line)?;
            }
            Message::Row(row, name) => {
                let order = json!({"sort_index": row});
                file.add(&metadata(pid, *row, "thread_name", &json!({"name": name})))?;
                file.add(&metadata(pid, *row, "thread_sort_index", &order))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::Arguments;
    use super::*;

    fn events(path: &Path) -> Vec<Value> {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_file_is_whole_after_every_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut file = TraceFile::create(&path).unwrap();
        assert_eq!(events(&path), Vec::<Value>::new());
        for count in 1..5 {
            file.add(&json!({"count": count}).to_string()).unwrap();
            // Pending events are not in the file yet, but it is complete JSON.
            assert_eq!(events(&path).len(), count - 1);
            file.flush().unwrap();
            assert_eq!(events(&path).len(), count);
        }
        let long = json!({"long": "x".repeat(BUFFER)}).to_string();
        file.add(&long).unwrap();
        assert_eq!(events(&path).len(), 5);
    }

    #[test]
    fn events_are_what_the_format_wants() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let arguments = Arguments(vec![("kind", json!("all_reduce")), ("bytes", json!(12))]);
        let phase = |name, arguments| Phase {
            name,
            row: 1,
            begin: 1_000_001,
            end: 1_002_500,
            arguments,
        };
        let barrier = Arguments(vec![("kind", json!("barrier"))]);
        let phases = Phases::default();
        phases.begin();
        for message in [
            Message::Row(1, "replica-0.0".to_string()),
            Message::Phase(phase("exchange", arguments)),
            Message::Phase(phase("exchange", barrier)),
        ] {
            assert!(phases.state().send(message));
        }
        let (stopper, stop) = sync_channel(0);
        drop(stopper);
        run(&phases, &stop, TraceFile::create(&path).unwrap(), 2).unwrap();
        let found = events(&path);
        assert_eq!(found[0]["args"]["name"], "replica-0.0");
        let expected = json!({
            "name": "exchange", "cat": "exchange", "ph": "X", "pid": 2, "tid": 1,
            "ts": 1000.001, "dur": 2.499, "args": {"kind": "all_reduce", "bytes": 12},
        });
        assert_eq!(found[2], expected);
        assert_eq!(found[3]["name"], "barrier");
        assert_eq!(found[4]["args"]["count"], 0);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_no_thread_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let phases = Phases::default();
        phases.begin();
        let row = || Message::Row(0, "main".to_string());
        let sent = (0..super::super::QUEUE + 7).filter(|_| phases.state().send(row()));
        assert_eq!(sent.count(), super::super::QUEUE);
        let (stopper, stop) = sync_channel(0);
        drop(stopper);
        run(&phases, &stop, TraceFile::create(&path).unwrap(), 0).unwrap();
        let found = events(&path);
        assert_eq!(found.last().unwrap()["args"]["count"], 7);
        assert!(!phases.state().send(row()));
    }
}
