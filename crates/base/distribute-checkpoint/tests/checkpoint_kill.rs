//! A process that saves checkpoints is killed again and again; nothing durable is ever lost, and
//! no other process saves into its directory while it lives.

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use burn::tensor::TensorData;
use distribute_checkpoint::{
    Checkpoint, CheckpointError, CheckpointManager, Metadata, load_latest,
};

const DIRECTORY_VARIABLE: &str = "CHECKPOINT_KILL_DIRECTORY";
const TEST_NAME: &str = "checkpoint_survives_kill";
const HARD_LIMIT: Duration = Duration::from_secs(60);

/// Large enough for a kill to hit in the middle of it.
const ELEMENTS: usize = 1 << 18;

fn checkpoint(step: u64) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(Metadata::new(step));
    let tensor = TensorData::full([ELEMENTS], step as f32);
    checkpoint
        .tensors
        .insert("model/kernel".to_string(), tensor);
    checkpoint
}

/// The process that is killed: resumes, then saves until it dies.
fn save_until_killed(directory: &Path) {
    let manager = CheckpointManager::open(directory)
        .unwrap()
        .with_max_to_keep(NonZeroUsize::new(2));
    let latest = manager.load_latest().unwrap();
    let mut step = latest.found.map_or(0, |(entry, _)| entry.step);
    loop {
        step += 1;
        manager.save(&checkpoint(step)).unwrap();
        println!("saved {step}");
    }
}

/// A process that saves until it is killed, and the steps that it says it has saved.
struct Saver {
    child: Child,
    steps: mpsc::Receiver<u64>,
    reader: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts this test again as another process.
    fn start(directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST_NAME, "--nocapture"])
            .env(DIRECTORY_VARIABLE, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, steps) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(step) = line.strip_prefix("saved ")
                    && sender.send(step.parse().unwrap()).is_err()
                {
                    break;
                }
            }
        });
        Self {
            child,
            steps,
            reader: Some(reader),
        }
    }

    /// Waits until it has saved once more.
    fn saved(&self) -> u64 {
        self.steps.recv_timeout(HARD_LIMIT).unwrap()
    }

    /// Kills it (SIGKILL); the last step that it said was saved, after `last`.
    fn kill(mut self, last: u64) -> u64 {
        self.end();
        self.steps.try_iter().last().unwrap_or(last)
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if self.reader.is_some() {
            self.end();
        }
    }
}

/// Kills a child `delay` after it has saved twice; the last step it said was saved.
fn run_and_kill(directory: &Path, delay: Duration) -> u64 {
    let saver = Saver::start(directory);
    saver.saved();
    let last = saver.saved();
    // Not to wait for anything: to die at another point of a save in every round.
    std::thread::sleep(delay);
    saver.kill(last)
}

/// Opens the directory; a refusal must name it and the process that holds it.
fn refused_by(directory: &Path) -> Option<u32> {
    match CheckpointManager::open(directory) {
        Ok(_) => None,
        Err(ref error @ CheckpointError::Busy { ref holder, .. }) => {
            let text = error.to_string();
            assert!(text.contains(directory.to_str().unwrap()), "{text}");
            let holder = holder.as_ref().unwrap();
            assert!(text.contains(&holder.to_string()), "{text}");
            assert!(text.contains(" on host "), "{text}");
            assert!(
                text.contains("choose another checkpoint directory"),
                "{text}"
            );
            Some(holder.process)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_second_process_is_refused_while_the_first_lives_and_never_after_its_death() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let saver = Saver::start(directory.path());
        saver.saved();
        // In the middle of a save and between two of them; readers are not in its way.
        for _ in 0..20 {
            assert_eq!(refused_by(directory.path()), Some(saver.child.id()));
            let step = saver.saved();
            let (entry, found) = load_latest(directory.path()).unwrap().found.unwrap();
            assert!(entry.step >= step);
            assert_eq!(found, checkpoint(entry.step));
        }
        saver.kill(0);
        assert_eq!(refused_by(directory.path()), None, "the dead hold nothing");
    }
}

#[test]
fn checkpoint_survives_kill() {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        save_until_killed(Path::new(&directory));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut previous = 0;
    for round in 0..30 {
        let saved = run_and_kill(directory.path(), Duration::from_micros(700 * round));
        assert!(saved > previous, "every round makes progress");
        let latest = load_latest(directory.path()).unwrap();
        assert!(latest.skipped.is_empty(), "{:?}", latest.skipped);
        let (entry, found) = latest.found.unwrap();
        // The kill may have come between the save and the message.
        assert!(
            entry.step == saved || entry.step == saved + 1,
            "{entry:?}, {saved}"
        );
        assert_eq!(found, checkpoint(entry.step));
        previous = entry.step;
    }
}
