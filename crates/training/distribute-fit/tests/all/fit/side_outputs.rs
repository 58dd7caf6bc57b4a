//! An error of a file that is written beside training never ends the training, and after a resume
//! the file agrees with the training.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use distribute_core::checkpoint::{list, load, load_latest};
use distribute_core::{DefaultStrategy, Error, Result};
use distribute_fit::callbacks::{BitLog, HistoryFile, ModelCheckpoint, TensorBoard};
use distribute_fit::{Callback, Control, EpochRecord, Fit, History, Outcome};

use super::files::scalars;
use crate::common::{BATCHES, Points, new_state, objective};

/// Two epochs, with a validation.
fn train<'a>(
    change: impl FnOnce(Fit<'a, DefaultStrategy>) -> Fit<'a, DefaultStrategy>,
    strategy: &'a DefaultStrategy,
) -> Result<History> {
    let data = Points::new(strategy);
    let mut state = new_state(strategy);
    let fit = change(Fit::new(strategy).epochs(2));
    fit.run_with_validation(&mut state, &data, &data, objective)
}

/// What goes wrong in the middle of a run.
struct Meanwhile<F>(F);

impl<F: FnMut()> Callback for Meanwhile<F> {
    fn on_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        (self.0)();
        Ok(())
    }
}

#[test]
fn curves_that_cannot_be_written_any_more_do_not_end_training() {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let board = TensorBoard::new(directory.path()).unwrap();
    let blocked = directory.path().join("validation");
    let meanwhile = Meanwhile(|| fs::write(&blocked, "").unwrap());
    let history = train(|fit| fit.callback(board).callback(meanwhile), &strategy).unwrap();
    assert_eq!(history.outcome, Outcome::Completed);
    // After the first error no curve is written; the file that is in the way stays.
    assert!(blocked.is_file());
}

#[test]
fn bits_that_cannot_be_written_any_more_do_not_end_training() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("bits.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let strategy = DefaultStrategy::new();
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(File::open(pipe).unwrap()).lines();
            // The reader goes away after the third line.
            let line = |_| lines.next().unwrap().unwrap();
            [0; 3].map(line)
        })
    };
    let history = train(|fit| fit.callback(BitLog::new(&pipe)), &strategy).unwrap();
    assert_eq!(history.outcome, Outcome::Completed);
    assert!(reader.join().unwrap()[2].contains("\"step\":2"));
}

fn rows(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn a_run_that_goes_on_is_not_refused_for_its_side_outputs_and_one_that_begins_is() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    fs::write(folder.join("file"), "").unwrap();
    let inside = |name: &str| folder.join("file").join(name);
    let strategy = DefaultStrategy::new();
    let saved = folder.join("saved");
    let saver = ModelCheckpoint::new(&saved).unwrap();
    let history = folder.join("history.csv");
    let csv = || HistoryFile::csv(&history);
    train(
        |fit| fit.epochs(1).callback(csv()).callback(saver),
        &strategy,
    )
    .unwrap();
    assert_eq!(rows(&history), 2);
    let columns = fs::read_to_string(&history)
        .unwrap()
        .replace("accuracy", "precision");
    fs::write(&history, &columns).unwrap();

    let newest = || load_latest(&saved).unwrap().found.map(|(_, found)| found);
    let json = || HistoryFile::json_lines(inside("h.jsonl"));
    let bits = || BitLog::new(inside("bits"));
    let gone_on = train(
        |fit| {
            let fit = fit.resume_from(newest()).callback(csv());
            fit.callback(json()).callback(bits())
        },
        &strategy,
    );
    let gone_on = gone_on.unwrap();
    assert_eq!(gone_on.outcome, Outcome::Completed);
    assert_eq!(fs::read_to_string(&history).unwrap(), columns);
    for refused in [
        train(|fit| fit.callback(json()), &strategy),
        train(|fit| fit.callback(bits()), &strategy),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("choose a writable path"), "{error}");
    }
}

#[test]
fn a_second_run_is_refused_the_bits_of_one_that_writes_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bits.jsonl");
    let strategy = DefaultStrategy::new();
    let mut said = None;
    let second = Meanwhile(|| {
        said.get_or_insert_with(|| {
            let begun = train(|fit| fit.callback(BitLog::new(&path)), &strategy);
            begun.unwrap_err().to_string()
        });
    });
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let fit = Fit::new(&strategy)
        .callback(BitLog::new(&path))
        .callback(second);
    fit.run(&mut state, &data, objective).unwrap();
    assert!(said.unwrap().contains("another run writes it"));
    assert_eq!(rows(&path), 1 + BATCHES);
}

/// All points but the speed, which differs from run to run.
fn curves(directory: &Path) -> Vec<(String, i64, u32)> {
    let mut all = scalars(directory);
    all.retain(|(tag, ..)| tag != "epoch_examples_per_second");
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(tag, step, value)| (tag, step, value.to_bits()))
        .collect();
    all.sort();
    all
}

/// Resumes from each checkpoint of a run that had written points after it, within an epoch and
/// between two epochs.
#[test]
fn a_resumed_run_has_the_points_of_one_that_was_not_interrupted() {
    let strategy = DefaultStrategy::new();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let board = |logs: &str| TensorBoard::new(path(logs)).unwrap().every_steps(1);
    train(|fit| fit.callback(board("whole")), &strategy).unwrap();
    let saver = ModelCheckpoint::new(path("saved")).unwrap().every_steps(3);
    train(
        |fit| fit.callback(board("first")).callback(saver),
        &strategy,
    )
    .unwrap();
    for (index, entry) in list(path("saved")).unwrap().into_iter().enumerate() {
        let logs = format!("parts-{index}");
        let steps = entry.step.max(2 * BATCHES as u64 - 2);
        train(
            |fit| fit.max_steps(Some(steps)).callback(board(&logs)),
            &strategy,
        )
        .unwrap();
        let train_logs = path(&logs).join("train");
        let cut_off = fs::read_dir(&train_logs).unwrap().next().unwrap().unwrap();
        let mut cut_off = File::options().append(true).open(cut_off.path()).unwrap();
        cut_off.write_all(&[7; 21]).unwrap();
        let from = load(&entry.path).unwrap();
        train(
            |fit| fit.resume_from(Some(from)).callback(board(&logs)),
            &strategy,
        )
        .unwrap();
        for part in ["train", "validation"] {
            let [found, wanted] = [&logs, "whole"].map(|name| curves(&path(name).join(part)));
            assert_eq!(found, wanted, "{part} from step {}", entry.step);
        }
    }
}

/// Ends the run after its first epoch.
struct Fails;

impl Callback for Fails {
    fn on_epoch_end(&mut self, _: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        Err(Error::step("the callback of a user"))
    }
}

#[test]
fn what_a_callback_ends_is_saved_first() {
    let folder = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let saver = ModelCheckpoint::new(folder.path())
        .unwrap()
        .every_steps(1000);
    let error = train(|fit| fit.callback(saver).callback(Fails), &strategy).unwrap_err();
    assert!(
        error.to_string().contains("the callback of a user"),
        "{error}"
    );
    let (entry, _) = load_latest(folder.path()).unwrap().found.unwrap();
    assert_eq!(entry.step, BATCHES as u64);
}
