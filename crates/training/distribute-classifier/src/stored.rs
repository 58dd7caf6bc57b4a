//! What a checkpoint says of the task that it is of.

use distribute_core::checkpoint::Metadata;
use distribute_data::KerasMetric;
use distribute_readers::CsvHeader;
use serde_json::Value;

use crate::dataset_name::DatasetName;
use crate::error::TaskError;
use crate::loss_name::LossName;
use crate::names::TargetsName;
use crate::reading_options::EXTRA_KEY;

/// The data set that a checkpoint names.
pub(crate) fn stored_dataset(extra: &Value) -> Result<Option<DatasetName>, TaskError> {
    let name = extra["dataset"].as_str();
    let Some(dataset) = name.and_then(|name| name.parse::<DatasetName>().ok()) else {
        return Ok(None);
    };
    let header = match extra["csv_header"].as_str() {
        Some("yes") => Some(CsvHeader::Present),
        Some("no") => Some(CsvHeader::Absent),
        _ => None,
    };
    dataset.with_header(header).map(Some)
}

/// The data set of a checkpoint of such a task.
///
/// # Errors
/// If what it says of a header is of something else than a table.
pub fn trained_on(metadata: &Metadata) -> Result<Option<DatasetName>, TaskError> {
    let extra = metadata.extra.get(EXTRA_KEY);
    extra.map_or(Ok(None), stored_dataset)
}

/// The L2 factor that a checkpoint was trained with; nothing if the model decided.
pub fn stored_l2(metadata: &Metadata) -> Option<f64> {
    metadata.extra.get(EXTRA_KEY)?["l2"].as_f64()
}

/// What a checkpoint was trained with; one that does not say it was trained when there was only one
/// loss.
pub fn stored_loss(metadata: &Metadata) -> LossName {
    let extra = metadata.extra.get(EXTRA_KEY);
    let name = extra.and_then(|extra| extra["loss"].as_str());
    let loss = name.and_then(|name| name.parse().ok());
    loss.unwrap_or(LossName::CrossEntropy)
}

/// What the labels of a checkpoint's data were taken for; classes, if it does not say it.
pub(crate) fn stored_targets(extra: &Value) -> TargetsName {
    let name = extra["targets"].as_str();
    let targets = name.and_then(|name| name.parse().ok());
    targets.unwrap_or(TargetsName::Classes)
}

/// What a checkpoint was measured with; nothing if it does not say it.
pub(crate) fn stored_metrics(extra: &Value) -> Option<Vec<KerasMetric>> {
    stored_list(&extra["metrics"])
}

/// A list of metrics; nothing if it is none.
pub(crate) fn stored_list(list: &Value) -> Option<Vec<KerasMetric>> {
    let names = list.as_array()?.iter();
    names.map(|name| name.as_str()?.parse().ok()).collect()
}
