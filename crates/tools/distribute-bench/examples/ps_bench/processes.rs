//! What the benchmarks share: processes of the same program, and their processor time.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use distribute_ps::{ParameterServer, ServerOptions};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// glibc's settings for keeping freed memory, as `distribute-cli` sets them: with the defaults the
/// kernel would clear every page of every large value anew.
const KEEP_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "1000000000"),
    ("MALLOC_TRIM_THRESHOLD_", "2000000000"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

/// Runs this program once more with [`KEEP_MEMORY`], which is read when a process starts: the
/// status to end with, or `None` in the process that has it. `PS_BENCH_MALLOC=default` leaves the
/// allocator alone.
pub fn keep_memory(arguments: &[String]) -> Result<Option<i32>> {
    let is_set = std::env::var_os(KEEP_MEMORY[0].0).is_some();
    if is_set || std::env::var_os("PS_BENCH_MALLOC").is_some_and(|value| value == "default") {
        return Ok(None);
    }
    let mut again = Command::new(std::env::current_exe()?);
    let status = again.args(arguments).envs(KEEP_MEMORY).status()?;
    Ok(Some(status.code().unwrap_or(1)))
}

/// A parameter server, until it is ended.
pub fn serve() -> Result<()> {
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default())?;
    println!("{}", server.address());
    server.wait(None)?;
    Ok(())
}

/// A process of this program that says a line when it is ready. It is killed when this is dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What it said first: its address.
    pub address: String,
}

impl Process {
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let input = child.stdin.take();
        let mut process = Self {
            child,
            input,
            output,
            address: String::new(),
        };
        process.address = process.line()?;
        Ok(process)
    }

    /// The next line that it says.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_string())
    }

    /// Tells it a line.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().ok_or("no input")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    /// Processor time so far.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(&self.child.id().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of a process, or of `self`, with all threads that it had: to 10 ms.
pub fn cpu_of(process: &str) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name is in parentheses and may hold anything.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |index: usize| -> Result<u64> { Ok(fields.get(index).ok_or("no time")?.parse()?) };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

/// The number at a place of the command line.
pub fn number(arguments: &[String], index: usize, default: usize) -> Result<usize> {
    let text = arguments.get(index);
    text.map_or(Ok(default), |text| Ok(text.parse()?))
}
