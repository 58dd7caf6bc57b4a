//! Workers that are slower than the others: they are named, and dropped where that is asked for.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distribute_classifier::{Classified, OptimizerOptions, Task, TaskOptions, objective};
use distribute_core::{
    BatchSource, Batches, MultiWorkerMirroredStrategy, Policy, Result, Strategy, StrategyExt,
};
use distribute_data::{Batching, StrategyDataExt};
use distribute_fit::{Callback, Control, Fit, Outcome};
use distribute_launch::ReservedPorts;

use crate::common::{self, Finished, LIMIT, Process};
use crate::elastic::{losses, starts};
use crate::launch::{Launcher, SECRET, TRAIN, child_of, end, launch};
use crate::observing::{free_ports, metrics};

/// Of each period a slow process runs this long, and is stopped for the rest.
const RUNS: Duration = Duration::from_millis(5);
const STOPPED: Duration = Duration::from_millis(35);

/// A process that gets an eighth of the time, until this is dropped or it ends.
struct Slowed {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    fn new(process: u32) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let passes = move |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let thread = std::thread::spawn(move || {
            while common::send(process, "STOP").is_ok() {
                let goes_on = passes(STOPPED);
                if common::send(process, "CONT").is_err() || !goes_on || !passes(RUNS) {
                    break;
                }
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.stop = None;
        self.thread.take().map(JoinHandle::join);
    }
}

fn wait_for_metric(port: u16, name: &str, value: f64) {
    let begun = Instant::now();
    let is_there = || metrics(port).and_then(|found| found.get(name).copied());
    while is_there() != Some(value) {
        assert!(begun.elapsed() < LIMIT, "{name} is {:?}", is_there());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_worker_that_is_slow_is_named_until_it_is_as_fast_as_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (port, _reserved) = free_ports();
    let train = format!(
        "train --strategy multi-worker --model mlp --output json --epochs 100000 --log-steps 10 \
         --compare-ranks 0.1 --metrics-addr {port}"
    );
    let options = "--workers 3 --all-output";
    let mut job = Launcher::start(folder.path(), options, &train);
    job.0.wait_for(r#""step":20,"#);
    let slowed = Slowed::new(job.worker(2));
    let slow = port + 2;
    wait_for_metric(slow, "distribute_rank_slow", 1.0);
    let found = metrics(slow).unwrap();
    assert!(found["distribute_rank_time_ratio"] > 1.0, "{found:?}");
    let shares = ["compute", "data", "exchange", "waiting"];
    let shares = shares.map(|name| found[&format!("distribute_rank_{name}_share")]);
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
    assert!(shares.iter().sum::<f64>() < 1.001, "{found:?}");
    drop(slowed);
    wait_for_metric(slow, "distribute_rank_slow", 0.0);
    job.0.signal("INT");
    let finished = job.0.finish();
    let told = finished.told();
    for said in [
        " x as long as the median since step ",
        "% of each step for it",
        "rank 2 is as fast as the others again: rank 2 on host ",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
}

/// Two workers, of which the second is slow from step 10 on.
fn slow_to_the_end(folder: &Path, output: &str) -> Finished {
    let train = format!(
        "train --strategy multi-worker --model mlp --output {output} --epochs 100000 --steps 250 \
         --log-steps 10 --compare-ranks 0.1"
    );
    let mut job = Launcher::start(folder, "--workers 2", &train);
    job.0.wait_for(match output {
        "json" => r#""step":10,"#,
        _ => "step 10:",
    });
    let _slowed = Slowed::new(job.worker(1));
    let finished = job.0.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished
}

#[test]
fn the_report_at_the_end_names_slow_workers() {
    let folder = tempfile::tempdir().unwrap();
    let done = common::last_event(&slow_to_the_end(folder.path(), "json").stdout);
    let ranks = done["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "{done}");
    let share = |rank: usize, name: &str| ranks[rank][name].as_f64().unwrap();
    assert!(share(1, "compute") > share(0, "compute"), "{done}");
    assert!(share(0, "waiting") > share(1, "waiting"), "{done}");
    let slow = &done["slow_ranks"][0];
    assert_eq!(
        (&slow["rank"], &slow["cause"]),
        (&1.into(), &"compute".into())
    );
    assert!(slow["ratio"].as_f64().unwrap() > 1.25, "{done}");
    assert_eq!(slow["host"], ranks[1]["host"]);
}

#[test]
fn the_report_for_people_names_slow_workers_too() {
    let folder = tempfile::tempdir().unwrap();
    let finished = slow_to_the_end(folder.path(), "text");
    let said = finished
        .stdout
        .lines()
        .find(|line| line.starts_with("rank 1 on host "));
    let said = said.unwrap_or_else(|| panic!("{}", finished.stdout));
    assert!(said.contains(" x as long as rank 0 "), "{said}");
    assert!(finished.told().contains(" x as long as rank 0 since step "));
}

/// Three hosts with a worker of two replicas each.
fn hosts(folder: &Path, train: &str, options: &str) -> [Process; 3] {
    let ports = ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
    let address = ports.addresses()[0];
    [0, 1, 2].map(|index| {
        let options = format!(
            "{options} --drop-stragglers 0 --rendezvous {address} --hosts 3 --host {index}"
        );
        let mut command = Launcher::command(folder, &options, train);
        Process::start(&mut command, &[SECRET])
    })
}

#[test]
fn a_job_goes_on_without_a_slow_host_with_the_same_bits() {
    let train =
        format!("{TRAIN} 700 --log-steps 10 --batch-size 8 --total-replicas 3 --compare-ranks 0.1");
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = launch(whole.path(), "--workers 2", &train);
    for slow in [0, 2] {
        goes_on_without(slow, &train, &undisturbed);
    }
}

/// The same training, of which this host is slow from step 20 on.
fn goes_on_without(slow: usize, train: &str, undisturbed: &Finished) {
    let folder = tempfile::tempdir().unwrap();
    let mut all = hosts(folder.path(), train, "--workers 2..3");
    all[0].wait_for(r#""step":20,"#);
    let worker = child_of(&all[slow], "\"index\"").expect("it runs");
    let slowed = Slowed::new(worker);
    let finished = all.map(Process::finish);
    drop(slowed);
    // The output is that of worker 0, which may be on another host after the start without it.
    let stdout = finished.iter().map(|finished| finished.stdout.as_str());
    let whole = Finished {
        code: Some(0),
        stdout: stdout.collect(),
        stderr: finished[0].stderr.clone(),
    };
    let said = format!("the job goes on without host {slow}");
    assert!(whole.told().contains(&said), "{}", whole.stderr);
    assert_eq!(starts(&whole), [(3, 3), (3, 2)]);
    assert_eq!(losses(&whole), losses(undisturbed));
    let last = &finished[usize::from(slow == 0)];
    assert_eq!(end(last).0, end(undisturbed).0);
    for (host, finished) in finished.iter().enumerate() {
        let is_dropped = host == slow && slow > 0;
        assert_eq!(finished.code == Some(0), !is_dropped, "{}", finished.stderr);
        let said = "the job goes on without this host: rank ";
        assert_eq!(
            finished.told().contains(said),
            is_dropped,
            "{}",
            finished.stderr
        );
    }
}

/// A source that takes its time.
struct Slow<'a, D> {
    source: &'a D,
    pause: Duration,
}

impl<D: BatchSource> BatchSource for Slow<'_, D> {
    type Batch = D::Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.source.batches_per_epoch()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.source.global_batch_size()
    }

    fn epoch(&self, epoch: usize, skip_batches: usize) -> Result<Batches<'_, D::Batch>> {
        let batches = self.source.epoch(epoch, skip_batches)?;
        Ok(Box::new(
            batches.inspect(|_| std::thread::sleep(self.pause)),
        ))
    }
}

/// Ends a run in which a rank is slow.
struct UntilSlow;

impl Callback for UntilSlow {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        if run.standings().iter().any(|standing| standing.is_slow) {
            let why = "a rank is slow".to_string();
            run.stop(Outcome::Requested { why });
        }
        Ok(())
    }
}

/// Set for the processes of a job that are this test.
const WORKER: &str = "STRAGGLERS_TEST_WORKER";

/// A worker of a program of one's own; nothing if it is not started as one.
#[test]
fn a_worker_whose_rank_1_reads_slowly() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let (task, data) = Task::open(&TaskOptions::default(), None).unwrap();
    let optimizer = OptimizerOptions::default().build().unwrap();
    let strategy = MultiWorkerMirroredStrategy::new().unwrap();
    let examples = Classified::weighted(data.train);
    let source = strategy.distribute_dataset(examples, Batching::global(32));
    let is_slow = strategy.workers().unwrap().index() == 1;
    let train = Slow {
        source: &source.unwrap(),
        pause: Duration::from_millis(if is_slow { 25 } else { 0 }),
    };
    let state = strategy.try_scope(|device| Ok(task.state(optimizer.clone(), 1, device)?));
    let history = Fit::new(&strategy)
        .epochs(1000)
        .max_steps(3000)
        .compare_ranks(Duration::from_millis(200))
        .callback(UntilSlow)
        .run(
            &mut state.unwrap(),
            &train,
            objective(Policy::float32(), task.loss),
        )
        .unwrap();
    for sentence in history.ranks.unwrap().sentences() {
        println!("{sentence}");
    }
}

#[test]
fn a_worker_with_a_slow_data_source_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = common::plain(folder.path());
    job.args(["launch", "--workers", "3", "--"]);
    job.arg(std::env::current_exe().unwrap());
    let test = "stragglers::a_worker_whose_rank_1_reads_slowly";
    job.args(["--exact", test, "--nocapture"]);
    let finished = Process::start(&mut job, &[(WORKER, "1")]).finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let said = finished
        .stdout
        .lines()
        .find(|line| line.contains("rank 1 on host "));
    let said = said.unwrap_or_else(|| panic!("{}\n{}", finished.stdout, finished.stderr));
    assert!(
        said.contains(" waits for data ") && said.contains(" since step "),
        "{said}"
    );
}
