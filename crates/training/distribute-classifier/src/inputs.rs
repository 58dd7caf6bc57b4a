//! The identity of a model's inputs: their names and order, their type and scale, and the source of
//! the labels. A checkpoint stores it, and other data is matched with it.

use std::collections::BTreeSet;

use distribute_core::checkpoint::Metadata;
use distribute_keras::ModelSpec;
use distribute_readers::{CsvColumns, Examples, LabelPlace, ReadError, TrainTest};
use serde_json::{Value, json};

use crate::dataset_name::DatasetName;
use crate::identity::listed;
use crate::names::ScaleName;
use crate::reading_options::EXTRA_KEY;
use crate::rows::row_ranges;

/// The divisor that maps bytes to numbers from 0 to 1.
const LARGEST_BYTE: f32 = 255.0;
/// With fewer lines a column may be consecutive by chance.
const MIN_LINES: usize = 5;
/// Names that pandas and spreadsheets give to a column of line numbers.
const COUNTING_NAMES: [&str; 4] = ["", "Unnamed: 0", "index", "id"];

/// The inputs of a model, apart from the values.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// The names of the features, in the order of the model; empty if they have none.
    columns: Vec<String>,
    label: Option<String>,
    /// The number of features before the label in a line of a table; missing in older records.
    label_place: Option<usize>,
    /// The type of the values in the file.
    stored: String,
    divisor: f32,
    /// The layer of the model that rescales bytes, if they are not divided because of it.
    rescaled_by: Option<String>,
}

impl Inputs {
    pub(crate) fn of(examples: &Examples, spec: &ModelSpec) -> Self {
        let is_taken = examples.stored_type() == "u8" && examples.divisor() == 1.0;
        let columns = if examples.is_text() {
            Vec::new()
        } else {
            examples.column_names().to_vec()
        };
        Self {
            columns,
            label: examples.label_name().map(str::to_string),
            label_place: examples.label_place(),
            stored: examples.stored_type().to_string(),
            divisor: examples.divisor(),
            rescaled_by: spec
                .rescales_bytes()
                .filter(|_| is_taken)
                .map(str::to_string),
        }
    }

    /// For a checkpoint.
    pub fn to_json(&self) -> Value {
        json!({
            "columns": self.columns,
            "label": self.label,
            "label_place": self.label_place,
            "type": self.stored,
            "divided_by": self.divisor,
            "rescaled_by": self.rescaled_by,
        })
    }

    /// From a checkpoint; `None` for an older one.
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_string);
        let columns = value["columns"].as_array()?.iter();
        Some(Self {
            columns: columns
                .map(|name| name.as_str().map(str::to_string))
                .collect::<Option<_>>()?,
            label: text("label"),
            label_place: value["label_place"]
                .as_u64()
                .and_then(|place| usize::try_from(place).ok()),
            stored: text("type")?,
            divisor: value["divided_by"].as_f64()? as f32,
            rescaled_by: text("rescaled_by"),
        })
    }

    /// The inputs in a checkpoint, and their number of values per example.
    pub fn of_checkpoint(metadata: &Metadata) -> Option<(Self, usize)> {
        let extra = metadata.extra.get(EXTRA_KEY)?;
        let extents: Option<Vec<u64>> = extra["features"]
            .as_array()?
            .iter()
            .map(Value::as_u64)
            .collect();
        let values = usize::try_from(extents?.iter().product::<u64>()).ok()?;
        Some((Self::from_json(&extra["inputs"])?, values))
    }

    /// The name of the column or array of the labels; of several columns with commas between them.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The name of the scale of these inputs; a dataset may have its own divisor.
    pub fn scale(&self) -> &'static str {
        match self.divisor {
            1.0 => "none",
            LARGEST_BYTE => "255",
            _ => "auto",
        }
    }

    /// How to find the columns of other data with `features` values per example.
    pub fn columns(&self, features: usize) -> CsvColumns {
        if self.columns.is_empty() {
            CsvColumns::Count(features)
        } else {
            CsvColumns::Named {
                features: self.columns.clone(),
                label: self.label.clone(),
            }
        }
    }

    /// The position of the label in a table without header.
    pub fn label_place(&self) -> LabelPlace {
        match self.label_place {
            Some(place) => LabelPlace::After(place),
            // The table had a header, so its label may be at any position.
            None if !self.columns.is_empty() && self.label.is_some() => LabelPlace::Unknown,
            None => LabelPlace::Last,
        }
    }

    /// In one line.
    pub fn line(&self, dataset: &DatasetName) -> String {
        let columns = match self.columns.len() {
            0 => None,
            count => Some(format!(
                "{count} columns by name ({})",
                listed(&self.columns)
            )),
        };
        let scale = match (&self.rescaled_by, self.divisor) {
            (Some(layer), _) => {
                format!(
                    "{} unchanged, which the layer {layer} of the model rescales",
                    self.stored
                )
            }
            (None, 1.0) if self.stored == "text" => self.stored.clone(),
            (None, 1.0) => format!("{} unchanged", self.stored),
            (None, divisor) => format!("{} divided by {divisor}", self.stored),
        };
        let unnamed = match dataset {
            DatasetName::Csv(..) => Some("the last column".to_string()),
            data if data.is_images() => Some("the name of the folder".to_string()),
            _ => None,
        };
        let label = self.label.clone().or(unnamed);
        let label = label.map(|name| format!("label: {name}"));
        let what = columns.into_iter().chain([scale]).chain(label);
        format!("inputs: {}", what.collect::<Vec<_>>().join("; "))
    }

    /// The differences of other data, in one line.
    pub fn differences(&self, data: &Examples, dataset: &DatasetName) -> Vec<String> {
        let mut all = Vec::new();
        if !self.columns.is_empty() && data.column_names().is_empty() {
            all.push(format!(
                "{dataset} has no header: its columns are taken for {} by their order",
                listed(&self.columns)
            ));
        }
        if !data.column_names().is_empty() {
            all.extend(repeated_names(&self.columns, dataset));
        }
        let unused: Vec<&String> = data
            .unused()
            .iter()
            .filter(|name| Some(*name) != self.label.as_ref())
            .collect();
        if !unused.is_empty() {
            all.push(format!("{dataset}: not used: {}", listed(&unused)));
        }
        let found = (data.stored_type(), data.divisor());
        if (&*self.stored, self.divisor) != found && data.stored_type() != "text" {
            let scaled = |stored: &str, divisor: f32| match divisor {
                1.0 => format!("{stored} unchanged"),
                divisor => format!("{stored} divided by {divisor}"),
            };
            all.push(format!(
                "{dataset} is {}, and the model was trained on {}; if that is not the same, \
                 choose `ScaleName::By255` or `ScaleName::None`",
                scaled(found.0, found.1),
                scaled(&self.stored, self.divisor)
            ));
        }
        all
    }
}

/// How the divisor of values is chosen.
#[derive(Debug)]
pub struct Scale {
    asked: Option<ScaleName>,
    trained: Option<Inputs>,
    /// Bytes are divided by 255, whatever the model's first layer is.
    as_before: bool,
}

impl Scale {
    /// The scale from the flag, else from the checkpoint, else from the model.
    pub fn new(asked: Option<ScaleName>, trained: Option<Inputs>) -> Self {
        let asked = asked.filter(|asked| *asked != ScaleName::Auto);
        Self {
            asked,
            trained,
            as_before: false,
        }
    }

    /// The scale of older checkpoints: bytes were always divided.
    pub fn as_before() -> Self {
        Self {
            asked: None,
            trained: None,
            as_before: true,
        }
    }

    pub fn apply(&self, examples: Examples, spec: &ModelSpec) -> Examples {
        if examples.is_text() {
            return examples;
        }
        let is_bytes = examples.stored_type() == "u8";
        let own = examples.divisor();
        let rescaled = || own == LARGEST_BYTE && spec.rescales_bytes().is_some();
        let divisor = match (self.asked, &self.trained) {
            (Some(ScaleName::None), _) => 1.0,
            (Some(ScaleName::By255), _) => LARGEST_BYTE,
            (_, Some(trained)) if trained.stored == examples.stored_type() => trained.divisor,
            _ if is_bytes && !self.as_before && rescaled() => 1.0,
            _ => own,
        };
        examples.with_divisor(divisor)
    }
}

/// A message about columns with the same name.
fn repeated_names(columns: &[String], dataset: &DatasetName) -> Option<String> {
    let is_again = |at: &usize| columns[..*at].contains(&columns[*at]);
    let again: BTreeSet<&str> = (0..columns.len())
        .filter(is_again)
        .map(|at| columns[at].as_str())
        .collect();
    let name = |name: &str| match name {
        "" => "no name".to_string(),
        name => format!("the name {name}"),
    };
    let names: Vec<String> = again.into_iter().map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{dataset}: several columns have {}; they are told apart by their order",
            listed(&names)
        )
    })
}

/// Messages about unused data, and about data that is probably a mistake.
pub fn remarks(data: &TrainTest, dataset: &DatasetName) -> Result<Vec<String>, ReadError> {
    let train = &data.train;
    let mut all = Vec::new();
    if !train.unused().is_empty() {
        all.push(format!("{dataset}: not used: {}", listed(train.unused())));
    }
    if data.test.label_name() == Some("y_val") {
        all.push(format!("{dataset}: x_val and y_val are the test examples"));
    }
    if train.class_names().is_empty() && !dataset.knows_classes() {
        all.extend(missing_classes(data, dataset));
    }
    all.extend(repeated_names(train.column_names(), dataset));
    if let Some(name) = counting_column(train)? {
        all.push(format!(
            "{dataset}: the {name} only counts the lines, and is a feature of the model; leave it \
             out (pandas: to_csv(.., index=False))"
        ));
    }
    Ok(all)
}

fn missing_classes(data: &TrainTest, dataset: &DatasetName) -> Option<String> {
    let (train, test) = (data.train.class_counts(), data.test.class_counts());
    let count = |class: usize| [&train, &test].map(|of| of.get(class).copied().unwrap_or(0));
    let missing: Vec<String> = (0..train.len())
        .filter(|class| count(*class) == [0, 0])
        .map(|class| class.to_string())
        .collect();
    let last = train.len().saturating_sub(1);
    match &missing[..] {
        [] => None,
        [zero] if zero == "0" => Some(format!(
            "{dataset}: the labels go from 1 to {last}, so the model has a class 0 that never \
             occurs; number them from 0 on"
        )),
        _ => Some(format!(
            "{dataset}: of the classes 0 to {last} these never occur: {}",
            listed(&missing)
        )),
    }
}

/// The name of a first column that contains line numbers from 0 or 1, if there is one.
fn counting_column(examples: &Examples) -> Result<Option<String>, ReadError> {
    let is_table = examples.stored_type() == "f32" && examples.feature_shape().len() == 1;
    if !is_table || examples.feature_shape()[0] < 2 {
        return Ok(None);
    }
    let name = examples.column_names().first();
    let named_so = name.is_none_or(|name| COUNTING_NAMES.contains(&name.as_str()));
    let rows = examples.rows();
    if !named_so || rows.len() < MIN_LINES {
        return Ok(None);
    }
    let width = examples.feature_shape()[0];
    let mut offset = None;
    for range in row_ranges(examples, rows.len()) {
        let values = examples.features_f32(&range.clone().collect::<Vec<_>>())?;
        for (value, row) in values.iter().step_by(width).zip(&rows[range]) {
            let found = *offset.get_or_insert(*value - *row as f32);
            if ![0.0, 1.0].contains(&found) || *value != *row as f32 + found {
                return Ok(None);
            }
        }
    }
    Ok(Some(match name.map(String::as_str) {
        None | Some("") => "first column (without a name)".to_string(),
        Some(name) => format!("first column ({name})"),
    }))
}

#[cfg(test)]
mod tests {
    use distribute_readers::{CsvOptions, parse_csv};

    use super::*;

    fn table(text: &str) -> TrainTest {
        let all = parse_csv(text.as_bytes(), "a.csv", &CsvOptions::default()).unwrap();
        all.train_test(0.2, 1).unwrap()
    }

    fn said(text: &str) -> String {
        let dataset = "csv:a.csv".parse().unwrap();
        remarks(&table(text), &dataset).unwrap().join("\n")
    }

    #[test]
    fn what_is_meant_otherwise_is_said() {
        let lines = |first: &str, of: fn(usize) -> String| {
            let lines: String = (0..10).map(of).collect();
            said(&format!("{first}\n{lines}"))
        };
        let index = lines(",a,label", |i| format!("{i},0.{i},{}\n", i % 2));
        assert!(index.contains("only counts the lines"), "{index}");
        let index = lines("Unnamed: 0,a,label", |i| format!("{i},0.{i},{}\n", i % 2));
        assert!(index.contains("(Unnamed: 0)"), "{index}");
        let named = lines("age,a,label", |i| format!("{i},0.{i},{}\n", i % 2));
        assert_eq!(named, "");
        let from_one = lines("b,a,label", |i| format!("1,0.{i},{}\n", i % 3 + 1));
        assert!(from_one.contains("from 1 to 3"), "{from_one}");
        let twice = lines("v,,v,,label", |i| format!("1,0.{i},2,0.{i},{}\n", i % 2));
        assert!(
            twice.contains("columns have no name, the name v; they are told apart"),
            "{twice}"
        );
        let gap = lines("b,a,label", |i| format!("1,0.{i},{}\n", i % 2 * 2));
        assert!(gap.contains("never occur: 1"), "{gap}");
    }

    #[test]
    fn a_record_comes_back_out_of_a_checkpoint() {
        let data = table("b,a,kind\n1,2,0\n1,2,1\n1,3,0\n1,5,1\n1,3,0\n");
        let spec = distribute_keras::built_in("mlp", 2, 1).unwrap();
        let inputs = Inputs::of(&data.train, &spec);
        assert_eq!(Inputs::from_json(&inputs.to_json()), Some(inputs.clone()));
        assert_eq!(Inputs::from_json(&Value::Null), None);
        assert_eq!(inputs.label_place(), LabelPlace::After(2));
        let mut older = inputs.to_json();
        older.as_object_mut().unwrap().remove("label_place");
        let older = Inputs::from_json(&older).unwrap();
        assert_eq!(older.label_place(), LabelPlace::Unknown);
        let line = "inputs: 2 columns by name (b, a); f32 unchanged; label: kind";
        assert_eq!(inputs.line(&"csv:a.csv".parse().unwrap()), line);
    }
}
