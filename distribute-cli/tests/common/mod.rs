//! What the tests of the program share.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use rustix::process::{Pid, Signal};

/// A small model, as Keras writes it.
pub const NET: &str = r#"{"class_name":"Sequential","config":{"name":"net","layers":[
    {"class_name":"Flatten","config":{}},
    {"class_name":"Dense","config":{"units":8,"activation":"relu"}},
    {"class_name":"Dropout","config":{"rate":0.2}},
    {"class_name":"Dense","config":{"units":10,"activation":"linear"}}]}}"#;

/// A table of numbers: row `i` has `i` and a class of two.
pub fn table(folder: &Path, name: &str, rows: impl Iterator<Item = usize>) {
    let row = |index: usize| format!("{index},{},{}\n", index % 7, index % 2);
    let rows: String = rows.map(row).collect();
    fs::write(folder.join(name), format!("a,b,label\n{rows}")).unwrap();
}

/// No run of the program may take longer.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Runs the program behind a line of shell that ends with `exec \"$@\"`.
pub fn behind(folder: &Path, shell: &str, arguments: &str) -> Finished {
    let program = plain(folder).get_program().to_os_string();
    let mut command = std::process::Command::new("sh");
    command.current_dir(folder).args(["-c", shell, "sh"]);
    command.arg(program).args(arguments.split_whitespace());
    let output = command.output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The program, in a folder of its own and without the variables of the machine.
pub fn program(folder: &Path) -> Command {
    hostile::signals::as_in_a_terminal().unwrap();
    let mut command = Command::cargo_bin("distribute-cli").unwrap();
    command.current_dir(folder).timeout(LIMIT);
    for name in [
        "TF_CONFIG",
        "LD_LIBRARY_PATH",
        "RUST_BACKTRACE",
        "PJRT_PLUGIN_LIBRARY_PATH",
        "TPU_LIBRARY_PATH",
        "TPU_NAME",
        "COLAB_TPU_ADDR",
    ] {
        command.env_remove(name);
    }
    // XLA's CPU client says a line of its own otherwise.
    command.env("TF_ENABLE_ONEDNN_OPTS", "0");
    command
}

/// Kills the process when it takes too long, so that no test hangs; dropping it calls it off.
pub fn watchdog(id: u32) -> mpsc::Sender<()> {
    let (call_off, called_off) = mpsc::channel();
    std::thread::spawn(move || {
        if called_off.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = send(id, "KILL");
        }
    });
    call_off
}

/// Sends a signal by its name without SIG.
pub fn signal(id: u32, name: &str) {
    send(id, name).unwrap();
}

/// By the system call: until a program that sends it has started, what it should meet may be over.
pub fn send(id: u32, name: &str) -> rustix::io::Result<()> {
    let signal = match name {
        "CONT" => Signal::CONT,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        "XCPU" => Signal::XCPU,
        other => panic!("SIG{other}"),
    };
    let process = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    rustix::process::kill_process(process, signal)
}

/// What a run printed, and how it ended.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Standard error, with the lines whole again that were broken to fit into a terminal.
    pub fn told(&self) -> String {
        self.stderr.replace("\n    ", " ")
    }
}

/// Runs `distribute-cli` with these arguments, separated by blanks.
pub fn run(folder: &Path, arguments: &str) -> Finished {
    let output = program(folder)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A run that must succeed; its standard output.
pub fn succeed(folder: &Path, arguments: &str) -> String {
    let finished = run(folder, arguments);
    assert_eq!(finished.code, Some(0), "{arguments}: {}", finished.stderr);
    finished.stdout
}

/// A process in the background that is killed if a test fails.
pub struct Process {
    pub child: Child,
    out: BufReader<ChildStdout>,
    read: String,
    err: Option<JoinHandle<String>>,
    /// Dropped at the end, which calls the watchdog off.
    _watchdog: mpsc::Sender<()>,
}

impl Process {
    /// Starts a command, without the variables of a cluster.
    pub fn start(command: &mut std::process::Command, variables: &[(&str, &str)]) -> Self {
        for name in ["TF_CONFIG", "DISTRIBUTE_RESTART", "DISTRIBUTE_JOB_TOKEN"] {
            command.env_remove(name);
        }
        let mut child = command
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let watchdog = watchdog(child.id());
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        // On a thread, so that no process is stopped by a full pipe.
        let err = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self {
            child,
            out,
            read: String::new(),
            err: Some(err),
            _watchdog: watchdog,
        }
    }

    /// Reads its output up to the first line that contains this.
    pub fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let read = self.out.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended before `{text}`");
            self.read.push_str(&line);
        }
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits until it waits itself: it has used no processor for a while, longer than a worker
    /// watches its memory before it sleeps.
    pub fn wait_until_it_waits(&self) {
        let begun = Instant::now();
        let (mut used, mut since) = (self.processor_ticks(), begun);
        while since.elapsed() < Duration::from_millis(300) {
            assert!(begun.elapsed() < LIMIT, "it is still busy");
            std::thread::sleep(Duration::from_millis(20));
            let now = self.processor_ticks();
            if now != used {
                (used, since) = (now, Instant::now());
            }
        }
    }

    /// What the system has counted for it, in hundredths of a second.
    fn processor_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name, which may contain anything, is in parentheses; `utime` and `stime` are the
        // fields 14 and 15 of all, the first of which are the number and the name.
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields = after_name.split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    }

    /// How it ended, and all it wrote.
    pub fn finish(mut self) -> Finished {
        let mut stdout = std::mem::take(&mut self.read);
        self.out.read_to_string(&mut stdout).unwrap();
        let stderr = self.err.take().unwrap().join().unwrap();
        let code = self.child.wait().unwrap().code();
        Finished {
            code,
            stdout,
            stderr,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program as [`Process`] wants it, in a folder of its own, where the log files of a launched
/// job that fails stay too.
pub fn plain(folder: &Path) -> std::process::Command {
    hostile::signals::as_in_a_terminal().unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("distribute-cli"));
    command.current_dir(folder).env("TMPDIR", folder);
    command
}

/// Standard error without the note that there are more replicas than cores, which depends on the
/// machine.
pub fn apart_from_cores(stderr: &str) -> String {
    let is_about_cores = |line: &str| line.contains(": that trains no faster than ");
    let lines = stderr.split_inclusive('\n');
    lines.filter(|line| !is_about_cores(line)).collect()
}

/// The last line of JSON output.
pub fn last_event(stdout: &str) -> serde_json::Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

/// A few quick steps on the digits.
pub const QUICK: &str = "train --model mlp --replicas 2 --steps 5 --output json";
