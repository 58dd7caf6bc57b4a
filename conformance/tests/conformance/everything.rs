//! Everything this workspace has against everything TensorFlow 2.21 recorded.

use std::sync::LazyLock;

use conformance::{Backend, FamilyName, Golden, Report, Selection, Suite, WorkerProgram};

static REPORT: LazyLock<Report> = LazyLock::new(|| {
    let workers = WorkerProgram::new(env!("CARGO_BIN_EXE_conformance-worker"));
    Suite::everything(Golden::embedded().unwrap())
        .workers(workers)
        .run()
});

#[test]
fn everything_conforms() {
    assert!(REPORT.is_success(), "{}", *REPORT);
    let ran: Vec<_> = REPORT.families().keys().copied().collect();
    assert_eq!(ran, FamilyName::ALL);
    let golden = Golden::embedded().unwrap();
    for (family, counts) in REPORT.families() {
        assert_eq!(
            counts.cases(),
            golden.files[family].cases.len(),
            "{family}: none is left out"
        );
    }
    assert!(REPORT.families_not_run().is_empty());
}

/// At most 8 % of the cases may not apply, and at most 3 % of them cases with a result.
#[test]
fn few_cases_do_not_apply() {
    let total = REPORT.total();
    let (cases, skipped) = (total.cases(), total.skipped());
    assert!(
        skipped * 100 <= cases * 8,
        "{skipped} of {cases}:\n{}",
        *REPORT
    );
    let values = total.skipped_values;
    assert!(
        values * 100 <= cases * 3,
        "{values} of {cases}:\n{}",
        *REPORT
    );
    assert_eq!(REPORT.rules().values().sum::<usize>(), skipped);
    assert_eq!(
        REPORT.deviations().values().sum::<usize>(),
        total.deviations
    );
}

#[test]
fn the_report_is_frozen() {
    insta::assert_snapshot!(REPORT.to_string());
}

#[test]
fn the_json_report_says_the_same() {
    let json = REPORT.to_json();
    let total = REPORT.total();
    assert_eq!(json["total"]["passed"], total.passed);
    assert_eq!(json["total"]["skipped"], total.skipped());
    assert_eq!(json["families"]["training"]["failed"], 0);
    assert_eq!(json["failures"].as_array().unwrap().len(), 0);
    assert_eq!(json["families"]["parameter_server"]["failed"], 0);
}

#[test]
fn a_selection_runs_only_what_it_names() {
    let selection = Selection {
        strategies: vec!["one-device".to_string()],
        communicators: vec!["ring".to_string()],
        families: vec![FamilyName::Reduce],
        ..Default::default()
    };
    let report = selection.run().unwrap();
    assert!(report.is_success(), "{report}");
    assert_eq!(
        report.families().keys().copied().collect::<Vec<_>>(),
        [FamilyName::Reduce]
    );
    assert!(report.total().cases() < REPORT.families()[&FamilyName::Reduce].cases());
    let unknown = Selection {
        communicators: vec!["pigeons".to_string()],
        ..Default::default()
    };
    insta::assert_snapshot!(
        unknown.run().unwrap_err(),
        @"unknown communicator `pigeons`: choose among direct, ring, halving-doubling, direct-exchange, hierarchical, shm, grpc"
    );
}

/// Nothing checked is no success.
#[test]
fn a_suite_without_subjects_does_not_succeed() {
    let report = Suite::new(Golden::embedded().unwrap()).run();
    assert!(!report.is_success());
    assert!(
        report
            .to_string()
            .ends_with("\n0 passed, 0 failed, 0 skipped\n")
    );
}

#[test]
fn a_backend_may_have_other_devices() {
    let mirrored = Backend::built_in().remove(2);
    let shifted = mirrored.on(|index| distribute_core::LogicalDevice::cpu(index + 3));
    let suite = Suite::new(Golden::embedded().unwrap()).backend(shifted);
    let report = suite.family(FamilyName::Reduce).run();
    assert!(report.is_success(), "{report}");
}

#[test]
fn directories_without_golden_files_and_wrong_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let empty = Golden::load(folder.path()).unwrap_err().to_string();
    assert!(empty.contains("holds no golden file"), "{empty}");
    for (text, part) in [
        ("{", "EOF"),
        ("{}", "no list `cases`"),
        (r#"{"cases": [{}]}"#, "without a name"),
        (
            r#"{"cases": [{"name": "x", "strategy": {"kind": "zen"}}]}"#,
            "unknown strategy kind",
        ),
        (
            r#"{"cases": [{"name": "x", "strategy": {"kind": "none"}, "inputs": {"op": "x"}}]}"#,
            "no `expect`",
        ),
    ] {
        std::fs::write(folder.path().join("loss.json"), text).unwrap();
        let error = Golden::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains(part), "{error} does not say {part}");
    }
}
