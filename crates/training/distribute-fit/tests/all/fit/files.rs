//! History files and TensorBoard's event files.

use std::fs;
use std::path::Path;

use distribute_core::{DefaultStrategy, MirroredStrategy};
use distribute_fit::callbacks::{HistoryFile, TensorBoard};
use distribute_fit::{Fit, StepContext};
use prost::Message;

use crate::common::{BATCHES, Points, new_state, objective};

#[test]
fn history_files_hold_what_the_run_returns() {
    let directory = tempfile::tempdir().unwrap();
    let (json, csv) = (
        directory.path().join("run/h.jsonl"),
        directory.path().join("h.csv"),
    );
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    fs::write(&csv, "an old file\n").unwrap();
    let fit = Fit::new(&strategy)
        .epochs(2)
        .callback(HistoryFile::json_lines(&json))
        .callback(HistoryFile::csv(&csv));
    let history = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();

    let text = fs::read_to_string(&json).unwrap();
    let rows: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 2);
    for (row, epoch) in rows.iter().zip(&history.epochs) {
        assert_eq!(row["epoch"], epoch.epoch + 1);
        assert_eq!(row["step"], epoch.step);
        for (name, value) in epoch.logs.iter() {
            assert_eq!(row[name], value, "{name}");
        }
    }
    let text = fs::read_to_string(&csv).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    insta::assert_snapshot!(lines[0], @"epoch,step,learning_rate,loss,accuracy,val_loss,val_accuracy");
    let last = &history.epochs[1];
    let fields: Vec<f64> = lines[2]
        .split(',')
        .map(|field| field.parse().unwrap())
        .collect();
    let mut expected = vec![2.0, 2.0 * BATCHES as f64, 0.02];
    expected.extend(last.logs.iter().map(|(_, value)| value));
    assert_eq!(fields, expected);
    assert_eq!(lines.len(), 3);
}

#[test]
fn what_is_not_finite_is_read_back_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let (json, csv) = (
        directory.path().join("h.jsonl"),
        directory.path().join("h.csv"),
    );
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5];
    let fit = Fit::new(&strategy)
        .epochs(odd.len())
        .callback(HistoryFile::json_lines(&json))
        .callback(HistoryFile::csv(&csv));
    let objective = |ctx: &StepContext<'_>, model: &_, batch| {
        let given = objective(ctx, model, batch)?;
        Ok(given.metric("odd", odd[ctx.epoch()], 1.0))
    };
    let history = fit.run(&mut state, &data, objective).unwrap();
    let (json, csv) = (
        fs::read_to_string(json).unwrap(),
        fs::read_to_string(csv).unwrap(),
    );
    assert_eq!(history.epochs.len(), odd.len());
    for (epoch, record) in history.epochs.iter().enumerate() {
        let expected = record.logs.get("odd").unwrap();
        let row: serde_json::Value =
            serde_json::from_str(json.lines().nth(epoch).unwrap()).unwrap();
        let in_json = match &row["odd"] {
            serde_json::Value::String(text) => text.parse::<f64>().unwrap(),
            value => value.as_f64().unwrap(),
        };
        let last = csv.lines().nth(epoch + 1).unwrap().rsplit(',').next();
        let in_csv: f64 = last.unwrap().parse().unwrap();
        for found in [in_json, in_csv] {
            assert_eq!(found.to_string(), expected.to_string(), "epoch {epoch}");
        }
    }
}

#[test]
fn a_history_that_cannot_be_written_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    fs::write(directory.path().join("file"), "").unwrap();
    let path = directory.path().join("file/history.csv");
    let fit = Fit::new(&strategy).callback(HistoryFile::csv(&path));
    let error = fit
        .run(&mut state, &data, objective)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("file") && error.contains("choose a writable path"),
        "{error}"
    );
    assert_eq!(state.primary().unwrap().step(), 0);
}

/// The messages of an event file, as far as scalars need them (TensorFlow's `event.proto`).
#[derive(Message)]
struct Event {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
    #[prost(message, optional, tag = "5")]
    histogram: Option<Histogram>,
}

#[derive(Message)]
struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    count: f64,
}

/// All scalars of the event files in a directory: tag, step, value.
pub(super) fn scalars(directory: &Path) -> Vec<(String, i64, f32)> {
    let values = values(directory).into_iter();
    values
        .map(|(step, value)| (value.tag, step, value.simple_value))
        .collect()
}

/// All values of the event files in a directory, with their steps.
fn values(directory: &Path) -> Vec<(i64, Value)> {
    let files = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    files.iter().flat_map(|path| values_of(path)).collect()
}

fn values_of(path: &Path) -> Vec<(i64, Value)> {
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while !rest.is_empty() {
        // A record: length, checksum of the length, data, checksum of the data.
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let event = Event::decode(&rest[12..12 + length]).unwrap();
        for value in event.summary.into_iter().flat_map(|summary| summary.value) {
            found.push((event.step, value));
        }
        rest = &rest[12 + length + 4..];
    }
    found
}

#[test]
fn event_files_hold_keras_tags_over_the_epochs() {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let mut readings = 0.0;
    let board = TensorBoard::new(directory.path()).unwrap().every_steps(4);
    let board = board.readings(move || {
        readings += 0.5;
        [("readings", readings)]
    });
    let fit = Fit::new(&strategy).epochs(2).callback(board);
    let history = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    let mut train = scalars(&directory.path().join("train"));
    let batches: Vec<i64> = train
        .extract_if(.., |(tag, ..)| tag == "batch_loss")
        .map(|(_, step, _)| step)
        .collect();
    assert_eq!(batches, [4, 8, 12]);
    let mut expected_train = Vec::new();
    let mut expected_validation = Vec::new();
    for (epoch, record) in (0_i64..).zip(&history.epochs) {
        let value = |name: &str| record.logs.get(name).unwrap() as f32;
        expected_train.push(("epoch_loss".to_string(), epoch, value("loss")));
        expected_train.push(("epoch_accuracy".to_string(), epoch, value("accuracy")));
        expected_train.push(("epoch_learning_rate".to_string(), epoch, 0.02));
        let speed = record.examples_per_second() as f32;
        expected_train.push(("epoch_examples_per_second".to_string(), epoch, speed));
        let read = 0.5 * (epoch + 1) as f32;
        expected_train.push(("epoch_readings".to_string(), epoch, read));
        expected_validation.push(("epoch_loss".to_string(), epoch, value("val_loss")));
        expected_validation.push(("epoch_accuracy".to_string(), epoch, value("val_accuracy")));
    }
    assert_eq!(train, expected_train);
    assert_eq!(
        scalars(&directory.path().join("validation")),
        expected_validation
    );
}

#[test]
fn event_files_hold_the_distributions_of_all_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let board = TensorBoard::new(directory.path()).unwrap().histograms(2);
    let fit = Fit::new(&strategy).epochs(4).callback(board);
    fit.run(&mut state, &data, objective).unwrap();
    let found = values(&directory.path().join("train")).into_iter();
    let mut found: Vec<_> = found
        .filter_map(|(step, value)| Some((step, value.tag, value.histogram?)))
        .collect();
    let last = found.split_off(found.len() / 2);
    assert!(
        found.iter().all(|(step, ..)| *step == 1),
        "after the second epoch"
    );
    let tensors = state.primary().unwrap().to_tensors().unwrap();
    let model = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"));
    for ((step, tag, found), (name, data)) in last.iter().zip(model) {
        let name = name.strip_prefix("model/").unwrap();
        assert_eq!(
            (*step, tag.as_str()),
            (3, format!("{name}/histogram").as_str())
        );
        let values: Vec<f64> = data.iter::<f64>().collect();
        assert_eq!(found.count, values.len() as f64);
        assert_eq!(found.min, values.iter().copied().fold(f64::MAX, f64::min));
        assert_eq!(found.max, values.iter().copied().fold(f64::MIN, f64::max));
    }
    assert_eq!((found.len(), last.len()), (4, 4));
}
