//! What is measured, and its options by their names.

use crate::loss::LossFunction;

/// The curve whose area is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Curve {
    /// True positives over false positives.
    Roc,
    /// Precision over recall.
    Pr,
}

/// How the scores of several classes become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Average {
    /// All classes are counted together.
    Micro,
    /// The mean of the classes' scores.
    Macro,
    /// The mean, weighted by how often each class occurs.
    Weighted,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Accuracy,
    BinaryAccuracy { threshold: f64 },
    CategoricalAccuracy,
    TopK { k: usize },
    Auc(Area),
    Precision(Threshold),
    Recall(Threshold),
    TruePositives(Threshold),
    TrueNegatives(Threshold),
    FalsePositives(Threshold),
    FalseNegatives(Threshold),
    FScore(Score),
    RootMeanSquaredError,
    R2,
    CosineSimilarity,
    Loss(LossFunction),
}

/// The options of an area under a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub(super) curve: Curve,
    pub(super) thresholds: usize,
    pub(super) multi_label: bool,
}

/// Above which probability the answer is yes, and of which class; all if it is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Threshold {
    pub(super) above: f64,
    pub(super) class: Option<usize>,
}

/// The options of an F score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    pub(super) average: Average,
    pub(super) beta: f64,
    /// The largest output is the answer if there is none.
    pub(super) threshold: Option<f64>,
}

/// Keras: `num_thresholds=200`.
const THRESHOLDS: usize = 200;
/// So many numbers for each example are more than anyone needs.
const MAX_THRESHOLDS: usize = 100_000;
const HALF: Threshold = Threshold {
    above: 0.5,
    class: None,
};
const F1: Score = Score {
    average: Average::Macro,
    beta: 1.0,
    threshold: None,
};

/// Keras' names, shorter ones, and what they measure with Keras' defaults.
pub(super) const NAMES: [(&str, &[&str], Kind); 19] = [
    ("accuracy", &["acc"], Kind::Accuracy),
    (
        "binary_accuracy",
        &[],
        Kind::BinaryAccuracy { threshold: 0.5 },
    ),
    ("categorical_accuracy", &[], Kind::CategoricalAccuracy),
    (
        "sparse_categorical_accuracy",
        &[],
        Kind::CategoricalAccuracy,
    ),
    ("top_k_categorical_accuracy", &[], Kind::TopK { k: 5 }),
    (
        "sparse_top_k_categorical_accuracy",
        &[],
        Kind::TopK { k: 5 },
    ),
    (
        "auc",
        &[],
        Kind::Auc(Area {
            curve: Curve::Roc,
            thresholds: THRESHOLDS,
            multi_label: false,
        }),
    ),
    ("precision", &[], Kind::Precision(HALF)),
    ("recall", &[], Kind::Recall(HALF)),
    ("true_positives", &[], Kind::TruePositives(HALF)),
    ("true_negatives", &[], Kind::TrueNegatives(HALF)),
    ("false_positives", &[], Kind::FalsePositives(HALF)),
    ("false_negatives", &[], Kind::FalseNegatives(HALF)),
    ("f1_score", &["f1"], Kind::FScore(F1)),
    ("fbeta_score", &[], Kind::FScore(F1)),
    (
        "root_mean_squared_error",
        &["rmse"],
        Kind::RootMeanSquaredError,
    ),
    ("r2_score", &["r2"], Kind::R2),
    ("cosine_similarity", &[], Kind::CosineSimilarity),
    (
        "kullback_leibler_divergence",
        &[],
        Kind::Loss(LossFunction::KlDivergence),
    ),
];

/// The metric of a name in any case, with the name in its usual case.
pub(super) fn named(text: &str) -> Option<(&'static str, Kind)> {
    // Keras' classes are understood, too: AUC, F1Score, MeanSquaredError.
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    let text = plain(text);
    let own = NAMES.iter().find_map(|(name, others, kind)| {
        let mut all = std::iter::once(name).chain(*others);
        all.find(|it| plain(it) == text).map(|name| (*name, *kind))
    });
    own.or_else(|| {
        let (name, loss) = LossFunction::named(&text)?;
        Some((name, Kind::Loss(loss)))
    })
}

fn number(text: &str, fits: impl Fn(f64) -> bool) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| fits(*number))
}

fn is_share(number: f64) -> bool {
    (0.0..=1.0).contains(&number)
}

fn whole(text: &str, least: usize) -> Option<usize> {
    text.parse().ok().filter(|number| *number >= least)
}

impl Curve {
    const fn name(self) -> &'static str {
        match self {
            Self::Roc => "ROC",
            Self::Pr => "PR",
        }
    }
}

impl Average {
    const fn name(self) -> &'static str {
        match self {
            Self::Micro => "micro",
            Self::Macro => "macro",
            Self::Weighted => "weighted",
        }
    }
}

impl Kind {
    /// The number of sums for so many outputs.
    pub(super) fn count(&self, outputs: usize) -> usize {
        match self {
            Self::Auc(area) => {
                let columns = if area.multi_label { outputs } else { 1 };
                columns * 2 * area.thresholds
            }
            Self::Precision(_)
            | Self::Recall(_)
            | Self::TruePositives(_)
            | Self::TrueNegatives(_)
            | Self::FalsePositives(_)
            | Self::FalseNegatives(_) => 4,
            Self::FScore(score) if score.average == Average::Micro => 4,
            Self::FScore(_) | Self::R2 => 4 * outputs,
            _ => 2,
        }
    }

    /// The options with their present values; what has none is left out.
    pub(super) fn options(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::BinaryAccuracy { threshold } => vec![("threshold", threshold.to_string())],
            Self::TopK { k } => vec![("k", k.to_string())],
            Self::Auc(area) => vec![
                ("curve", area.curve.name().to_string()),
                ("num_thresholds", area.thresholds.to_string()),
                ("multi_label", area.multi_label.to_string()),
            ],
            Self::Precision(of)
            | Self::Recall(of)
            | Self::TruePositives(of)
            | Self::TrueNegatives(of)
            | Self::FalsePositives(of)
            | Self::FalseNegatives(of) => {
                let class = of.class.map_or_else(String::new, |class| class.to_string());
                vec![("thresholds", of.above.to_string()), ("class_id", class)]
            }
            Self::FScore(score) => {
                let threshold = score.threshold.map(|threshold| threshold.to_string());
                vec![
                    ("average", score.average.name().to_string()),
                    ("beta", score.beta.to_string()),
                    ("threshold", threshold.unwrap_or_default()),
                ]
            }
            Self::Loss(loss) => loss.options(),
            _ => Vec::new(),
        }
    }

    /// The same with an option of this value.
    ///
    /// # Errors
    /// A text for people, if there is no such option, or the option has no such value.
    pub(super) fn with_option(
        mut self,
        name: &str,
        key: &str,
        value: &str,
    ) -> Result<Self, String> {
        if let Self::Loss(loss) = self {
            return Ok(Self::Loss(loss.with_option(key, value)?));
        }
        let wanted = match self.set(key, value) {
            Ok(()) => return Ok(self),
            Err(wanted) => wanted,
        };
        let known: Vec<&str> = self.options().iter().map(|(key, _)| *key).collect();
        Err(match wanted {
            Some(wanted) => format!("{name}: {key} is {wanted}, not `{value}`"),
            None if known.is_empty() => format!("{name} has no options, also no `{key}`"),
            None => format!("{name} has no option `{key}`; it has {}", known.join(", ")),
        })
    }

    /// Changes an option; the error says which values it has, or nothing if there is none.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Option<&'static str>> {
        const SHARE: &str = "a number from 0 to 1";
        const SWITCH: &str = "true or false";
        let lower = value.to_ascii_lowercase();
        match (self, key) {
            (Self::BinaryAccuracy { threshold }, "threshold") => {
                *threshold = number(value, is_share).ok_or(SHARE)?;
            }
            (Self::TopK { k }, "k") => *k = whole(value, 1).ok_or("a whole number from 1 on")?,
            (Self::Auc(area), "curve") => {
                let all = [Curve::Roc, Curve::Pr].into_iter();
                let mut found = all.filter(|curve| curve.name().eq_ignore_ascii_case(value));
                area.curve = found.next().ok_or("ROC or PR")?;
            }
            (Self::Auc(area), "num_thresholds") => {
                let number = whole(value, 2).filter(|number| *number <= MAX_THRESHOLDS);
                area.thresholds = number.ok_or("a whole number from 2 to 100000")?;
            }
            (Self::Auc(area), "multi_label") => {
                area.multi_label = lower.parse().map_err(|_| SWITCH)?;
            }
            (
                Self::Precision(of)
                | Self::Recall(of)
                | Self::TruePositives(of)
                | Self::TrueNegatives(of)
                | Self::FalsePositives(of)
                | Self::FalseNegatives(of),
                key,
            ) => match key {
                "thresholds" => of.above = number(value, is_share).ok_or(SHARE)?,
                "class_id" => of.class = Some(whole(value, 0).ok_or("a number of a class")?),
                _ => return Err(None),
            },
            (Self::FScore(score), "average") => {
                let all = [Average::Micro, Average::Macro, Average::Weighted].into_iter();
                let mut found = all.filter(|average| average.name() == lower);
                score.average = found.next().ok_or("micro, macro or weighted")?;
            }
            (Self::FScore(score), "beta") => {
                score.beta = number(value, |beta| beta > 0.0).ok_or("a number above 0")?;
            }
            (Self::FScore(score), "threshold") => {
                let fits = |number| number > 0.0 && number <= 1.0;
                let number = number(value, fits).ok_or("a number above 0, up to 1")?;
                score.threshold = Some(number);
            }
            _ => return Err(None),
        }
        Ok(())
    }
}
