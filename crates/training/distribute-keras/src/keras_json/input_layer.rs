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
        if dims.first().is_some_and(|batch| !batch.is_null()) {
            return Err(fields.refuse(key, "leave the size of a batch open"));
        }
        let dims = dims
            .iter()
            .skip(1)
            .map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()));
        return Ok(Some(dims.collect()));
    }
    Ok(None)
}

/// The input layer's own options. The inner result is of a type that only tokens can have.
pub(super) fn read(mut fields: Fields<'_>) -> Result<Result<(), ModelError>, ModelError> {
    fields.neutral(&["name"]);
    for key in ["sparse", "ragged", "optional"] {
        fields.must_be(key, false, "set it to false")?;
    }
    let integers = match fields.get("dtype").and_then(Value::as_str) {
        Some("int32" | "int64" | "uint32" | "int16") => {
            Err(fields.refuse("dtype", "use float32, or begin with an Embedding"))
        }
        _ => {
            fields.float32()?;
            Ok(())
        }
    };
    fields.finish()?;
    Ok(integers)
}
