//! The data of inputs and outputs by their names.

use distribute_keras::ModelSpec;
use distribute_readers::{Array, Examples, TrainTest, Values};
use serde_json::{Value, json};

use crate::error::TaskError;
use crate::names::ScaleName;
use crate::split::Parts;

/// An input with the data that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedInput {
    pub(crate) name: String,
    /// The shape of one example; empty before the data is read.
    pub(crate) shape: Vec<usize>,
    /// The shape that the model declares.
    pub(crate) declared: Option<Vec<Option<usize>>>,
    /// What its values are divided by; nothing if it was not decided yet.
    pub(crate) divisor: Option<f32>,
}

impl NamedInput {
    /// The inputs in a checkpoint.
    pub(crate) fn stored(inputs: &Value) -> Option<Vec<Self>> {
        let inputs = inputs.as_array()?.iter().map(|input| {
            let shape = input["shape"].as_array()?.iter();
            let extent = |extent: &Value| usize::try_from(extent.as_u64()?).ok();
            Some(Self {
                name: input["name"].as_str()?.to_string(),
                shape: shape.map(extent).collect::<Option<_>>()?,
                declared: None,
                divisor: input["divided_by"].as_f64().map(|divisor| divisor as f32),
            })
        });
        inputs.collect()
    }

    pub(super) fn line(&self) -> String {
        let scaled = match self.divisor {
            Some(divisor) if divisor != 1.0 => format!(", divided by {divisor}"),
            _ => String::new(),
        };
        format!("input {}: {:?}{scaled}", self.name, self.shape)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "name": self.name, "shape": self.shape, "divided_by": self.divisor })
    }

    /// The number of values that the model declares, if it does.
    pub(super) fn width(&self) -> Option<usize> {
        let declared = self.declared.as_ref()?.iter();
        declared
            .copied()
            .try_fold(1, |product, extent| Some(product * extent?))
    }

    /// The shape of columns of a table: the declared one, if it has as many values.
    pub(super) fn shape_of_columns(&self, columns: usize) -> Vec<usize> {
        let declared = self.declared.as_ref().and_then(|declared| {
            let extents: Option<Vec<usize>> = declared.iter().copied().collect();
            extents.filter(|extents| extents.iter().product::<usize>() == columns)
        });
        declared.unwrap_or_else(|| vec![columns])
    }
}

/// The inputs and outputs of a model, whose data is found by their names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Named {
    /// For errors.
    pub(crate) model: String,
    pub(crate) inputs: Vec<NamedInput>,
    pub(crate) outputs: Vec<String>,
    /// Columns or arrays that were named for an input or an output.
    pub(crate) chosen: Vec<(String, Vec<String>)>,
    /// What bytes are divided by, if it was not decided for an input.
    pub(crate) bytes: f32,
    /// What all values are divided by, whatever their type.
    pub(crate) all: Option<f32>,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct NamedData {
    pub(crate) parts: Parts,
    /// The inputs with their shapes and divisors.
    pub(crate) inputs: Vec<NamedInput>,
    /// How many target values each output has.
    pub(crate) widths: Vec<usize>,
}

impl Named {
    pub(crate) fn of(
        spec: &ModelSpec,
        chosen: &[(String, Vec<String>)],
        scale: Option<ScaleName>,
    ) -> Self {
        let inputs = spec.inputs.iter().map(|input| NamedInput {
            name: input.name.clone(),
            shape: Vec::new(),
            declared: input.shape.clone(),
            divisor: None,
        });
        let rescales = spec.rescales_bytes().is_some();
        Self {
            model: spec.name.clone(),
            inputs: inputs.collect(),
            outputs: spec
                .outputs
                .iter()
                .map(|output| output.name.clone())
                .collect(),
            chosen: chosen.to_vec(),
            bytes: match scale {
                Some(ScaleName::None | ScaleName::By255) => 1.0,
                _ if rescales => 1.0,
                _ => 255.0,
            },
            // A scale that is asked for is applied to all values once they are read.
            all: scale.filter(|it| *it != ScaleName::Auto).map(|_| 1.0),
        }
    }

    /// Bytes of an input are divided as in the training of these, unless a scale is asked for.
    pub(crate) fn with_divisors_of(mut self, trained: &[NamedInput]) -> Self {
        for input in &mut self.inputs {
            let same = trained.iter().find(|it| it.name == input.name);
            input.divisor = same.and_then(|it| it.divisor);
        }
        self
    }

    /// What was named for an input or an output.
    pub(super) fn chosen(&self, name: &str) -> Option<&[String]> {
        let found = self.chosen.iter().find(|(own, _)| own == name);
        found.map(|(_, columns)| columns.as_slice())
    }

    pub(super) fn error(&self, what: String) -> TaskError {
        TaskError::NamedData {
            model: self.model.clone(),
            what,
        }
    }

    /// What the values of an input are divided by.
    pub(super) fn divisor(&self, input: &NamedInput, values: &Values) -> f32 {
        let is_bytes = matches!(values, Values::U8(_));
        match (self.all, input.divisor, is_bytes) {
            (Some(all), ..) => all,
            (None, Some(decided), true) => decided,
            (None, _, true) => self.bytes,
            (None, ..) => 1.0,
        }
    }
}

impl NamedData {
    /// The data of a model with one input and one output, which has several axes.
    pub(crate) fn of_one(spec: &ModelSpec, parts: Parts) -> Result<Self, TaskError> {
        let first = parts.first();
        let input = NamedInput {
            name: spec
                .inputs
                .first()
                .map_or_else(String::new, |input| input.name.clone()),
            shape: first.feature_shape().to_vec(),
            declared: None,
            divisor: None,
        };
        let widths = vec![first.label_shape().iter().product()];
        let parts = match parts {
            Parts::Whole(all) => Parts::Whole(all.with_labels_as_values()?),
            Parts::Separate(both) => Parts::Separate(TrainTest {
                train: both.train.with_labels_as_values()?,
                test: both.test.with_labels_as_values()?,
            }),
        };
        Ok(Self {
            parts,
            inputs: vec![input],
            widths,
        })
    }

    /// The examples.
    pub(crate) fn into_first(self) -> Examples {
        match self.parts {
            Parts::Whole(all) => all,
            Parts::Separate(both) => both.train,
        }
    }
}

/// The values of an array for each example.
pub(super) fn width(array: &Array) -> usize {
    array.row_len()
}
