//! Ranks that are processes, and what is left in a process after many groups.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use distribute_collectives::nccl::{ElementType, NcclCommunicator, NcclOptions, SharedGroup};
use distribute_collectives::{
    CollectiveError, Communicator, CommunicatorExt, GroupOptions, ProcessCommunicator,
    ProcessGroupOptions, ReduceOp, Result,
};

use super::fake::{self, Fake};
use crate::common::{on_threads, within_limit};

const ROLE: &str = "NCCL_TEST_ROLE";
const RANK: &str = "NCCL_TEST_RANK";
const DIRECTORY: &str = "NCCL_TEST_DIRECTORY";

/// A process of this test program; killed when dropped.
struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, rank: usize, directory: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let mut child = command
            .args([
                "--exact",
                "nccl::processes::a_process_of_another_test",
                "--nocapture",
            ])
            .env(ROLE, role)
            .env(RANK, rank.to_string())
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        Process {
            stdin: child.stdin.take().expect("piped"),
            lines: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    /// The next answer, without its mark.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let bytes = self.lines.read_line(&mut line).expect("text");
            assert!(bytes > 0, "the process ended");
            if let Some((_, answer)) = line.split_once("@@") {
                return answer.trim().to_string();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the ranks of a group and tells them each other's addresses.
fn start(role: &str, fake: &Fake) -> Vec<Process> {
    let mut ranks: Vec<Process> = (0..2)
        .map(|rank| Process::start(role, rank, fake.directory()))
        .collect();
    let addresses: Vec<String> = ranks.iter_mut().map(Process::answer).collect();
    ranks
        .iter_mut()
        .for_each(|rank| rank.tell(&addresses.join(" ")));
    ranks
}

#[test]
fn a_process_of_another_test() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let directory = std::env::var(DIRECTORY).expect("set");
    let library = Path::new(&directory).join("libfake.so");
    match role.as_str() {
        "leaks" => many_groups(Path::new(&directory)),
        role => {
            let rank = std::env::var(RANK).expect("set").parse().expect("a number");
            let outcome = be_rank(role, rank, fake::options(&library, rank));
            println!("@@{}", outcome.unwrap_or_else(|error| format!("{error:?}")));
        }
    }
}

fn be_rank(role: &str, rank: usize, options: NcclOptions) -> Result<String> {
    let group = ProcessGroupOptions::new(rank, ["127.0.0.1:0"; 2])
        .group(GroupOptions::default().timeout(Duration::from_secs(20)))
        .bind()?;
    println!("@@{}", group.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("addresses");
    let group = group.join(line.split_whitespace())?;
    let options = options.grace(Duration::from_millis(500));
    if role == "shared" {
        return be_shared(rank, SharedGroup::new(group), options);
    }
    let mut nccl: NcclCommunicator<ProcessCommunicator> = NcclCommunicator::new(group, options)?;
    if role == "hang" {
        println!("@@begun");
        nccl.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 8][..]).into()])?;
        return Ok("finished".to_string());
    }
    let mut data: Vec<f64> = (0..50_000)
        .map(|index| f64::from(index) + rank as f64)
        .collect();
    nccl.all_reduce(ReduceOp::Sum, &mut [(&mut data).into()])?;
    assert!((0..50_000).all(|index| data[index] == 2.0 * index as f64 + 1.0));
    let own = vec![rank as i32; 3 + rank];
    let gathered = nccl.all_gather(&own)?;
    assert_eq!(
        (gathered.rank(0), gathered.rank(1)),
        (&[0; 3][..], &[1; 4][..])
    );
    nccl.broadcast(1, &mut [(&mut data[..10]).into()])?;
    let mut word = [rank as u8 + 5];
    match rank {
        0 => nccl.send(1, (&mut word[..]).into())?,
        _ => nccl.recv(0, (&mut word[..]).into())?,
    }
    assert_eq!(word, [5]);
    let error = match rank {
        0 => nccl.barrier(),
        _ => nccl.reduce(ReduceOp::Sum, 0, &mut [(&mut data).into()]),
    };
    assert!(
        matches!(error, Err(CollectiveError::Mismatch { .. })),
        "{error:?}"
    );
    Ok("all as expected".to_string())
}

/// The program goes on using the group that NCCL is set up beside.
fn be_shared(rank: usize, mut group: SharedGroup, options: NcclOptions) -> Result<String> {
    let mut nccl = NcclCommunicator::new(group.clone(), options.own_order(true))?;
    for round in 0..20 {
        let mut memory = nccl.allocate(ElementType::F32, 100)?;
        nccl.upload(&mut memory, &[rank as f32; 100])?;
        nccl.all_reduce_device(ReduceOp::Sum, &mut [memory.buffer()])?;
        let mut values = [0.0_f32; 100];
        nccl.download(&memory, &mut values)?;
        assert_eq!(values, [1.0; 100]);
        let gathered = group.all_gather(&[rank as i64, round])?;
        assert_eq!(gathered.values(), [0, round, 1, round]);
    }
    // A difference of the calls on different handles is found too.
    let error = match rank {
        0 => group.barrier(),
        _ => nccl.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 8][..]).into()]),
    };
    assert!(
        matches!(error, Err(CollectiveError::Mismatch { .. })),
        "{error:?}"
    );
    Ok("all as expected".to_string())
}

#[test]
fn two_processes_use_one_group_beside_and_without_nccl() {
    within_limit(|| {
        let fake = Fake::new("");
        for rank in &mut start("shared", &fake) {
            assert_eq!(rank.answer(), "all as expected");
        }
    });
}

#[test]
fn two_processes_do_every_kind_of_operation() {
    within_limit(|| {
        let fake = Fake::new("");
        let mut ranks = start("operations", &fake);
        for rank in &mut ranks {
            assert_eq!(rank.answer(), "all as expected");
        }
    });
}

#[test]
fn a_killed_process_is_named() {
    within_limit(|| {
        let fake = Fake::new("hang=1:0");
        let mut ranks = start("hang", &fake);
        ranks
            .iter_mut()
            .for_each(|rank| assert_eq!(rank.answer(), "begun"));
        // Both are in NCCL's part, or about to be.
        std::thread::sleep(Duration::from_millis(500));
        let begin = Instant::now();
        ranks[1].child.kill().expect("killed");
        let answer = ranks[0].answer();
        assert!(
            answer.starts_with("PeerLost (rank 1 was lost in operation 0 (all_reduce)"),
            "{answer}"
        );
        // The grace period and the time to notice, not the deadline of 20 s.
        assert!(
            begin.elapsed() < Duration::from_secs(8),
            "{:?}",
            begin.elapsed()
        );
    });
}

/// The number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux").count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

/// Aborts and makes groups anew, in a process in which nothing else happens.
fn many_groups(directory: &Path) {
    let library = directory.join("libfake.so");
    let mut before = None;
    for round in 0..100 {
        let group = distribute_collectives::nccl::in_process(
            &[0, 1],
            GroupOptions::default(),
            fake::options(&library, 0).timeout(Duration::from_secs(20)),
        );
        let group = group.expect("a group");
        let handle = group[0].abort_handle();
        let meeting = std::sync::Barrier::new(2);
        on_threads(group, |mut rank| {
            let mut data = [1.0_f32; 16];
            rank.all_reduce(ReduceOp::Sum, &mut [(&mut data[..]).into()])
                .expect("the first one");
            assert_eq!(data, [2.0; 16]);
            meeting.wait();
            if rank.rank() == 0 {
                let handle = handle.clone();
                std::thread::spawn(move || handle.abort("again"));
            }
            // Hangs, until it is aborted.
            let error = rank.all_reduce(ReduceOp::Sum, &mut [(&mut data[..]).into()]);
            assert!(
                matches!(error, Err(CollectiveError::Aborted { rank: 0, .. })),
                "{error:?}"
            );
        });
        if round == 4 {
            before = Some((settled(0), descriptors()));
        }
    }
    let (before, descriptors_before) = before.expect("five rounds");
    assert_eq!(
        (settled(before), descriptors()),
        (before, descriptors_before)
    );
    println!("@@done");
}

/// The number of threads when those that are ending have ended.
fn settled(wanted: usize) -> usize {
    let end = Instant::now() + Duration::from_secs(5);
    let mut least = threads();
    while least > wanted && Instant::now() < end && (wanted > 0 || least > 2) {
        std::thread::sleep(Duration::from_millis(10));
        least = threads();
    }
    least
}

#[test]
fn a_hundred_aborted_groups_leave_nothing() {
    within_limit(|| {
        let fake = Fake::new("hang=1:1");
        let mut process = Process::start("leaks", 0, fake.directory());
        assert_eq!(process.answer(), "done");
        let stats = fake
            .directory()
            .join(format!("stats-{}", process.child.id()));
        let stats = std::fs::read_to_string(stats).expect("written");
        for line in stats.lines() {
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            match name {
                "aborts" => assert_eq!(value, "200", "{stats}"),
                "groups" | "largest_group" => {}
                _ => assert_eq!(value, "0", "{stats}"),
            }
        }
    });
}
