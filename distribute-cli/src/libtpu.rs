//! libtpu in a separate process.
//!
//! libtpu reads environment variables while it is loaded, which a process with threads cannot
//! change; it writes its own log to standard error; and it ends its process on unsupported input,
//! such as a topology with a wrong dimension. So this program starts itself again to compile for a
//! TPU that the machine does not have, and reports the result.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use distribute_tpu_xla::pjrt::LibtpuEnvironment;

use crate::failure::Failure;
use crate::notes::note;

/// The variable that tells the second process the id of the first.
const PARENT: &str = "DISTRIBUTE_LIBTPU_PARENT";

/// Continues in a second process if the plugin is libtpu; its result, already printed, is then the
/// error. Returns in the second process, and for other plugins.
pub(crate) fn in_own_process(plugin: &Path, verbose: bool) -> Result<(), Failure> {
    if !LibtpuEnvironment::is_for(plugin) {
        return Ok(());
    }
    if let Some(parent) = env::var_os(PARENT) {
        return die_with(&parent.to_string_lossy());
    }
    let cannot = |error| Failure::failed(format!("cannot start a process for libtpu: {error}"));
    let program = env::current_exe().map_err(cannot)?;
    let mut again = Command::new(program);
    again.args(env::args_os().skip(1));
    again.env(PARENT, std::process::id().to_string());
    LibtpuEnvironment::compile_only().apply_to(&mut again);
    let mut child = again.stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let log = child.stderr.take().map(|log| Log::forward(log, verbose));
    let status = child.wait().map_err(cannot)?;
    Err(ended(status, log.unwrap_or_default().fatal))
}

/// Ends this process when its parent ends, which passes on its output.
#[cfg(target_os = "linux")]
fn die_with(parent: &str) -> Result<(), Failure> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    let alive = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    match (asked, alive) {
        (Ok(()), Some(alive)) if alive == parent => Ok(()),
        _ => Err(Failure::failed(format!(
            "the process {parent} that wanted this one is gone; {PARENT} is not for users"
        ))),
    }
}

/// Only Linux has a signal for the death of a parent.
#[cfg(not(target_os = "linux"))]
fn die_with(_: &str) -> Result<(), Failure> {
    Ok(())
}

fn ended(status: ExitStatus, fatal: Option<String>) -> Failure {
    let why = match (status.code().map(u8::try_from), fatal) {
        (Some(Ok(code)), None) => return Failure::already_printed(code),
        (_, Some(text)) => text,
        _ => status.to_string(),
    };
    Failure::failed(format!(
        "libtpu gave up and ended its process: {why}; is there such a topology? --verbose shows \
         all that libtpu says"
    ))
}

/// The standard error of the second process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    /// Why libtpu ended the process.
    fatal: Option<String>,
}

impl Log {
    /// Reads to the end; passes on lines that are not libtpu's, or all lines.
    fn forward(stderr: impl Read, verbose: bool) -> Self {
        let mut log = Self::default();
        let mut lines = BufReader::new(stderr).split(b'\n');
        while let Some(Ok(line)) = lines.next() {
            let line = String::from_utf8_lossy(&line);
            if log.is_own(&line) || verbose {
                note(&line);
            }
        }
        log
    }

    /// Whether a line is this program's. A stack trace follows libtpu's last message.
    fn is_own(&mut self, line: &str) -> bool {
        let Some((severity, text)) = logged(line) else {
            return self.fatal.is_none() && !is_trace(line);
        };
        if severity == 'F' {
            self.fatal.get_or_insert_with(|| text.trim().to_string());
        }
        false
    }
}

/// Whether a line is one of a stack trace, as Google's signal handler prints it.
fn is_trace(line: &str) -> bool {
    let begins = ["*** ", "PC: @", "https://symbolize."];
    begins.iter().any(|begin| line.starts_with(begin)) || line.trim_start().starts_with("@ ")
}

/// The severity and the text of a line of Google's logging library:
/// `E1121 23:56:18.765619   22386 file.cc:344] text`.
fn logged(line: &str) -> Option<(char, &str)> {
    let (place, text) = line.split_once("] ")?;
    let mut words = place.split_whitespace();
    let (date, time) = (words.next()?, words.next()?);
    let severity = date.chars().next().filter(|c| "IWEF".contains(*c))?;
    let is_date = date.len() == 5 && date[1..].bytes().all(|b| b.is_ascii_digit());
    (is_date && time.matches(':').count() == 2).then_some((severity, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libtpu_logs_is_told_from_what_this_program_says() {
        let log = "E1121 23:56:18.765619   22386 hugepage_text.cc:344] RAW: File offset\n\
                   F1121 23:56:42.095525   23423 target.cc:1461] Check failed: z == 1 (7 vs. 1) \n\
                   *** Check failure stack trace: ***\n";
        let found = Log::forward(log.as_bytes(), false);
        assert_eq!(
            found.fatal.as_deref(),
            Some("Check failed: z == 1 (7 vs. 1)")
        );
        let trace = [
            "https://symbolize.stripped_domain/r/?trace=7f8c&map= ",
            "*** SIGFPE (@0x7f8c), see go/stacktraces#s15 received by PID 31327; stack trace: ***",
            "PC: @     0x7f8c7fd56d61  (unknown)  pjrt::GetTpuTopologyDescription()",
            "    @     0x7f8c8e477677       1888  FailureSignalHandler()",
        ];
        for line in trace {
            assert!(!Log::default().is_own(line), "{line}");
        }
        for own in [
            "error: E1121 is [x] y",
            "",
            "E1121 alone] ",
            "\u{e9}1121 1:2:3 a] b",
        ] {
            assert!(Log::default().is_own(own), "{own}");
        }
    }
}
