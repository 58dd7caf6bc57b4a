//! The communicator over MPI, in real processes under `mpirun`.
//!
//! Each test runs this program again under `mpirun`, where [`rank_program`] plays one rank and
//! says when all its assertions held.

mod common;

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Random, TestElement, bits};
use distribute_collectives::mpi::{MpiCommunicator, MpiEnvironment};
use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, Communicator, CommunicatorExt, DType, Gathered,
    GroupOptions, ReduceOp, WireType, chunk_range, contract, reduce,
};
use half::{bf16, f16};
use rustix::process::{Pid, Signal, kill_process};

const SCENARIO: &str = "DISTRIBUTE_MPI_SCENARIO";
const DIRECTORY: &str = "DISTRIBUTE_MPI_DIRECTORY";

/// Runs a scenario on `world_size` processes.
fn under_mpirun(scenario: &str, world_size: usize) {
    let found = Command::new("mpirun")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if found.is_err() {
        println!("SKIPPED: mpirun not found");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let reports = listen(dir.path());
    let mut mpirun = Command::new("mpirun")
        .arg("-quiet")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-np",
            &world_size.to_string(),
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "rank_program", "--nocapture"])
        .env(SCENARIO, scenario)
        .env(DIRECTORY, dir.path())
        // Open MPI 4.1's mpiruns share a folder, which one may remove while another comes to it.
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&mpirun);
    let directory = dir.path().to_path_buf();
    let waiter = std::thread::spawn(move || {
        mpirun.wait().unwrap();
        report(&directory, ENDED);
    });
    let (done, ended) = hear(&reports, world_size);
    if !ended {
        // An error: it has just ended by itself.
        let _ = kill_process(pid, Signal::KILL);
    }
    waiter.join().unwrap();
    for (rank, done) in done.into_iter().enumerate() {
        assert!(done, "rank {rank} failed or hung");
    }
}

/// In place of a rank's number: mpirun has ended.
const ENDED: u8 = u8::MAX;

/// Where ranks say that all their assertions held, one byte each.
fn listen(directory: &Path) -> UnixDatagram {
    UnixDatagram::bind(directory.join("reports")).unwrap()
}

fn report(directory: &Path, what: u8) {
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to(&[what], directory.join("reports")).unwrap();
}

/// Which ranks have reported, and whether mpirun has ended. Open MPI 4.1's sometimes stays when
/// ranks have ended without `MPI_Finalize`; what counts is what the ranks did, so it then gets some
/// seconds to end by itself.
fn hear(reports: &UnixDatagram, world_size: usize) -> (Vec<bool>, bool) {
    let mut done = vec![false; world_size];
    let mut until = Instant::now() + Duration::from_secs(90);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        reports.set_read_timeout(Some(left)).unwrap();
        let mut what = [0];
        match reports.recv(&mut what) {
            Ok(_) if what[0] == ENDED => return (done, true),
            Ok(_) => done[usize::from(what[0])] = true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The time is over.
            Err(_) => return (done, false),
        }
        if done.iter().all(|done| *done) {
            until = until.min(Instant::now() + Duration::from_secs(10));
        }
    }
}

#[test]
fn operations_of_2_ranks() {
    under_mpirun("operations", 2);
}

#[test]
fn operations_of_4_ranks() {
    under_mpirun("operations", 4);
}

#[test]
fn operations_of_3_ranks() {
    under_mpirun("operations", 3);
}

#[test]
fn failures_of_2_ranks() {
    under_mpirun("failures", 2);
}

#[test]
fn failures_of_4_ranks() {
    under_mpirun("failures", 4);
}

#[test]
fn the_contract_of_3_ranks() {
    under_mpirun("contract", 3);
}

#[test]
fn who_comes_late_hears_what_failed_and_not_who_left() {
    under_mpirun("late_listener", 3);
}

#[test]
fn a_missing_rank_of_2() {
    under_mpirun("timeout", 2);
}

#[test]
fn a_missing_rank_of_4() {
    under_mpirun("timeout", 4);
}

#[test]
fn a_rank_that_waits_in_another_call_is_the_missing_one() {
    under_mpirun("elsewhere", 3);
}

#[test]
fn a_group_that_is_not_made_yet_holds_up_no_other() {
    under_mpirun("late_group", 2);
}

#[test]
fn one_process_without_mpirun_is_a_group_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let reports = listen(dir.path());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank_program", "--nocapture"])
        .env(SCENARIO, "operations")
        .env(DIRECTORY, dir.path())
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    report(dir.path(), ENDED);
    assert_eq!(hear(&reports, 1), (vec![true], true));
}

/// One rank; does nothing unless a scenario is asked for.
#[test]
fn rank_program() {
    let (Ok(scenario), Some(dir)) = (std::env::var(SCENARIO), std::env::var_os(DIRECTORY)) else {
        return;
    };
    let environment = MpiEnvironment::initialize().unwrap();
    assert!(matches!(
        MpiEnvironment::initialize(),
        Err(CollectiveError::BackendUnavailable { .. })
    ));
    // Not disturbed by what happens to other groups.
    let mut control = environment.communicator(options()).unwrap();
    match &*scenario {
        "operations" => operations(&environment),
        "failures" => failures(&environment),
        "contract" => disagreements(&environment),
        "late_listener" => late_listener(&environment, &mut control),
        "timeout" => timeout(&environment, &mut control),
        "elsewhere" => elsewhere(&environment, &mut control),
        "late_group" => late_group(&environment, &mut control),
        other => panic!("unknown scenario {other}"),
    }
    report(Path::new(&dir), u8::try_from(control.rank()).unwrap());
    // When ranks end without `MPI_Finalize`, mpirun ends the others.
    control.barrier().unwrap();
}

fn options() -> GroupOptions {
    GroupOptions::default()
        .timeout(Duration::from_secs(20))
        .segment_bytes(1000)
}

fn operations(environment: &MpiEnvironment) {
    let wire = options().wire(WireType::Bf16);
    let groups = [
        (options(), false),
        (options().algorithm(Algorithm::Ring), false),
        (options().algorithm(Algorithm::DirectExchange), true),
    ];
    for (options, direct) in groups {
        let mut group = environment.communicator(options).unwrap();
        reductions::<f32>(&mut group, 0);
        if direct {
            continue;
        }
        reductions::<f64>(&mut group, 1);
        reductions::<f16>(&mut group, 2);
        reductions::<bf16>(&mut group, 3);
        reductions::<i32>(&mut group, 4);
        reductions::<i64>(&mut group, 5);
        reductions::<u8>(&mut group, 6);
        movements(&mut group);
    }
    compressed(&mut environment.communicator(wire).unwrap());
    let direct = options().algorithm(Algorithm::Direct);
    assert!(matches!(
        environment.communicator(direct),
        Err(CollectiveError::InvalidOption { .. })
    ));
    for generation in 0..50 {
        let mut group = environment
            .communicator(options().generation(generation))
            .unwrap();
        reductions::<i32>(&mut group, generation);
    }
    if environment.communicator(options()).unwrap().world_size() > 1 {
        large(environment);
    }
}

/// The vectors of all ranks, the same on every rank.
fn inputs<T: TestElement>(world_size: usize, len: usize, op: ReduceOp, seed: u64) -> Vec<Vec<T>> {
    let mut random = Random(seed);
    let scale = if matches!(T::DTYPE, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
        1.0
    } else {
        1e9
    };
    let mut value = |_| match op {
        ReduceOp::Prod => T::from_f64(1.0 + scale * random.uniform() / 8.0),
        _ => T::from_f64(scale * random.uniform()),
    };
    (0..world_size)
        .map(|_| (0..len).map(&mut value).collect())
        .collect()
}

fn naive<T: TestElement>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    let inputs: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
    let mut output = vec![T::from_f64(0.0); inputs[0].len()];
    reduce::reduce_into(op, &inputs, &mut output);
    output
}

fn halves<T: TestElement>(vector: &mut [T]) -> [Buffer<'_>; 2] {
    let middle = vector.len() / 3;
    let (a, b) = vector.split_at_mut(middle);
    [T::buffer(a), T::buffer(b)]
}

/// The bits of a reduction in canonical order; ring may round floats differently.
fn reductions<T: TestElement>(group: &mut MpiCommunicator, seed: u64) {
    let (rank, size) = (group.rank(), group.world_size());
    let is_canonical = group.describe().algorithm != Algorithm::Ring || !is_float::<T>();
    for op in ReduceOp::ALL {
        for len in [0, 1, 2, 5, 999, 5003] {
            let inputs = inputs::<T>(size, len, op, seed + len as u64);
            let expected = naive(op, &inputs);
            let mut vector = inputs[rank].clone();
            group.all_reduce(op, &mut halves(&mut vector)).unwrap();
            if is_canonical {
                assert!(
                    bits(&vector) == bits(&expected),
                    "{op} {} x {len}",
                    T::DTYPE
                );
            }
            // All ranks have the bits of rank 0.
            let all = group.all_gather(&vector).unwrap();
            assert!(all.iter().all(|other| bits(other) == bits(&vector)));

            let mut vector = inputs[rank].clone();
            let own = group.reduce_scatter(op, T::buffer(&mut vector)).unwrap();
            assert_eq!(own, chunk_range(len, size, rank));
            assert!(bits(&vector[own.clone()]) == bits(&expected[own]));

            let root = (len + seed as usize) % size;
            let mut vector = inputs[rank].clone();
            group.reduce(op, root, &mut halves(&mut vector)).unwrap();
            assert!(rank != root || bits(&vector) == bits(&expected));
        }
    }
}

fn is_float<T: TestElement>() -> bool {
    T::from_f64(0.5).to_f64() == 0.5
}

fn movements(group: &mut MpiCommunicator) {
    let (rank, size) = (group.rank(), group.world_size());
    for root in 0..size {
        let mut vector = vec![rank as i64 + 10; 777];
        group.broadcast(root, &mut halves(&mut vector)).unwrap();
        assert_eq!(vector, [root as i64 + 10; 777]);
    }
    // Half an element is refused on the rank that has it, before anything is sent.
    if rank == 0 {
        let error = group.all_gather_into(DType::F32, &[0; 3], &mut Gathered::<f32>::default());
        let error = error.unwrap_err();
        assert!(
            matches!(&error, CollectiveError::InvalidArgument { rank: 0, .. }),
            "{error}"
        );
    }
    let gathered = group.all_gather(&vec![rank as f64; rank * 600]).unwrap();
    for (other, values) in gathered.iter().enumerate() {
        assert_eq!(values, vec![other as f64; other * 600]);
    }
    group.all_reduce(ReduceOp::Sum, &mut []).unwrap();
    group.barrier().unwrap();
    let mut vector = vec![rank as f32; 2000];
    if rank == 0 && size > 1 {
        group.send(size - 1, (&mut vector).into()).unwrap();
        group.recv(size - 1, (&mut vector).into()).unwrap();
        assert_eq!(vector, [1.0; 2000]);
    } else if rank == size - 1 && size > 1 {
        group.recv(0, (&mut vector).into()).unwrap();
        assert_eq!(vector, [0.0; 2000]);
        group.send(0, (&mut vec![1.0_f32; 2000]).into()).unwrap();
    }
    assert!(group.send(rank, (&mut vector).into()).is_err());
    assert!(group.broadcast(size, &mut []).is_err());
    group.barrier().unwrap();
}

/// Elements are rounded once, and so is what every node of the tree gives.
fn compressed(group: &mut MpiCommunicator) {
    let (rank, size) = (group.rank(), group.world_size());
    let inputs = inputs::<f32>(size, 3001, ReduceOp::Mean, 9);
    let round = |vector: &Vec<f32>| vector.iter().map(|v| bf16::from_f32(*v)).collect();
    let rounded: Vec<Vec<bf16>> = inputs.iter().map(round).collect();
    let expected: Vec<f32> = naive(ReduceOp::Mean, &rounded)
        .iter()
        .map(|v| v.to_f32())
        .collect();
    let mut vector = inputs[rank].clone();
    group
        .all_reduce(ReduceOp::Mean, &mut halves(&mut vector))
        .unwrap();
    assert_eq!(
        vector,
        if size == 1 {
            inputs[0].clone()
        } else {
            expected
        }
    );
}

/// More than what the library sends at once, with its own segments.
fn large(environment: &MpiEnvironment) {
    let mut group = environment.communicator(GroupOptions::default()).unwrap();
    let (rank, size) = (group.rank(), group.world_size());
    for len in [3_000_000, 100_001] {
        let mut vector: Vec<f32> = (0..len).map(|i| (i % 1000 * (rank + 1)) as f32).collect();
        group
            .all_reduce(ReduceOp::Sum, &mut [(&mut vector).into()])
            .unwrap();
        let ranks = size * (size + 1) / 2;
        assert!(
            vector
                .iter()
                .enumerate()
                .all(|(i, v)| *v == (i % 1000 * ranks) as f32)
        );
    }
}

fn all_reduce(group: &mut MpiCommunicator, len: usize) -> Result<(), CollectiveError> {
    group.all_reduce(ReduceOp::Sum, &mut [(&mut vec![1.0_f32; len]).into()])
}

fn assert_poisoned(group: &mut MpiCommunicator, cause: CollectiveError) {
    let cause = Box::new(cause);
    assert_eq!(group.barrier(), Err(CollectiveError::Poisoned { cause }));
}

fn failures(environment: &MpiEnvironment) {
    for algorithm in [Algorithm::Auto, Algorithm::Ring] {
        let make = || {
            environment
                .communicator(options().algorithm(algorithm))
                .unwrap()
        };
        let mut group = make();
        let last = group.world_size() - 1;
        all_reduce(&mut group, 10).unwrap();
        let odd = group.rank() == last;
        let error = all_reduce(&mut group, 10 + usize::from(odd)).unwrap_err();
        let expected = "count is 10 on one and 11 on the other";
        assert!(
            matches!(&error, CollectiveError::Mismatch { rank_a: 0, rank_b, sequence: 1, what, .. }
                if *rank_b == last && what == expected),
            "{error}"
        );
        assert_poisoned(&mut group, error);

        let mut group = make();
        group.barrier().unwrap();
        let error = if odd {
            group.abort("out of disk space");
            group.barrier().unwrap_err()
        } else {
            all_reduce(&mut group, 10).unwrap_err()
        };
        let text = error.to_string();
        assert_eq!(
            text,
            format!("rank {last} aborted the group: out of disk space")
        );
        assert_poisoned(&mut group, error);

        let mut group = make();
        group.barrier().unwrap();
        if !odd {
            let error = all_reduce(&mut group, 10).unwrap_err();
            assert!(
                matches!(&error, CollectiveError::PeerLost { rank, sequence: 1, .. }
                    if *rank == last),
                "{error}"
            );
            assert_poisoned(&mut group, error);
        }
    }
    wrong_receiver(environment);
}

/// Ranks that disagree get an error, and never a number.
fn disagreements(environment: &MpiEnvironment) {
    for algorithm in [Algorithm::Auto, Algorithm::Ring] {
        for case in contract::cases() {
            let group = environment.communicator(options().algorithm(algorithm));
            case.check(&mut group.unwrap()).unwrap();
        }
    }
}

/// The first two ranks differ and leave before the third one, which has no part in it, looks.
fn late_listener(environment: &MpiEnvironment, control: &mut MpiCommunicator) {
    for _ in 0..50 {
        let mut group = environment.communicator(options()).unwrap();
        let passed = match group.rank() {
            0 => group.send(1, (&mut [1.0_f32; 4][..]).into()),
            1 => group.recv(0, (&mut [1_i32; 4][..]).into()),
            _ => Ok(()),
        };
        let mut group = Some(group);
        if control.rank() < 2 {
            assert!(matches!(passed, Err(CollectiveError::Mismatch { .. })));
            group = None;
        }
        control.barrier().unwrap();
        if let Some(mut group) = group {
            let error = group.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
        }
    }
}

fn wrong_receiver(environment: &MpiEnvironment) {
    let mut group = environment.communicator(options()).unwrap();
    let error = match group.rank() {
        0 => group.send(1, (&mut [1.0_f32; 4][..]).into()).unwrap_err(),
        1 => group.recv(0, (&mut [1_i32; 4][..]).into()).unwrap_err(),
        _ => return,
    };
    let text = error.to_string();
    assert!(
        text.contains("dtype is f32 on one and i32 on the other"),
        "{text}"
    );
}

fn timeout(environment: &MpiEnvironment, control: &mut MpiCommunicator) {
    let limit = Duration::from_millis(500);
    let mut group = environment.communicator(options().timeout(limit)).unwrap();
    // Before any rank has begun the all-reduce: the first whose time is over tells the others.
    let begin = Instant::now();
    group.barrier().unwrap();
    if group.rank() != 1 {
        let error = all_reduce(&mut group, 1000).unwrap_err();
        assert!(begin.elapsed() >= limit && begin.elapsed() < 10 * limit);
        let missing = matches!(&error, CollectiveError::Timeout { missing, sequence: 1, .. }
            if *missing == [1]);
        assert!(missing, "{error}");
        assert_poisoned(&mut group, error);
    }
    // The missing rank comes when the others have given up; they have told it why.
    control.barrier().unwrap();
    if group.rank() == 1 {
        let error = all_reduce(&mut group, 1000).unwrap_err();
        assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
    }
}

/// The last rank waits in a call with rank 0, while the others wait for it in an all-reduce.
fn elsewhere(environment: &MpiEnvironment, control: &mut MpiCommunicator) {
    let limit = Duration::from_secs(2);
    let mut group = environment.communicator(options().timeout(limit)).unwrap();
    control.barrier().unwrap();
    if group.rank() < 2 {
        let error = all_reduce(&mut group, 1000).unwrap_err();
        let missing = matches!(&error, CollectiveError::Timeout { missing, .. }
            if *missing == [2]);
        assert!(missing, "{error}");
    } else {
        // It is late, so that it says that it waits and does not come to its own deadline first.
        std::thread::sleep(limit * 2 / 5);
        group.recv(0, (&mut [0.0_f32; 4][..]).into()).unwrap_err();
    }
}

/// Rank 0 makes a group on another thread; rank 1 comes later, and the second time never.
fn late_group(environment: &MpiEnvironment, control: &mut MpiCommunicator) {
    std::thread::scope(|scope| {
        let make = || environment.communicator(options()).unwrap();
        let early = (control.rank() == 0).then(|| scope.spawn(make));
        let begin = Instant::now();
        for _ in 0..200 {
            all_reduce(control, 1000).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(15));
        let mut group = early.map_or_else(make, |early| early.join().unwrap());
        all_reduce(&mut group, 1000).unwrap();
    });
    if control.rank() == 0 {
        let limit = Duration::from_millis(300);
        let begin = Instant::now();
        let made = environment.communicator(options().timeout(limit));
        let Err(error @ CollectiveError::BackendUnavailable { .. }) = made else {
            panic!("rank 1 has made no group");
        };
        assert!(error.to_string().contains("not all ranks"), "{error}");
        assert!(begin.elapsed() >= limit && begin.elapsed() < 20 * limit);
    }
    all_reduce(control, 1000).unwrap();
}
