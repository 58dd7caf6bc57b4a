//! Workers as processes of a launcher: one is killed, the others name it, and the job that is
//! started again ends with the bits of one that was not disturbed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn_train::metric::LossMetric;
use burn_train::{Learner, SupervisedTraining};
use distribute_core::{MultiWorkerMirroredStrategy, StrategyExt};
use distribute_launch::{Console, Job, Outcome, run};
use distribute_learner::{LearnerStrategy, TrainingExt, latest_checkpoint};
use rstest::rstest;

use crate::common::{
    Falling, Loader, Net, Optimizer, Spy, Stack, custom, loader, mirrored, rows, train,
};

/// Names the folder of the job to its processes.
const FOLDER: &str = "LEARNER_FOLDER";
/// Names what is special about the job.
const TASK: &str = "LEARNER_TASK";

const EPOCHS: usize = 4;

/// The batches that a worker has had by the time of its death, in its third epoch or later.
const LAST_BATCH: usize = 9;

fn shuffled(threads: usize) -> Loader {
    DataLoaderBuilder::new(Stack)
        .batch_size(2)
        .shuffle(3)
        .num_workers(threads)
        .build(InMemDataset::new(rows(14)))
}

/// Ends this process as the system does when memory runs out.
fn be_killed(folder: &Path) {
    fs::write(folder.join("killed"), "").unwrap();
    let pid = std::process::id().to_string();
    Command::new("kill").args(["-9", &pid]).status().unwrap();
    loop {
        std::thread::park();
    }
}

/// The program of a worker, in a folder of its own. What it has come to is in the job's folder.
fn worker(folder: &Path, task: &str) {
    let strategy = MultiWorkerMirroredStrategy::new().unwrap();
    let (index, attempt) = (
        strategy.worker_index(),
        std::env::var("DISTRIBUTE_RESTART").unwrap(),
    );
    let dies = task == format!("dies-{index}") && attempt == "0";
    let (job, batches) = (folder.to_path_buf(), std::sync::atomic::AtomicUsize::new(0));
    let spy = Spy::new(move |_| {
        let before = batches.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if dies && before == LAST_BATCH {
            be_killed(&job);
        }
    });
    let own = folder.join(format!("worker-{index}"));
    let threads = if task == "threads" { 2 } else { 1 };
    let mut training = SupervisedTraining::new(&own, shuffled(threads), loader(4, 2))
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_default_checkpointers()
        .num_epochs(EPOCHS)
        .summary()
        .distributed(LearnerStrategy::new(strategy));
    if let Some(epoch) = latest_checkpoint(&own).unwrap() {
        training = training.checkpoint(epoch);
    }
    let model = Net::begun_at(spy, index as f32);
    let result = training.launch(Learner::new(model, Optimizer::Adam.build(), Falling(0)));
    let say = |what: &str, text: String| {
        fs::write(folder.join(format!("{what}-{attempt}-{index}")), text).unwrap();
    };
    if let Some(error) = result.error {
        say("error", error.to_string());
        panic!("{error}");
    }
    say("weights", format!("{:?}", result.model.weights()));
}

/// No test, but what the processes of the jobs run.
#[test]
fn a_worker_of_a_job() {
    let variable = |name: &str| std::env::var(name).ok();
    if let (Some(folder), Some(task)) = (variable(FOLDER), variable(TASK)) {
        match task.as_str() {
            "example" => crate::example::main().unwrap(),
            task => worker(Path::new(&folder), task),
        }
    }
}

/// Runs workers in this folder; how the job ended, and what the chief showed.
fn job(folder: &Path, task: &str, workers: usize, restarts: u32) -> (Outcome, String) {
    let program = std::env::current_exe().unwrap();
    // The launcher asks the survivors of a failure to end: here they say first what they know.
    let patient = "trap '' TERM; exec env \"$@\"";
    let command = [
        "sh".to_string(),
        "-c".to_string(),
        patient.to_string(),
        "sh".to_string(),
        format!("{FOLDER}={}", folder.display()),
        format!("{TASK}={task}"),
        format!("DIRECTORY={}", folder.join("learner").display()),
        program.display().to_string(),
        "--exact".to_string(),
        "processes::a_worker_of_a_job".to_string(),
        "--nocapture".to_string(),
    ];
    let job = Job::new(command)
        .workers(workers)
        .max_restarts(restarts)
        .restart_pause(Duration::ZERO)
        .handle_signals(false)
        .log_directory(folder.join("logs"));
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let outcome = run(&job, &mut Console::new(&mut stdout, &mut stderr));
        let shown = String::from_utf8_lossy(&stdout).into_owned();
        let _ = done.send((outcome.unwrap(), shown));
    });
    let limit = Duration::from_secs(100);
    outcome.recv_timeout(limit).expect("the job hangs")
}

/// The files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder.join(&inner)) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let path = inner.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path)
            } else {
                drop(found.insert(path.display().to_string()))
            }
        }
    }
    found
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn written_at(folder: &Path, name: &str) -> SystemTime {
    fs::metadata(folder.join(name)).unwrap().modified().unwrap()
}

#[rstest]
#[case::the_last(2, 1)]
#[case::the_chief(3, 0)]
fn a_job_whose_worker_was_killed_ends_with_the_bits_of_one_whose_was_not(
    #[case] workers: usize,
    #[case] killed: usize,
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (outcome, shown) = job(folder, &format!("dies-{killed}"), workers, 1);
    assert!(
        matches!(outcome, Outcome::Succeeded { restarts: 1 }),
        "{outcome:?}"
    );

    // Who was killed is named in time.
    for survivor in (0..workers).filter(|worker| *worker != killed) {
        let name = format!("error-0-{survivor}");
        let error = read(folder, &name);
        assert!(error.contains(&format!("rank {killed}")), "{error}");
        let noticed = written_at(folder, &name).duration_since(written_at(folder, "killed"));
        assert!(noticed.unwrap() < Duration::from_secs(5));
    }

    let strategy = custom(mirrored(workers));
    let (wanted, _) = train(shuffled(1), strategy, Optimizer::Adam, |training| {
        training.num_epochs(EPOCHS)
    });
    for worker in 0..workers {
        let found = read(folder, &format!("weights-1-{worker}"));
        assert_eq!(found, format!("{wanted:?}"), "worker {worker}");
    }
    only_the_chief_wrote(folder, &shown);
}

fn only_the_chief_wrote(folder: &Path, shown: &str) {
    let written = files(&folder.join("worker-0"));
    for file in [
        "experiment.log",
        "checkpoint/model-4.bpk",
        "checkpoint/optim-4.bpk",
        "checkpoint/scheduler-4.bpk",
        "train/epoch-1/Loss.log",
        "train/epoch-4/Loss.log",
        "valid/epoch-4/Loss.log",
    ] {
        assert!(written.contains(file), "no {file} in {written:?}");
    }
    assert_eq!(files(&folder.join("worker-1")), BTreeSet::new());
    // 14 rows in batches of 2, of all workers.
    let losses = read(folder, "worker-0/train/epoch-4/Loss.log");
    assert_eq!(losses.lines().count(), 7 + 1, "and their mean: {losses}");

    // burn's dashboard and its summary are the chief's, too.
    for text in [
        "Starting training for 4 epochs.",
        "items_processed: 14",
        "Split ended.",
        "Learner Summary",
    ] {
        assert!(shown.contains(text), "no `{text}` in {shown}");
    }
    let of_other = read(folder, "logs/restart-1/worker-1.log");
    for text in ["Starting", "Split", "items", "Summary"] {
        assert!(!of_other.contains(text), "{of_other}");
    }
}

#[test]
fn a_loader_whose_order_depends_on_threads_is_refused_on_all_workers() {
    if !cfg!(target_os = "linux") {
        println!("SKIPPED: only Linux tells the names of threads");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (outcome, _) = job(folder, "threads", 2, 0);
    assert!(!matches!(outcome, Outcome::Succeeded { .. }), "{outcome:?}");
    for worker in 0..2 {
        let error = read(folder, &format!("error-0-{worker}"));
        assert!(error.contains("num_workers(1)"), "{error}");
    }
    assert_eq!(latest_checkpoint(folder.join("worker-0")).unwrap(), None);
}

#[test]
fn the_example_learns_on_two_workers_and_goes_on() {
    let text = include_str!("../../examples/learner.rs");
    assert!(text.lines().count() < 100);
    let folder = tempfile::tempdir().unwrap();
    let answer = |shown: String| {
        let after = shown.split("0.6^2 + 0.8^2 = ").nth(1).expect("an answer");
        after.lines().next().unwrap().parse::<f32>().unwrap()
    };
    let (outcome, first) = job(folder.path(), "example", 2, 0);
    assert!(matches!(outcome, Outcome::Succeeded { .. }), "{outcome:?}");
    let first = answer(first);
    assert!((first - 1.0).abs() < 0.1, "{first}");
    // All of its epochs are done.
    let (outcome, again) = job(folder.path(), "example", 2, 0);
    assert!(matches!(outcome, Outcome::Succeeded { .. }), "{outcome:?}");
    assert_eq!(answer(again), first);
}
