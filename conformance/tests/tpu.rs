//! `TpuStrategy` against what TensorFlow recorded, where there is a PJRT plugin to run it.

use conformance::{FamilyName, Golden, StrategyKind, Suite};

/// Every run of the golden files, under a compiled step: the losses and gradients of all replicas
/// and the weights at the end.
#[test]
fn the_golden_training_runs_pass_under_tpu_strategy() {
    let golden = Golden::embedded().unwrap();
    let cases = golden.files[&FamilyName::Training].cases.clone();
    let report = Suite::new(golden).tpu().unwrap().run();
    if let [why] = report.skipped_subjects() {
        println!("SKIPPED {why}");
        assert_eq!(report.total().cases(), 0);
        return;
    }
    assert!(report.is_success(), "{report}");
    let families: Vec<_> = report.families().keys().copied().collect();
    assert_eq!(families, [FamilyName::Training]);
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
