//! The report of `evaluate`: which class was taken for which.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rstest::rstest;
use serde_json::Value;

use crate::common::{last_event, run, succeed};

fn train(folder: &Path, more: &str) {
    let train = "train --replicas 2 --checkpoint-dir saved --output json";
    succeed(folder, &format!("{train} {more}"));
}

/// The result and the report of an evaluation.
fn reported(folder: &Path, more: &str) -> (Value, Value) {
    let evaluate = format!("evaluate --checkpoint-dir saved --output json --report {more}");
    let out = succeed(folder, &evaluate);
    let mut lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.next().unwrap())
}

fn counts(report: &Value) -> Vec<Vec<u64>> {
    let rows = report["confusion"].as_array().unwrap().iter();
    let numbers = |row: &Value| {
        row.as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_u64().unwrap())
            .collect()
    };
    rows.map(numbers).collect()
}

#[rstest]
#[case::held_out("", 359)]
#[case::trained_on("--split train", 1_438)]
#[case::all("--split all --strategy mirrored --replicas 3", 1_797)]
fn the_matrix_has_every_example_and_its_diagonal_is_the_accuracy(
    #[case] split: &str,
    #[case] examples: u64,
) {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--model mlp --steps 60");
    let (result, report) = reported(folder.path(), split);
    let counts = counts(&report);
    assert_eq!(counts.iter().flatten().sum::<u64>(), examples);
    assert_eq!(result["examples"], examples);
    let correct: u64 = (0..10).map(|class| counts[class][class]).sum();
    let accuracy = result["accuracy"].as_f64().unwrap();
    assert!(
        (correct as f64 / examples as f64 - accuracy).abs() < 1e-6,
        "{accuracy}"
    );
    for (class, row) in counts.iter().enumerate() {
        let said = &report["classes"][class];
        assert_eq!(said["examples"], row.iter().sum::<u64>());
        assert_eq!(said["correct"], row[class]);
    }
}

/// Two classes, one output: the report is what joining the predictions to the file gives.
#[test]
fn the_report_is_what_predictions_joined_to_the_file_say() {
    let folder = tempfile::tempdir().unwrap();
    let label = |row: usize| usize::from(row.is_multiple_of(3));
    let rows: String = (0..90)
        .map(|i| format!("{i},{},{}\n", i * i % 11, label(i)))
        .collect();
    fs::write(folder.path().join("t.csv"), format!("a,b,label\n{rows}")).unwrap();
    let net = r#"{"class_name":"Sequential","config":{"name":"net","layers":[
        {"class_name":"Dense","config":{"units":4,"activation":"relu"}},
        {"class_name":"Dense","config":{"units":1,"activation":"sigmoid"}}]}}"#;
    fs::write(folder.path().join("net.json"), net).unwrap();
    train(
        folder.path(),
        "--dataset csv:t.csv --model net.json --epochs 2",
    );
    for split in ["train", "test", "all"] {
        let csv = succeed(
            folder.path(),
            &format!("predict --checkpoint-dir saved --split {split}"),
        );
        let mut joined: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for line in csv.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let (row, predicted) = (fields[0].parse().unwrap(), fields[1].parse().unwrap());
            *joined.entry((label(row), predicted)).or_default() += 1;
        }
        let (_, report) = reported(folder.path(), &format!("--split {split}"));
        for (label, row) in counts(&report).iter().enumerate() {
            for (predicted, count) in row.iter().enumerate() {
                let expected = joined.get(&(label, predicted)).copied().unwrap_or(0);
                assert_eq!(*count, expected, "{split}: {label} {predicted}");
            }
        }
    }
}

#[test]
fn the_report_is_a_text_of_80_columns_and_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--model mlp --steps 60");
    let evaluate = "evaluate --checkpoint-dir saved --report --picture c.svg";
    let text = succeed(folder.path(), evaluate);
    for line in text.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(
        text.contains("\nclass  examples  correct  accuracy  precision\n"),
        "{text}"
    );
    let picture = fs::read_to_string(folder.path().join("c.svg")).unwrap();
    // The ground, and a cell for every pair of ten classes.
    assert_eq!(picture.matches("<rect ").count(), 101);
    assert_eq!(
        picture.matches("<text ").count(),
        picture.matches("</text>").count()
    );
    let whole = picture.starts_with("<svg ") && picture.ends_with("</svg>\n");
    assert!(whole, "{picture}");
    // Without the report the picture is drawn all the same.
    let alone = succeed(
        folder.path(),
        "evaluate --checkpoint-dir saved --picture d.svg",
    );
    assert_eq!(alone.lines().count(), 1, "{alone}");
    assert_eq!(
        fs::read_to_string(folder.path().join("d.svg")).unwrap(),
        picture
    );
    let nowhere = run(
        folder.path(),
        "evaluate --checkpoint-dir saved --picture no/such/c.svg --output json",
    );
    assert_eq!(nowhere.code, Some(2));
    assert!(
        nowhere.stderr.contains("cannot write no/such/c.svg"),
        "{}",
        nowhere.stderr
    );
    assert_eq!(nowhere.stdout, "");
    assert!(
        last_event(&succeed(
            folder.path(),
            &format!("{evaluate} --output json")
        ))["confusion"]
            .is_array()
    );
}
