//! burn's training of a model, and the same on two replicas: two lines change, as
//! `examples/tests/burn_examples/changed_lines.rs` counts.

use std::path::Path;

use burn::optim::AdamConfig;
use burn_train::metric::LossMetric;
use burn_train::{Learner, SupervisedTraining};
use distribute_core::MirroredStrategy;
use distribute_learner::{LearnerStrategy, TrainingExt};

use crate::common::{Loader, Net, Spy, loader};
use crate::events::Recorder;

fn burn_loop(folder: &Path, train: Loader, valid: Loader) -> Net {
    let training = SupervisedTraining::new(folder, train, valid)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
        .num_epochs(3);
    let model = Net::new(Spy::new(|_| ()));
    training
        .launch(Learner::new(model, AdamConfig::new().init(), 1e-2))
        .model
}

fn our_loop(folder: &Path, train: Loader, valid: Loader) -> Net {
    let strategy = LearnerStrategy::new(MirroredStrategy::builder().replicas(2).build().unwrap());
    let training = SupervisedTraining::new(folder, train, valid)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_application_logger(None)
        .distributed(strategy)
        .renderer(Box::new(Recorder::default()))
        .num_epochs(3);
    let model = Net::new(Spy::new(|_| ()));
    training
        .launch(Learner::new(model, AdamConfig::new().init(), 1e-2))
        .model
}

/// A batch of 8 on one device is one of 4 on each of two replicas.
#[test]
fn two_lines_train_on_two_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = burn_loop(folder.path(), loader(80, 8), loader(4, 2)).weights();
    let folder = tempfile::tempdir().unwrap();
    let found = our_loop(folder.path(), loader(80, 4), loader(4, 2)).weights();
    assert_eq!(wanted.len(), found.len());
    for (wanted, found) in wanted.iter().zip(&found) {
        assert!((wanted - found).abs() < 1e-5, "{wanted} {found}");
    }
}
