//! How fields of errors travel that serde cannot read by itself.

use std::error::Error;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serializer};

/// The error of foreign code, as its text.
pub(crate) mod as_text {
    use super::*;

    type Foreign = Arc<dyn Error + Send + Sync>;

    pub(crate) fn serialize<S: Serializer>(error: &Foreign, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(error)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Foreign, D::Error> {
        Ok(Arc::from(Box::from(String::deserialize(from)?)))
    }
}

/// The names of operations, options and kinds that errors have.
const NAMES: [&str; 22] = [
    "create",
    "initialize",
    "pull",
    "pull rows",
    "push",
    "assign",
    "assign_add",
    "assign_sub",
    "snapshot",
    "restore",
    "join",
    "catalog",
    "scope",
    "lookup",
    "table",
    "max_shard_bytes",
    "max_request_bytes",
    "max_memory_bytes",
    "step",
    "resource",
    "schedule",
    "fetch",
];

/// A name of this program.
pub(crate) fn known<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    let name = String::deserialize(from)?;
    let known = NAMES.iter().find(|known| **known == name);
    Ok(known.copied().unwrap_or("an operation"))
}
