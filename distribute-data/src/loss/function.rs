//! Keras' losses by name, with their options.

use std::fmt;
use std::str::FromStr;

/// A loss of Keras with its options: one value per example of predictions and targets of one shape.
///
/// Its text is Keras' name, and options that differ from Keras' defaults behind a colon:
///
/// ```
/// use distribute_core::{Device, Tensor};
/// use distribute_data::LossFunction;
///
/// let huber: LossFunction = "huber:delta=2".parse()?;
/// assert_eq!(huber, LossFunction::Huber { delta: 2.0 });
/// assert_eq!(huber.to_string(), "huber:delta=2");
/// let device = Device::flex();
/// let predicted = Tensor::<2>::from_data([[1.0_f32, 5.0]], &device);
/// let losses = huber.of(predicted.clone(), predicted.zeros_like());
/// assert_eq!(losses.into_data().try_to_vec::<f32>().unwrap(), [4.25]); // (0.5 + 8) / 2
/// # Ok::<(), String>(())
/// ```
///
/// Predictions are what the model returns. Where an option `from_logits` is true they are numbers
/// before a sigmoid or softmax, which is exact for numbers of any size; where it is false they are
/// probabilities, kept away from 0 and 1 by 1e-7 as Keras does it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LossFunction {
    /// The mean of the squared differences.
    MeanSquaredError,
    /// The mean of the absolute differences.
    MeanAbsoluteError,
    /// 100 times the mean of the absolute differences, each divided by the target.
    MeanAbsolutePercentageError,
    /// The mean of the squared differences between logarithms of one plus the value.
    MeanSquaredLogarithmicError,
    /// Half the squared difference up to `delta`, beyond it a line of this slope; the mean.
    Huber {
        /// Where the line begins.
        delta: f64,
    },
    /// The mean of the logarithms of the hyperbolic cosines of the differences.
    LogCosh,
    /// The cross-entropy of independent yes-no questions; the mean.
    BinaryCrossentropy {
        /// Whether predictions are before a sigmoid.
        from_logits: bool,
        /// How much of every target is replaced by a half.
        label_smoothing: f64,
    },
    /// The cross-entropy of one choice among the last axis.
    CategoricalCrossentropy {
        /// Whether predictions are before a softmax.
        from_logits: bool,
        /// How much of every target is spread over all classes.
        label_smoothing: f64,
    },
    /// The same for targets that are class numbers, here as zeros and a one. Probabilities that do
    /// not add up to 1 are divided by their sum after they are kept away from 0 and 1, not before.
    SparseCategoricalCrossentropy {
        /// Whether predictions are before a softmax.
        from_logits: bool,
    },
    /// The binary cross-entropy, times `(1 - probability of the target) ^ gamma`.
    BinaryFocalCrossentropy {
        /// Whether `alpha` weighs the targets.
        apply_class_balancing: bool,
        /// The weight of the target 1; that of 0 is `1 - alpha`.
        alpha: f64,
        /// The power.
        gamma: f64,
        /// Whether predictions are before a sigmoid.
        from_logits: bool,
        /// How much of every target is replaced by a half.
        label_smoothing: f64,
    },
    /// The categorical cross-entropy, each term times `alpha * (1 - probability) ^ gamma`.
    CategoricalFocalCrossentropy {
        /// The factor of all classes.
        alpha: f64,
        /// The power.
        gamma: f64,
        /// Whether predictions are before a softmax.
        from_logits: bool,
        /// How much of every target is spread over all classes.
        label_smoothing: f64,
    },
    /// The mean of `max(1 - target * prediction, 0)`; if all targets of a replica's batch are 0 or
    /// 1, 0 counts as -1.
    Hinge,
    /// The mean of the squares of [`Hinge`](Self::Hinge)'s terms.
    SquaredHinge,
    /// `max(largest prediction of another class - prediction of the class + 1, 0)`.
    CategoricalHinge,
    /// The sum of `target * ln(target / prediction)`, both kept between 1e-7 and 1.
    KlDivergence,
    /// The mean of `prediction - target * ln(prediction)`.
    Poisson,
    /// The cosine of the angle between both, negative: -1 for the same direction.
    CosineSimilarity,
}

/// Keras' names, the shorter names that Keras takes too, and the loss with Keras' defaults.
const NAMES: [(&str, &[&str], LossFunction); 17] = {
    use LossFunction as L;
    [
        ("mean_squared_error", &["mse"], L::MeanSquaredError),
        ("mean_absolute_error", &["mae"], L::MeanAbsoluteError),
        (
            "mean_absolute_percentage_error",
            &["mape"],
            L::MeanAbsolutePercentageError,
        ),
        (
            "mean_squared_logarithmic_error",
            &["msle"],
            L::MeanSquaredLogarithmicError,
        ),
        ("huber", &["huber_loss"], L::Huber { delta: 1.0 }),
        ("log_cosh", &["logcosh"], L::LogCosh),
        (
            "binary_crossentropy",
            &["bce"],
            L::BinaryCrossentropy {
                from_logits: false,
                label_smoothing: 0.0,
            },
        ),
        (
            "categorical_crossentropy",
            &["cce"],
            L::CategoricalCrossentropy {
                from_logits: false,
                label_smoothing: 0.0,
            },
        ),
        (
            "sparse_categorical_crossentropy",
            &["scce"],
            L::SparseCategoricalCrossentropy { from_logits: false },
        ),
        (
            "binary_focal_crossentropy",
            &["bfce"],
            L::BinaryFocalCrossentropy {
                apply_class_balancing: false,
                alpha: 0.25,
                gamma: 2.0,
                from_logits: false,
                label_smoothing: 0.0,
            },
        ),
        (
            "categorical_focal_crossentropy",
            &["cfce"],
            L::CategoricalFocalCrossentropy {
                alpha: 0.25,
                gamma: 2.0,
                from_logits: false,
                label_smoothing: 0.0,
            },
        ),
        ("hinge", &[], L::Hinge),
        ("squared_hinge", &[], L::SquaredHinge),
        ("categorical_hinge", &[], L::CategoricalHinge),
        (
            "kl_divergence",
            &["kld", "kullback_leibler_divergence"],
            L::KlDivergence,
        ),
        ("poisson", &[], L::Poisson),
        ("cosine_similarity", &[], L::CosineSimilarity),
    ]
};

/// An option of a loss, which can be changed.
enum Choice<'a> {
    Switch(&'a mut bool),
    /// A number, and whether it may have this value.
    Number(&'a mut f64, fn(f64) -> bool, &'static str),
}

impl LossFunction {
    /// Keras' names of all losses.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, ..)| *name)
    }

    /// The loss of a name of Keras in any case and with Keras' defaults, of a shorter name, or of
    /// Keras' class, with the name as it is usually written.
    #[must_use]
    pub fn named(text: &str) -> Option<(&'static str, Self)> {
        let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
        let text = plain(text);
        NAMES.iter().find_map(|(name, others, loss)| {
            let mut all = std::iter::once(name).chain(*others);
            all.find(|it| plain(it) == text).map(|name| (*name, *loss))
        })
    }

    /// Keras' name, without options.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let same =
            |other: &LossFunction| std::mem::discriminant(other) == std::mem::discriminant(self);
        let known = NAMES.iter().find(|(_, _, loss)| same(loss));
        known.map_or("", |(name, ..)| *name)
    }

    /// The same loss with this option.
    ///
    /// # Errors
    /// A text for people, if the loss has no such option or the option no such value.
    pub fn with_option(mut self, key: &str, value: &str) -> Result<Self, String> {
        let name = self.name();
        let mut choices = self.choices();
        let Some((_, choice)) = choices.iter_mut().find(|(known, _)| *known == key) else {
            let known: Vec<&str> = choices.iter().map(|(known, _)| *known).collect();
            return Err(if known.is_empty() {
                format!("{name} has no options, also no `{key}`")
            } else {
                format!("{name} has no option `{key}`; it has {}", known.join(", "))
            });
        };
        match choice {
            Choice::Switch(switch) => {
                **switch = value
                    .to_ascii_lowercase()
                    .parse()
                    .map_err(|_| format!("{name}: {key} is true or false, not `{value}`"))?;
            }
            Choice::Number(number, fits, wanted) => {
                let parsed = value.parse().ok().filter(|number: &f64| fits(*number));
                **number =
                    parsed.ok_or_else(|| format!("{name}: {key} is {wanted}, not `{value}`"))?;
            }
        }
        drop(choices);
        Ok(self)
    }

    /// The options with their present values, as texts.
    #[must_use]
    pub fn options(&self) -> Vec<(&'static str, String)> {
        let mut own = *self;
        let choices = own.choices().into_iter();
        choices
            .map(|(key, choice)| match choice {
                Choice::Switch(switch) => (key, switch.to_string()),
                Choice::Number(number, ..) => (key, number.to_string()),
            })
            .collect()
    }

    fn choices(&mut self) -> Vec<(&'static str, Choice<'_>)> {
        let smoothing = |number| {
            let fits: fn(f64) -> bool = |value| (0.0..=1.0).contains(&value);
            let choice = Choice::Number(number, fits, "a number from 0 to 1");
            ("label_smoothing", choice)
        };
        let positive = |number| {
            let fits: fn(f64) -> bool = |value| value.is_finite() && value > 0.0;
            Choice::Number(number, fits, "a number above 0")
        };
        let from_0 = |number| {
            let fits: fn(f64) -> bool = |value| value.is_finite() && value >= 0.0;
            Choice::Number(number, fits, "a number from 0 on")
        };
        match self {
            Self::Huber { delta } => vec![("delta", positive(delta))],
            Self::BinaryCrossentropy {
                from_logits,
                label_smoothing,
            }
            | Self::CategoricalCrossentropy {
                from_logits,
                label_smoothing,
            } => vec![
                ("from_logits", Choice::Switch(from_logits)),
                smoothing(label_smoothing),
            ],
            Self::SparseCategoricalCrossentropy { from_logits } => {
                vec![("from_logits", Choice::Switch(from_logits))]
            }
            Self::BinaryFocalCrossentropy {
                apply_class_balancing,
                alpha,
                gamma,
                from_logits,
                label_smoothing,
            } => vec![
                (
                    "apply_class_balancing",
                    Choice::Switch(apply_class_balancing),
                ),
                ("alpha", from_0(alpha)),
                ("gamma", from_0(gamma)),
                ("from_logits", Choice::Switch(from_logits)),
                smoothing(label_smoothing),
            ],
            Self::CategoricalFocalCrossentropy {
                alpha,
                gamma,
                from_logits,
                label_smoothing,
            } => vec![
                ("alpha", from_0(alpha)),
                ("gamma", from_0(gamma)),
                ("from_logits", Choice::Switch(from_logits)),
                smoothing(label_smoothing),
            ],
            _ => Vec::new(),
        }
    }

    /// Whether predictions are before a sigmoid or softmax; nothing for a loss that does not ask.
    #[must_use]
    pub fn from_logits(&self) -> Option<bool> {
        let mut own = *self;
        let choices = own.choices().into_iter();
        let mut switches = choices.filter(|(key, _)| *key == "from_logits");
        switches.find_map(|(_, choice)| match choice {
            Choice::Switch(switch) => Some(*switch),
            Choice::Number(..) => None,
        })
    }
}

impl fmt::Display for LossFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let usual = NAMES.iter().find(|(name, ..)| *name == self.name());
        let usual = usual.map(|(.., loss)| loss.options()).unwrap_or_default();
        let own = self.options().into_iter();
        let changed = own.zip(usual).filter(|(own, usual)| own != usual);
        for (index, ((key, value), _)) in changed.enumerate() {
            let before = if index == 0 { ':' } else { ',' };
            write!(f, "{before}{key}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for LossFunction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let Some((_, loss)) = Self::named(name) else {
            return Err(distribute_error::unknown("loss", name, Self::names()));
        };
        let pairs = options.split(',').filter(|pair| !pair.is_empty());
        pairs.into_iter().try_fold(loss, |loss, pair| {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(format!("`{pair}` is not OPTION=VALUE"));
            };
            loss.with_option(key.trim(), value.trim())
        })
    }
}
