//! How many ranks a job can have: processes of this machine meet at one address, all-reduce 4 KiB,
//! lose one, and end.
//!
//! `cargo run -p distribute-bench --features bench --example many_ranks -- TRANSPORT WORLD...`:
//! TRANSPORT is grpc or auto. The program starts itself once per rank and prints a row of a table
//! for each WORLD: until all have met (from the start of the first process), the first and a second
//! all-reduce, until all others have ended after one was killed, and of one rank the open
//! descriptors, the threads and the memory of its own.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use distribute_collectives::{
    Buffer, Communicator, ProcessGroupOptions, ProcessTransport, ReduceOp,
};

/// Makes the program a rank: its number, the size of the group, where all meet, the transport.
const RANK: &str = "MANY_RANKS_RANK";

/// No rank waits longer for the others.
const LIMIT: Duration = Duration::from_secs(120);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    if let Ok(rank) = std::env::var(RANK) {
        return run_rank(&rank);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [transport, worlds @ ..] = &words[..] else {
        return Err("name a transport, and numbers of ranks".into());
    };
    println!(
        "| ranks | meet | first 4 KiB | next 4 KiB | one lost | descriptors | threads | memory |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for world in worlds {
        measure(world.parse()?, transport)?;
    }
    Ok(())
}

fn run_rank(settings: &str) -> Result<()> {
    let words: Vec<&str> = settings.split(' ').collect();
    let [rank, world, address, transport] = words[..] else {
        return Err(format!("{RANK}: {settings}").into());
    };
    let (rank, world): (usize, usize) = (rank.parse()?, world.parse()?);
    let transport = match transport {
        "grpc" => ProcessTransport::Grpc,
        "auto" => ProcessTransport::Auto,
        other => return Err(format!("unknown transport {other}").into()),
    };
    let addresses = (0..world).map(|peer| (peer == 0).then_some(address));
    let mut communicator = ProcessGroupOptions::partly_listed(rank, addresses)
        .transport(transport)
        .rendezvous_timeout(LIMIT)
        .bind()?
        .meet()?;
    let mut values = vec![1_f32; 1024];
    let mut lines = std::io::stdin().lines();
    say(&format!("met {}", own_use()?))?;
    while let Some(line) = lines.next().transpose()? {
        if line == "end" {
            return Ok(());
        }
        values.fill(1.0);
        let buffer = &mut [Buffer::F32(&mut values)];
        match communicator.all_reduce(ReduceOp::Sum, buffer) {
            Ok(()) if values.iter().all(|value| *value == world as f32) => {
                say(&format!("reduced {}", own_use()?))?;
            }
            Ok(()) => say("wrong")?,
            Err(error) => say(&format!("failed {error}"))?,
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Descriptors, threads, and KiB of memory that no other process shares.
fn own_use() -> Result<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let private: u64 = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    Ok(format!("{descriptors} {threads} {private}"))
}

struct Rank {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Rank {
    fn start(settings: String) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(RANK, settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = pipes else {
            return Err("a process without pipes".into());
        };
        let stdout = BufReader::new(stdout);
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.stdin, "{line}")?)
    }

    /// The rest of its next line, which begins so.
    fn says(&mut self, begin: &str) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let rest = line.trim_end().strip_prefix(begin);
        Ok(rest
            .ok_or_else(|| format!("`{line}` in place of `{begin}`"))?
            .to_string())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure(world: usize, transport: &str) -> Result<()> {
    // Free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let begun = Instant::now();
    let mut ranks = (0..world)
        .map(|rank| Rank::start(format!("{rank} {world} {address} {transport}")))
        .collect::<Result<Vec<_>>>()?;
    for rank in &mut ranks {
        rank.says("met ")?;
    }
    let met = begun.elapsed();
    let (first, _) = reduce(&mut ranks)?;
    let (next, used) = reduce(&mut ranks)?;

    let lost = world / 2;
    let begun = Instant::now();
    ranks[lost].child.kill()?;
    for (place, rank) in ranks.iter_mut().enumerate() {
        if place != lost {
            rank.tell("reduce")?;
        }
    }
    for (place, rank) in ranks.iter_mut().enumerate() {
        if place != lost {
            let error = rank.says("failed ")?;
            if !error.contains(&format!("[{lost}]")) && !error.contains(&format!("rank {lost} ")) {
                return Err(format!("rank {place} does not name rank {lost}: {error}").into());
            }
            rank.tell("end")?;
        }
    }
    for (place, rank) in ranks.iter_mut().enumerate() {
        if place != lost && !rank.child.wait()?.success() {
            return Err(format!("rank {place} did not end well").into());
        }
    }
    let ended = begun.elapsed();
    let [descriptors, threads, memory] = used.split(' ').collect::<Vec<_>>()[..] else {
        return Err(used.into());
    };
    let memory = memory.parse::<f64>()? / 1024.0;
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    println!(
        "| {world} | {:.1} s | {} | {} | {:.1} s | {descriptors} | {threads} | {memory:.1} MiB |",
        met.as_secs_f64(),
        ms(first),
        ms(next),
        ended.as_secs_f64(),
    );
    Ok(())
}

/// All ranks all-reduce: until the last one has done so, and the most that one of them uses.
fn reduce(ranks: &mut [Rank]) -> Result<(Duration, String)> {
    let begun = Instant::now();
    for rank in ranks.iter_mut() {
        rank.tell("reduce")?;
    }
    let mut most = (0, String::new());
    for rank in ranks.iter_mut() {
        let used = rank.says("reduced ")?;
        let memory: u64 = used.rsplit(' ').next().unwrap_or_default().parse()?;
        if memory >= most.0 {
            most = (memory, used);
        }
    }
    Ok((begun.elapsed(), most.1))
}
