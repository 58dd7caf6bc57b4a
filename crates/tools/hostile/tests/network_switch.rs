//! The program `network-switch`: what it obeys, and that nothing of it stays.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

struct Switch {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Switch {
    fn start(names: &[&str]) -> Self {
        // Whatever happens here, it ends.
        let limit = LIMIT.as_secs().to_string();
        let mut child = Command::new("timeout")
            .args([
                "--kill-after=3",
                &limit,
                env!("CARGO_BIN_EXE_network-switch"),
            ])
            .args(names)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// The next line; empty at the end.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    fn told(&mut self, line: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.says()
    }

    /// How it ended, and why.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), error)
    }
}

fn is_there(device: &str) -> bool {
    Path::new("/sys/class/net").join(device).exists()
}

#[test]
fn it_obeys_lines_and_leaves_no_device_behind() {
    let process = std::process::id();
    let names = [format!("ns{process}-0"), format!("ns{process}-1")];
    let [first, second] = [&*names[0], &*names[1]];
    let mut switch = Switch::start(&[first, second]);
    if switch.says() != "ready" {
        let (code, error) = switch.end();
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(first), "{error}");
        println!("SKIPPED: no TAP devices here: {error}");
        return;
    }
    assert!(is_there(first) && is_there(second));
    assert_eq!(
        switch.told(&format!("{first} {second} delay=20ms loss=1%")),
        "ok"
    );
    assert_eq!(switch.told("* * cut"), "ok");
    let unknown = switch.told("x * cut");
    assert_eq!(unknown, "error: there is no device x");
    let wrong = switch.told("* * delay=20");
    assert!(
        wrong.starts_with("error: ") && wrong.contains("20ms"),
        "{wrong}"
    );
    let counters = switch.told("counters");
    let nothing = format!("{first} {second} passed=0 lost=0 dropped=0 cut=0");
    assert_eq!(counters, nothing);
    assert!(switch.says().starts_with(&format!("{second} {first} ")));
    assert_eq!(switch.says(), "ok");

    // A name that is in use is not shared.
    let mut other = Switch::start(&[second, "ns-other"]);
    assert_eq!(other.says(), "");
    let (code, error) = other.end();
    assert!(code == Some(1) && error.contains(second), "{error}");

    assert_eq!(switch.end(), (Some(0), String::new()));
    let begun = Instant::now();
    while is_there(first) || is_there(second) {
        assert!(begun.elapsed() < LIMIT, "the devices stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_no_device_is_an_error() {
    for names in [
        &["a"][..],
        &["", "b"],
        &["a/b", "c"],
        &["much-too-long-a-name", "d"],
    ] {
        let mut switch = Switch::start(names);
        assert_eq!(switch.says(), "", "{names:?}");
        let (code, error) = switch.end();
        assert_eq!(code, Some(1), "{names:?}: {error}");
        assert!(error.starts_with("error: "), "{error}");
    }
}
