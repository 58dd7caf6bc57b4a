//! No case is left out in silence: what is not run is counted, shown, and fails the run unless a
//! rule says why. The documents' figures agree with the files.

use conformance::{FamilyName, Golden, Report, Rule, Selection, Suite, WorkerProgram};
use serde_json::{Value, json};

/// A directory with these files.
fn golden(files: &[(&str, Value)]) -> (tempfile::TempDir, Golden) {
    let folder = tempfile::tempdir().unwrap();
    for (name, file) in files {
        std::fs::write(folder.path().join(name), file.to_string()).unwrap();
    }
    let golden = Golden::load(folder.path()).unwrap();
    (folder, golden)
}

fn everything(golden: Golden) -> Report {
    let workers = WorkerProgram::new(env!("CARGO_BIN_EXE_conformance-worker"));
    Suite::everything(golden).workers(workers).run()
}

fn reduce_of_three() -> Value {
    let scalar = |value: f64| json!({"dtype": "float32", "shape": [], "data": [value]});
    json!({
        "name": "three",
        "strategy": {"kind": "mirrored", "replicas": 2},
        "inputs": {
            "op": "reduce", "reduce_op": "SUM", "axis": null, "values": [scalar(1.0), scalar(2.0)]
        },
        "expect": scalar(3.0),
    })
}

/// The last line: how many passed, failed and were skipped.
fn closing(report: &Report) -> [usize; 3] {
    let text = report.to_string();
    let last = text.lines().last().unwrap();
    let words = last.split(", ").map(|part| part.split(' ').next().unwrap());
    let counts: Vec<usize> = words.map(|count| count.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

/// A case that does not apply here, by a rule.
fn of_attributes() -> Value {
    json!({
        "name": "attributes",
        "strategy": {"kind": "mirrored", "replicas": 2},
        "inputs": {"op": "batch_norm_attributes", "library": "keras3", "synchronized": false},
        "expect": {},
    })
}

#[test]
fn cases_that_do_not_apply_are_counted_shown_and_skipped_by_a_rule() {
    let skipped = json!({"cases": [of_attributes(), of_attributes()]});
    let (_folder, golden) = golden(&[
        ("reduce.json", json!({"cases": [reduce_of_three()]})),
        ("normalization.json", skipped),
    ]);
    assert_eq!(golden.cases(), 3);
    let report = everything(golden);
    assert!(report.is_success(), "{report}");
    assert_eq!(closing(&report), [1, 0, 2]);
    assert_eq!(report.rules()[&Rule::Internals], 2);
    let row = format!("{:16} {:5}", "normalization", 2);
    assert!(report.to_string().contains(&row), "{report}");
}

#[test]
fn a_file_of_no_family_fails_the_run_with_every_case_of_it() {
    let (_folder, golden) = golden(&[
        ("reduce.json", json!({"cases": [reduce_of_three()]})),
        (
            "reduces.json",
            json!({"cases": [reduce_of_three(), {"name": "other"}]}),
        ),
        ("losses.JSON", json!({"cases": [{}]})),
    ]);
    let report = everything(golden);
    assert!(!report.is_success());
    assert_eq!(closing(&report), [1, 3, 0]);
    let text = report.to_string();
    for part in [
        "unknown/reduces/three",
        "unknown/reduces/other",
        "called like no family",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// Also where it is the only file.
#[test]
fn a_directory_of_unknown_files_is_no_empty_one() {
    let (_folder, golden) = golden(&[("zen.json", json!({"cases": [reduce_of_three()]}))]);
    assert_eq!(closing(&everything(golden)), [0, 1, 0]);
}

/// Cases that do not apply check nothing alone, which is no success.
#[test]
fn skipping_everything_is_no_success() {
    let (_folder, golden) = golden(&[("normalization.json", json!({"cases": [of_attributes()]}))]);
    let report = everything(golden);
    assert_eq!(closing(&report), [0, 0, 1]);
    assert!(!report.is_success());
}

/// A case that no strategy takes, inside of a family that is known.
#[test]
fn a_case_that_nothing_runs_has_failed() {
    let mut case = reduce_of_three();
    case["strategy"] = json!({"kind": "parameter_server", "workers": 2, "ps": 1});
    let (_folder, golden) = golden(&[("loss.json", json!({"cases": [case]}))]);
    let report = everything(golden);
    assert_eq!(closing(&report), [0, 1, 0], "{report}");
    assert!(report.to_string().contains("parameter_server"), "{report}");
}

/// An operation that an adapter does not know is a failure, in every family.
#[test]
fn an_unknown_operation_has_failed_in_every_family() {
    for family in FamilyName::ALL {
        let mut golden = Golden::embedded().unwrap();
        golden.files.retain(|other, _| other == family);
        let file = golden.files.get_mut(family).unwrap();
        file.cases.retain(conformance::Case::expects_value);
        file.cases.truncate(1);
        file.cases[0].inputs["op"] = json!("fly to the moon");
        let report = everything(golden);
        assert_eq!(closing(&report), [0, 1, 0], "{family}: {report}");
    }
}

#[test]
fn without_a_program_for_workers_their_cases_are_skipped_by_a_rule() {
    let mut golden = Golden::embedded().unwrap();
    golden
        .files
        .retain(|family, _| [FamilyName::MultiWorker, FamilyName::CrossDevice].contains(family));
    let workers = golden.files[&FamilyName::MultiWorker].cases.len();
    let report = Suite::everything(golden.clone()).run();
    assert_eq!(report.rules()[&Rule::NoWorkers], workers);
    assert_eq!(closing(&report).iter().sum::<usize>(), golden.cases());
}

/// What a selection leaves out is counted too.
#[test]
fn what_is_run_and_what_is_not_selected_are_all_cases() {
    let selection = Selection {
        strategies: vec!["one-device".to_string()],
        families: vec![FamilyName::Loss, FamilyName::MultiWorker],
        ..Default::default()
    };
    let report = selection.run().unwrap();
    let [passed, failed, skipped] = closing(&report);
    let all = Golden::embedded().unwrap().cases();
    assert_eq!(report.cases_in_files(), all);
    assert_eq!(passed + failed + skipped + report.cases_not_selected(), all);
}

/// `1234567` as `1,234,567`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn the_figures_of_the_documents_are_those_of_the_files() {
    let golden = Golden::embedded().unwrap();
    let documents = golden.files[&FamilyName::Documents].cases.len();
    let recorded = grouped(golden.cases() - documents);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for (file, before) in [
        ("README.md", " recorded outputs of TensorFlow"),
        ("CHANGELOG.md", " outputs of TensorFlow 2.21"),
        (
            "conformance/README.md",
            " recorded outputs of TensorFlow 2.21",
        ),
    ] {
        let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        let figure = format!("{recorded}{before}");
        assert!(text.contains(&figure), "{file} does not say `{figure}`");
        for (at, _) in text.match_indices(before) {
            assert!(text[..at].ends_with(&recorded), "{file}: another figure");
        }
        let figure = format!("{documents} statements from its documentation");
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(line.contains(&figure), "{file} does not say `{figure}`");
    }
}

/// What takes worker processes is skipped without them, which alone is no success.
#[test]
fn a_family_without_what_it_takes_is_no_success() {
    let suite = Suite::everything(Golden::embedded().unwrap());
    let report = suite.family(FamilyName::MultiWorker).run();
    let [passed, failed, skipped] = closing(&report);
    assert_eq!((passed, failed), (0, 0), "{report}");
    assert!(skipped > 0, "{report}");
    assert!(!report.is_success());
}
