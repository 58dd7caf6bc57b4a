//! Whether a value of the logs became better.

use distribute_core::Result;
use distribute_data::KerasMetric;

use crate::{Control, FitError, Logs};

/// Which values are better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// By the end of the name: larger is better for accuracies, AUC, precision, recall and F1,
    /// smaller for losses and errors (MSE, MAE and so on). Other names are refused before training,
    /// as by Keras.
    #[default]
    Auto,
    /// Smaller is better.
    Min,
    /// Larger is better.
    Max,
}

/// Endings of the names of values of which larger ones are better.
const LARGER: [&str; 6] = ["accuracy", "acc", "auc", "precision", "recall", "f1"];
/// Endings of the names of values of which smaller ones are better.
const SMALLER: [&str; 9] = [
    "loss",
    "error",
    "mse",
    "rmse",
    "mae",
    "mape",
    "msle",
    "entropy",
    "perplexity",
];
/// The names that most runs have.
const USUAL: [&str; 4] = ["loss", "val_loss", "accuracy", "val_accuracy"];

/// A value of the logs, and which values of it are better.
#[derive(Debug, Clone)]
pub(super) struct Monitor {
    pub(super) name: String,
    pub(super) direction: Direction,
    /// The least change that is an improvement.
    pub(super) min_delta: f64,
    /// Whether the names of the logs were seen.
    has_seen: bool,
}

impl Monitor {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            direction: Direction::Auto,
            min_delta: 0.0,
            has_seen: false,
        }
    }

    /// Refuses a value that no epoch will have, in the first step: the logs of the training data
    /// have their names then. The names of validation are only known after one.
    pub(super) fn check_name(
        &mut self,
        callback: &'static str,
        run: &mut Control<'_>,
    ) -> Result<()> {
        if self.has_seen || (run.progress().has_validation && self.name.starts_with("val_")) {
            return Ok(());
        }
        self.has_seen = run.loss_so_far()?.is_some();
        if !self.has_seen {
            return Ok(());
        }
        self.value(callback, &run.logs()?).map(drop)
    }

    /// Refuses a name that does not tell which values are better, if the direction is `Auto`.
    pub(super) fn check(&self, callback: &'static str) -> Result<()> {
        let is_known =
            self.ends_with(&LARGER) || self.ends_with(&SMALLER) || self.metric().is_some();
        if self.direction != Direction::Auto || is_known {
            return Ok(());
        }
        let nearest = distribute_error::nearest(&self.name, USUAL);
        let nearest = nearest.map(|name| format!("; did you mean `{name}`?"));
        Err(FitError::UnknownDirection {
            callback,
            monitor: self.name.clone(),
            nearest: nearest.unwrap_or_default(),
        }
        .into())
    }

    /// The watched value.
    pub(super) fn value(&self, callback: &'static str, logs: &Logs) -> Result<f64> {
        logs.get(&self.name).ok_or_else(|| {
            let known = logs.iter().map(|(name, _)| name);
            let nearest = distribute_error::nearest(&self.name, known);
            let nearest = nearest.map(|name| format!("; did you mean `{name}`?"));
            FitError::NoSuchLog {
                callback,
                monitor: self.name.clone(),
                available: logs.names() + &nearest.unwrap_or_default(),
            }
            .into()
        })
    }

    /// Whether `value` is better than the best so far. NaN never is.
    pub(super) fn improves(&self, value: f64, best: Option<f64>) -> bool {
        let Some(best) = best else {
            return !value.is_nan();
        };
        if self.larger_is_better() {
            value - self.min_delta > best
        } else {
            value + self.min_delta < best
        }
    }

    fn larger_is_better(&self) -> bool {
        match self.direction {
            Direction::Min => false,
            Direction::Max => true,
            Direction::Auto => match self.metric() {
                Some(metric) => metric.is_better_larger(),
                None => self.ends_with(&LARGER),
            },
        }
    }

    /// The metric of Keras with this name; a number behind it tells metrics of one name apart.
    fn metric(&self) -> Option<KerasMetric> {
        let name = self.name.strip_prefix("val_").unwrap_or(&self.name);
        let known = |name: &str| {
            let metric: Option<KerasMetric> = name.parse().ok();
            metric.filter(|metric| metric.name() == name)
        };
        known(name).or_else(|| {
            let (base, number) = name.rsplit_once('_')?;
            known(base).filter(|_| number.parse::<u32>().is_ok())
        })
    }

    fn ends_with(&self, endings: &[&str]) -> bool {
        let name = self.name.to_lowercase();
        endings.iter().any(|ending| name.ends_with(ending))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("val_loss", 0.5, Some(0.6), true)]
    #[case("val_loss", 0.6, Some(0.6), false)]
    #[case("val_loss", f64::NAN, None, false)]
    #[case("val_loss", f64::NAN, Some(1.0), false)]
    #[case("val_accuracy", 0.5, Some(0.6), false)]
    #[case("val_accuracy", 0.7, Some(0.6), true)]
    #[case("AUC", 0.7, Some(0.6), true)]
    fn auto_follows_the_name(
        #[case] name: &str,
        #[case] value: f64,
        #[case] best: Option<f64>,
        #[case] better: bool,
    ) {
        assert_eq!(Monitor::new(name).improves(value, best), better);
    }

    #[rstest]
    #[case("val_score", Direction::Auto, Some("score"))]
    #[case("val_lost", Direction::Auto, Some("did you mean `val_loss`?"))]
    #[case("reward", Direction::Auto, Some("Direction::Max"))]
    #[case("reward", Direction::Max, None)]
    #[case("val_mean_squared_error", Direction::Auto, None)]
    #[case("val_top5_accuracy", Direction::Auto, None)]
    fn a_name_that_does_not_say_what_is_better_is_refused(
        #[case] name: &str,
        #[case] direction: Direction,
        #[case] part: Option<&str>,
    ) {
        let monitor = Monitor {
            direction,
            ..Monitor::new(name)
        };
        let error = monitor
            .check("EarlyStopping")
            .err()
            .map(|it| it.to_string());
        match part {
            None => assert_eq!(error, None),
            Some(part) => assert!(
                error.as_deref().unwrap_or_default().contains(part),
                "{error:?}"
            ),
        }
    }

    #[test]
    fn a_change_within_min_delta_is_none() {
        let mut monitor = Monitor::new("loss");
        monitor.min_delta = 0.1;
        assert!(!monitor.improves(0.95, Some(1.0)));
        assert!(monitor.improves(0.85, Some(1.0)));
        monitor.direction = Direction::Max;
        assert!(!monitor.improves(1.05, Some(1.0)));
        assert!(monitor.improves(1.15, Some(1.0)));
    }
}
