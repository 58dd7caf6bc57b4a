//! Pull plus push of a model between two processes, beside raw TCP with the same bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use distribute_bench::median;
use distribute_core::optim::Optimizer;
use distribute_core::{Adam, Sgd, TensorData};
use distribute_ps::{
    ClientOptions, Gradient, OptimizerSpec, RoundRobin, RunId, RunOptions, UpdateId,
    VariableClient, VariableRef, VariableSpec,
};

use crate::processes::{Process, Result, cpu_of, number};

/// Sends this many bytes, reads as many and acknowledges them, in a loop.
pub fn serve_raw(bytes: usize) -> Result<()> {
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

/// Pull and push by raw TCP, from and to memory that is there.
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

/// A model on a server.
struct Model {
    client: VariableClient,
    run: RunId,
    variables: Vec<VariableRef>,
    rows: usize,
}

impl Model {
    fn new(address: &str, rule: &dyn Optimizer, variables: usize, rows: usize) -> Result<Self> {
        let client = VariableClient::connect(&[address], ClientOptions::default())?;
        let run = RunId::random()?;
        client.attach(run, RunOptions::default())?;
        let mut round_robin = RoundRobin::new(1)?;
        let mut made = Vec::new();
        for index in 0..variables {
            let value = TensorData::new(vec![0.5_f32; rows], [rows]);
            let spec = VariableSpec {
                name: format!("v{index}"),
                shape: vec![rows],
                dtype: value.dtype(),
                optimizer: Some(OptimizerSpec::of(rule)),
            };
            let variable = client.create(&spec, &round_robin.place(&[rows], 4, None)?)?;
            client.initialize(&variable, value)?;
            made.push(variable);
        }
        Ok(Self {
            client,
            run,
            variables: made,
            rows,
        })
    }

    /// Pulls all values, pushes gradients of all.
    fn round(&self, round: u64) -> Result<(Duration, Duration)> {
        let gradient = || TensorData::new(vec![1e-3_f32; self.rows], [self.rows]);
        let gradient = |variable: &VariableRef| (variable.clone(), Gradient::Dense(gradient()));
        let gradients = self.variables.iter().map(gradient).collect();
        let update = UpdateId {
            run: self.run,
            closure: round,
            sequence: 0,
        };
        let begin = Instant::now();
        let pulled = self.client.pull(&self.variables, &[], None)?;
        let pull = begin.elapsed();
        self.client.push(update, gradients, &[])?;
        let push = begin.elapsed() - pull;
        self.client.finished_below(round + 1)?;
        drop(pulled);
        Ok((pull, push))
    }
}

/// `[MiB] [rounds] [variables] [rule]`
pub fn run(arguments: &[String]) -> Result<()> {
    let (mebibytes, rounds) = (number(arguments, 0, 100)?, number(arguments, 1, 15)?);
    let variables = number(arguments, 2, 25)?;
    let rule: Box<dyn Optimizer> = match arguments.get(3).map_or("sgd", String::as_str) {
        "adam" => Box::new(Adam::new(1e-3)),
        "sgd" => Box::new(Sgd::new(0.1)),
        other => return Err(format!("there is no rule `{other}`, only sgd and adam").into()),
    };
    let rows = (mebibytes << 20) / 4 / variables;
    let bytes = variables * rows * 4;
    let raw_server = Process::start(&["raw", &bytes.to_string()])?;
    let server = Process::start(&["serve"])?;
    let mut peer = TcpStream::connect(&raw_server.address)?;
    peer.set_nodelay(true)?;
    let model = Model::new(&server.address, &*rule, variables, rows)?;
    let mut buffer = vec![0; bytes];
    let (mut ratios, mut cpu) = (Vec::new(), [Duration::ZERO; 4]);
    for round in 0..=rounds as u64 {
        let clock = || -> Result<_> { Ok((cpu_of("self")?, server.cpu()?, raw_server.cpu()?)) };
        let before = clock()?;
        let (raw_pull, raw_push) = raw(&mut peer, &mut buffer)?;
        let between = clock()?;
        let (pull, push) = model.round(round)?;
        let after = clock()?;
        let ratio = (pull + push).as_secs_f64() / (raw_pull + raw_push).as_secs_f64();
        println!(
            "raw {raw_pull:6.1?} + {raw_push:6.1?}, servers {pull:6.1?} + {push:6.1?}: {ratio:.2}"
        );
        // The first round warms up.
        if round > 0 {
            ratios.push(ratio);
            cpu[0] += between.0 - before.0;
            cpu[1] += between.2 - before.2;
            cpu[2] += after.0 - between.0;
            cpu[3] += after.1 - between.1;
        }
    }
    let [raw_here, raw_there, here, there] = cpu.map(|all| all / rounds.max(1) as u32);
    println!(
        "processor time of a round: raw {raw_here:.1?} + {raw_there:.1?}, client {here:.1?} \
         (with making gradients), server {there:.1?}"
    );
    println!(
        "median ratio {:.2} ({mebibytes} MiB, {variables} variables, {})",
        median(&ratios),
        rule.name()
    );
    Ok(())
}
