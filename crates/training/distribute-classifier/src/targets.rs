//! What the labels of the data are: classes, or values that the model is to return. Data, model and
//! loss decide.

use distribute_keras::{Head, Plan};
use distribute_readers::{Examples, ReadError, TrainTest};

use crate::error::TaskError;
use crate::loss_name::LossName;
use crate::names::TargetsName;
use crate::rows::row_ranges;
use crate::split::Parts;

/// What decides beside the data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hints {
    pub(crate) asked: TargetsName,
    /// The loss that is asked for, or that the model was compiled with.
    pub(crate) loss: Option<LossName>,
    /// What the model ends with, and its number of outputs; nothing for a built-in model, which has
    /// as many as the data needs.
    pub(crate) ending: Option<(Head, usize)>,
}

impl Hints {
    /// Whether whole numbers are target values: for a loss of values, and a model with one output
    /// that is no probability.
    fn is_of_values(&self) -> bool {
        let one_value = matches!(self.ending, Some((Head::Linear, 1)));
        one_value && self.loss.is_some_and(|loss| loss.is_of_values())
    }

    /// Whether labels that are no classes are values: not for a model that tells several classes
    /// apart, and whole numbers, of which one may be wrong, only for a model or a loss of values.
    fn takes_values(&self, parts: &Parts) -> Result<bool, TaskError> {
        let width: usize = parts.first().label_shape().iter().product();
        let is_of_values = self.loss.is_some_and(|loss| loss.is_of_values());
        Ok(match self.ending {
            _ if width > 1 => true,
            Some((_, outputs)) if outputs > 1 => false,
            Some((Head::Linear, _)) => true,
            _ => is_of_values || has_fractions(parts)?,
        })
    }
}

/// The data with labels as classes, or as values, and which they are.
///
/// Names, whole numbers from 0 on, and rows of zeros with one 1 are classes; others are values,
/// unless the model tells several classes apart, or all are whole numbers and nothing else says so.
/// Whole numbers from 0 on are values for a model and a loss of values, too.
pub(crate) fn decided(parts: Parts, hints: Hints) -> Result<(Parts, TargetsName), TaskError> {
    let as_values = match hints.asked {
        TargetsName::Classes => false,
        TargetsName::Values => true,
        TargetsName::Auto => hints.is_of_values() && are_numbers(&parts),
    };
    if as_values {
        return Ok((values(parts)?, TargetsName::Values));
    }
    match classes(&parts) {
        Ok(classes) => Ok((classes, TargetsName::Classes)),
        Err(TaskError::NotClasses(error)) => {
            if hints.asked == TargetsName::Auto && hints.takes_values(&parts)? {
                Ok((values(parts)?, TargetsName::Values))
            } else {
                Err(TaskError::NotClasses(error))
            }
        }
        Err(error) => Err(error),
    }
}

/// The data with labels of a kind that is known.
pub(crate) fn known(parts: Parts, targets: TargetsName) -> Result<Parts, TaskError> {
    match targets {
        TargetsName::Values => values(parts),
        TargetsName::Classes | TargetsName::Auto => classes(&parts),
    }
}

fn sets(parts: &Parts) -> Vec<&Examples> {
    match parts {
        Parts::Whole(all) => vec![all],
        Parts::Separate(both) => vec![&both.train, &both.test],
    }
}

/// Whether no class has a name.
fn are_numbers(parts: &Parts) -> bool {
    sets(parts)
        .iter()
        .all(|examples| examples.class_names().is_empty())
}

/// Whether a label is no whole number.
fn has_fractions(parts: &Parts) -> Result<bool, TaskError> {
    for examples in sets(parts) {
        for range in row_ranges(examples, examples.len()) {
            let values = examples.labels_f32(&range.collect::<Vec<_>>())?;
            if values.iter().any(|value| value.fract() != 0.0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn mapped(
    parts: Parts,
    change: impl Fn(Examples) -> Result<Examples, TaskError>,
) -> Result<Parts, TaskError> {
    Ok(match parts {
        Parts::Whole(all) => Parts::Whole(change(all)?),
        Parts::Separate(TrainTest { train, test }) => Parts::Separate(TrainTest {
            train: change(train)?,
            test: change(test)?,
        }),
    })
}

fn values(parts: Parts) -> Result<Parts, TaskError> {
    mapped(parts, |examples| {
        if examples.class_names().is_empty() {
            Ok(examples.with_labels_as_values()?)
        } else {
            Err(TaskError::NamesAsValues {
                dataset: examples.name().to_string(),
                name: examples.class_names()[0].clone(),
            })
        }
    })
}

/// Converts numeric labels to classes; an error if they are not class numbers.
fn classes(parts: &Parts) -> Result<Parts, TaskError> {
    let classes = |examples: &Examples| {
        let named = examples.clone().with_labels_as_classes();
        named.map_err(|error| match error {
            ReadError::NotClasses { .. } => TaskError::NotClasses(error),
            other => other.into(),
        })
    };
    Ok(match parts {
        Parts::Whole(all) => Parts::Whole(classes(all)?),
        Parts::Separate(both) => {
            let (train, test) = (classes(&both.train)?, classes(&both.test)?);
            let count = train.classes().max(test.classes()).unwrap_or(1);
            Parts::Separate(TrainTest {
                train: train.with_classes(count)?,
                test: test.with_classes(count)?,
            })
        }
    })
}

/// How many outputs a model needs for these labels: one per class, or per value.
pub(crate) fn outputs(examples: &Examples) -> usize {
    let width = || examples.label_shape().iter().product();
    examples.classes().unwrap_or_else(width)
}

/// Refuses values of another number than the model's outputs.
pub(crate) fn check_width(examples: &Examples, plan: &Plan) -> Result<(), TaskError> {
    let width: usize = examples.label_shape().iter().product();
    let outputs = plan.output().elements();
    if width == outputs {
        return Ok(());
    }
    Err(TaskError::TargetWidth {
        dataset: examples.name().to_string(),
        found: width,
        model: plan.name.clone(),
        outputs,
    })
}

/// Refuses target values that are no probabilities, for a cross-entropy.
pub(crate) fn check_probabilities(
    examples: &Examples,
    plan: &Plan,
    loss: &LossName,
) -> Result<(), TaskError> {
    for range in row_ranges(examples, examples.len()) {
        let rows: Vec<usize> = range.collect();
        let values = examples.labels_f32(&rows)?;
        let width = (values.len() / rows.len().max(1)).max(1);
        let wrong = values.iter().position(|value| !(0.0..=1.0).contains(value));
        if let Some(place) = wrong {
            return Err(TaskError::NotProbability {
                dataset: examples.name().to_string(),
                row: examples.rows()[rows[place / width]],
                value: values[place],
                model: plan.name.clone(),
                loss: loss.name(),
            });
        }
    }
    Ok(())
}

/// In one line: what is told apart, or returned.
pub(crate) fn line(targets: TargetsName, examples: &Examples, names: &[String]) -> String {
    let weights = if examples.is_weighted() {
        "; weighted"
    } else {
        ""
    };
    let width: usize = examples.label_shape().iter().product();
    match (targets, names.len()) {
        (TargetsName::Values, _) => match width {
            1 => format!("targets: one value per example{weights}"),
            width => format!("targets: {width} values per example{weights}"),
        },
        (_, 0) => {
            let classes = examples.classes().unwrap_or(1);
            format!("targets: {classes} classes by number{weights}")
        }
        (_, count) => {
            let names = crate::identity::listed(names);
            format!("targets: {count} classes by name ({names}){weights}")
        }
    }
}
