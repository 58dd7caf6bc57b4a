//! Ranks as real processes: this test binary starts itself again, told by a variable what to be.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostile::alone::is_alone;
use rstest::rstest;

use crate::communicator::{Communicator, CommunicatorExt};
use crate::error::CollectiveError;
use crate::options::GroupOptions;
use crate::reduce::ReduceOp;
use crate::shared_memory::testing::{TellAll, own, soon};
use crate::shared_memory::tests::make_and_drop_groups;
use crate::shared_memory::{
    LocalTransport, Offer, Settings, SharedMemoryCommunicator, establish, find_leader,
};
use crate::testing::within_limit;

/// `<role> <rank> <world size>`.
const ROLE: &str = "DISTRIBUTE_SHM_TEST_ROLE";

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one process per rank; each says its name and is told all names.
fn start(role: &str, world_size: usize) -> Vec<Process> {
    let program = std::env::current_exe().unwrap();
    let mut ranks: Vec<Process> = (0..world_size)
        .map(|rank| {
            let test = "shared_memory::processes_test::a_rank";
            let child = Command::new(&program)
                .args([test, "--exact", "--nocapture", "-q"])
                .env(ROLE, format!("{role} {rank} {world_size}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            Process(child.unwrap())
        })
        .collect();
    let mut names = String::new();
    for rank in &mut ranks {
        let mut lines = BufReader::new(rank.0.stdout.as_mut().unwrap()).lines();
        let name = lines.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix("NAME ").map(str::to_string)
        });
        names += &(name.unwrap() + "\n");
    }
    for rank in &mut ranks {
        let mut stdin = rank.0.stdin.take().unwrap();
        stdin.write_all(names.as_bytes()).unwrap();
    }
    ranks
}

fn join(rank: usize, world_size: usize, options: &GroupOptions) -> SharedMemoryCommunicator {
    let offer = Offer::new().unwrap();
    println!("\nNAME {}", hex::encode(offer.name()));
    let names: Vec<Vec<u8>> = std::io::stdin()
        .lines()
        .take(world_size)
        .map(|line| hex::decode(line.unwrap()).unwrap())
        .collect();
    let attachment = find_leader(&names, &own(rank), soon()).unwrap();
    let ranks: Vec<usize> = (0..world_size).collect();
    let settings = Settings::default();
    let status = Arc::default();
    let group = establish(
        offer,
        attachment,
        &own(rank),
        &ranks,
        &settings,
        soon(),
        status,
    )
    .unwrap();
    let abort = Arc::new(TellAll(Vec::new()));
    SharedMemoryCommunicator::new(LocalTransport::new(group, options.clone(), abort).unwrap())
}

/// Not a test: the process of a rank, which another test has started.
#[test]
fn a_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().unwrap();
    match words[0] {
        "sum" => sum(number(1), number(2)),
        "die" => die(number(1), number(2)),
        "stop" => stop(number(1), number(2)),
        other => panic!("{other}"),
    }
}

fn sum(rank: usize, world_size: usize) {
    let mut endpoint = join(rank, world_size, &GroupOptions::default());
    for count in [1, 100, 70_001, 1_000_003] {
        let mut values: Vec<f64> = (0..count).map(|i| (i + rank) as f64).collect();
        endpoint
            .all_reduce(ReduceOp::Mean, &mut [(&mut values[..]).into()])
            .unwrap();
        let middle = (world_size - 1) as f64 / 2.0;
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(i, v)| *v == i as f64 + middle)
        );
        let all = endpoint.all_gather(&values[..count / (rank + 1)]).unwrap();
        assert_eq!(all.rank(world_size - 1).len(), count / world_size);
    }
}

/// Rank 1 stops in the middle; the others time out and name it.
fn die(rank: usize, world_size: usize) {
    let options = GroupOptions::default().timeout(Duration::from_secs(4));
    let mut endpoint = join(rank, world_size, &options);
    let mut values = vec![1.0_f32; 400_000];
    for round in 0.. {
        if rank == 1 && round == 3 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        }
        let begin = Instant::now();
        let result = endpoint.all_reduce(ReduceOp::Sum, &mut [(&mut values[..]).into()]);
        if let Err(error) = result {
            let CollectiveError::Timeout { missing, .. } = error else {
                panic!("{error}");
            };
            assert_eq!((missing.as_slice(), round), (&[1][..], 3));
            assert!(begin.elapsed() < Duration::from_secs(10));
            return;
        }
    }
}

/// Rank 1 is stopped from outside, wherever it is; the others time out and name it.
fn stop(rank: usize, world_size: usize) {
    let options = GroupOptions::default().timeout(Duration::from_secs(3));
    let mut endpoint = join(rank, world_size, &options);
    let mut values = vec![1.0_f32; 1_000_000];
    for round in 0.. {
        if round == 3 {
            println!("\nRUNNING");
        }
        let result = endpoint.all_reduce(ReduceOp::Max, &mut [(&mut values[..]).into()]);
        if let Err(error) = result {
            let CollectiveError::Timeout { missing, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(missing, [1]);
            return;
        }
    }
}

fn wait(mut process: Process) -> bool {
    process.0.wait().unwrap().success()
}

#[test]
fn processes_reduce_together() {
    within_limit(|| {
        for world_size in [1, 2, 4] {
            let ranks = start("sum", world_size);
            assert!(ranks.into_iter().all(wait));
        }
    });
}

fn named_memory() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("distribute")).collect()
}

#[test]
fn a_killed_process_is_named_and_leaves_nothing() {
    within_limit(|| {
        let ended: Vec<bool> = start("die", 3).into_iter().map(wait).collect();
        assert_eq!(ended, [true, false, true]);
        assert_eq!(named_memory(), Vec::<String>::new());
    });
}

/// At a point of its work that differs from run to run.
#[rstest]
fn a_stopped_process_is_named_wherever_it_is(#[values(1, 2, 3, 4)] _run: usize) {
    within_limit(|| {
        let mut ranks = start("stop", 3);
        let mut lines = BufReader::new(ranks[1].0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "RUNNING"));
        let stopped = rustix::process::Pid::from_child(&ranks[1].0);
        rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
        let last = ranks.pop().unwrap();
        let held = ranks.pop().unwrap();
        assert!(wait(last) && wait(ranks.pop().unwrap()));
        drop(held);
    });
}

#[test]
fn a_thousand_groups_leave_no_descriptor_and_no_mapping() {
    let name = "a_thousand_groups_leave_no_descriptor_and_no_mapping";
    if is_alone(module_path!(), name) {
        within_limit(|| make_and_drop_groups(1000));
    }
}
