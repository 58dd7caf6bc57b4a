//! A strategy of ours in burn's `SupervisedTraining`: [`TrainingExt`].

use std::sync::Arc;

use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::MetricDefinition;
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use burn_train::{LearnerModel, LearnerSummary, SupervisedTraining, TrainingStrategy};
use distribute_core::StrategyExt;

use crate::LearnerStrategy;

/// What this crate adds to burn's `SupervisedTraining`.
pub trait TrainingExt {
    /// Trains with this strategy; the last call before `launch`.
    ///
    /// With several workers only the chief shows and writes something: the others get no renderer
    /// and no `experiment.log`, which burn opens before it asks a strategy. (The strategy itself
    /// takes care of metrics and checkpoints, also in `with_training_strategy`.)
    ///
    /// ```
    /// use burn_train::{LearnerModel, SupervisedTraining};
    /// use distribute_core::{MultiWorkerMirroredStrategy, Result};
    /// use distribute_learner::{LearnerStrategy, TrainingExt};
    ///
    /// fn on_all_workers<M: LearnerModel>(
    ///     training: SupervisedTraining<M>,
    /// ) -> Result<SupervisedTraining<M>> {
    ///     let strategy = LearnerStrategy::new(MultiWorkerMirroredStrategy::new()?);
    ///     Ok(training.distributed(strategy))
    /// }
    /// ```
    #[must_use]
    fn distributed(self, strategy: LearnerStrategy) -> Self;
}

impl<M: LearnerModel> TrainingExt for SupervisedTraining<M> {
    fn distributed(self, strategy: LearnerStrategy) -> Self {
        let is_chief = strategy.strategy().is_chief();
        let strategy = TrainingStrategy::Custom(Arc::new(strategy));
        let training = self.with_training_strategy(strategy);
        if is_chief {
            return training;
        }
        training
            .with_application_logger(None)
            .renderer(Box::new(Quiet))
    }
}

/// Shows nothing.
struct Quiet;

impl MetricsRendererTraining for Quiet {
    fn update_train(&mut self, _: MetricState) {}

    fn update_valid(&mut self, _: MetricState) {}

    fn on_train_end(
        &mut self,
        _: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for Quiet {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}

    fn on_test_end(&mut self, _: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl TrainingProgressLogger for Quiet {
    fn start(&mut self, _: usize, _: usize, _: Option<usize>, _: Option<&str>) {}

    fn update_epoch(&mut self, _: usize) {}

    fn start_split(&mut self, _: &str, _: usize) {}

    fn update_split(&mut self, _: usize) {}

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _: String) {}
}

impl EvaluationProgressLogger for Quiet {
    fn start_global_progress(&mut self, _: usize) {}

    fn start_test(&mut self, _: &str, _: usize) {}

    fn update_test_progress(&mut self, _: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _: String) {}
}

impl MetricsRenderer for Quiet {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _: MetricDefinition) {}
}
