//! The parent's side: starts ranks as processes of this test binary and talks to them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub use hostile::stopwatch::Stopwatch;

use super::rank::{RANK, TRACE};

/// The hard limit of every answer.
const LIMIT: Duration = Duration::from_secs(120);

/// A rank in a process of its own; killed when dropped.
pub struct Rank {
    pub number: usize,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Rank {
    pub fn start(number: usize) -> Rank {
        Rank::start_with(number, &[], None)
    }

    /// A rank with environment variables. With a log, all that it writes and does goes there.
    pub fn start_with(number: usize, variables: &[(&str, &str)], log: Option<&Path>) -> Rank {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "a_rank_of_another_test", "--nocapture"])
            .env(RANK, number.to_string())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let log = log.map(|path| {
            let mut options = std::fs::OpenOptions::new();
            let open = options.create(true).append(true);
            open.open(path).expect("a log file")
        });
        if let Some(log) = &log {
            command.env(TRACE, "1");
            command.stderr(log.try_clone().expect("a file"));
        }
        let mut child = command.spawn().expect("a process");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        // Ends when the child closes its output.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(mut log) = log.as_ref() {
                    writeln!(log, "{line}").expect("a log file");
                }
                if let Some((_, text)) = line.split_once("@@")
                    && sender.send(text.to_string()).is_err()
                {
                    return;
                }
            }
        });
        Rank {
            number,
            stdin: child.stdin.take().expect("piped"),
            child,
            lines,
        }
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}")
            .and_then(|()| self.stdin.flush())
            .expect("the rank listens");
    }

    /// The next answer that begins with `prefix`, without it; other answers are skipped.
    pub fn answer(&mut self, prefix: &str) -> String {
        let begun = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| {
                panic!("rank {} never answered `{prefix}`: {error}", self.number)
            });
            match line.strip_prefix(prefix) {
                Some(rest) => return rest.trim().to_string(),
                None if prefix != "error" && line.starts_with("error") => {
                    panic!("rank {} instead of `{prefix}`: {line}", self.number)
                }
                None => {}
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended by itself.
    pub fn wait(&mut self) {
        self.child.wait().expect("the process");
    }

    /// The most memory that it ever had, in bytes.
    pub fn peak_bytes(&self) -> usize {
        hostile::memory::peak_bytes(self.pid())
    }

    /// Lets [`peak_bytes`](Self::peak_bytes) count anew; its memory now, in bytes.
    pub fn forget_peak(&self) -> usize {
        hostile::memory::forget_peak(self.pid());
        self.peak_bytes()
    }

    /// Its memory now, in bytes.
    pub fn resident_bytes(&self) -> usize {
        hostile::memory::resident_bytes(self.pid())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process exists");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The addresses that the ranks are bound to.
pub struct Addresses(pub Vec<String>);

impl Addresses {
    /// All of them, as a rank is told to join.
    pub fn list(&self) -> String {
        self.0.join(" ")
    }
}

pub fn start(world_size: usize) -> Vec<Rank> {
    (0..world_size).map(Rank::start).collect()
}

/// Binds all ranks; `settings` follow the world size.
pub fn bind(ranks: &mut [Rank], generation: u64, transport: &str, settings: &str) -> Addresses {
    let world_size = ranks.len();
    for rank in &mut *ranks {
        rank.tell(&format!(
            "bind {generation} {transport} {world_size} {settings}"
        ));
    }
    let answers = ranks.iter_mut().map(|rank| rank.answer("bound"));
    Addresses(answers.collect())
}

/// Joins all ranks and returns how they describe their group.
pub fn join(ranks: &mut [Rank], addresses: &Addresses) -> Vec<String> {
    for rank in &mut *ranks {
        rank.tell(&format!("join {}", addresses.list()));
    }
    ranks.iter_mut().map(|rank| rank.answer("joined")).collect()
}

/// A group that is ready.
pub fn group(world_size: usize, transport: &str, settings: &str) -> Vec<Rank> {
    let mut ranks = start(world_size);
    let addresses = bind(&mut ranks, 0, transport, settings);
    join(&mut ranks, &addresses);
    ranks
}

/// Leaves the group on all ranks; nothing of it may be left.
pub fn leave(ranks: &mut [Rank]) {
    for rank in &mut *ranks {
        rank.tell("leave");
    }
    for rank in ranks {
        assert_eq!(
            rank.answer("left"),
            "0 threads 0 files 0 mappings",
            "rank {}",
            rank.number
        );
    }
}
