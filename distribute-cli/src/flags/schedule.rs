//! The flag `--lr-schedule`: Keras' schedules by name, with defaults from the length of the run.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use distribute_core::schedule::{LearningRateSchedule, from_config};
use serde_json::{Map, Value, json};

/// Names on the command line, Keras' classes, and the parameter whose default is the length of the
/// run.
const SCHEDULES: [(&str, &str, Option<&str>); 6] = [
    ("cosine", "CosineDecay", Some("decay_steps")),
    (
        "cosine-restarts",
        "CosineDecayRestarts",
        Some("first_decay_steps"),
    ),
    ("exponential", "ExponentialDecay", Some("decay_steps")),
    ("inverse-time", "InverseTimeDecay", Some("decay_steps")),
    ("piecewise-constant", "PiecewiseConstantDecay", None),
    ("polynomial", "PolynomialDecay", Some("decay_steps")),
];

/// A schedule and its parameters from the command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScheduleFlag {
    text: String,
    class: &'static str,
    length: Option<&'static str>,
    numbers: Map<String, Value>,
}

impl FromStr for ScheduleFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, numbers) = text.split_once(':').unwrap_or((text, ""));
        let known = SCHEDULES.iter().find(|(known, class, _)| {
            [known, class]
                .iter()
                .any(|it| it.eq_ignore_ascii_case(name))
        });
        let Some((_, class, length)) = known else {
            let names = SCHEDULES.map(|(name, ..)| name);
            let nearest = distribute_error::nearest(name, names)
                .map_or_else(String::new, |it| format!("did you mean `{it}`? "));
            return Err(format!("{nearest}There are {}", names.join(", ")));
        };
        let pairs = numbers.split(',').filter(|pair| !pair.is_empty());
        let numbers = pairs.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value_of(value).ok_or_else(|| {
                format!("`{pair}` is not KEY=NUMBER, KEY=NUMBER/NUMBER/... or KEY=true")
            })?;
            Ok::<_, String>((key.to_string(), value))
        });
        let flag = Self {
            text: text.to_string(),
            class,
            length: *length,
            numbers: numbers.collect::<Result<_, _>>()?,
        };
        // Wrong numbers are reported before any file is read.
        flag.build(1.0, 1).map_err(|error| error.to_string())?;
        Ok(flag)
    }
}

/// A number, a list of them or a boolean.
fn value_of(text: &str) -> Option<Value> {
    match text {
        "true" => return Some(json!(true)),
        "false" => return Some(json!(false)),
        _ => {}
    }
    let numbers: Vec<f64> = text
        .split('/')
        .map(|number| number.parse::<f64>().ok())
        .collect::<Option<_>>()?;
    Some(match (text.contains('/'), numbers.as_slice()) {
        (false, [number]) => json!(number),
        _ => json!(numbers),
    })
}

impl fmt::Display for ScheduleFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ScheduleFlag {
    /// The schedule of a run with this number of updates, starting at `rate`.
    pub(crate) fn build(
        &self,
        rate: f64,
        updates: u64,
    ) -> distribute_core::Result<Arc<dyn LearningRateSchedule>> {
        let mut config = self.numbers.clone();
        if let Some(length) = self.length {
            config.entry("initial_learning_rate").or_insert(json!(rate));
            config.entry(length).or_insert(json!(updates));
        } else {
            // A list of one number is written without a slash.
            for list in config.values_mut().filter(|value| value.is_number()) {
                *list = json!([&*list]);
            }
        }
        from_config(self.class, &Value::Object(config))
    }

    /// Whether the schedule depends on the length of the run.
    pub(crate) fn follows_run(&self) -> bool {
        self.length
            .is_some_and(|length| !self.numbers.contains_key(length))
    }
}
