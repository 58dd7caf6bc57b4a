//! `bench parameter-server`: images per second of workers whose weights are on parameter servers,
//! compared with the same number of processes that train alone.

use std::io::stdout;

use distribute_bench::training::{
    Comparison, Contender, HandWritten, ParameterServerJob, ProcessGroup, Workers, serve_closures,
    serve_steps, serve_variables,
};

use super::{time, train};
use crate::failure::Failure;
use crate::flags::{Role, ServersArgs};

pub(super) fn run(args: &ServersArgs) -> Result<(), Failure> {
    let batch_size = args.batch_size;
    if batch_size == 0 || args.rounds == 0 || args.workers == 0 || args.servers == 0 {
        return Err(Failure::usage(
            "--batch-size, --rounds, --workers and --servers must be at least 1",
        ));
    }
    let served = args.role.map(|role| match role {
        Role::Alone => serve_steps(HandWritten::new(batch_size), stdout()),
        Role::Server => serve_variables(stdout()),
        Role::Worker => serve_closures(batch_size, stdout()),
    });
    if let Some(served) = served {
        return Ok(served?);
    }
    let comparison = Comparison {
        batch_size,
        rounds: args.rounds,
        time: time(args.seconds)?,
    };
    let [server, worker, alone] =
        ["server", "worker", "alone"].map(|role| ["bench", "parameter-server", "--role", role]);
    let group = |count, arguments| ProcessGroup { count, arguments };
    let (servers, workers) = (group(args.servers, &server), group(args.workers, &worker));
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Workers::alone(args.workers, batch_size, &alone)?),
        Box::new(ParameterServerJob::start(batch_size, servers, workers)?),
    ];
    train::print(
        "parameter-server",
        &mut contenders,
        &comparison,
        args.output,
    )
}
