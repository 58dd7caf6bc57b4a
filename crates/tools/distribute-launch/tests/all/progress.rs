//! The line about the whole job on a terminal.

use std::io::{self, Write};
use std::path::PathBuf;

use distribute_launch::{Console, Outcome, run};

use crate::common::{script_in, within_limit};

/// A terminal that says with a file that it has shown something.
struct Terminal {
    text: Vec<u8>,
    awaited: &'static str,
    file: PathBuf,
}

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        if String::from_utf8_lossy(&self.text).contains(self.awaited) {
            std::fs::write(&self.file, "")?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const SAID: &str = r#"{"step":7,"epoch":1,"epochs":2,"loss":0.5,"examples_per_second":1234.5}"#;
const SHOWN: &str = "step 7  epoch 1/2  loss 0.5000  1234 examples/s  workers 2/2";
const CLEAR: &str = "\r\u{1b}[2K";

#[test]
fn a_terminal_shows_how_far_the_job_is() {
    let (text, stdout, left) = within_limit(|| {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        let job = script_in(
            folder.path(),
            &format!(
                r#"if [ $i = 0 ]; then echo '{SAID}' > "$DISTRIBUTE_PROGRESS"; fi
                await shown; echo "$i ${{DISTRIBUTE_PROGRESS+is told}}" > told-$i; echo done"#
            ),
        );
        let job = job.workers(2).log_directory(&logs);
        let mut stdout = Vec::new();
        let mut terminal = Terminal {
            text: Vec::new(),
            awaited: SHOWN,
            file: folder.path().join("shown"),
        };
        let mut console = Console::new(&mut stdout, &mut terminal).terminal(80);
        let outcome = run(&job, &mut console).unwrap();
        assert_eq!(outcome, Outcome::Succeeded { restarts: 0 });
        let told = |index| std::fs::read_to_string(folder.path().join(format!("told-{index}")));
        assert_eq!(told(0).unwrap(), "0 is told\n");
        assert_eq!(told(1).unwrap(), "1 \n");
        (terminal.text, stdout, logs.join("progress.json").exists())
    });
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(&format!("{CLEAR}{SHOWN}")), "{text:?}");
    assert!(text.ends_with(CLEAR), "{text:?}");
    assert_eq!(stdout, b"done\n");
    assert!(!left);
}

#[test]
fn a_pipe_gets_no_line_and_no_process_is_asked() {
    within_limit(|| {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let folder = tempfile::tempdir().unwrap();
        let job = script_in(folder.path(), r#"echo "${DISTRIBUTE_PROGRESS-none}""#);
        let job = job.workers(2).log_directory(folder.path().join("logs"));
        run(&job, &mut Console::new(&mut stdout, &mut stderr)).unwrap();
        assert_eq!((stdout, stderr), (b"none\n".to_vec(), Vec::new()));
    });
}
