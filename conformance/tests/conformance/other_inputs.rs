//! The rules were implemented, not the examples: cases with other inputs, shapes and replica
//! counts, whose expectations come from a naive model here; and expectations made wrong.

use std::collections::{BTreeMap, HashSet};

use conformance::{Case, Expected, FamilyName, Golden, GoldenFile, Report, Suite, WorkerProgram};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

fn run(files: &[(&str, Value)]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    for (family, file) in files {
        std::fs::write(
            folder.path().join(format!("{family}.json")),
            file.to_string(),
        )
        .unwrap();
    }
    everything(Golden::load(folder.path()).unwrap()).run()
}

fn everything(golden: Golden) -> Suite {
    let workers = WorkerProgram::new(env!("CARGO_BIN_EXE_conformance-worker"));
    Suite::everything(golden).workers(workers)
}

fn file(cases: Vec<Value>) -> Value {
    json!({"source": "a naive model", "tolerance": {"rtol": 1e-5, "atol": 1e-5}, "cases": cases})
}

fn case(kind: &str, replicas: usize, inputs: Value, expect: Value) -> Value {
    json!({
        "name": "generated",
        "strategy": {"kind": kind, "replicas": replicas},
        "inputs": inputs,
        "expect": expect,
    })
}

fn vector(values: &[f64]) -> Value {
    json!({"dtype": "float32", "shape": [values.len()], "data": values})
}

fn scalar(value: f64) -> Value {
    json!({"dtype": "float32", "shape": [], "data": [value]})
}

/// Multiples of 1/8, whose sums are exact.
fn dyadic() -> impl Strategy<Value = f64> {
    (-64_i32..=64).prop_map(|eighths| f64::from(eighths) / 8.0)
}

/// One list per replica, all of one length.
fn lists() -> impl Strategy<Value = Vec<Vec<f64>>> {
    (2_usize..7, 1_usize..9).prop_flat_map(|(replicas, length)| {
        prop::collection::vec(prop::collection::vec(dyadic(), length), replicas)
    })
}

/// One list per replica, of any length.
fn ragged() -> impl Strategy<Value = Vec<Vec<f64>>> {
    (1_usize..6).prop_flat_map(|replicas| {
        prop::collection::vec(prop::collection::vec(dyadic(), 0..5), replicas)
    })
}

fn kind(replicas: usize) -> &'static str {
    if replicas == 1 {
        "one_device"
    } else {
        "mirrored"
    }
}

fn reduce_cases(values: &[Vec<f64>]) -> Vec<Value> {
    let replicas = values.len();
    let tensors: Vec<Value> = values.iter().map(|list| vector(list)).collect();
    let mut cases = Vec::new();
    for (op, divisor) in [("SUM", 1.0), ("MEAN", replicas as f64)] {
        let column = |index: usize| values.iter().map(|list| list[index]).sum::<f64>() / divisor;
        let reduced: Vec<f64> = (0..values[0].len()).map(column).collect();
        let inputs = json!({"op": "reduce", "reduce_op": op, "axis": null, "values": tensors});
        cases.push(case("mirrored", replicas, inputs, vector(&reduced)));
        let inputs = json!({"op": "all_reduce", "reduce_op": op, "values": tensors});
        let all = json!({"per_replica": vec![vector(&reduced); replicas]});
        cases.push(case("mirrored", replicas, inputs, all));
    }
    let inputs = json!({"op": "gather", "axis": 0, "values": tensors});
    cases.push(case("mirrored", replicas, inputs, vector(&values.concat())));
    cases
}

fn loss_case(values: &[Vec<f64>], global_batch_size: Option<usize>) -> Value {
    let replicas = values.len();
    let loss = |list: &Vec<f64>| {
        let divisor = global_batch_size.unwrap_or(list.len() * replicas) as f64;
        if divisor == 0.0 {
            0.0
        } else {
            list.iter().sum::<f64>() / divisor
        }
    };
    let losses: Vec<f64> = values.iter().map(loss).collect();
    let sum: f64 = losses.iter().sum();
    let expect = json!({
        "per_replica": losses.iter().map(|loss| scalar(*loss)).collect::<Vec<_>>(),
        "reduce_sum": scalar(sum),
        "reduce_mean": scalar(sum / replicas as f64),
    });
    let inputs = json!({
        "op": "compute_average_loss",
        "context": "replica",
        "per_example_loss": values.iter().map(|list| vector(list)).collect::<Vec<_>>(),
        "sample_weight": null,
        "global_batch_size": global_batch_size,
    });
    case(kind(replicas), replicas, inputs, expect)
}

fn dataset_case(elements: usize, batch: usize, drop: bool, replicas: usize) -> Value {
    let all: Vec<usize> = (0..elements).collect();
    let batches = all
        .chunks(batch)
        .filter(|chunk| !drop || chunk.len() == batch);
    let steps = batches.map(|chunk| {
        let share = chunk.len().div_ceil(replicas);
        let mut parts: Vec<Vec<usize>> = chunk.chunks(share).map(<[usize]>::to_vec).collect();
        parts.resize(replicas, Vec::new());
        parts
    });
    let steps: Vec<_> = steps.collect();
    let inputs = json!({
        "op": "experimental_distribute_dataset",
        "elements": elements,
        "batch": batch,
        "drop_remainder": drop,
        "dataset": "range(elements).batch(batch, drop_remainder)",
    });
    case(kind(replicas), replicas, inputs, json!({"steps": steps}))
}

/// `y = x * w + b`, trained by hand.
struct Line {
    x: Vec<f64>,
    y: Vec<f64>,
    weights: [f64; 2],
    learning_rate: f64,
    momentum: f64,
    nesterov: bool,
}

fn part(batch: &[usize], replicas: usize, replica: usize) -> Vec<usize> {
    let share = batch.len().div_ceil(replicas).max(1);
    batch.chunks(share).nth(replica).unwrap_or(&[]).to_vec()
}

impl Line {
    fn training_file(&self, steps: usize, size: usize, replicas: usize) -> Value {
        let rows = self.x.len();
        let mut weights = self.weights;
        let mut velocity = [0.0; 2];
        let mut batches = Vec::new();
        let mut found = Vec::new();
        for step in 0..steps {
            let batch: Vec<usize> = (0..size).map(|i| (step * size + i) % rows).collect();
            let error = |row: usize| weights[0] * self.x[row] + weights[1] - self.y[row];
            let mut gradient = [0.0; 2];
            for row in &batch {
                gradient[0] += 2.0 * error(*row) * self.x[*row] / size as f64;
                gradient[1] += 2.0 * error(*row) / size as f64;
            }
            let parts: Vec<_> = (0..replicas).map(|r| part(&batch, replicas, r)).collect();
            let losses: Vec<f64> = parts
                .iter()
                .map(|rows| rows.iter().map(|row| error(*row).powi(2)).sum::<f64>() / size as f64)
                .collect();
            found.push(json!({
                "example_indices": parts,
                "per_replica_loss": losses,
                "loss": scalar(losses.iter().sum()),
                "gradients": {
                    "w": {"dtype": "float32", "shape": [1, 1], "data": [gradient[0]]},
                    "b": vector(&gradient[1..]),
                },
            }));
            for i in 0..2 {
                let change = self.learning_rate * gradient[i];
                velocity[i] = self.momentum * velocity[i] - change;
                let ahead = self.momentum * velocity[i] - change;
                weights[i] += if self.nesterov { ahead } else { velocity[i] };
            }
            batches.push(batch);
        }
        let inputs = json!({
            "op": "train", "model": "line", "optimizer": "mine", "batches": "even",
            "global_batch_indices": batches, "denominator": "constant",
            "global_batch_size": size, "l2": 0.0,
        });
        let final_weights = json!({
            "w": {"dtype": "float32", "shape": [1, 1], "data": [weights[0]]},
            "b": vector(&weights[1..]),
        });
        let expect = json!({"steps": found, "final": final_weights});
        let mut file = file(vec![case(kind(replicas), replicas, inputs, expect)]);
        file["tolerance"] = json!({"rtol": 1e-4, "atol": 1e-4});
        file["models"] = json!({"line": {
            "init": {
                "w": {"dtype": "float32", "shape": [1, 1], "data": [self.weights[0]]},
                "b": vector(&self.weights[1..]),
            },
            "x": {"dtype": "float32", "shape": [rows, 1], "data": self.x},
            "y": {"dtype": "float32", "shape": [rows, 1], "data": self.y},
        }});
        file["optimizers"] = json!({"mine": {
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        }});
        file
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn other_inputs_pass_too(
        equal in lists(),
        ragged in ragged(),
        global in prop::option::of(1_usize..40),
        elements in 0_usize..60,
        batch in 1_usize..17,
        drop: bool,
        replicas in 1_usize..7,
    ) {
        let report = run(&[
            ("reduce", file(reduce_cases(&equal))),
            ("loss", file(vec![loss_case(&ragged, global)])),
            ("datasets", file(vec![dataset_case(elements, batch, drop, replicas)])),
        ]);
        prop_assert!(report.is_success(), "{report}");
        prop_assert_eq!(report.total().passed, 7, "{}", report);
    }

    #[test]
    fn other_training_runs_pass_too(
        points in prop::collection::vec((dyadic(), dyadic()), 1..12),
        steps in 1_usize..5,
        size in 1_usize..9,
        replicas in 1_usize..5,
        momentum in prop::sample::select(vec![0.0, 0.5, 0.9]),
        nesterov: bool,
    ) {
        let (x, y) = points.into_iter().unzip();
        let nesterov = nesterov && momentum > 0.0;
        let line = Line { x, y, weights: [0.25, -0.5], learning_rate: 1e-3, momentum, nesterov };
        let report = run(&[("training", line.training_file(steps, size, replicas))]);
        prop_assert!(report.is_success(), "{report}");
    }
}

/// Adds one to the last number inside of a value, or changes a flag or a text.
fn corrupt(value: &mut Value) -> bool {
    match value {
        Value::Number(number) => {
            *value = if number.is_f64() {
                json!(number.as_f64().unwrap() + 1.0)
            } else {
                json!(number.as_i64().unwrap() + 1)
            };
            true
        }
        Value::Bool(flag) => {
            *flag = !*flag;
            true
        }
        Value::Array(list) => list.iter_mut().rev().any(corrupt),
        Value::Object(map) => match map.get_mut("data") {
            Some(data) => corrupt(data),
            None => map
                .iter_mut()
                .filter(|(key, value)| {
                    (!value.is_string() || *key == "file") && !is_tensorflows_own(key)
                })
                .any(|(_, value)| corrupt(value)),
        },
        Value::String(text) => {
            text.push('?');
            true
        }
        Value::Null => false,
    }
}

/// What only TensorFlow has: its graphs, and the files of its callback.
fn is_tensorflows_own(key: &str) -> bool {
    let prefixes = [
        "experimental_",
        "should_",
        "backup_",
        "cluster_resolver",
        "message_truncated",
    ];
    prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// Whether the file has no inputs for this operation of one replica, which gives back what it is
/// given: then what is expected is also the input.
fn is_given_back(op: &str) -> bool {
    let ops = [
        "before",
        "fetch_structure",
        "gather_on_coordinator",
        "local_run_result",
        "per_worker_dataset_next",
        "reduce_inside_scheduled_function",
        "reduce_on_coordinator",
        "run_inside_scheduled_function",
        "run_on_coordinator",
        "schedule_join_fetch",
        "schedule_kwargs",
    ];
    ops.contains(&op) || op.starts_with("assign_add_in_replica_")
}

/// Makes a case's expectation wrong; whether there was something to change.
fn make_wrong(case: &mut Case) -> bool {
    // A step's own error comes back as it is, and so does a value that nothing is restored over.
    let is_input =
        case.op().contains("raising") || case.op() == "restore(None)" || is_given_back(case.op());
    match &mut case.expected {
        _ if is_input => false,
        Expected::Value(value) => corrupt(value),
        Expected::Error { class, message } => {
            *class = "SomeOtherError".to_string();
            message.clear();
            true
        }
        _ => false,
    }
}

/// Whether this case alone passes, and not as a deviation.
fn passes(golden: &Golden, family: FamilyName, case: &Case) -> bool {
    let file = &golden.files[&family];
    let file = GoldenFile {
        cases: vec![case.clone()],
        tolerance: file.tolerance,
        root: file.root.clone(),
    };
    let golden = Golden {
        source: "one case".to_string(),
        files: BTreeMap::from([(family, file)]),
    };
    everything(golden).run().total().passed == 1
}

/// Every family must notice one wrong number in every case that it passes.
#[rstest]
fn wrong_expectations_fail(
    #[values(
        FamilyName::Loss,
        FamilyName::Reduce,
        FamilyName::Variables,
        FamilyName::Datasets,
        FamilyName::Properties,
        FamilyName::CrossDevice,
        FamilyName::Training,
        FamilyName::Cluster,
        FamilyName::Checkpoint,
        FamilyName::MultiWorker,
        FamilyName::ParameterServer,
        FamilyName::Documents,
        FamilyName::TrainingLoop,
        FamilyName::Schedules,
        FamilyName::Normalization,
        FamilyName::Records,
        FamilyName::Pipelines
    )]
    family: FamilyName,
) {
    let mut golden = Golden::embedded().unwrap();
    golden.files.retain(|other, _| *other == family);
    let passing = everything(golden.clone()).run();
    assert!(passing.is_success(), "{passing}");
    let mut wrong = golden.clone();
    let cases = &mut wrong.files.get_mut(&family).unwrap().cases;
    let made_wrong: Vec<bool> = cases.iter_mut().map(make_wrong).collect();
    let report = everything(wrong).run();
    let failed: HashSet<&str> = report.failures().iter().map(|case| &*case.name).collect();
    let cases = golden.files[&family].cases.iter().zip(made_wrong);
    let unnoticed: Vec<String> = cases
        .filter(|(case, wrong)| *wrong && !failed.contains(&*case.name))
        .filter(|(case, _)| passes(&golden, family, case))
        .map(|(case, _)| format!("{} ({})", case.name, case.op()))
        .collect();
    assert!(unnoticed.is_empty(), "passed all the same: {unnoticed:#?}");
    let cases = &golden.files[&family].cases;
    let given_back = cases.iter().filter(|case| is_given_back(case.op()));
    let checked = passing.total().passed - given_back.count();
    let share = failed.len() as f64 / checked as f64;
    assert!(share > 0.9, "{} of {checked}", failed.len());
}

/// A family that is run must be one of those above.
#[test]
fn no_family_is_left_out() {
    let mut golden = Golden::embedded().unwrap();
    for file in golden.files.values_mut() {
        file.cases.truncate(1);
    }
    let report = everything(golden).run();
    let not_run: Vec<_> = report.families_not_run().keys().copied().collect();
    assert!(not_run.is_empty(), "without a runner: {not_run:?}");
    assert_eq!(
        report.families().len(),
        17,
        "add the family to `wrong_expectations_fail`"
    );
}

/// A value of another shape, for a variable of one shard and of several: TensorFlow's classes.
#[rstest]
#[case("part_max_1024_0", "ValueError", true)]
#[case("part_fixed_1_0", "ValueError", true)]
#[case("part_max_1024_0", "InvalidArgumentError", false)]
#[case("part_max_16_0", "InvalidArgumentError", true)]
#[case("part_min_8_2", "InvalidArgumentError", true)]
#[case("part_fixed_2_0", "ValueError", false)]
fn a_wrong_shape_is_an_error_of_the_class_that_the_shards_make(
    #[case] scenario: &str,
    #[case] class: &str,
    #[case] is_right: bool,
) {
    let case = json!({
        "name": "generated",
        "strategy": {"kind": "parameter_server", "workers": 1, "ps": 3},
        "inputs": {"op": "sharded_assign_wrong_shape", "scenario": scenario},
        "error": {"class": class, "message": "Shape mismatch"},
    });
    let report = run(&[("parameter_server", file(vec![case]))]);
    assert_eq!(report.failures().is_empty(), is_right, "{report}");
}
