//! Measures the all-reduce over gRPC between processes of this machine.
//!
//! `cargo run --release -p distribute-collectives --example grpc_link_bench [RANKS [SECONDS
//! [LANES [SEGMENT_BYTES [BYTES]]]]]` starts itself once per rank and prints one JSON object per size.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use distribute_collectives::grpc::link_bench::Seat;
use distribute_collectives::{Communicator, CommunicatorExt, GroupOptions, ReduceOp};

type Error = Box<dyn std::error::Error>;

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 100 << 20];

struct Settings {
    ranks: usize,
    seconds: f64,
    lanes: usize,
    segment_bytes: usize,
    /// One size only, when not 0.
    bytes: usize,
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Settings, Error> {
        let mut next = |default: &str| arguments.next().unwrap_or(default.to_string());
        Ok(Settings {
            ranks: next("2").parse()?,
            seconds: next("1").parse()?,
            lanes: next("1").parse()?,
            segment_bytes: next("0").parse()?,
            bytes: next("0").parse()?,
        })
    }
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    if let Some(rank) = arguments.next_if(|first| first.starts_with("--rank=")) {
        let rank = rank.trim_start_matches("--rank=").parse()?;
        return run_rank(rank, &Settings::parse(arguments)?);
    }
    let passed: Vec<String> = arguments.collect();
    let settings = Settings::parse(passed.iter().cloned())?;
    let program = std::env::current_exe()?;
    let mut children = Vec::new();
    for rank in 0..settings.ranks {
        let mut command = Command::new(&program);
        let command = command.arg(format!("--rank={rank}")).args(&passed);
        children.push(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?,
        );
    }
    let result = serve(&mut children);
    for child in &mut children {
        if result.is_err() {
            child.kill()?;
        }
        child.wait()?;
    }
    result
}

/// Tells every rank the addresses of all, then passes on what rank 0 prints.
fn serve(children: &mut [Child]) -> Result<(), Error> {
    let mut addresses = String::new();
    let mut first = None;
    for child in children.iter_mut() {
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        addresses += &line.replace('\n', " ");
        first.get_or_insert(output);
    }
    for child in children {
        writeln!(child.stdin.take().ok_or("no input")?, "{addresses}")?;
    }
    for line in first.ok_or("no ranks")?.lines() {
        println!("{}", line?);
    }
    Ok(())
}

fn run_rank(rank: usize, settings: &Settings) -> Result<(), Error> {
    let seat = Seat::take()?;
    println!("{}", seat.address()?);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let addresses: Result<Vec<SocketAddr>, _> = line.split_whitespace().map(str::parse).collect();
    let mut options = GroupOptions::default();
    if settings.segment_bytes > 0 {
        options = options.segment_bytes(settings.segment_bytes);
    }
    let mut group = seat.connect(rank, settings.lanes, &addresses?, options)?;
    let wanted = |bytes: &usize| settings.bytes == 0 || settings.bytes == *bytes;
    for bytes in SIZES.into_iter().filter(wanted) {
        measure(&mut *group, bytes, settings)?;
    }
    Ok(())
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let clock = rustix::time::ClockId::ProcessCPUTime;
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measure(group: &mut dyn Communicator, bytes: usize, settings: &Settings) -> Result<(), Error> {
    let mut vector = vec![1.0_f32; bytes / 4];
    let expected = group.world_size() as f32;
    group.all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])?;
    if vector.iter().any(|value| *value != expected) {
        return Err("a wrong sum".into());
    }
    vector.fill(0.0);
    let (mut times, mut cpu) = (Vec::new(), Duration::ZERO);
    let begin = Instant::now();
    loop {
        group.barrier()?;
        let (start, cpu_start) = (Instant::now(), cpu_time());
        group.all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        cpu += cpu_time() - cpu_start;
        let more = begin.elapsed().as_secs_f64() < settings.seconds || times.len() < 3;
        let mut go = [if group.rank() == 0 {
            f32::from(more as u8)
        } else {
            0.0
        }];
        group.broadcast(0, &mut [(&mut go[..]).into()])?;
        if go[0] == 0.0 {
            break;
        }
    }
    let all = group.all_gather(&times)?;
    let mut slowest: Vec<f64> = (0..times.len())
        .map(|index| all.iter().map(|rank| rank[index]).fold(0.0, f64::max))
        .collect();
    slowest.sort_by(f64::total_cmp);
    let mut cpu = [cpu.as_secs_f64() * 1e6 / times.len() as f64];
    group.all_reduce(ReduceOp::Sum, &mut [(&mut cpu[..]).into()])?;
    if group.rank() == 0 {
        print(group.world_size(), bytes, &slowest, cpu[0]);
    }
    Ok(())
}

fn print(ranks: usize, bytes: usize, times: &[f64], cpu_us: f64) {
    let median = times[times.len() / 2];
    let algbw = bytes as f64 / median / 1e3;
    println!(
        "{{\"bench\":\"allreduce\",\"impl\":\"grpc\",\"n\":{ranks},\"bytes\":{bytes},\
         \"iters\":{},\"us\":{median:.1},\"min_us\":{:.1},\"max_us\":{:.1},\
         \"algbw\":{algbw:.3},\"busbw\":{:.3},\"cpu_us\":{cpu_us:.1}}}",
        times.len(),
        times[0],
        times[times.len() - 1],
        algbw * 2.0 * (ranks as f64 - 1.0) / ranks as f64,
    );
}
