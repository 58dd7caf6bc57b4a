//! How the files of a data set are read; a checkpoint keeps it, so that it need not be said again.

use std::path::{Path, PathBuf};

use distribute_core::checkpoint::Metadata;
use distribute_readers::ImageColor;
use serde_json::{Value, json};

/// Where a checkpoint's metadata keeps its task; the name is that of the program that has always
/// written it.
pub const EXTRA_KEY: &str = "distribute-cli";

/// How the files of a data set are read. What is not given has a default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadingOptions {
    /// The folder of `mnist`, `fashion-mnist` or `images`; by default `data/` and the name.
    pub data_dir: Option<PathBuf>,
    /// What separates the fields of a table; by default a comma.
    pub csv_delimiter: Option<char>,
    /// The column of a table with the label; by default `label`, else the last.
    pub label_column: Option<String>,
    /// The column of a table with the weights of the examples; by default none.
    pub sample_weight_column: Option<String>,
    /// What images become; by default as they are stored.
    pub color_mode: Option<ImageColor>,
    /// The columns of a table, or the array of an archive, that an input or output of a model with
    /// several has; by default what is called as it.
    pub columns: Vec<(String, Vec<String>)>,
}

impl ReadingOptions {
    /// For a checkpoint.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "data_dir": self.data_dir.as_ref().map(|path| path.display().to_string()),
            "csv_delimiter": self.csv_delimiter,
            "label_column": self.label_column,
            "sample_weight_column": self.sample_weight_column,
            "color_mode": self.color_mode.and_then(color_name),
            "columns": self.columns,
        })
    }

    /// The options of a checkpoint; an older one has none.
    pub fn of(metadata: &Metadata) -> Self {
        let extra = metadata.extra.get(EXTRA_KEY);
        extra.map_or_else(Self::default, |extra| Self::from_json(&extra["reading"]))
    }

    fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str();
        Self {
            data_dir: text("data_dir").map(PathBuf::from),
            csv_delimiter: text("csv_delimiter").and_then(|text| text.chars().next()),
            label_column: text("label_column").map(str::to_string),
            sample_weight_column: text("sample_weight_column").map(str::to_string),
            color_mode: text("color_mode").and_then(color),
            columns: serde_json::from_value(value["columns"].clone()).unwrap_or_default(),
        }
    }

    /// Whether the data lay there, as far as the checkpoint says it.
    pub(crate) fn is_of(&self, data_dir: Option<&Path>) -> bool {
        self.data_dir.is_none() || self.data_dir.as_deref() == data_dir
    }

    /// These options; those that are not given are the stored ones. The stored folder counts only
    /// if the data set is the `same` as the checkpoint's, and not another one of its kind.
    #[must_use]
    pub fn or(self, stored: Self, same: bool) -> Self {
        Self {
            data_dir: self.data_dir.or(stored.data_dir.filter(|_| same)),
            csv_delimiter: self.csv_delimiter.or(stored.csv_delimiter),
            label_column: self.label_column.or(stored.label_column),
            // Of other data there need be no weights.
            sample_weight_column: self
                .sample_weight_column
                .or(stored.sample_weight_column.filter(|_| same)),
            color_mode: self.color_mode.or(stored.color_mode),
            columns: if self.columns.is_empty() {
                stored.columns
            } else {
                self.columns
            },
        }
    }
}

/// What images become, by their names in a checkpoint.
const COLORS: [(&str, ImageColor); 3] = [
    ("as-stored", ImageColor::AsStored),
    ("grayscale", ImageColor::Grayscale),
    ("rgb", ImageColor::Rgb),
];

fn color_name(color: ImageColor) -> Option<&'static str> {
    let known = COLORS.iter().find(|(_, known)| *known == color);
    known.map(|(name, _)| *name)
}

fn color(name: &str) -> Option<ImageColor> {
    let known = COLORS
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    known.map(|(_, color)| *color)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_comes_back_out_of_a_checkpoint() {
        let reading = ReadingOptions {
            data_dir: Some(PathBuf::from("pictures")),
            csv_delimiter: Some(';'),
            label_column: Some("kind".to_string()),
            sample_weight_column: Some("weight".to_string()),
            color_mode: Some(ImageColor::Grayscale),
            columns: vec![("a".to_string(), vec!["b".to_string(), "c".to_string()])],
        };
        assert_eq!(ReadingOptions::from_json(&reading.to_json()), reading);
        assert_eq!(
            ReadingOptions::from_json(&Value::Null),
            ReadingOptions::default()
        );
    }
}
