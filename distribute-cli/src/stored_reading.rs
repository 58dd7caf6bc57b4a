//! How the data of a checkpoint was read, so that it need not be said again.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use distribute_core::checkpoint::Metadata;
use serde_json::{Value, json};

use crate::flags::{ColorName, DataArgs, named};

/// Where a checkpoint's metadata keeps what this program says of it.
pub(crate) const EXTRA_KEY: &str = "distribute-cli";

/// What the flags about files said.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StoredReading {
    data_dir: Option<PathBuf>,
    csv_delimiter: Option<char>,
    label_column: Option<String>,
    color_mode: Option<ColorName>,
}

impl StoredReading {
    pub(crate) fn from_args(args: &DataArgs) -> Self {
        Self {
            data_dir: args.data_dir.clone(),
            csv_delimiter: args.csv_delimiter,
            label_column: args.label_column.clone(),
            color_mode: args.color_mode,
        }
    }

    /// For a checkpoint.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "data_dir": self.data_dir.as_ref().map(|path| path.display().to_string()),
            "csv_delimiter": self.csv_delimiter,
            "label_column": self.label_column,
            "color_mode": self.color_mode.and_then(named),
        })
    }

    /// That of a checkpoint; of an older one nothing.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let extra = metadata.extra.get(EXTRA_KEY);
        extra.map_or_else(Self::default, |extra| Self::from_json(&extra["reading"]))
    }

    fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str();
        Self {
            data_dir: text("data_dir").map(PathBuf::from),
            csv_delimiter: text("csv_delimiter").and_then(|text| text.chars().next()),
            label_column: text("label_column").map(str::to_string),
            color_mode: text("color_mode").and_then(|name| ColorName::from_str(name, true).ok()),
        }
    }

    /// Whether the data lay there, as far as the checkpoint says it.
    pub(crate) fn is_of(&self, data_dir: Option<&Path>) -> bool {
        self.data_dir.is_none() || self.data_dir.as_deref() == data_dir
    }

    /// Completes what the flags do not say; `same` is whether the data set is the one of the
    /// checkpoint, and not another one of its kind.
    pub(crate) fn complete(self, args: &mut DataArgs, same: bool) {
        if same {
            args.data_dir = args.data_dir.take().or(self.data_dir);
        }
        args.csv_delimiter = args.csv_delimiter.or(self.csv_delimiter);
        args.label_column = args.label_column.take().or(self.label_column);
        args.color_mode = args.color_mode.or(self.color_mode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_comes_back_out_of_a_checkpoint() {
        let reading = StoredReading {
            data_dir: Some(PathBuf::from("pictures")),
            csv_delimiter: Some(';'),
            label_column: Some("kind".to_string()),
            color_mode: Some(ColorName::Grayscale),
        };
        assert_eq!(StoredReading::from_json(&reading.to_json()), reading);
        assert_eq!(
            StoredReading::from_json(&Value::Null),
            StoredReading::default()
        );
    }
}
