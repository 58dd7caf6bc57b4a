//! What is refused before a step: labels, tokens, outputs and sizes that do not fit each other.

use std::collections::BTreeSet;
use std::ops::Range;

use distribute_keras::{ModelSpec, Plan, Shape};
use distribute_readers::{Examples, ReadError, TrainTest};

use crate::dataset_name::DatasetName;
use crate::error::TaskError;
use crate::loss;
use crate::rows::row_ranges;
use crate::several::OutputTask;

/// A model of more is a mistake in a file; its memory would end the program.
const MAX_PARAMETERS: usize = 1 << 31;
/// How many times as many classes there may be as labels that occur.
const CLASSES_PER_LABEL: usize = 16;
/// As many names may each be of one example.
const MAX_NAMES: usize = 2;

/// Refuses labels that are no classes of the model: one output is for two classes, more outputs are
/// for as many classes.
pub(crate) fn labels(
    examples: &Examples,
    plan: &Plan,
    dataset: &DatasetName,
) -> Result<(), TaskError> {
    let outputs = plan.output().elements();
    let classes = if outputs == 1 { 2 } else { outputs };
    let all: Vec<usize> = (0..examples.len()).collect();
    let labels = examples.labels_i64(&all)?;
    let known = |label: &i64| usize::try_from(*label).is_ok_and(|label| label < classes);
    match labels.iter().position(|label| !known(label)) {
        None => Ok(()),
        Some(index) => Err(TaskError::UnknownClass {
            dataset: dataset.to_string(),
            set: examples.name().to_string(),
            row: examples.rows()[index],
            label: labels[index],
            model: plan.name.clone(),
            classes,
        }),
    }
}

/// What a model reads by an embedding must be token numbers that it has.
pub(crate) fn tokens(examples: &Examples, spec: &ModelSpec) -> Result<(), TaskError> {
    let Some(tokens) = spec.tokens() else {
        return Ok(());
    };
    match first_other(examples, tokens)? {
        None => Ok(()),
        Some((index, value)) => Err(TaskError::NotToken {
            set: examples.name().to_string(),
            index,
            value,
            model: spec.name.clone(),
            tokens,
        }),
    }
}

/// What a model with several inputs, of these numbers of values, reads by an embedding.
pub(crate) fn tokens_of_inputs(
    examples: &Examples,
    spec: &ModelSpec,
    widths: &[usize],
) -> Result<(), TaskError> {
    let mut first = 0;
    for (input, width) in widths.iter().enumerate() {
        first += width;
        let Some(tokens) = spec.tokens_of(input) else {
            continue;
        };
        if let Some((index, value)) = first_other_in(examples, tokens, first - width..first)? {
            return Err(TaskError::NotToken {
                set: examples.name().to_string(),
                index,
                value,
                model: format!("{}, input {},", spec.name, spec.inputs[input].name),
                tokens,
            });
        }
    }
    Ok(())
}

/// The first value that is no token number, and its example.
fn first_other(examples: &Examples, tokens: usize) -> Result<Option<(usize, f32)>, ReadError> {
    let width = examples.feature_shape().iter().product::<usize>().max(1);
    first_other_in(examples, tokens, 0..width)
}

/// The same of these values of every example.
fn first_other_in(
    examples: &Examples,
    tokens: usize,
    places: Range<usize>,
) -> Result<Option<(usize, f32)>, ReadError> {
    let is_token = |x: &f32| x.fract() == 0.0 && (0.0..tokens as f32).contains(x);
    let width = examples.feature_shape().iter().product::<usize>().max(1);
    for range in row_ranges(examples, examples.len()) {
        let values = examples.features_f32(&range.clone().collect::<Vec<_>>())?;
        for (row, values) in values.chunks_exact(width).enumerate() {
            let mut own = values[places.clone()].iter();
            if let Some(value) = own.find(|value| !is_token(value)) {
                return Ok(Some((range.start + row, *value)));
            }
        }
    }
    Ok(None)
}

/// Refuses targets of an output that are no classes of it, or no probabilities where its loss wants
/// them.
pub(crate) fn targets_of(
    examples: &Examples,
    output: &OutputTask,
    model: &str,
    dataset: &DatasetName,
) -> Result<(), TaskError> {
    let Some(place) = output.measured.target else {
        return Ok(());
    };
    let classes = output.features();
    let is_of_probabilities = loss::wants_probabilities(&output.measured.loss);
    let is_right = |value: f32| match (place.is_class, is_of_probabilities) {
        (true, _) => value.fract() == 0.0 && (0.0..classes as f32).contains(&value),
        (false, true) => (0.0..=1.0).contains(&value),
        (false, false) => true,
    };
    for range in row_ranges(examples, examples.len()) {
        let rows: Vec<usize> = range.collect();
        let values = examples.labels_f32(&rows)?;
        let width = (values.len() / rows.len().max(1)).max(1);
        for (values, row) in values.chunks_exact(width).zip(&rows) {
            let own = &values[place.first..place.first + place.width];
            let Some(wrong) = own.iter().find(|value| !is_right(**value)) else {
                continue;
            };
            let row = examples.rows()[*row];
            let model = format!("{model}, output {},", output.name);
            let dataset = dataset.to_string();
            return Err(if place.is_class {
                TaskError::UnknownClass {
                    dataset,
                    set: examples.name().to_string(),
                    row,
                    label: wrong.floor() as i64,
                    model,
                    classes,
                }
            } else {
                TaskError::NotProbability {
                    dataset,
                    row,
                    value: *wrong,
                    model,
                    loss: output.measured.loss.name(),
                }
            });
        }
    }
    Ok(())
}

/// Refuses a number of classes that one wrong label has made: it is the largest label plus one
/// where nothing else says it.
pub(crate) fn classes(data: &TrainTest, dataset: &DatasetName) -> Result<(), TaskError> {
    let classes = data.train.classes().unwrap_or(1);
    let sets = [&data.train, &data.test];
    if dataset.knows_classes() || data.train.classes().is_none() {
        return Ok(());
    }
    if !data.train.class_names().is_empty() {
        return names(data, dataset);
    }
    let mut largest = (-1, 0, &data.train);
    let mut used = BTreeSet::new();
    for examples in sets {
        let all: Vec<usize> = (0..examples.len()).collect();
        for (index, label) in examples.labels_i64(&all)?.into_iter().enumerate() {
            used.insert(label);
            if label > largest.0 {
                largest = (label, index, examples);
            }
        }
    }
    let examples = data.train.len() + data.test.len();
    if classes <= examples && classes <= CLASSES_PER_LABEL * used.len() {
        return Ok(());
    }
    let (label, index, set) = largest;
    Err(TaskError::ManyClasses {
        dataset: dataset.to_string(),
        set: set.name().to_string(),
        row: set.rows()[index],
        label,
        classes,
        used: used.len(),
        examples,
    })
}

/// Refuses a column of texts of which each occurs once: it holds no classes.
fn names(data: &TrainTest, dataset: &DatasetName) -> Result<(), TaskError> {
    let (names, examples) = (
        data.train.class_names().len(),
        data.train.len() + data.test.len(),
    );
    if dataset.is_images() || names < examples || names <= MAX_NAMES {
        return Ok(());
    }
    Err(TaskError::NameForEach {
        dataset: dataset.to_string(),
        examples,
    })
}

/// Refuses a model that is no classifier.
pub(crate) fn outputs(plan: &Plan) -> Result<(), TaskError> {
    if !matches!(plan.output(), Shape::Flat(_)) {
        return Err(TaskError::OutputShape {
            model: plan.name.clone(),
            shape: plan.output().to_string(),
        });
    }
    Ok(())
}

/// Refuses a model that has nothing to train.
pub(crate) fn trained(plan: &Plan) -> Result<(), TaskError> {
    if plan.trained_parameters() == 0 {
        let advice = match plan.parameters() {
            0 => "add a layer with weights",
            _ => "set `trainable` of a layer with weights, and of the models around it, to true",
        };
        return Err(TaskError::NothingToTrain {
            model: plan.name.clone(),
            advice,
        });
    }
    Ok(())
}

/// Refuses what no memory holds, and test examples that do not fit the training examples.
pub(crate) fn sizes(data: &TrainTest, plan: &Plan, dataset: &DatasetName) -> Result<(), TaskError> {
    if plan.parameters() > MAX_PARAMETERS {
        return Err(TaskError::TooLarge {
            model: plan.name.clone(),
            most: MAX_PARAMETERS,
        });
    }
    let (train, test) = (data.train.feature_shape(), data.test.feature_shape());
    if train != test {
        return Err(TaskError::OtherShape {
            dataset: dataset.to_string(),
            train: train.to_vec(),
            test: test.to_vec(),
        });
    }
    Ok(())
}

/// Refuses a model with several inputs or outputs that reads texts.
pub(crate) fn no_texts(spec: &ModelSpec) -> Result<(), TaskError> {
    match spec.inputs.iter().find(|input| input.is_text) {
        None => Ok(()),
        Some(input) => Err(TaskError::NamedData {
            model: spec.name.clone(),
            what: format!(
                "the input {} reads texts, which a model with several inputs or outputs cannot \
                 be trained on here; keep the layer that reads texts out of the model, and give \
                 its numbers as the data",
                input.name
            ),
        }),
    }
}

/// Refuses columns that are named for a model whose data is not found by names.
pub(crate) fn no_columns(columns: &[(String, Vec<String>)], plan: &Plan) -> Result<(), TaskError> {
    let Some((name, _)) = columns.first() else {
        return Ok(());
    };
    Err(TaskError::NamedData {
        model: plan.name.clone(),
        what: format!(
            "`ReadingOptions::columns` names the data of {name}, which is for models with \
             several inputs or outputs; this model has one of each, so leave it out, and name the \
             target by `ReadingOptions::label_column`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use distribute_readers::{Array, Features, Labels, Values};

    use super::*;

    /// More than are read at once, with one value of the last example that is no token.
    #[test]
    fn a_wrong_token_is_found_in_any_part_of_the_data() {
        let rows = (1 << 19) + 3;
        let mut values = vec![1.0_f32; rows * 2];
        let examples = |values: &[f32]| {
            let array = Array::new(vec![rows, 2], Values::F32(values.to_vec())).unwrap();
            Examples::new("test", Features::Numbers(array), Labels::Absent(rows)).unwrap()
        };
        assert_eq!(first_other(&examples(&values), 2).unwrap(), None);
        let last = rows * 2 - 1;
        for wrong in [2.0, -1.0, 0.5] {
            values[last] = wrong;
            let found = first_other(&examples(&values), 2).unwrap().unwrap();
            assert_eq!(found.0, rows - 1);
            assert_eq!(found.1.to_bits(), wrong.to_bits());
        }
        values[4] = 7.0;
        assert_eq!(first_other(&examples(&values), 2).unwrap(), Some((2, 7.0)));
    }
}
