//! Supervision never waits for an output or for a corpse: processes that do not end, outputs that
//! are not read, and disks that are full.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rstest::rstest;
use rustix::process::{Pid, Signal, getuid, kill_process, test_kill_process};

use crate::common::{read, within_limit};
use crate::eventually::eventually;
use crate::hosts::meeting_point;
use crate::launcher::{DESCRIPTORS, GRACE, HOST, LOGS, Launcher, PLAY, RESTARTS, SCRIPT, pid};

/// A user without rights.
const UNPRIVILEGED: &str = "65534";

fn launcher() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

/// Ends the process with this number at the end of a test.
struct Ended(Pid);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = kill_process(self.0, Signal::KILL);
    }
}

/// Makes a program that runs `sleep` as root and that every user may start; `None` where that is
/// not possible.
fn sleep_as_root(folder: &Path) -> Option<String> {
    if !getuid().is_root() {
        return None;
    }
    fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).expect("own");
    let program = folder.join("as-root");
    fs::copy("/usr/bin/setpriv", &program).ok()?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).expect("own");
    let text = format!(
        "{} --reuid 0 --regid 0 --clear-groups sleep 1000",
        program.display()
    );
    let probe = text.replace("sleep 1000", "id -u");
    let probe = as_nobody(Command::new("sh")).args(["-c", &probe]).output();
    (probe.ok()?.stdout == b"0\n").then_some(text)
}

/// The program of the command, run by a user without rights.
fn as_nobody(command: Command) -> Command {
    let mut whole = Command::new("setpriv");
    whole.args([
        "--reuid",
        UNPRIVILEGED,
        "--regid",
        UNPRIVILEGED,
        "--clear-groups",
    ]);
    whole.arg(command.get_program());
    whole
}

/// The launcher of host 1 has no right to signal one of its workers, which therefore does not end,
/// as one that hangs in the system does not.
#[test]
fn a_process_that_does_not_end_is_named_and_both_hosts_go_on() {
    let folder = tempfile::tempdir().expect("a directory");
    let Some(stuck) = sleep_as_root(folder.path()) else {
        println!("SKIPPED: needs root, setpriv, and a file system with set-user-ID programs");
        return;
    };
    within_limit(move || {
        let (address, _reserved) = meeting_point();
        let program = folder.path().join("launcher");
        fs::copy(std::env::current_exe().expect("this program"), &program).expect("room");
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("own");
        let text = format!(
            "case $i in 3) echo up $i $$ >&2; exec {stuck} ;; esac
            echo up $i $$ >&2; exec sleep 1000"
        );
        let start = |mut command: Command, index: usize| {
            command
                .env(HOST, format!("{address} {index}"))
                .env(GRACE, "1");
            command.env(LOGS, folder.path().join(format!("logs-{index}")));
            Launcher::start_by(command, &text, 0, false)
        };
        let mut first = start(launcher(), 0);
        let mut second = start(as_nobody(Command::new(program)), 1);
        let ups = first.lines_with("up ", 2);
        let stuck = second.lines_with("up 3 ", 1);
        let stuck = Ended(pid(&stuck[0]));
        let number = stuck.0.as_raw_nonzero();
        let command = format!("/proc/{number}/comm");
        let runs = || fs::read_to_string(&command).is_ok_and(|name| name == "sleep\n");
        eventually(runs, || "the worker is not on its way".to_owned());
        kill_process(pid(&ups[0]), Signal::KILL).expect("it runs");
        let (second, lines) = second.end();
        assert_eq!(second.code(), Some(128 + 9), "{lines:#?}");
        let said = format!("rank 3 (pid {number}) does not end, not even by SIGKILL");
        assert!(lines.iter().any(|line| line.contains(&said)), "{lines:#?}");
        assert!(test_kill_process(stuck.0).is_ok(), "it has ended");
        let (first, lines) = first.end();
        assert_eq!(first.code(), Some(128 + 9), "{lines:#?}");
        let said = "rank 3: does not end, not even by SIGKILL: host ";
        let line = lines.iter().find(|line| line.contains(said));
        let line = line.unwrap_or_else(|| panic!("{lines:#?}"));
        assert!(line.ends_with(&format!(", pid {number}")), "{line}");
        let cause = "the job failed because of rank 0: killed by SIGKILL";
        assert!(lines.iter().any(|line| line.contains(cause)), "{lines:#?}");
    });
}

/// Attaches to a process as a debugger does, and then does nothing more.
const TRACE: &str = r#"
    $| = 1; use POSIX (); my $call = (POSIX::uname())[4] eq "x86_64" ? 101 : 117;
    syscall($call, 0x4206, $ARGV[0] + 0, 0, 0) == 0 or print("cannot trace: $!\n"), exit;
    print "traced\n"; sleep 1000;
"#;

struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// What a debugger holds is dead and is not reaped: its parent never learns how it ended.
#[test]
fn a_corpse_that_a_debugger_holds_holds_up_no_launcher() {
    within_limit(|| {
        let mut launcher =
            Launcher::start_by(launcher(), "echo up $i $$ >&2; exec sleep 1000", 1, false);
        let ups = launcher.lines_with("up ", 2);
        let of_rank_1 = |line: &&String| line.contains("up 1 ");
        let rank_1 = pid(ups.iter().find(of_rank_1).expect("both are up"));
        let mut tracer = Command::new("perl");
        tracer.args(["-e", TRACE, &rank_1.as_raw_nonzero().to_string()]);
        let Ok(tracer) = tracer.stdout(Stdio::piped()).spawn() else {
            println!("SKIPPED: no perl to attach to a process");
            launcher.send(Signal::TERM);
            launcher.end();
            return;
        };
        let mut tracer = Tracer(tracer);
        let mut said = String::new();
        let stdout = tracer.0.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        if said.trim() != "traced" {
            println!("SKIPPED: {said}");
            launcher.send(Signal::TERM);
            launcher.end();
            return;
        }
        kill_process(rank_1, Signal::KILL).expect("it runs");
        launcher.lines_with("rank 1: killed by SIGKILL", 1);
        launcher.lines_with("restart 1 of 1", 1);
        launcher.lines_with("up ", 2);
        launcher.send(Signal::TERM);
        let (status, lines) = launcher.end();
        assert_eq!(status.code(), Some(128 + 15), "{lines:#?}");
    });
}

/// A pipe that is full, as no program reads it.
#[rstest]
fn outputs_that_are_not_read_hold_up_no_launcher(
    #[values(true, false)] reads_stdout: bool,
    #[values(true, false)] reads_stderr: bool,
) {
    within_limit(move || {
        let folder = tempfile::tempdir().expect("a directory");
        let text = format!(
            "cd '{}'; [ $i = 1 ] && echo $$ > tmp && mv tmp up
            while true; do echo line of $i; echo line of $i >&2; done",
            folder.path().display()
        );
        let mut command = launcher();
        command
            .args(PLAY)
            .arg("launcher::as_launcher")
            .env(SCRIPT, text)
            .env(RESTARTS, "0")
            .env(DESCRIPTORS, "1")
            .env(GRACE, "1")
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut launcher = command.spawn().expect("a launcher");
        let (stdout, stderr) = (launcher.stdout.take(), launcher.stderr.take());
        let mut readers = Vec::new();
        let mut drain = |mut pipe: Box<dyn Read + Send>| {
            let read = move || std::io::copy(&mut pipe, &mut std::io::sink());
            readers.push(std::thread::spawn(read));
        };
        let (mut stdout, mut stderr) = (stdout, stderr);
        if reads_stdout {
            drain(Box::new(stdout.take().expect("piped")));
        }
        if reads_stderr {
            drain(Box::new(stderr.take().expect("piped")));
        }
        let up = folder.path().join("up");
        eventually(|| up.exists(), || "no worker is up".to_owned());
        // Until the logs have more than fits into pipes and queues.
        let is_full = || {
            let found = fs::read_dir(folder.path()).into_iter().flatten().flatten();
            let logs = found.map(|entry| entry.path().join("worker-1.log"));
            let sizes = logs.filter_map(|log| fs::metadata(log).ok());
            sizes.map(|data| data.len()).sum::<u64>() > 1 << 20
        };
        eventually(is_full, || "little is written".to_owned());
        kill_process(pid(&read(up)), Signal::KILL).expect("it runs");
        let status = launcher.wait().expect("a status");
        assert_eq!(status.code(), Some(128 + 9));
        drop((stdout, stderr));
        for reader in readers {
            let copied = reader.join().expect("no panic");
            copied.expect("it is read");
        }
    });
}

/// The disk of the log files is full for a while.
#[test]
fn a_full_disk_of_the_logs_costs_lines_and_no_training() {
    let mounting = ["--mount", "--map-root-user", "sh", "-c"];
    let unshare = move |text: &str| {
        let mut command = Command::new("unshare");
        command.args(mounting).arg(text).arg("sh");
        command
    };
    let folder = tempfile::tempdir().expect("a directory");
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).expect("a directory");
    let mount = format!("mount -t tmpfs -o size=256k logs '{}'", logs.display());
    if !unshare(&mount)
        .output()
        .is_ok_and(|probe| probe.status.success())
    {
        println!("SKIPPED: no file system can be mounted");
        return;
    }
    within_limit(move || {
        let (path, outside) = (logs.display(), folder.path().display());
        let wrapper = format!(
            "{mount} && head -c 200k /dev/zero > '{path}/filler' && \"$@\"; code=$?
            cp '{path}/worker-1.log' '{outside}/log'; exit $code"
        );
        let mut command = unshare(&wrapper);
        command.arg(std::env::current_exe().expect("this program"));
        command.env(LOGS, &logs);
        let text = format!(
            "[ $i = 0 ] && exit 0
            until [ -e '{outside}/room' ]; do seq 1000; done
            rm '{path}/filler'
            n=0; while [ $n -lt 20 ]; do echo a line with room; sleep 0.02; n=$((n+1)); done"
        );
        let mut launcher = Launcher::start_by(command, &text, 0, false);
        let said = launcher.lines_with("warning: cannot write the log of rank 1", 1);
        assert!(said[0].contains("No space left on device"), "{said:?}");
        fs::write(folder.path().join("room"), "").expect("a file");
        let (status, lines) = launcher.end();
        assert!(status.success(), "{lines:#?}");
        let warnings = lines
            .iter()
            .filter(|line| line.contains("cannot write the log"));
        assert_eq!(warnings.count(), 0, "it is said once");
        let log = read(folder.path().join("log"));
        let missing = "bytes are missing here: No space left on device";
        let at = log.find(missing).unwrap_or_else(|| panic!("{log}"));
        assert!(log[at..].contains("a line with room"), "it is tried again");
        let total = "bytes that the processes wrote are missing in the log files";
        assert!(lines.iter().any(|line| line.contains(total)), "{lines:#?}");
    });
}
