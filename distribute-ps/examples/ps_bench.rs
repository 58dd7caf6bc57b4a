//! Pull plus push of a model between two processes, beside raw TCP with the same bytes.
//!
//! `cargo run --release -p distribute-ps --example ps_bench -- [MiB] [rounds] [variables]`
//!
//! Rounds are interleaved: raw, servers, raw, servers, ...; the median of the ratios is printed.
//! All processes keep freed memory, as `distribute-cli` does: with glibc's defaults the kernel
//! would clear every page of every value anew, which takes longer than sending it.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use distribute_core::{Sgd, TensorData};
use distribute_ps::{
    ClientOptions, Gradient, OptimizerSpec, ParameterServer, RoundRobin, RunId, RunOptions,
    ServerOptions, UpdateId, VariableClient, VariableRef, VariableSpec,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// glibc's settings for keeping freed memory.
const KEEP_MEMORY: [(&str, &str); 4] = [
    ("MALLOC_MMAP_THRESHOLD_", "1073741824"),
    ("MALLOC_TRIM_THRESHOLD_", "8589934592"),
    ("MALLOC_TOP_PAD_", "67108864"),
    ("MALLOC_ARENA_MAX", "1"),
];

/// A server process and its address.
struct Server(Child, String);

impl Server {
    fn start(kind: &str, mebibytes: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([kind, &mebibytes.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut address = String::new();
        let stdout = child.stdout.take().ok_or("no output")?;
        BufReader::new(stdout).read_line(&mut address)?;
        Ok(Self(child, address.trim().to_string()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends so many bytes, takes so many, says that it has them; again and again.
fn serve_raw(bytes: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut peer, _) = listener.accept()?;
    peer.set_nodelay(true)?;
    let mut buffer = vec![1; bytes];
    let mut one = [0];
    while peer.read(&mut one)? == 1 {
        peer.write_all(&buffer)?;
        peer.read_exact(&mut buffer)?;
        peer.write_all(&one)?;
    }
    Ok(())
}

fn raw(peer: &mut TcpStream, buffer: &mut [u8]) -> Result<(Duration, Duration)> {
    let mut one = [0];
    let begin = Instant::now();
    peer.write_all(&one)?;
    peer.read_exact(buffer)?;
    let pulled = begin.elapsed();
    peer.write_all(buffer)?;
    peer.read_exact(&mut one)?;
    Ok((pulled, begin.elapsed() - pulled))
}

fn serve() -> Result<()> {
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default())?;
    println!("{}", server.address());
    server.wait(None)?;
    Ok(())
}

fn create(client: &VariableClient, variables: usize, rows: usize) -> Result<Vec<VariableRef>> {
    let mut round_robin = RoundRobin::new(1)?;
    let mut made = Vec::new();
    for index in 0..variables {
        let value = TensorData::new(vec![0.5_f32; rows], [rows]);
        let spec = VariableSpec {
            name: format!("v{index}"),
            shape: vec![rows],
            dtype: value.dtype(),
            optimizer: Some(OptimizerSpec::of(&Sgd::new(0.1))),
        };
        let variable = client.create(&spec, &round_robin.place(&[rows], 4, None)?)?;
        client.initialize(&variable, value)?;
        made.push(variable);
    }
    Ok(made)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| -> Result<usize> {
        arguments
            .get(index)
            .map_or(Ok(default), |text| Ok(text.parse()?))
    };
    match arguments.first().map(String::as_str) {
        Some("serve") => return serve(),
        Some("raw") => return serve_raw(number(1, 100)? << 20),
        // The settings are read when a process starts.
        _ if std::env::var_os(KEEP_MEMORY[0].0).is_none() => {
            let mut again = Command::new(std::env::current_exe()?);
            let status = again.args(&arguments).envs(KEEP_MEMORY).status()?;
            std::process::exit(status.code().unwrap_or(1));
        }
        _ => {}
    }
    let (mebibytes, rounds, variables) = (number(0, 100)?, number(1, 15)?, number(2, 25)?);
    let rows = (mebibytes << 20) / 4 / variables;
    let raw_server = Server::start("raw", (variables * rows * 4) >> 20)?;
    let server = Server::start("serve", mebibytes)?;
    let mut peer = TcpStream::connect(&raw_server.1)?;
    peer.set_nodelay(true)?;
    let client = VariableClient::connect(&[&server.1], ClientOptions::default())?;
    let run = RunId::random()?;
    client.attach(run, RunOptions::default())?;
    let made = create(&client, variables, rows)?;
    let mut buffer = vec![0; ((variables * rows * 4) >> 20) << 20];
    let mut ratios = Vec::new();
    for round in 0..=rounds as u64 {
        let (raw_pull, raw_push) = raw(&mut peer, &mut buffer)?;
        let gradient = || Gradient::Dense(TensorData::new(vec![1e-3_f32; rows], [rows]));
        let gradients = made
            .iter()
            .map(|variable| (variable.clone(), gradient()))
            .collect();
        let update = UpdateId {
            run,
            closure: round,
            sequence: 0,
        };
        let begin = Instant::now();
        let pulled = client.pull(&made, &[], None)?;
        let pull = begin.elapsed();
        client.push(update, gradients, &[])?;
        let push = begin.elapsed() - pull;
        client.finished_below(round + 1)?;
        drop(pulled);
        let ratio = (pull + push).as_secs_f64() / (raw_pull + raw_push).as_secs_f64();
        println!(
            "raw {raw_pull:6.1?} + {raw_push:6.1?}, servers {pull:6.1?} + {push:6.1?}: {ratio:.2}"
        );
        // The first round warms up.
        if round > 0 {
            ratios.push(ratio);
        }
    }
    println!(
        "median ratio {:.2} ({mebibytes} MiB, {variables} variables)",
        median(ratios)
    );
    Ok(())
}
