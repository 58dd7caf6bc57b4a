//! Logs of bits: equal runs have equal logs, other logs differ from the first update that differs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use distribute_core::checkpoint::load_latest;
use distribute_core::{
    Adam, DefaultStrategy, MirroredStrategy, Result, Strategy, StrategyExt, TrainState,
};
use distribute_fit::callbacks::{BitLog, ModelCheckpoint};
use distribute_fit::{BitComparison, Callback, Control, Fit, FitError, compare_bits};
use rstest::rstest;

use crate::common::{BATCHES, Mlp, Points, new_state, objective};

const EPOCHS: usize = 2;
const UPDATES: usize = EPOCHS * BATCHES;

/// Changes a bit of one weight, or of several parameters, after an update.
struct Perturbed {
    step: u64,
    parameters: &'static [&'static str],
}

impl Callback for Perturbed {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        if run.progress().step != self.step {
            return Ok(());
        }
        let mut tensors = run.tensors()?;
        tensors.retain(|name, _| name.starts_with("model/"));
        for name in self.parameters {
            let tensor = &tensors[*name];
            let mut values: Vec<f32> = tensor.iter::<f32>().collect();
            let last = values.len() - 1;
            values[last] = f32::from_bits(values[last].to_bits() ^ 1);
            let changed = TensorData::new(values, tensor.shape().clone());
            tensors.insert((*name).to_string(), changed);
        }
        run.set_parameters(&tensors)
    }
}

const NOTHING: Perturbed = Perturbed {
    step: 0,
    parameters: &[],
};

fn run_to<S: Strategy>(strategy: &S, path: &Path, perturbed: Perturbed) {
    let data = Points::new(strategy);
    let mut state = new_state(strategy);
    let fit = Fit::new(strategy)
        .epochs(EPOCHS)
        .callback(perturbed)
        .callback(BitLog::new(path));
    fit.run(&mut state, &data, objective).unwrap();
}

/// The logs of an undisturbed run and of another one.
fn two(folder: &Path, perturbed: Perturbed) -> [PathBuf; 2] {
    let paths = ["a.jsonl", "b.jsonl"].map(|name| folder.join(name));
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    run_to(&strategy, &paths[0], NOTHING);
    run_to(&strategy, &paths[1], perturbed);
    paths
}

#[test]
fn the_same_run_twice_is_equal() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = two(folder.path(), NOTHING);
    assert_eq!(
        compare_bits(&a, &b).unwrap(),
        BitComparison::Equal {
            updates: UPDATES,
            last_step: UPDATES as u64,
            parameters: 4
        }
    );
    assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap());
}

#[rstest]
#[case(1)]
#[case(5)]
#[case(UPDATES as u64)]
fn a_changed_bit_is_found_where_it_was_changed(#[case] step: u64) {
    let folder = tempfile::tempdir().unwrap();
    let parameters = &["model/output.bias", "model/hidden.weight"];
    let perturbed = Perturbed { step, parameters };
    let [a, b] = two(folder.path(), perturbed);
    assert_eq!(
        compare_bits(a, b).unwrap(),
        BitComparison::Part {
            step,
            equal_until: (step > 1).then(|| step - 1),
            parameters: vec!["hidden.weight".to_string(), "output.bias".to_string()],
            of: 4
        }
    );
}

#[test]
fn a_directory_holds_a_file_of_a_fixed_name() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new/");
    run_to(&DefaultStrategy::new(), folder.path(), NOTHING);
    run_to(&DefaultStrategy::new(), &new, NOTHING);
    assert!(new.join("bits.jsonl").is_file());
    let found = compare_bits(folder.path(), &new).unwrap();
    assert!(matches!(found, BitComparison::Equal { .. }), "{found:?}");
}

/// Interrupted after some updates, with a checkpoint before the last ones, and resumed.
#[test]
fn a_resumed_run_writes_no_update_twice_and_misses_none() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, path] = ["whole", "cut"].map(|name| folder.path().join(name));
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    run_to(&strategy, &whole, NOTHING);
    let checkpoints = folder.path().join("checkpoints");
    let data = Points::new(&strategy);
    let part = |checkpoint, steps| {
        let mut state = new_state(&strategy);
        let saver = ModelCheckpoint::new(&checkpoints).unwrap().every_steps(4);
        let fit = Fit::new(&strategy)
            .epochs(EPOCHS)
            .max_steps(steps)
            .resume_from(checkpoint)
            .callback(saver)
            .callback(BitLog::new(&path));
        fit.run(&mut state, &data, objective).unwrap();
    };
    part(None, Some(7));
    // The run was killed while it wrote the line of an update after its checkpoint.
    let mut log = fs::read_to_string(&path).unwrap();
    assert_eq!(log.lines().count(), 8);
    log.push_str("{\"step\":8,\"sha");
    fs::write(&path, log).unwrap();
    let found = load_latest(&checkpoints).unwrap().found.unwrap();
    let (entry, checkpoint) = found;
    assert!(entry.step <= 7);
    part(Some(checkpoint), None);
    assert_eq!(fs::read(&path).unwrap(), fs::read(&whole).unwrap());
}

#[test]
fn a_log_of_another_model_is_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bits.jsonl");
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let saver = ModelCheckpoint::new(folder.path().join("c")).unwrap();
    let fit = Fit::new(&strategy).callback(saver);
    fit.run(&mut state, &data, objective).unwrap();
    let (_, checkpoint) = load_latest(folder.path().join("c")).unwrap().found.unwrap();
    let other = "{\"bits\":1,\"parameters\":[[\"fc.weight\",[2,8]]]}\n";
    fs::write(&path, other).unwrap();
    let fit = Fit::new(&strategy).epochs(2).resume_from(Some(checkpoint));
    let fit = fit.callback(BitLog::new(&path));
    let error = fit.run(&mut state, &data, objective).unwrap_err();
    assert!(
        error.to_string().contains("bits of another model"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), other);
}

#[test]
fn micro_batches_are_no_updates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bits.jsonl");
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Adam::new(0.02)).accumulate_mean(3))
        .unwrap();
    let fit = Fit::new(&strategy).callback(BitLog::new(&path));
    fit.run(&mut state, &data, objective).unwrap();
    let text = fs::read_to_string(path).unwrap();
    let steps = text.lines().skip(1).map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["step"].as_u64().unwrap()
    });
    let expected: Vec<u64> = (1..=BATCHES as u64 / 3).collect();
    assert_eq!(steps.collect::<Vec<_>>(), expected);
}

/// The error of comparing two logs that were equal before one of them was changed.
#[rstest]
#[case::shorter(
    |lines: &mut Vec<String>| lines.truncate(4),
    "a.jsonl is longer, up to step 12; both are equal up to step 3"
)]
#[case::without_steps(|lines: &mut Vec<String>| lines.truncate(1), "has no step")]
#[case::other_model(
    |lines: &mut Vec<String>| lines[0] = lines[0].replace("output.bias", "output.gain"),
    "other models: parameter 2 (from 0)"
)]
#[case::other_shape(
    |lines: &mut Vec<String>| lines[0] = lines[0].replace("[8]", "[9]"),
    "hidden.bias [9]"
)]
#[case::missing_step(|lines: &mut Vec<String>| drop(lines.remove(3)), "has step 3 where")]
#[case::step_twice(
    |lines: &mut Vec<String>| lines.insert(4, lines[3].clone()),
    "line 5 has step 3 behind step 3"
)]
#[case::empty(Vec::clear, "line 0 is empty")]
#[case::another_file(
    |lines: &mut Vec<String>| lines[0] = "{\"epoch\":1}".to_string(),
    "line 1 is not readable"
)]
#[case::later_version(
    |lines: &mut Vec<String>| lines[0] = lines[0].replace("\"bits\":1", "\"bits\":2"),
    "version 2"
)]
#[case::hash(
    |lines: &mut Vec<String>| lines[6] = lines[6].replacen("[\"", "[\"x", 1),
    "line 7 has a hash that is none"
)]
#[case::hashes(
    |lines: &mut Vec<String>| lines[2] = "{\"step\":2,\"sha256\":[]}".to_string(),
    "line 3 has 0 hashes for 4 parameters"
)]
fn logs_that_cannot_be_compared_are_errors(
    #[case] change: impl Fn(&mut Vec<String>),
    #[case] expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = two(folder.path(), NOTHING);
    let text = fs::read_to_string(&b).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    change(&mut lines);
    fs::write(
        &b,
        lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    )
    .unwrap();
    let error = compare_bits(&a, &b).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    // Also in the other order.
    assert!(compare_bits(&b, &a).is_err());
}

#[test]
fn missing_and_cut_off_files_are_errors_that_name_them() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = two(folder.path(), NOTHING);
    let missing = folder.path().join("c.jsonl");
    let error = compare_bits(&a, &missing).unwrap_err();
    assert!(matches!(error, FitError::BitsFile { .. }), "{error}");
    assert!(error.to_string().contains("c.jsonl"), "{error}");
    let text = fs::read_to_string(&b).unwrap();
    fs::write(&b, &text[..text.len() - 5]).unwrap();
    let error = compare_bits(&a, &b).unwrap_err().to_string();
    let expected = format!("line {} is cut off", UPDATES + 1);
    assert!(
        error.contains("b.jsonl") && error.contains(&expected),
        "{error}"
    );
}

/// The hash of a parameter is the hash of its values alone, so other programs can compute it too.
#[test]
fn a_hash_is_the_sha256_of_the_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bits.jsonl");
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let fit = Fit::new(&strategy).callback(BitLog::new(&path));
    fit.run(&mut state, &data, objective).unwrap();
    let tensors = state.primary().unwrap().to_tensors().unwrap();
    let tensors: BTreeMap<_, _> = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"))
        .collect();
    let text = fs::read_to_string(path).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let hashes = tensors.values().map(|tensor| {
        let hash = distribute_core::checkpoint::weights_sha256([("", *tensor)]);
        serde_json::Value::from(hash.unwrap())
    });
    assert_eq!(last["sha256"], hashes.collect::<serde_json::Value>());
}
