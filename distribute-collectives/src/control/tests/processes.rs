//! Real processes that are killed or stopped: the test binary runs itself again as one rank.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

const RANK: &str = "DISTRIBUTE_CONTROL_RANK";
const ADDRESSES: &str = "DISTRIBUTE_CONTROL_ADDRESSES";

/// This test binary, to run one test of this module's parent.
pub(super) fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("control::tests::{test}");
    command.args(["--exact", &name, "--nocapture", "--test-threads", "1"]);
    command
}

/// One rank in its own process; not a test of its own. It prints `joined`, then the first failure
/// and the time since the epoch, and ends when its standard input is closed.
#[test]
fn child() {
    let Ok(rank) = std::env::var(RANK) else {
        return;
    };
    let rank: usize = rank.parse().unwrap();
    let addresses: Vec<_> = std::env::var(ADDRESSES)
        .unwrap()
        .split(' ')
        .map(str::to_string)
        .collect();
    let listener = BoundListener::bind(rank, &addresses[rank], &Security::default()).unwrap();
    let mut options = options(rank, &addresses);
    options.heartbeat_interval = Duration::from_millis(200);
    options.heartbeat_misses = 5;
    let member = join(options, listener).unwrap();
    println!("\nsays joined");
    std::io::stdout().flush().unwrap();
    let status = member.status.clone();
    std::thread::spawn(move || {
        println!("\nsays {:?}", failure_of(&status).kind);
        std::io::stdout().flush().unwrap();
    });
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    drop(member);
}

/// A rank in a process of its own, killed when it is dropped.
struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    input: Option<ChildStdin>,
}

impl Process {
    fn start(rank: usize, addresses: &[String]) -> Process {
        let mut child = again("processes::child")
            .env(RANK, rank.to_string())
            .env(ADDRESSES, addresses.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(|line| line.ok()) {
                if let Some(said) = line.strip_prefix("says ") {
                    let _ = sender.send(said.to_string());
                }
            }
        });
        let input = child.stdin.take();
        Process {
            child,
            lines,
            input,
        }
    }

    /// What it says next.
    fn says(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn processes(world_size: usize) -> Vec<Process> {
    let (sockets, addresses) = listeners(world_size);
    drop(sockets);
    let start = |rank| Process::start(rank, &addresses);
    let processes: Vec<_> = (0..world_size).map(start).collect();
    for process in &processes {
        assert_eq!(process.says(), "joined");
    }
    processes
}

#[test]
fn a_killed_process_is_noted_by_all_at_once() {
    within_limit(|| {
        let mut processes = processes(4);
        let victim = processes.remove(2);
        victim.signal(Signal::KILL);
        // By its closed connections, which is at once: silence has another name.
        for survivor in &processes {
            let said = survivor.says();
            assert!(
                said.starts_with("Lost { rank: 2, reason: \"its process ended"),
                "{said}"
            );
        }
    });
}

#[test]
fn a_stopped_process_is_noted_by_all_and_itself_when_it_goes_on() {
    within_limit(|| {
        let processes = processes(4);
        processes[0].signal(Signal::STOP);
        // After how long depends on what else the machine does: see `silence.rs`.
        for survivor in &processes[1..] {
            let said = survivor.says();
            assert!(said.starts_with("Silent { rank: 0, elapsed: "), "{said}");
        }
        processes[0].signal(Signal::CONT);
        let said = processes[0].says();
        assert!(said.starts_with("Silent { rank: 0"), "{said}");
    });
}

#[test]
fn a_process_that_leaves_is_no_failure() {
    within_limit(|| {
        let mut processes = processes(2);
        let mut leaving = processes.pop().unwrap();
        drop(leaving.input.take());
        let said = processes[0].says();
        assert!(
            said.contains("it left the group after 0 operations"),
            "{said}"
        );
    });
}
