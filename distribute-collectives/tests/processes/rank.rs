//! The child's side: a rank that does what it is told on standard input and answers in lines that
//! begin with `@@`.

use std::io::Write;
use std::time::{Duration, Instant};

use distribute_collectives::control::security::{Security, TlsIdentity, Token};
use distribute_collectives::{
    Algorithm, BoundProcessGroup, Buffer, CollectiveError, Communicator, CommunicatorExt,
    GroupOptions, ProcessCommunicator, ProcessGroupOptions, ProcessTransport, ReduceOp, Result,
    loopback,
};

/// Elements that are given and checked at a time.
const BLOCK: usize = 4096;

/// The environment variable that makes the test binary a rank.
pub const RANK: &str = "DISTRIBUTE_TEST_RANK";

/// The environment variable that makes a rank write all trace events to standard error.
pub const TRACE: &str = "DISTRIBUTE_TEST_TRACE";

/// Runs the commands of standard input until it ends.
pub fn run(rank: usize) {
    if std::env::var_os(TRACE).is_some() {
        tracing::subscriber::set_global_default(super::trace::Everything).expect("the first one");
    }
    let mut state = State {
        rank,
        options: None,
        bound: None,
        communicator: None,
        resources_before: resources(),
    };
    for line in std::io::stdin().lines() {
        let line = line.expect("standard input");
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["exit"] {
            break;
        }
        let answer = state.command(&words).unwrap_or_else(|error| failed(&error));
        say(&answer);
    }
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "@@{text}")
        .and_then(|()| stdout.flush())
        .expect("standard output");
}

/// An error in words that the parent can compare: its name, the ranks it names, its text.
fn failed(error: &CollectiveError) -> String {
    let cause = error.root_cause();
    let ranks = match cause {
        CollectiveError::Mismatch { rank_a, rank_b, .. } => vec![*rank_a, *rank_b],
        CollectiveError::PeerLost { rank, .. }
        | CollectiveError::CutOff { rank, .. }
        | CollectiveError::Aborted { rank, .. } => {
            vec![*rank]
        }
        CollectiveError::Timeout { missing, .. } => missing.clone(),
        CollectiveError::Protocol { peer, .. } | CollectiveError::LinkStalled { peer, .. } => {
            vec![*peer]
        }
        CollectiveError::Rendezvous { missing, .. } => missing.iter().map(|m| m.rank).collect(),
        _ => vec![],
    };
    let name = format!("{cause:?}");
    let name = name.split([' ', '{']).next().unwrap_or_default();
    format!("error {name} {ranks:?} {cause}").replace('\n', " ")
}

/// Threads, open files and mapped segments of this process.
fn resources() -> [usize; 3] {
    let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
    [count("/proc/self/task"), count("/proc/self/fd"), mappings()]
}

/// Mapped segments: their files are closed once they are mapped, so they show nowhere else.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps of this process");
    let is_segment = |line: &&str| line.contains("/memfd:distribute-collectives");
    maps.lines().filter(is_segment).count()
}

struct State {
    rank: usize,
    options: Option<ProcessGroupOptions>,
    bound: Option<BoundProcessGroup>,
    communicator: Option<ProcessCommunicator>,
    resources_before: [usize; 3],
}

impl State {
    fn command(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["bind", generation, transport, world_size, rest @ ..] => {
                self.bind(generation, transport, world_size, rest)
            }
            ["join", addresses @ ..] => self.join(addresses),
            ["loop", bytes] => self.all_reduce_until_an_error(number(bytes), true),
            ["loop", bytes, "unchecked"] => self.all_reduce_until_an_error(number(bytes), false),
            ["call", call @ ..] => self.call(call),
            ["abort", reason] => {
                self.communicator().abort(reason);
                Ok("aborted".to_string())
            }
            ["generations", count, transport] => self.generations(number(count), transport),
            ["leave"] => self.leave(),
            ["panic"] => panic!("{:?} {:?}", self.options, self.bound),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn communicator(&mut self) -> &mut ProcessCommunicator {
        self.communicator.as_mut().expect("joined")
    }

    fn bind(
        &mut self,
        generation: &str,
        transport: &str,
        world_size: &str,
        rest: &[&str],
    ) -> Result<String> {
        let mut group = GroupOptions::default().generation(number(generation) as u64);
        let listen = rest
            .iter()
            .find_map(|setting| setting.strip_prefix("listen="));
        let addresses = vec![listen.unwrap_or("127.0.0.1:0"); number(world_size)];
        let mut options = ProcessGroupOptions::new(self.rank, addresses)
            .rendezvous_timeout(Duration::from_secs(20));
        let mut security = Security::default();
        options = options.transport(process_transport(transport));
        for setting in rest {
            let (name, value) = setting.split_once('=').expect("name=value");
            match name {
                "timeout_ms" => {
                    group = group.timeout(Duration::from_millis(number(value) as u64));
                }
                "rendezvous_ms" => {
                    let timeout = Duration::from_millis(number(value) as u64);
                    options = options.rendezvous_timeout(timeout);
                }
                "silence_ms" => {
                    let interval = Duration::from_millis(number(value) as u64 / 6);
                    options = options.heartbeat(interval, 6);
                }
                "algorithm" => group = group.algorithm(algorithm(value)),
                "max_message_bytes" => options = options.max_message_bytes(number(value)),
                "lanes" => options = options.lanes(number(value)),
                "listen" => {}
                "token_env" => security = security.token(Token::from_env(value)?),
                "token_file" => security = security.token(Token::from_file(value)?),
                "tls" => security = security.tls(identity(value)?),
                "insecure" => security = security.insecure(),
                other => panic!("unknown setting {other}"),
            }
        }
        let options = options.group(group).security(security);
        self.options = Some(options.clone());
        let bound = options.bind()?;
        let text = format!("bound {}", bound.address());
        self.bound = Some(bound);
        Ok(text)
    }

    /// `join ADDRESS... [data:RANK=ADDRESS...]`
    fn join(&mut self, words: &[&str]) -> Result<String> {
        let mut bound = self.bound.take().expect("bound");
        let (routes, addresses): (Vec<&str>, Vec<&str>) =
            words.iter().partition(|word| word.starts_with("data:"));
        for route in routes {
            let (peer, address) = route["data:".len()..]
                .split_once('=')
                .expect("rank=address");
            bound = bound.route_data(number(peer), address.parse().expect("an address"));
        }
        let communicator = bound.join(addresses)?;
        let text = format!("joined {}", communicator.describe());
        self.communicator = Some(communicator);
        Ok(text)
    }

    /// All-reduces a vector until an operation fails; every result is checked, unless it may be
    /// wrong.
    fn all_reduce_until_an_error(&mut self, bytes: usize, checked: bool) -> Result<String> {
        let rank = self.rank;
        let communicator = self.communicator();
        let world_size = communicator.world_size();
        // Blocks, so that the system's library copies and compares also where tests are not
        // optimized, and no memory that the tests count is taken.
        let given = [(rank + 1) as f32; BLOCK];
        let expected = [(world_size * (world_size + 1) / 2) as f32; BLOCK];
        let raw = bytemuck::cast_slice::<f32, u8>;
        let is_right = |block: &[f32]| raw(block) == raw(&expected[..block.len()]);
        let mut vector = vec![0.0_f32; bytes / 4];
        for operation in 0_u64.. {
            for block in vector.chunks_mut(BLOCK) {
                block.copy_from_slice(&given[..block.len()]);
            }
            let begun = Instant::now();
            communicator
                .all_reduce(ReduceOp::Sum, &mut [Buffer::from(&mut vector[..])])
                .inspect_err(|_| say(&format!("waited {} ms", begun.elapsed().as_millis())))?;
            let wrong = vector.chunks(BLOCK).position(|block| !is_right(block));
            assert!(
                wrong.is_none() || !checked,
                "operation {operation}: wrong elements in block {wrong:?}"
            );
            if operation == 1 {
                say("running");
            }
        }
        unreachable!("the loop ends with an error")
    }

    /// One call: `all_reduce N [f64|mean]`, `barrier`, `broadcast ROOT N`, `all_gather N`,
    /// `reduce_scatter N`, `reduce ROOT N`.
    fn call(&mut self, words: &[&str]) -> Result<String> {
        let rank = self.rank;
        let vector = |n: &str| vec![(rank + 1) as f32; number(n)];
        let communicator = self.communicator();
        match words {
            ["barrier"] => communicator.barrier()?,
            ["all_reduce", n] => {
                communicator.all_reduce(ReduceOp::Sum, &mut [(&mut vector(n)[..]).into()])?;
            }
            ["all_reduce", n, "mean"] => {
                communicator.all_reduce(ReduceOp::Mean, &mut [(&mut vector(n)[..]).into()])?;
            }
            ["all_reduce", n, "f64"] => {
                let mut vector = vec![1.0_f64; number(n)];
                communicator.all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])?;
            }
            ["broadcast", root, n] => {
                communicator.broadcast(number(root), &mut [(&mut vector(n)[..]).into()])?;
            }
            ["reduce", root, n] => {
                let mut vector = vector(n);
                let buffers = &mut [(&mut vector[..]).into()];
                communicator.reduce(ReduceOp::Sum, number(root), buffers)?;
            }
            ["reduce_scatter", n] => {
                communicator.reduce_scatter(ReduceOp::Sum, (&mut vector(n)[..]).into())?;
            }
            ["all_gather", n] => {
                communicator.all_gather(&vector(n))?;
            }
            other => panic!("unknown call {other:?}"),
        }
        Ok(format!("called {}", words.join(" ")))
    }

    /// Makes and drops groups of two ranks, both in this process, one generation after the other.
    fn generations(&mut self, count: usize, transport: &str) -> Result<String> {
        for generation in 0..count {
            let options = GroupOptions::default()
                .generation(generation as u64)
                .algorithm(match transport {
                    "grpc" => Algorithm::Ring,
                    _ => Algorithm::Direct,
                });
            let group = loopback(2, options, process_transport(transport))?;
            // Both ranks have mapped the segment; otherwise counting would show nothing.
            let mapped = if transport == "grpc" { 0 } else { 2 };
            assert_eq!(mappings(), mapped, "generation {generation}");
            std::thread::scope(|scope| {
                for mut rank in group {
                    scope.spawn(move || {
                        let mut vector = [1.0_f32; 100];
                        rank.all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                            .expect("a sum");
                        assert_eq!(vector, [2.0; 100]);
                    });
                }
            });
        }
        assert_eq!(mappings(), 0, "segments that are still mapped");
        Ok("made".to_string())
    }

    /// Leaves the group and says what is left of it: threads, files and mappings beyond those at
    /// the start.
    fn leave(&mut self) -> Result<String> {
        self.communicator = None;
        self.bound = None;
        let before = self.resources_before;
        // A joined thread may be in the list for a moment; one that was left behind stays.
        let limit = Instant::now() + Duration::from_secs(2);
        while resources()[0] > before[0] && Instant::now() < limit {
            std::thread::yield_now();
        }
        let now = resources();
        let [threads, files, mappings] =
            std::array::from_fn(|index| now[index] as i64 - before[index] as i64);
        Ok(format!(
            "left {threads} threads {files} files {mappings} mappings"
        ))
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// `DIRECTORY` with `ca.pem`, `certificate.pem` and `key.pem`.
fn identity(directory: &str) -> Result<TlsIdentity> {
    let file = |name: &str| format!("{directory}/{name}.pem");
    let identity = TlsIdentity::from_files(file("ca"), file("certificate"), file("key"))?;
    Ok(identity)
}

fn process_transport(name: &str) -> ProcessTransport {
    match name {
        "grpc" => ProcessTransport::Grpc,
        "shm" => ProcessTransport::SharedMemory,
        _ => ProcessTransport::Auto,
    }
}

fn algorithm(name: &str) -> Algorithm {
    match name {
        "ring" => Algorithm::Ring,
        "halving_doubling" => Algorithm::HalvingDoubling,
        _ => Algorithm::Auto,
    }
}
