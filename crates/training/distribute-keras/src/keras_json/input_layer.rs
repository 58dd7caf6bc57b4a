//! The options of an input layer.

use serde_json::Value;

use crate::ModelError;
use crate::fields::Fields;

/// The shape of one example, if this layer says it.
pub(super) fn shape(fields: &mut Fields<'_>) -> Result<Option<Vec<Option<usize>>>, ModelError> {
    for key in ["batch_shape", "batch_input_shape"] {
        let Some(Value::Array(dims)) = fields.get(key) else {
            continue;
        };
        // A fixed size of the batch changes no number.
        let dims = dims
            .iter()
            .skip(1)
            .map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()));
        return Ok(Some(dims.collect()));
    }
    Ok(None)
}

/// The types of inputs that a number in `f32` can stand for.
const NUMBERS: [&str; 10] = [
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool",
];

/// The type of texts.
const TEXT: &str = "string";

/// The input layer's own options: whether it is an input of texts.
pub(super) fn read(mut fields: Fields<'_>) -> Result<bool, ModelError> {
    fields.neutral(&["name"]);
    for key in ["sparse", "ragged", "optional"] {
        fields.must_be(key, false, "set it to false")?;
    }
    let dtype = fields.get("dtype").and_then(Value::as_str);
    if !dtype.is_some_and(|dtype| dtype == TEXT || NUMBERS.contains(&dtype)) {
        fields.float32()?;
    }
    fields.finish()?;
    Ok(dtype == Some(TEXT))
}
