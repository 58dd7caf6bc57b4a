//! How much the examples of a class count.

use distribute_readers::Examples;

use crate::dataset_name::DatasetName;
use crate::error::TaskError;
use crate::identity::listed;

/// The examples with these weights of their classes, each by its number or its name among `names`.
///
/// # Errors
/// [`TaskError::ClassWeights`] for a class that the data does not have, and for values as labels.
pub(crate) fn applied(
    examples: Examples,
    weights: &[(String, f32)],
    names: &[String],
    dataset: &DatasetName,
) -> Result<Examples, TaskError> {
    if weights.is_empty() {
        return Ok(examples);
    }
    let wrong = |what: String| TaskError::ClassWeights {
        dataset: dataset.to_string(),
        what,
    };
    let Some(classes) = examples.classes() else {
        return Err(wrong(
            "its labels are values, which have no classes".to_string(),
        ));
    };
    let mut all = vec![1.0; classes];
    for (class, weight) in weights {
        let named = names.iter().position(|name| name == class);
        let place = named.or_else(|| class.parse().ok());
        let Some(own) = place.and_then(|place: usize| all.get_mut(place)) else {
            let known = match names {
                [] => format!("0 to {}", classes.saturating_sub(1)),
                names => listed(names),
            };
            return Err(wrong(format!("there is no class {class}, but {known}")));
        };
        *own = *weight;
    }
    Ok(examples.with_class_weights(&all)?)
}
