//! The loss by its name: what is asked for, and what a checkpoint keeps.

use std::str::FromStr;

use distribute_data::LossFunction;

/// The loss between the outputs of the model and the targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossName {
    /// Between the outputs and the class, or as many yes-no questions behind a sigmoid.
    CrossEntropy,
    /// The mean of the squares of the differences: to target values, or to the class as zeros and
    /// a one.
    Mse,
    /// The mean of the absolute differences.
    Mae,
    /// A loss of Keras.
    Keras {
        /// The loss, with its options.
        function: LossFunction,
        /// Whether the outputs of a model that ends with neither a sigmoid nor a softmax are
        /// numbers before one; they are, if nothing is said.
        from_logits: Option<bool>,
    },
}

const CROSS_ENTROPY: &str = "cross-entropy";
/// The option that [`LossName::Keras`] keeps apart.
const FROM_LOGITS: &str = "from_logits";

impl LossName {
    /// Its text, which is read back by `parse`: `mse`, `huber:delta=2`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::CrossEntropy => CROSS_ENTROPY.to_string(),
            Self::Mse => "mse".to_string(),
            Self::Mae => "mae".to_string(),
            Self::Keras {
                function,
                from_logits,
            } => {
                let text = function.to_string();
                let between = if text.contains(':') { ',' } else { ':' };
                let option = from_logits.map(|is| format!("{between}{FROM_LOGITS}={is}"));
                text + &option.unwrap_or_default()
            }
        }
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        [CROSS_ENTROPY, "mse", "mae"]
            .into_iter()
            .chain(LossFunction::names())
    }

    /// A loss of Keras; what has a name of its own here has that one.
    #[must_use]
    pub fn of(function: LossFunction, from_logits: Option<bool>) -> Self {
        match function {
            LossFunction::MeanSquaredError => Self::Mse,
            LossFunction::MeanAbsoluteError => Self::Mae,
            function => Self::Keras {
                function: without_logits(function),
                from_logits,
            },
        }
    }

    /// The loss of Keras that it is; nothing for the one that follows from the model.
    #[must_use]
    pub fn function(&self) -> Option<LossFunction> {
        match self {
            Self::CrossEntropy => None,
            Self::Mse => Some(LossFunction::MeanSquaredError),
            Self::Mae => Some(LossFunction::MeanAbsoluteError),
            Self::Keras { function, .. } => Some(*function),
        }
    }

    /// Whether the targets of this loss are values and not the classes of a classifier, unless the
    /// model says otherwise.
    pub(crate) fn is_of_values(&self) -> bool {
        use LossFunction as L;
        matches!(
            self.function(),
            Some(
                L::MeanSquaredError
                    | L::MeanAbsoluteError
                    | L::MeanAbsolutePercentageError
                    | L::MeanSquaredLogarithmicError
                    | L::Huber { .. }
                    | L::LogCosh
                    | L::Poisson
                    | L::CosineSimilarity
            )
        )
    }
}

fn without_logits(function: LossFunction) -> LossFunction {
    let without = function.with_option(FROM_LOGITS, "false");
    without.unwrap_or(function)
}

impl FromStr for LossName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case(CROSS_ENTROPY) {
            return Ok(Self::CrossEntropy);
        }
        let name = text.split(':').next().unwrap_or_default();
        if LossFunction::named(name).is_none() {
            return Err(distribute_error::unknown("loss", name, Self::names()));
        }
        let function: LossFunction = text.parse()?;
        let is_said = text.contains(FROM_LOGITS);
        Ok(Self::of(
            function,
            function.from_logits().filter(|_| is_said),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_read_back_from_its_text() {
        for text in [
            "cross-entropy",
            "mse",
            "mae",
            "huber:delta=2",
            "binary_crossentropy",
            "binary_crossentropy:from_logits=false",
            "binary_crossentropy:label_smoothing=0.1,from_logits=true",
        ] {
            assert_eq!(text.parse::<LossName>().unwrap().name(), text);
        }
        let long: LossName = "MeanSquaredError".parse().unwrap();
        assert_eq!(long, LossName::Mse);
        let error = "croos-entropy".parse::<LossName>().unwrap_err();
        assert!(error.contains("did you mean `cross-entropy`"), "{error}");
    }
}
