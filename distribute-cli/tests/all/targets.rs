//! Targets that are no class numbers, and Keras' losses and metrics, from end to end.

use std::fs;
use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use crate::common::{last_event, run, succeed};

/// A table of 40 rows with a value, a second one, a name, yes or no, and a weight.
fn table(folder: &Path) {
    let row = |i: usize| {
        let (a, b) = (i as f32 / 10.0, i % 5);
        let name = ["pine", "ash", "oak"][i % 3];
        let price = 2.0 * a - b as f32 + 0.5;
        format!("{a},{b},{price},{},{name},{},{}\n", -a, i % 2, i % 4)
    };
    let rows: String = (0..40).map(row).collect();
    fs::write(
        folder.join("all.csv"),
        format!("a,b,price,debt,tree,is,w\n{rows}"),
    )
    .unwrap();
    for (file, columns) in [
        ("price.csv", &[0, 1, 2][..]),
        ("two.csv", &[0, 1, 2, 3]),
        ("tree.csv", &[0, 1, 4]),
        ("is.csv", &[0, 1, 5]),
        ("weighted.csv", &[0, 1, 6, 5]),
    ] {
        let text = fs::read_to_string(folder.join("all.csv")).unwrap();
        let chosen = |line: &str| {
            let fields: Vec<&str> = line.split(',').collect();
            let fields: Vec<&str> = columns.iter().map(|at| fields[*at]).collect();
            fields.join(",") + "\n"
        };
        let text: String = text.lines().map(chosen).collect();
        fs::write(folder.join(file), text).unwrap();
    }
}

fn model(folder: &Path, units: usize, activation: &str, compiled: Value) {
    let layers = json!([
        { "class_name": "InputLayer", "config": { "batch_shape": [null, 2] } },
        { "class_name": "Dense", "config": { "units": 8, "activation": "relu" } },
        { "class_name": "Dense", "config": { "units": units, "activation": activation } },
    ]);
    let text = json!({ "class_name": "Sequential", "config": { "layers": layers },
                       "compile_config": compiled });
    fs::write(folder.join("m.json"), text.to_string()).unwrap();
}

fn number(event: &Value, key: &str) -> f64 {
    event[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key}: {event}"))
}

#[test]
fn a_regression_is_found_by_its_values_and_its_names_come_back() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    let train = "train --dataset csv:price.csv --epochs 40 --replicas 2 --learning-rate 0.02 \
                 --checkpoint-dir c --metrics mae,rmse,r2_score --loss huber:delta=2";
    let trained = run(folder.path(), train);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let notes = &trained.stderr;
    assert!(notes.contains("targets: one value per example"), "{notes}");
    assert!(notes.contains("loss: huber:delta=2"), "{notes}");
    assert!(trained.stdout.contains("test mae "), "{}", trained.stdout);
    let evaluated = succeed(folder.path(), "evaluate --checkpoint-dir c --output json");
    let one = last_event(&evaluated);
    assert!(number(&one, "r2_score") > 0.5, "{one}");
    let again = "evaluate --checkpoint-dir c --output json --strategy mirrored --replicas 3 \
                 --batch-size 1";
    let three = last_event(&succeed(folder.path(), again));
    for key in ["loss", "mae", "rmse", "r2_score"] {
        let difference = (number(&one, key) - number(&three, key)).abs();
        assert!(difference < 1e-5, "{key}: {one} {three}");
    }
    let predicted = succeed(folder.path(), "predict --checkpoint-dir c --split all");
    assert!(predicted.starts_with("index,price\n0,"), "{predicted}");
    let report = run(folder.path(), "evaluate --checkpoint-dir c --report");
    assert_eq!(report.code, Some(2), "{}", report.stdout);
    assert!(report.stderr.contains("values"), "{}", report.stderr);
}

#[test]
fn several_values_are_several_columns_and_outputs() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    let train =
        "train --dataset csv:two.csv --label-column price,debt --steps 3 --checkpoint-dir c";
    let trained = run(folder.path(), train);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    assert!(
        trained.stderr.contains("2 values per example"),
        "{}",
        trained.stderr
    );
    let predict = "predict --checkpoint-dir c --split all --output json";
    let predicted = succeed(folder.path(), predict);
    let first: Value = serde_json::from_str(predicted.lines().next().unwrap()).unwrap();
    assert!(first["values"]["debt"].is_number(), "{first}");
    // Without the targets.
    fs::write(folder.path().join("new.csv"), "b,a\n1,0.5\n").unwrap();
    let new = "predict --checkpoint-dir c --dataset csv:new.csv";
    assert!(succeed(folder.path(), new).starts_with("index,price,debt\n0,"));
    let arrays = "predict --checkpoint-dir c --split all --output npz --predictions p.npz";
    succeed(folder.path(), arrays);
    let arrays = distribute_readers::read_npz_arrays(folder.path().join("p.npz")).unwrap();
    assert_eq!(arrays[1].1.shape(), [40, 2]);
    let refused = run(folder.path(), "predict --checkpoint-dir c --output npz");
    assert_eq!(refused.code, Some(2));
}

#[test]
fn classes_have_their_names_and_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    let train = "train --dataset csv:tree.csv --steps 3 --checkpoint-dir c";
    let trained = run(folder.path(), train);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let notes = &trained.stderr;
    assert!(
        notes.contains("targets: 3 classes by name (ash, oak, pine)"),
        "{notes}"
    );
    let predict = "predict --checkpoint-dir c --split all --probabilities";
    let predicted = succeed(folder.path(), predict);
    let head = "index,label,probability,probability_ash,probability_oak,probability_pine\n";
    assert!(predicted.starts_with(head), "{predicted}");
    // Some of the classes, in another order.
    fs::write(
        folder.path().join("some.csv"),
        "a,b,tree\n1,2,pine\n1,2,oak\n",
    )
    .unwrap();
    let evaluate = "evaluate --checkpoint-dir c --dataset csv:some.csv --output json";
    let event = last_event(&succeed(folder.path(), evaluate));
    assert_eq!(event["examples"], 2);
    fs::write(
        folder.path().join("other.csv"),
        "a,b,tree\n1,2,elm\n1,2,oak\n",
    )
    .unwrap();
    let evaluate = "evaluate --checkpoint-dir c --dataset csv:other.csv";
    let refused = run(folder.path(), evaluate);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("elm"), "{}", refused.stderr);
}

/// Counts are added up, so that the metrics of classifiers are the same to the last bit.
#[test]
fn metrics_do_not_depend_on_the_number_of_replicas() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    model(folder.path(), 1, "sigmoid", Value::Null);
    let train = "train --dataset csv:is.csv --model m.json --steps 3 --checkpoint-dir c \
                 --metrics accuracy,auc,auc:curve=PR,precision,recall,f1_score:threshold=0.5";
    succeed(folder.path(), train);
    let keys = [
        "accuracy",
        "auc",
        "auc_1",
        "precision",
        "recall",
        "f1_score",
    ];
    let of = |more: &str| {
        let evaluate = format!("evaluate --checkpoint-dir c --split all --output json {more}");
        let event = last_event(&succeed(folder.path(), &evaluate));
        keys.map(|key| number(&event, key))
    };
    let one = of("--batch-size 40");
    assert_eq!(of("--strategy mirrored --replicas 3 --batch-size 3"), one);
}

#[test]
fn weights_change_the_loss_and_not_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    let train = |file: &str, more: &str| {
        let train = format!("train --dataset csv:{file} --steps 4 --seed 2 --output json {more}");
        last_event(&succeed(folder.path(), &train))
    };
    let plain = train("is.csv", "");
    let column = "--sample-weight-column w --label-column is";
    let weighted = train("weighted.csv", column);
    assert_ne!(plain["weights_sha256"], weighted["weights_sha256"]);
    let doubled = train("is.csv", "--class-weight 0=2,1=2");
    let ratio = number(&doubled, "loss") / number(&plain, "loss");
    assert!((1.5..2.5).contains(&ratio), "{ratio}");
    let alike = train("is.csv", "--class-weight 0=1");
    assert_eq!(alike["weights_sha256"], plain["weights_sha256"]);
}

#[test]
fn what_a_model_was_compiled_with_is_used() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    let compiled = json!({
        "optimizer": { "class_name": "SGD", "config": { "name": "SGD", "learning_rate": 0.01,
            "momentum": 0.9, "nesterov": true, "clipvalue": 0.5 } },
        "loss": { "class_name": "Huber", "config": { "name": "huber_loss", "delta": 2.0,
            "reduction": "sum_over_batch_size" } },
        "metrics": ["mae", { "class_name": "R2Score", "config": { "name": "r2_score",
            "class_aggregation": "uniform_average", "num_regressors": 0 } }],
    });
    model(folder.path(), 1, "linear", compiled);
    let train = "train --dataset csv:price.csv --model m.json --steps 5 --seed 3";
    let found = run(folder.path(), train);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    for wanted in [
        "loss: huber:delta=2",
        "metrics: mae, r2_score",
        "compiled with sgd",
    ] {
        assert!(found.stderr.contains(wanted), "{wanted}: {}", found.stderr);
    }
    assert!(!found.stderr.contains("not used"), "{}", found.stderr);
    // The same by flags.
    let hash = |text: &str| text.lines().last().unwrap().to_string();
    model(folder.path(), 1, "linear", Value::Null);
    let flags = format!(
        "{train} --loss huber:delta=2 --metrics mae,r2_score \
         --optimizer sgd:momentum=0.9,nesterov=true,clipvalue=0.5 --learning-rate 0.01"
    );
    assert_eq!(hash(&succeed(folder.path(), &flags)), hash(&found.stdout));
    let others = format!("{flags} --clip-norm 1");
    assert_eq!(run(folder.path(), &others).code, Some(2));
}

#[rstest]
#[case(
    "--label-column price,debt --dataset csv:two.csv --model m.json",
    "2 target values"
)]
#[case(
    "--dataset csv:tree.csv --model m.json --targets values",
    "names of classes"
)]
#[case("--dataset csv:price.csv --targets classes", "is no class")]
#[case(
    "--dataset csv:price.csv --model m.json --loss binary_crossentropy",
    "from 0 to 1"
)]
#[case(
    "--dataset csv:price.csv --model m.json --loss categorical_crossentropy",
    "several outputs"
)]
#[case("--dataset csv:is.csv --class-weight 7=1", "no class 7")]
#[case("--dataset csv:price.csv --class-weight 0=1", "values")]
#[case(
    "--dataset csv:is.csv --sample-weight-column nothing",
    "a column named"
)]
fn what_does_not_fit_is_refused(#[case] flags: &str, #[case] wanted: &str) {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    model(folder.path(), 1, "linear", Value::Null);
    let refused = run(folder.path(), &format!("train --steps 1 {flags}"));
    assert_eq!(refused.code, Some(2), "{}", refused.stdout);
    assert!(refused.stderr.contains(wanted), "{}", refused.stderr);
    // In the words of the program.
    assert!(!refused.stderr.contains("::"), "{}", refused.stderr);
}
