//! `TpuStrategy` against what TensorFlow recorded, where there is a PJRT plugin to run it.

use conformance::{FamilyName, Golden, Report, StrategyKind, Suite};

use crate::plugins::within;

/// Seconds on an idle machine. No family takes longer.
const LIMIT: u64 = 180;

/// A family under `TpuStrategy`; `None`, and a line that says so, without a plugin.
fn report(family: FamilyName) -> Option<Report> {
    let suite = Suite::new(Golden::embedded().unwrap()).family(family);
    let report = suite.tpu().unwrap().run();
    if let [why] = report.skipped_subjects() {
        assert!(
            report.to_string().contains(&format!("SKIPPED {why}")),
            "{report}"
        );
        assert_eq!(report.total().cases(), 0);
        println!("SKIPPED {why}");
        return None;
    }
    assert!(report.is_success(), "{report}");
    Some(report)
}

/// What the strategy does outside of steps, and all-reduces in steps.
#[test]
fn the_golden_reductions_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::Reduce, 292, 12));
}

/// Losses are computed by compiled steps of the file's tensors.
#[test]
fn the_golden_losses_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::Loss, 155, 16));
}

#[test]
fn the_golden_datasets_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::Datasets, 235, 5));
}

#[test]
fn the_golden_cross_device_ops_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::CrossDevice, 111, 10));
}

#[test]
fn the_golden_variables_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::Variables, 237, 13));
}

/// Some of what these cases do in steps needs values in host memory, which compiled steps refuse.
#[test]
fn the_golden_properties_and_checkpoints_pass_under_tpu_strategy() {
    within(LIMIT, || {
        few_skipped(FamilyName::Properties, 38, 21);
        few_skipped(FamilyName::Checkpoint, 26, 37);
    });
}

/// At least this many cases pass, and at most this percentage does not apply, each by a rule.
fn few_skipped(family: FamilyName, passed: usize, percentage: usize) {
    let Some(report) = report(family) else { return };
    let counts = report.families()[&family];
    assert!(counts.passed >= passed, "{report}");
    assert!(
        counts.skipped() * 100 <= counts.cases() * percentage,
        "{report}"
    );
    let ruled: usize = report.rules().values().sum();
    assert_eq!(ruled, counts.skipped());
}

/// Optimizers, clipping, accumulation, averages and loss scales, whose numbers of each update are
/// inputs of the compiled step.
#[test]
fn the_golden_optimizers_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::TrainingLoop, 70, 1));
}

/// `SyncBatchNorm` and layers that need no other replicas, also with parts that are filled up.
#[test]
fn the_golden_normalizations_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::Normalization, 63, 37));
}

/// Every run of the golden files, under a compiled step: the losses and gradients of all replicas
/// and the weights at the end.
#[test]
fn the_golden_training_runs_pass_under_tpu_strategy() {
    within(LIMIT, training_runs);
}

fn training_runs() {
    let Some(report) = report(FamilyName::Training) else {
        return;
    };
    let golden = Golden::embedded().unwrap();
    let cases = &golden.files[&FamilyName::Training].cases;
    let counts = report.families()[&FamilyName::Training];
    assert_eq!(
        (counts.passed, counts.cases()),
        (cases.len(), cases.len()),
        "{report}"
    );
    // Shares that differ between replicas are among them, and every kind of strategy.
    for kind in [StrategyKind::OneDevice, StrategyKind::Mirrored] {
        assert!(cases.iter().any(|case| case.strategy.kind == kind));
    }
    let uneven = cases.iter().filter(|case| {
        let batches = case.inputs["global_batch_indices"].as_array().unwrap();
        let sizes = batches.iter().map(|rows| rows.as_array().unwrap().len());
        sizes
            .into_iter()
            .any(|rows| rows % case.strategy.replicas != 0)
    });
    assert!(uneven.count() > 0);
}

/// The documents' statements, compiled where they are about replicas of one machine.
#[test]
fn the_documents_pass_under_tpu_strategy() {
    within(LIMIT, || few_skipped(FamilyName::Documents, 80, 10));
}
