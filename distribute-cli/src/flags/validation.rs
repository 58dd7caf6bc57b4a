//! The flags about the validation after every epoch, and its consequences.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use distribute_data::KerasMetric;

use super::{factor, learning_rate, positive, whole};

#[derive(Debug, Args)]
#[command(next_help_heading = "Validation")]
pub(crate) struct ValidationArgs {
    /// Validate on this fraction of the examples [default: 0.2, or the dataset's test examples]
    #[arg(long, value_name = "F", value_parser = part, allow_negative_numbers = true)]
    pub(crate) validation_split: Option<f64>,
    /// End after N epochs without an improvement of --monitor
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) early_stopping: Option<usize>,
    /// Ignore epochs before this one, counted from 0
    #[arg(
        long,
        value_name = "N",
        value_parser = whole,
        allow_negative_numbers = true,
        requires = "early_stopping"
    )]
    pub(crate) start_from_epoch: Option<u64>,
    /// End with the weights of the best epoch; `evaluate` and `predict` also use them
    #[arg(long, requires = "early_stopping", conflicts_with = "ema")]
    pub(crate) restore_best: bool,
    /// Multiply the rate by F after N epochs without an improvement of --monitor [default: N is 10]
    #[arg(
        long,
        value_name = "F[,N]",
        allow_negative_numbers = true,
        conflicts_with_all = ["lr_schedule", "warmup_steps"]
    )]
    pub(crate) reduce_lr_on_plateau: Option<PlateauFlag>,
    /// The watched value: val_loss, val_accuracy, loss or any metric [default: val_loss]
    #[arg(long, value_name = "NAME")]
    pub(crate) monitor: Option<MonitorName>,
    /// Minimum change that counts as an improvement [default: 0, for a plateau 0.0001]
    #[arg(long, value_name = "F", value_parser = factor, allow_negative_numbers = true)]
    pub(crate) min_delta: Option<f64>,
}

/// A measured value: the loss, or a metric by its name; with `val_` of the validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MonitorName(pub(crate) String);

impl FromStr for MonitorName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const USUAL: [&str; 4] = ["val_loss", "val_accuracy", "loss", "accuracy"];
        let name = text.strip_prefix("val_").unwrap_or(text);
        // A second metric of a name has a number behind it.
        let number = name
            .rsplit_once('_')
            .filter(|(_, tail)| tail.parse::<u32>().is_ok());
        let base = number.map_or(name, |(base, _)| base);
        let of_metric = |name: &str| {
            let metric = name.parse::<KerasMetric>();
            metric.is_ok_and(|metric| metric.name() == name)
        };
        let is_known = |name: &str| {
            let plain = name.strip_prefix("weighted_").unwrap_or(name);
            plain == "loss" || of_metric(plain)
        };
        // Of an output the name stands before it.
        let mut tails = base.match_indices('_').map(|(at, _)| &base[at + 1..]);
        if is_known(name) || is_known(base) || tails.any(is_known) {
            return Ok(Self(text.to_string()));
        }
        Err(distribute_error::unknown("value", text, USUAL))
    }
}

impl fmt::Display for MonitorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A factor of the learning rate, and a patience in epochs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PlateauFlag {
    pub(crate) factor: f64,
    pub(crate) patience: usize,
}

impl FromStr for PlateauFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (factor, patience) = text.split_once(',').unwrap_or((text, "10"));
        let below_one = |factor: &f64| *factor < 1.0;
        let factor = learning_rate(factor).ok().filter(below_one);
        match (factor, positive(patience)) {
            (Some(factor), Ok(patience)) => Ok(Self { factor, patience }),
            _ => Err(
                "a number between 0 and 1 is needed, and behind a comma a number of epochs"
                    .to_string(),
            ),
        }
    }
}

impl fmt::Display for PlateauFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.factor, self.patience)
    }
}

fn part(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| *x > 0.0 && *x < 1.0);
    number.ok_or_else(|| "a number between 0 and 1 is needed".to_string())
}
