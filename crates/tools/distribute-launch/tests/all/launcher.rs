//! A launcher that is a process of its own gets signals, or is killed.
//!
//! The launcher is this program itself, started with the name of the test that plays it.

use std::io::{BufRead, BufReader, Lines};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use distribute_launch::{Console, Hosts, Job, ReservedPorts, guard_main, run};
use rstest::rstest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, prlimit,
};

use crate::common::{read, script, security, within_limit};
use crate::eventually::eventually;
use crate::hosts::meeting_point;

pub const SCRIPT: &str = "LAUNCH_TEST_SCRIPT";
pub const RESTARTS: &str = "LAUNCH_TEST_RESTARTS";
const PAUSE: &str = "LAUNCH_TEST_PAUSE";
pub const GRACE: &str = "LAUNCH_TEST_GRACE";
const SERVERS: &str = "LAUNCH_TEST_SERVERS";
pub const HOST: &str = "LAUNCH_TEST_HOST";
/// `LEAST MOST HOSTS` of an elastic job.
pub const ELASTIC: &str = "LAUNCH_TEST_ELASTIC";
/// `HOSTS ARITY` of a job with one worker on each host.
pub const TREE: &str = "LAUNCH_TEST_TREE";
/// How many seconds hosts are waited for.
const JOIN: &str = "LAUNCH_TEST_JOIN";
/// That the descriptors of the outputs are known.
pub const DESCRIPTORS: &str = "LAUNCH_TEST_DESCRIPTORS";
/// The directory of the log files.
pub const LOGS: &str = "LAUNCH_TEST_LOGS";
const GUARDED: &str = "LAUNCH_TEST_GUARDED";
/// The test program's arguments for playing a part without saying much.
pub const PLAY: [&str; 4] = ["--quiet", "--nocapture", "--test-threads=1", "--exact"];
const TIMEOUT: Duration = Duration::from_secs(20);

/// One launcher of several; `text` is where they meet, and the number of the host.
fn on_hosts(mut job: Job, text: &str) -> Job {
    let (address, index) = text.split_once(' ').expect("an address and a number");
    let (address, index) = (address.parse().expect("one"), index.parse().expect("one"));
    let mut count = 2;
    if let Ok(text) = std::env::var(ELASTIC) {
        let mut numbers = text
            .split(' ')
            .map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        job = job.elastic_workers(next()..=next());
        count = next();
    }
    let mut arity = None;
    if let Ok(text) = std::env::var(TREE) {
        let (hosts, children) = text.split_once(' ').expect("two numbers");
        count = hosts.parse().expect("a number");
        arity = Some(children.parse().expect("a number"));
        if std::env::var_os(ELASTIC).is_none() {
            job = job.workers(1);
        }
    }
    let mut hosts = Hosts::new(address, count, index, security());
    if let Some(arity) = arity {
        hosts = hosts.arity(arity);
    }
    // Shorter than usual, as launchers are killed here; long enough for a busy machine.
    let mut hosts = hosts.timeout(Duration::from_secs(3));
    if let Ok(seconds) = std::env::var(JOIN) {
        let seconds = seconds.parse().expect("a number");
        hosts = hosts.join_timeout(Duration::from_secs(seconds));
    }
    job.hosts(hosts)
}

/// Plays the launcher for other tests.
#[test]
fn as_launcher() {
    let Ok(text) = std::env::var(SCRIPT) else {
        return;
    };
    let restarts = std::env::var(RESTARTS)
        .expect("how many")
        .parse()
        .expect("a number");
    let mut job = script(&text)
        .workers(2)
        .max_restarts(restarts)
        .prefix_output(true)
        .handle_signals(true);
    if let Ok(seconds) = std::env::var(GRACE) {
        let seconds = seconds.parse().expect("a number");
        job = job.grace_period(Duration::from_secs(seconds));
    }
    if let Ok(seconds) = std::env::var(PAUSE) {
        let seconds = seconds.parse().expect("a number");
        job = job.restart_pause(Duration::from_secs(seconds));
    }
    if std::env::var_os(SERVERS).is_some() {
        job = job.parameter_servers(1);
    }
    if std::env::var_os(GUARDED).is_some() {
        let program = std::env::current_exe()
            .expect("this program")
            .into_os_string();
        let arguments = PLAY.iter().chain(&["launcher::as_guard"]).map(Into::into);
        job = job.guard(std::iter::once(program).chain(arguments));
    }
    if let Some(directory) = std::env::var_os(LOGS) {
        job = job.log_directory(directory);
    }
    if let Ok(text) = std::env::var(HOST) {
        job = on_hosts(job, &text);
    }
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    let (own_stdout, own_stderr) = (std::io::stdout(), std::io::stderr());
    let mut console = Console::new(&mut stdout, &mut stderr);
    if std::env::var_os(DESCRIPTORS).is_some() {
        console = console.descriptors(own_stdout.as_fd(), own_stderr.as_fd());
    }
    let result = run(&job, &mut console);
    let code = result.map_or_else(
        |error| {
            eprintln!("error: {error}");
            1
        },
        |outcome| outcome.exit_code(),
    );
    std::process::exit(i32::from(code));
}

/// Plays the guard for other tests.
#[test]
fn as_guard() {
    if std::env::var_os(GUARDED).is_some() {
        guard_main();
    }
}

/// A running launcher of two workers.
pub struct Launcher {
    pub child: Child,
    stderr: Lines<BufReader<ChildStderr>>,
    seen: Vec<String>,
    /// Where it makes its log directory.
    temporary: tempfile::TempDir,
}

/// A test that fails leaves no launcher behind.
impl Drop for Launcher {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Launcher {
    fn start(text: &str, restarts: u32, is_guarded: bool) -> Launcher {
        let command = Command::new(std::env::current_exe().expect("this program"));
        Launcher::start_by(command, text, restarts, is_guarded)
    }

    /// `command` starts the program that is named by its last argument so far.
    pub fn start_by(mut command: Command, text: &str, restarts: u32, is_guarded: bool) -> Launcher {
        hostile::signals::as_in_a_terminal().expect("signals that are not ignored");
        command
            .args(PLAY)
            .arg("launcher::as_launcher")
            .env(SCRIPT, text)
            .env(RESTARTS, restarts.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if is_guarded {
            command.env(GUARDED, "1");
        }
        let temporary = tempfile::tempdir().expect("a directory");
        command.env("TMPDIR", temporary.path());
        let mut child = command.spawn().expect("a launcher");
        let stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        Launcher {
            child,
            stderr,
            seen: Vec::new(),
            temporary,
        }
    }

    /// Waits for its end: its processes got this signal and saved.
    #[track_caller]
    fn saved_after(self, signal: &str) {
        let (status, lines) = self.end();
        assert_eq!(status.code(), Some(42), "{lines:#?}");
        let got = format!("got {signal}");
        assert!(lines.iter().any(|line| line.contains(&got)), "{lines:#?}");
    }

    /// Waits until `count` lines on standard error hold `part`, and returns them.
    pub fn lines_with(&mut self, part: &str, count: usize) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        while found.len() < count {
            let line = self.stderr.next();
            let line = line.unwrap_or_else(|| panic!("no {part} in {:#?}", self.seen));
            let line = line.expect("text");
            self.seen.push(line.clone());
            if line.contains(part) {
                found.push(line);
            }
        }
        found
    }

    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the end; all that it wrote since the last line that was waited for.
    pub fn end(mut self) -> (ExitStatus, Vec<String>) {
        self.wait()
    }

    fn wait(&mut self) -> (ExitStatus, Vec<String>) {
        let rest = self.stderr.by_ref().map_while(Result::ok).collect();
        (self.child.wait().expect("a status"), rest)
    }

    /// The log directories that it has made and that are still there.
    fn log_directories(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.temporary).expect("its directory");
        entries.map(|entry| entry.expect("one").path()).collect()
    }

    /// Its processes have saved and stopped.
    #[track_caller]
    fn end_saved(self) {
        let (status, lines) = self.end();
        assert_eq!(status.code(), Some(42), "{lines:#?}");
    }

    /// Its guard removes them after the processes.
    #[track_caller]
    fn assert_without_logs(&self) {
        let are_gone = || self.log_directories().is_empty();
        eventually(are_gone, || "log files are left".to_owned());
    }
}

pub fn pid(text: &str) -> Pid {
    let word = text.split_whitespace().last().expect("a number");
    Pid::from_raw(word.parse().expect("a number")).expect("a pid")
}

/// A script that waits for a signal, says which one it got, and exits with 42.
const SAVING: &str = "
    trap 'echo got TERM >&2; exit 42' TERM; trap 'echo got INT >&2; exit 42' INT
    echo up $i $$ >&2; while true; do sleep 1000 & wait; done";

#[test]
fn sigterm_reaches_each_process_once_and_the_job_is_preempted() {
    within_limit(|| {
        let mut launcher = Launcher::start(SAVING, 3, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::TERM);
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(42), "{lines:#?}");
        let got: Vec<_> = lines
            .iter()
            .filter(|line| line.contains("got TERM"))
            .collect();
        assert_eq!(got.len(), 2, "{lines:#?}");
        assert!(
            !lines.iter().any(|line| line.contains("restart")),
            "{lines:#?}"
        );
    });
}

#[test]
fn sigint_reaches_the_processes_as_sigint() {
    within_limit(|| {
        let mut launcher = Launcher::start(SAVING, 0, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::INT);
        launcher.saved_after("INT");
    });
}

/// A program that saves when it is asked for the first time, for so long, by another process, and
/// gives up when it is asked again before it has. Its `wait` ends by the signal's own action: the
/// signal may come before `wait` begins, and the shell then waits on.
fn saving_once(seconds: f64) -> String {
    format!(
        "n=0; sleep 1000 & s=$!; trap 'n=$((n+1)); echo got TERM >&2; kill $s' TERM
        echo up $i $$ >&2; wait $s
        until [ $n -gt 1 ] || ! sleep {seconds}; do [ $n = 1 ] && exit 42; done; exit 1"
    )
}

/// Two workers run the program below such a script, and the launcher gets SIGTERM. Each of them is
/// asked once, and its exit code counts.
fn is_asked_once(wrapper: &str, program: &str, grace: u64) {
    let (wrapper, program) = (wrapper.to_owned(), program.to_owned());
    within_limit(move || {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("saving.sh");
        std::fs::write(&path, program).expect("it is written");
        let wrapper = wrapper.replace("$0", &path.display().to_string());
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(GRACE, grace.to_string());
        let text = format!("export i; {wrapper}");
        let mut launcher = Launcher::start_by(command, &text, 3, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::TERM);
        let (status, lines) = launcher.end();
        let got = lines.iter().filter(|line| line.contains("got TERM"));
        assert_eq!(got.count(), 2, "{lines:#?}");
        assert_eq!(status.code(), Some(42), "{lines:#?}");
    });
}

#[rstest]
#[case::that_does_not_exec("sh $0; exit $?", 10)]
#[case::that_does("exec sh $0", 10)]
#[case::of_two_levels("sh -c 'sh $0; exit $?' $0; exit $?", 10)]
#[case::that_waits_in_the_background("sh $0 & wait $!", 10)]
#[case::that_passes_the_signal_on("trap 'kill $c' TERM; sh $0 & c=$!; wait $c", 10)]
#[case::that_also_waits_then("trap 'kill $c' TERM; sh $0 & c=$!; wait $c; wait $c", 10)]
#[case::that_catches_it_and_does_not_pass_it_on("trap : TERM; sh $0; exit $?", 2)]
#[case::that_catches_it_and_ends("trap 'exit 143' TERM; sh $0 & wait", 10)]
fn what_a_script_runs_is_asked_once_and_its_exit_code_counts(
    #[case] wrapper: &str,
    #[case] grace: u64,
) {
    is_asked_once(wrapper, &saving_once(0.4), grace);
}

/// Half of the time is over while it saves.
#[rstest]
#[case::that_does("exec sh $0")]
#[case::that_passes_the_signal_on("trap 'kill $c' TERM; sh $0 & c=$!; wait $c")]
#[case::that_also_exits_then("trap 'kill $c; exit 42' TERM; sh $0 & c=$!; wait $c")]
#[case::that_passes_it_on_later("trap 'sleep 0.3; kill $c' TERM; sh $0 & c=$!; wait $c; wait $c")]
#[case::that_passes_it_to_its_group(
    "trap 'trap \"\" TERM; kill 0; wait; exit 42' TERM; sh $0 & wait"
)]
#[case::of_two_levels_that_pass_it_on(
    "trap 'kill $c' TERM
    sh -c 'trap \"kill \\$c\" TERM; sh $0 & c=$!; wait $c; wait $c' & c=$!; wait $c; wait $c"
)]
#[case::that_leaves_such_a_child("trap 'kill $c' TERM; setsid sh $0 & c=$!; wait $c")]
#[case::that_is_a_program_which_passes_it_on("exec timeout --foreground 1000 sh $0")]
fn a_save_of_more_than_half_of_the_time_is_not_disturbed(#[case] wrapper: &str) {
    is_asked_once(wrapper, &saving_once(3.3), 6);
}

#[rstest]
#[case(Signal::HUP)]
#[case(Signal::QUIT)]
#[case(Signal::USR1)]
#[case(Signal::USR2)]
#[case(Signal::XCPU)]
#[case(Signal::ALARM)]
#[case(Signal::VTALARM)]
#[case(Signal::PROF)]
#[case(Signal::IO)]
#[case(Signal::POWER)]
fn every_signal_that_announces_an_end_saves(#[case] signal: Signal) {
    within_limit(move || {
        let mut launcher = Launcher::start(SAVING, 3, true);
        launcher.lines_with("up ", 2);
        launcher.send(signal);
        launcher.saved_after("TERM");
    });
}

/// Its `wait` returns when one of its jobs is stopped.
#[test]
fn a_shell_with_job_control_passes_the_signal_on() {
    if Command::new("bash").arg("--version").output().is_err() {
        println!("SKIPPED: no bash, whose scripts can have job control");
        return;
    }
    within_limit(|| {
        let text = r#"exec bash -c '
            set -m
            trap "kill -TERM \$c; wait \$c; exit \$?" TERM
            ( trap "echo got TERM >&2; sleep 0.3; exit 42" TERM
              echo up $1 $$ >&2; while true; do sleep 1000 & wait; done ) &
            c=$!; wait $c' bash "$i""#;
        let mut launcher = Launcher::start(text, 3, true);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::TERM);
        launcher.saved_after("TERM");
    });
}

/// A limit of CPU time is told every second, and SIGTERM follows SIGUSR1.
#[test]
fn a_repeated_announcement_of_the_end_kills_no_process() {
    within_limit(|| {
        let text = "trap 'echo got TERM >&2; > asked; sleep 0.5; exit 42' TERM
            echo up $i $$ >&2; while true; do sleep 1000 & wait; done";
        let directory = tempfile::tempdir().expect("a directory");
        let text = format!("cd '{}'; {text}", directory.path().display());
        let mut launcher = Launcher::start(&text, 3, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::USR1);
        launcher.lines_with("got TERM", 2);
        for signal in [Signal::USR1, Signal::XCPU, Signal::XCPU, Signal::TERM] {
            launcher.send(signal);
        }
        launcher.end_saved();
    });
}

#[test]
fn a_limit_of_file_sizes_is_no_signal_to_the_launcher() {
    within_limit(|| {
        let mut launcher = Launcher::start(SAVING, 0, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::XFSZ);
        launcher.send(Signal::TERM);
        launcher.saved_after("TERM");
    });
}

#[test]
fn a_chief_that_saves_when_the_launcher_is_signalled_decides() {
    within_limit(|| {
        let text =
            format!("case $r in chief) {SAVING} ;; *) echo up $r$i >&2; exec sleep 1000 ;; esac");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(SERVERS, "1");
        let mut launcher = Launcher::start_by(command, &text, 3, true);
        launcher.lines_with("up", 4);
        launcher.send(Signal::TERM);
        launcher.saved_after("TERM");
    });
}

#[test]
fn a_job_that_was_told_to_stop_is_not_started_again() {
    within_limit(|| {
        let mut launcher = Launcher::start("echo up $i >&2; exec sleep 1000", 3, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::TERM);
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(128 + 15), "{lines:#?}");
        assert_eq!(lines, [""; 0]);
    });
}

#[test]
fn a_signal_that_is_switched_off_stays_so() {
    within_limit(|| {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        command.arg(std::env::current_exe().expect("this program"));
        let mut launcher = Launcher::start_by(command, SAVING, 0, false);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::HUP);
        launcher.send(Signal::INT);
        launcher.saved_after("INT");
    });
}

/// Leaves five processes behind that have ended.
const LEAVING: &str = "for n in 1 2 3 4 5; do (true &); done; echo up $i >&2; exec sleep 1000";

/// The children of a process that have ended and were not reaped.
fn zombies_of(parent: u32) -> usize {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| std::fs::read(entry.path().join("stat")).ok());
    let is_one = |stat: &Vec<u8>| {
        let text = String::from_utf8_lossy(stat);
        // "pid (name) state ppid ...", and the name may hold anything.
        let fields = text.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
        fields.is_some_and(|fields| fields.take(2).eq(["Z", &parent.to_string()]))
    };
    stats.filter(is_one).count()
}

#[test]
fn what_the_processes_leave_behind_is_reaped_while_the_job_goes_on() {
    within_limit(|| {
        let mut launcher = Launcher::start(LEAVING, 0, true);
        launcher.lines_with("up ", 2);
        let zombies = || zombies_of(launcher.child.id());
        eventually(|| zombies() == 0, || format!("{} are left", zombies()));
        launcher.send(Signal::INT);
        launcher.end();
    });
}

/// In a container the launcher may be the first process, which is the parent of all orphans.
#[test]
fn as_the_first_process_the_launcher_reaps_what_is_left_behind() {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let probe = Command::new("unshare").args(unshare).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("SKIPPED: no namespace of processes to be had");
        return;
    }
    within_limit(move || {
        let mut command = Command::new("unshare");
        command.args(unshare);
        command.arg(std::env::current_exe().expect("this program"));
        let mut launcher = Launcher::start_by(command, LEAVING, 0, true);
        launcher.lines_with("up ", 2);
        let outer = launcher.child.id();
        let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
        let children = children.expect("unshare runs");
        let inner = children.trim().parse().expect("one child");
        let zombies = || zombies_of(inner);
        eventually(|| zombies() == 0, || format!("{} are left", zombies()));
        launcher.send(Signal::KILL);
        launcher.wait();
    });
}

#[test]
fn a_second_signal_kills() {
    within_limit(|| {
        let text = "trap 'echo ignored $i >&2' TERM INT
            echo up $i >&2; while true; do sleep 1000 & wait; done";
        let mut launcher = Launcher::start(text, 0, false);
        launcher.lines_with("up ", 2);
        let start = Instant::now();
        launcher.send(Signal::INT);
        launcher.lines_with("ignored ", 2);
        launcher.send(Signal::TERM);
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(128 + 2), "{lines:#?}");
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "the grace period was waited for"
        );
    });
}

#[test]
fn a_signal_in_the_pause_before_a_restart_ends_the_job() {
    within_limit(|| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(PAUSE, "1000");
        let mut launcher = Launcher::start_by(command, "exit 1", 3, false);
        launcher.lines_with("restart 1 of 3, in 1000 s", 1);
        launcher.send(Signal::TERM);
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(128 + 15), "{lines:#?}");
    });
}

#[test]
fn a_member_that_is_signalled_and_saves_is_resumed() {
    within_limit(|| {
        let text = format!("if [ $DISTRIBUTE_RESTART = 1 ]; then exit 0; fi; {SAVING}");
        let mut launcher = Launcher::start(&text, 1, false);
        for line in launcher.lines_with("up ", 2) {
            kill_process(pid(&line), Signal::TERM).expect("it runs");
        }
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(0), "{lines:#?}");
        let note = "distribute: the processes have stopped and saved what they had; starting all \
                    of them again, restart 1 of 1";
        assert!(lines.iter().any(|line| line == note), "{lines:#?}");
    });
}

/// Waits for the end of processes that were alive when it was called, or have just ended.
struct Watched(Vec<(Pid, std::os::fd::OwnedFd)>);

impl Watched {
    fn new(pids: impl IntoIterator<Item = Pid>) -> Watched {
        let open = |pid| (pid, pidfd_open(pid, PidfdFlags::empty()).expect("it runs"));
        Watched(pids.into_iter().map(open).collect())
    }

    #[track_caller]
    fn assert_ended(&self) {
        let timeout = Timespec::try_from(TIMEOUT).expect("short");
        for (pid, fd) in &self.0 {
            let ended = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout));
            assert_eq!(ended, Ok(1), "process {pid:?} outlived the launcher");
        }
    }
}

#[test]
fn a_killed_launcher_takes_its_processes_with_it() {
    within_limit(|| {
        let text = "echo up $$ >&2; exec sleep 1000";
        for is_guarded in [false, true] {
            let mut launcher = Launcher::start(text, 0, is_guarded);
            let lines = launcher.lines_with("up ", 2);
            let watched = Watched::new(lines.iter().map(|line| pid(line)));
            launcher.send(Signal::KILL);
            watched.assert_ended();
            launcher.end();
        }
    });
}

#[test]
fn with_a_guard_a_killed_launcher_takes_their_children_too() {
    within_limit(|| {
        // A grandchild in the group, one in its own session, and one without the environment.
        let text = "
            trap '' TERM
            echo up $$ >&2
            sleep 1000 & echo up $! >&2
            setsid sleep 1000 & echo up $! >&2
            env -i sleep 1000 & echo up $! >&2
            sh -c 'setsid sleep 1000 & echo up $! >&2'
            wait";
        let mut launcher = Launcher::start(text, 0, true);
        let lines = launcher.lines_with("up ", 10);
        let watched = Watched::new(lines.iter().map(|line| pid(line)));
        launcher.send(Signal::KILL);
        watched.assert_ended();
        launcher.end();
    });
}

/// The guard of a launcher: the child that plays one.
fn guard_of(launcher: &Launcher, other_than: Option<Pid>) -> Pid {
    let id = launcher.child.id();
    let until = Instant::now() + TIMEOUT;
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter();
        let children = tasks.flatten().flatten().flat_map(|task| {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            let ids = children.split_whitespace().map(pid);
            ids.collect::<Vec<Pid>>()
        });
        let is_guard = |child: &Pid| {
            let path = format!("/proc/{}/cmdline", child.as_raw_nonzero());
            let command = std::fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&command).contains("as_guard")
        };
        let mut guards = children.filter(is_guard);
        if let Some(guard) = guards.find(|guard| Some(*guard) != other_than) {
            return guard;
        }
        assert!(Instant::now() < until, "there is no guard");
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_guard_is_followed_by_another_and_restarts_still_work() {
    within_limit(|| {
        let text = "
            (trap '' TERM; exec setsid sleep 1000) & echo up $i $! >&2
            echo run $DISTRIBUTE_RESTART $i $$ >&2; exec sleep 1000";
        let mut launcher = Launcher::start(text, 3, true);
        let lines = launcher.lines_with("run 0 ", 2);
        let first = guard_of(&launcher, None);
        kill_process(first, Signal::KILL).expect("it runs");
        guard_of(&launcher, Some(first));
        launcher.lines_with("another one does its work", 1);
        kill_process(pid(&lines[0]), Signal::KILL).expect("it runs");
        let mut ups = launcher.lines_with("run 1 ", 2);
        ups.extend(
            launcher
                .seen
                .iter()
                .filter(|line| line.contains("up "))
                .cloned(),
        );
        // The processes of the first run have ended; the ones that run now die with the launcher.
        let alive = ups.iter().map(|line| pid(line));
        let alive = alive.filter(|pid| {
            std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
        });
        let watched = Watched::new(alive);
        launcher.send(Signal::KILL);
        watched.assert_ended();
        launcher.assert_without_logs();
    });
}

#[test]
fn a_guard_that_is_killed_just_before_a_worker_takes_no_restart_away() {
    within_limit(|| {
        let text = "echo run $DISTRIBUTE_RESTART $i $$ >&2; exec sleep 1000";
        let mut launcher = Launcher::start(text, 3, true);
        let lines = launcher.lines_with("run 0 ", 2);
        let guard = guard_of(&launcher, None);
        kill_process(guard, Signal::KILL).expect("it runs");
        kill_process(pid(&lines[0]), Signal::KILL).expect("it runs");
        launcher.lines_with("run 1 ", 2);
        launcher.send(Signal::TERM);
        launcher.end();
    });
}

/// A launcher on one of two hosts, at this address.
fn on_host(address: std::net::SocketAddr, index: usize) -> Launcher {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(HOST, format!("{address} {index}"));
    Launcher::start_by(command, "exec sleep 1000", 0, false)
}

#[rstest]
#[case::at_host_0(0, false, Signal::TERM)]
#[case::at_host_1(1, false, Signal::TERM)]
#[case::for_one_that_says_nothing(1, true, Signal::TERM)]
#[case::interrupted(1, true, Signal::INT)]
fn a_launcher_that_waits_for_another_host_says_so_and_ends_at_a_signal(
    #[case] index: usize,
    #[case] is_silent: bool,
    #[case] signal: Signal,
) {
    within_limit(move || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        // No process listens for host 1, or one accepts connections and is silent.
        let _silent = is_silent.then_some(listener);
        let mut launcher = on_host(address, index);
        if index == 0 {
            let said = launcher.lines_with("waits for", 1);
            assert!(
                said[0].contains("[1]") && said[0].contains("here are [0]"),
                "{said:?}"
            );
        } else {
            launcher.lines_with("waits for the launcher of host 0", 1);
        }
        let begun = Instant::now();
        launcher.send(signal);
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{lines:#?}");
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
    });
}

/// Whether a process runs whose arguments hold `mark`, other than launchers.
fn is_running(mark: &str) -> bool {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands.any(|command| {
        let command = String::from_utf8_lossy(&command);
        command.contains(mark) && !command.contains("as_launcher")
    })
}

#[test]
fn a_launcher_that_is_killed_at_any_moment_leaves_nothing() {
    within_limit(|| {
        for delay in (0..60).step_by(3).map(Duration::from_millis) {
            // A sleep of a unique length.
            let mark = format!("1000.{}{}", std::process::id(), delay.as_millis());
            let text = format!("sleep {mark} & setsid sleep {mark} & env -i sleep {mark} & wait");
            let mut launcher = Launcher::start(&text, 0, true);
            std::thread::sleep(delay);
            launcher.send(Signal::KILL);
            launcher.wait();
            let left = || format!("something is left after {delay:?}");
            eventually(|| !is_running(&mark), left);
            launcher.assert_without_logs();
        }
    });
}

#[test]
fn a_launcher_that_ends_at_the_third_signal_leaves_no_directory() {
    within_limit(|| {
        let text = "trap 'echo got it >&2' TERM
            echo up $i >&2; while true; do sleep 1000 & wait; done";
        let mut launcher = Launcher::start(text, 0, true);
        launcher.lines_with("up ", 2);
        // All at once: the job cannot end before the third.
        launcher.send(Signal::STOP);
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::CONT] {
            launcher.send(signal);
        }
        let (status, lines) = launcher.wait();
        assert_eq!(status.code(), None, "{lines:#?}");
        launcher.assert_without_logs();
    });
}

#[test]
fn a_guard_leaves_the_log_files_of_a_job_that_failed() {
    within_limit(|| {
        let mut launcher = Launcher::start("echo why >&2; exit 1", 0, true);
        let (status, lines) = launcher.wait();
        assert_eq!(status.code(), Some(1), "{lines:#?}");
        let [logs] = &launcher.log_directories()[..] else {
            panic!("{lines:#?}");
        };
        assert_eq!(read(logs.join("worker-0.log")), "why\n");
    });
}

/// The launchers of two hosts, with the processes `up` on both.
fn on_two_hosts(text: &str) -> ([Launcher; 2], [Watched; 2]) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let mut launchers = [0, 1].map(|index| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(HOST, format!("{address} {index}"));
        Launcher::start_by(command, text, 0, false)
    });
    let watched = launchers.each_mut().map(|launcher| {
        let lines = launcher.lines_with("up ", 2);
        Watched::new(lines.iter().map(|line| pid(line)))
    });
    (launchers, watched)
}

#[test]
fn a_signal_to_one_launcher_or_all_of_them_stops_all_hosts() {
    within_limit(|| {
        for signalled in [&[0][..], &[1], &[0, 1]] {
            let (launchers, _watched) = on_two_hosts(SAVING);
            signalled
                .iter()
                .for_each(|index| launchers[*index].send(Signal::TERM));
            launchers.into_iter().for_each(Launcher::end_saved);
        }
    });
}

#[test]
fn a_killed_launcher_is_named_on_the_other_host() {
    within_limit(|| {
        for killed in [0, 1] {
            let (launchers, watched) = on_two_hosts("echo up $$ >&2; exec sleep 1000");
            launchers[killed].send(Signal::KILL);
            watched.iter().for_each(Watched::assert_ended);
            let [first, second] = launchers.map(Launcher::end);
            let (status, lines) = if killed == 0 { second } else { first };
            assert_eq!(status.code(), Some(1));
            let error = format!("the launcher of host {killed} is gone");
            assert!(lines.iter().any(|line| line.contains(&error)), "{lines:#?}");
        }
    });
}

/// The launcher of one of two hosts with restarts left.
fn with_restarts(address: std::net::SocketAddr, index: usize, join: u64, text: &str) -> Launcher {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(HOST, format!("{address} {index}"));
    command.env(JOIN, join.to_string());
    Launcher::start_by(command, text, 3, false)
}

#[test]
fn a_launcher_of_host_0_that_is_gone_is_looked_for_and_named() {
    within_limit(|| {
        let (address, ports) = meeting_point();
        let text = "echo up $$ >&2; exec sleep 1000";
        let start = |index| with_restarts(address, index, 4, text);
        let mut launchers = [start(0), start(1)];
        for launcher in &mut launchers {
            launcher.lines_with("up ", 2);
        }
        let [first, mut second] = launchers;
        first.send(Signal::KILL);
        let waits = format!(
            "the launchers of the hosts [0] (counted from 0) are out of reach; waiting for them \
             for up to 4 s (restarts used: 0 of 3), looking for host 0 at {address}, where all meet"
        );
        second.lines_with(&waits, 1);
        let (status, lines) = second.end();
        assert_eq!(status.code(), Some(1), "{lines:#?}");
        let error = lines.last().expect("the error");
        for part in [
            "error: the launchers of the hosts [0] (counted from 0) were lost",
            "none of them was within reach again in 4 s",
            &format!("host 0 was looked for at {address}: "),
            "refused",
        ] {
            assert!(error.contains(part), "{part}: {lines:#?}");
        }
        drop(first.end());
        drop(ports);
    });
}

#[test]
fn a_launcher_without_descriptors_says_why_no_host_comes() {
    within_limit(|| {
        let (address, ports) = meeting_point();
        let mut first = with_restarts(address, 0, 5, "exit 0");
        first.lines_with("host 0 waits for the launchers of the hosts [1]", 1);
        let few = Rlimit {
            current: Some(3),
            maximum: Some(3),
        };
        prlimit(Some(Pid::from_child(&first.child)), Resource::Nofile, few).expect("a limit");
        let second = with_restarts(address, 1, 2, "exit 0");
        let cause = "this process has no file descriptors left";
        let said = first.lines_with("host 0 cannot take connections of other launchers", 1);
        assert!(said[0].contains(cause), "{said:?}");
        let (status, lines) = first.end();
        assert_eq!(status.code(), Some(1), "{lines:#?}");
        let error = lines.last().expect("the error");
        assert!(
            error.contains("error: the launchers cannot meet"),
            "{error}"
        );
        assert!(
            error.contains(cause) && error.contains("ulimit -n"),
            "{error}"
        );
        drop((second.end(), ports));
    });
}

#[test]
fn a_launcher_of_host_0_that_is_started_again_is_found() {
    within_limit(|| {
        let (address, ports) = meeting_point();
        let directory = tempfile::tempdir().expect("a directory");
        let text = format!(
            "cd '{}'; echo up $$ >&2; while [ ! -e done ]; do sleep 0.05; done",
            directory.path().display()
        );
        let start = |index| with_restarts(address, index, 50, &text);
        let mut launchers = [start(0), start(1)];
        for launcher in &mut launchers {
            launcher.lines_with("up ", 2);
        }
        let [first, mut second] = launchers;
        first.send(Signal::KILL);
        drop(first.end());
        second.lines_with("looking for host 0", 1);
        let mut again = start(0);
        again.lines_with("up ", 2);
        second.lines_with("up ", 2);
        std::fs::write(directory.path().join("done"), "").expect("it is written");
        for launcher in [again, second] {
            let (status, lines) = launcher.end();
            assert_eq!(status.code(), Some(0), "{lines:#?}");
        }
        drop(ports);
    });
}

#[test]
fn a_launcher_that_stands_still_is_named_on_the_other_host() {
    within_limit(|| {
        let (launchers, watched) = on_two_hosts("echo up $$ >&2; exec sleep 1000");
        launchers[1].send(Signal::STOP);
        watched[0].assert_ended();
        launchers[1].send(Signal::KILL);
        watched[1].assert_ended();
        let [(status, lines), _] = launchers.map(Launcher::end);
        assert_eq!(status.code(), Some(1));
        let error = "the launcher of host 1 is gone";
        assert!(lines.iter().any(|line| line.contains(error)), "{lines:#?}");
    });
}

/// An elastic job of one worker or two on each of `count` hosts.
struct Elastic {
    address: std::net::SocketAddr,
    _ports: ReservedPorts,
    directory: tempfile::TempDir,
    count: usize,
}

impl Elastic {
    fn new(count: usize) -> Elastic {
        let (address, ports) = meeting_point();
        Elastic {
            address,
            _ports: ports,
            directory: tempfile::tempdir().expect("a directory"),
            count,
        }
    }

    /// The first launcher of two, once the second one has ended by a signal.
    fn left_alone_by(&self, signal: Signal) -> Launcher {
        let (first, second) = (self.start(0), self.start(1));
        self.await_workers(4, 0);
        second.send(signal);
        match signal {
            Signal::TERM => second.end_saved(),
            _ => drop(second.end()),
        }
        self.await_workers(2, 1);
        first
    }

    /// The launcher of a host. Worker `i` of `n` makes the file `up-i-n-s` in start `s` and `of-p`
    /// for its launcher's process `p`, saves when it is told to stop, and ends when there is the
    /// file `done`.
    fn start(&self, index: usize) -> Launcher {
        let text = format!(
            "cd '{}'; c=${{TF_CONFIG%%]*}}; n=$(echo \"$c\" | grep -o ':[0-9]*\"' | wc -l)
            echo $DISTRIBUTE_RESTART:$i/$n >> told$i; trap 'exit 42' TERM
            > up-$i-$n-$DISTRIBUTE_RESTART; > of-$PPID; while [ ! -e done ]; do sleep 0.05; done",
            self.directory.path().display()
        );
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(HOST, format!("{} {index}", self.address));
        command.env(ELASTIC, format!("1 {} {}", 2 * self.count, self.count));
        Launcher::start_by(command, &text, 0, false)
    }

    /// Waits until all `workers` of start `start` are up.
    fn await_workers(&self, workers: usize, start: u32) {
        for index in 0..workers {
            self.await_file(&format!("up-{index}-{workers}-{start}"));
        }
    }

    #[track_caller]
    fn await_file(&self, name: &str) {
        let path = self.directory.path().join(name);
        eventually(|| path.exists(), || format!("{name} does not come"));
    }

    /// What the workers of a rank have said of their starts so far.
    fn told(&self, rank: usize) -> String {
        read(self.directory.path().join(format!("told{rank}")))
    }

    /// Lets the workers end; all launchers end well.
    fn finish(&self, launchers: impl IntoIterator<Item = Launcher>) -> Vec<Vec<String>> {
        std::fs::write(self.directory.path().join("done"), "").expect("it is written");
        let ends = launchers.into_iter().map(|launcher| {
            let (status, lines) = launcher.end();
            assert_eq!(status.code(), Some(0), "{lines:#?}");
            lines
        });
        ends.collect()
    }
}

#[test]
fn a_killed_launcher_of_an_elastic_job_is_done_without_and_may_come_again() {
    within_limit(|| {
        let job = Elastic::new(2);
        let first = job.left_alone_by(Signal::KILL);
        let again = job.start(1);
        job.await_workers(4, 2);
        let lines = job.finish([first, again]);
        assert_eq!(job.told(0), "0:0/4\n1:0/2\n2:0/4\n");
        for said in [
            "the launcher of host 1 is gone; stopping the others",
            "going on with 2 workers instead of 4 (shrink 1, growth 0, restart 0 of 0)",
            "going on with 4 workers instead of 2 (shrink 1, growth 1, restart 0 of 0)",
            "workers at the end: 4; restarts: 0, shrinks: 1, growths: 1",
        ] {
            let mut all = lines[0].iter();
            assert!(all.any(|line| line.contains(said)), "{said}: {lines:#?}");
        }
    });
}

#[test]
fn a_launcher_of_an_elastic_job_that_is_told_to_stop_leaves_and_the_others_go_on() {
    within_limit(|| {
        let job = Elastic::new(2);
        job.finish([job.left_alone_by(Signal::TERM)]);

        let job = Elastic::new(2);
        let launchers = [job.start(0), job.start(1)];
        job.await_workers(4, 0);
        // A scheduler that takes all hosts away signals all of them: none acts before the other is
        // told.
        for signal in [Signal::STOP, Signal::TERM, Signal::CONT] {
            launchers.iter().for_each(|launcher| launcher.send(signal));
        }
        launchers.into_iter().for_each(Launcher::end_saved);
    });
}

#[test]
fn hosts_that_are_lost_while_a_loss_is_handled_are_done_without() {
    within_limit(|| {
        let job = Elastic::new(3);
        let [first, second, third] = [0, 1, 2].map(|index| job.start(index));
        job.await_workers(6, 0);
        for launcher in [second, third] {
            launcher.send(Signal::KILL);
            launcher.end();
        }
        job.await_file("told0");
        let is_alone = || job.told(0).ends_with(":0/2\n");
        eventually(is_alone, || "host 0 does not go on alone".to_owned());
        job.finish([first]);
    });
}

#[test]
fn launchers_that_die_while_they_join_disturb_no_other() {
    within_limit(|| {
        let job = Elastic::new(2);
        let first = job.left_alone_by(Signal::KILL);
        for delay in (0..40).step_by(4).map(Duration::from_millis) {
            let joiner = job.start(1);
            std::thread::sleep(delay);
            joiner.send(Signal::KILL);
            joiner.end();
        }
        let last = job.start(1);
        // Some of the others may have been taken in before they died.
        job.await_file(&format!("of-{}", last.child.id()));
        job.finish([first, last]);
    });
}

#[test]
fn a_host_is_lost_for_good_below_the_minimum() {
    within_limit(|| {
        let job = Elastic::new(2);
        // The two workers of a host are fewer than 3.
        let start = |index: usize| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.env(HOST, format!("{} {index}", job.address));
            command.env(ELASTIC, "3 4 2");
            Launcher::start_by(command, "echo up $$ >&2; exec sleep 1000", 0, false)
        };
        let mut launchers = [start(0), start(1)];
        for launcher in &mut launchers {
            launcher.lines_with("up ", 2);
        }
        let [first, second] = launchers;
        second.send(Signal::KILL);
        second.end();
        let (status, lines) = first.end();
        assert_eq!(status.code(), Some(1), "{lines:#?}");
        let said = "without the launchers of the hosts [1] (counted from 0) 2 workers are left, \
                    and the job needs at least 3";
        assert!(lines.iter().any(|line| line.contains(said)), "{lines:#?}");
    });
}
