//! Arrays of a NumPy archive that belong to inputs and outputs by their names.

use std::path::Path;

use distribute_readers::{Array, Examples, Features, Labels, TrainTest, read_npz_arrays};

use super::named::{Named, NamedData, NamedInput, width};
use crate::error::TaskError;
use crate::identity::listed;
use crate::split::Parts;

/// The arrays of an archive by their names.
type Arrays = [(String, Array)];

/// Which examples an array is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Train,
    Test,
    Validation,
}

impl Set {
    fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
            Self::Validation => "val",
        }
    }
}

/// Reads an archive. An input or output `a` is the array that was named for it, else `a` or
/// `a_train` (test examples: `a_test` or `a_val`), with `x_` or `y_` before it or without; one
/// alone may be called `x` or `y`.
pub(super) fn read(named: &Named, path: &Path, is_labelled: bool) -> Result<NamedData, TaskError> {
    let arrays = read_npz_arrays(path)?;
    let name = path
        .file_stem()
        .map_or("npz".into(), |name| name.to_string_lossy());
    if !is_labelled {
        let sets = [Set::Train, Set::Test, Set::Validation].into_iter();
        let mut sets = sets.filter(|set| inputs(named, &arrays, *set).is_some());
        let set = sets.next().unwrap_or(Set::Train);
        let (features, inputs) = features(named, &arrays, set)?;
        let labels = Labels::Absent(features.rows());
        let examples = Examples::new(&name, Features::Numbers(features), labels)?;
        return Ok(NamedData {
            parts: Parts::Whole(examples),
            inputs,
            widths: Vec::new(),
        });
    }
    let (train, inputs, widths) = examples(named, &arrays, Set::Train, &name)?;
    let others = [Set::Test, Set::Validation].into_iter();
    let mut others = others.filter(|set| {
        let outputs = named.outputs.iter();
        let mut all = outputs.map(|name| array(named, &arrays, name, false, *set));
        self::inputs(named, &arrays, *set).is_some() && all.all(|array| array.is_some())
    });
    let parts = match others.next() {
        None => Parts::Whole(train),
        Some(set) => {
            let (test, ..) = examples(named, &arrays, set, &name)?;
            Parts::Separate(TrainTest { train, test })
        }
    };
    Ok(NamedData {
        parts,
        inputs,
        widths,
    })
}

fn examples(
    named: &Named,
    arrays: &Arrays,
    set: Set,
    name: &str,
) -> Result<(Examples, Vec<NamedInput>, Vec<usize>), TaskError> {
    let (features, inputs) = features(named, arrays, set)?;
    let labels = named
        .outputs
        .iter()
        .map(|name| array(named, arrays, name, false, set));
    let labels: Option<Vec<&Array>> = labels.collect();
    let labels = labels.ok_or_else(|| missing(named, arrays, set))?;
    let widths = labels.iter().map(|labels| width(labels)).collect();
    same_rows(named, &labels, features.rows())?;
    let pairs: Vec<(&Array, f32)> = labels.into_iter().map(|labels| (labels, 1.0)).collect();
    let labels = Labels::Numbers(Array::side_by_side(&pairs)?);
    let set_name = format!("{name} {}", set.name());
    let examples = Examples::new(&set_name, Features::Numbers(features), labels)?;
    let weights = match set {
        Set::Train => &["sample_weight", "sample_weight_train"][..],
        Set::Test => &["sample_weight_test"],
        Set::Validation => &["sample_weight_val"],
    };
    let weights = weights.iter().find_map(|name| by_name(arrays, name));
    let examples = match weights {
        None => examples,
        Some(weights) => {
            let column = Array::side_by_side(&[(weights, 1.0)])?;
            same_rows(named, &[weights], examples.len())?;
            let all: Vec<usize> = (0..examples.len()).collect();
            let rows = column.rows();
            let weights =
                Examples::new("weights", Features::Numbers(column), Labels::Absent(rows))?;
            examples.with_weights(weights.features_f32(&all)?)?
        }
    };
    Ok((examples, inputs, widths))
}

/// The inputs, one behind the other.
fn features(
    named: &Named,
    arrays: &Arrays,
    set: Set,
) -> Result<(Array, Vec<NamedInput>), TaskError> {
    let found = inputs(named, arrays, set).ok_or_else(|| missing(named, arrays, set))?;
    let rows = found.first().map_or(0, |array| array.rows());
    same_rows(named, &found, rows)?;
    let inputs = named.inputs.iter().zip(&found).map(|(input, array)| {
        let mut input = input.clone();
        input.divisor = Some(named.divisor(&input, array.values()));
        input.shape = array.row_shape().to_vec();
        if input.shape.is_empty() {
            input.shape = vec![1];
        }
        input
    });
    let inputs: Vec<NamedInput> = inputs.collect();
    let divisors = inputs.iter().map(|input| input.divisor.unwrap_or(1.0));
    let pairs: Vec<(&Array, f32)> = found.into_iter().zip(divisors).collect();
    Ok((Array::side_by_side(&pairs)?, inputs))
}

fn inputs<'a>(named: &Named, arrays: &'a Arrays, set: Set) -> Option<Vec<&'a Array>> {
    let inputs = named.inputs.iter();
    inputs
        .map(|input| array(named, arrays, &input.name, true, set))
        .collect()
}

/// The array of an input or output.
fn array<'a>(
    named: &Named,
    arrays: &'a Arrays,
    name: &str,
    is_input: bool,
    set: Set,
) -> Option<&'a Array> {
    let candidates = candidates(named, name, is_input, set);
    candidates.iter().find_map(|name| by_name(arrays, name))
}

fn candidates(named: &Named, name: &str, is_input: bool, set: Set) -> Vec<String> {
    let (letter, alone) = if is_input {
        ("x", named.inputs.len() == 1)
    } else {
        ("y", named.outputs.len() == 1)
    };
    let suffix = set.name();
    let of = |name: &str| match set {
        Set::Train => vec![name.to_string(), format!("{name}_{suffix}")],
        _ => vec![format!("{name}_{suffix}")],
    };
    if let Some([chosen, ..]) = named.chosen(name) {
        return of(chosen);
    }
    let mut all = of(name);
    all.extend(of(&format!("{letter}_{name}")));
    all.push(format!("{letter}_{suffix}_{name}"));
    if alone {
        all.extend(of(letter));
    }
    all
}

fn by_name<'a>(arrays: &'a Arrays, name: &str) -> Option<&'a Array> {
    let found = arrays.iter().find(|(own, _)| own == name);
    found.map(|(_, array)| array)
}

fn same_rows(named: &Named, arrays: &[&Array], rows: usize) -> Result<(), TaskError> {
    match arrays.iter().find(|array| array.rows() != rows) {
        None => Ok(()),
        Some(other) => Err(named.error(format!(
            "the arrays have {rows} and {} examples; give as many of each",
            other.rows()
        ))),
    }
}

/// The error that names what has no array.
fn missing(named: &Named, arrays: &Arrays, set: Set) -> TaskError {
    let inputs = named.inputs.iter().map(|input| (&input.name, true));
    let outputs = named.outputs.iter().map(|name| (name, false));
    let without = inputs
        .chain(outputs)
        .filter(|(name, is_input)| array(named, arrays, name, *is_input, set).is_none());
    let without: Vec<&str> = without.map(|(name, _)| name.as_str()).collect();
    let names: Vec<&str> = arrays.iter().map(|(name, _)| name.as_str()).collect();
    named.error(format!(
        "no array belongs to {}: call it by this name (test examples: with _test behind it), or \
         name it by `ReadingOptions::columns`; there are {}",
        without.join(", "),
        listed(&names)
    ))
}
