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
const NAMES: [&str; 28] = [
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
    "read",
    "partition",
    "ServerOptions::orphan_timeout",
    "ServerOptions::coordinator_timeout",
    "WorkerOptions::orphan_timeout",
    "WorkerOptions::coordinator_timeout",
];

/// A name of this program.
pub(crate) fn known<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    let name = String::deserialize(from)?;
    let known = NAMES.iter().find(|known| **known == name);
    Ok(known.copied().unwrap_or("an operation"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The names that errors are made with in a folder of sources.
    fn names_in(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names_in(&path, found);
                continue;
            }
            for line in fs::read_to_string(&path).unwrap().lines() {
                let field = ["op: \"", "option: \"", "kind: \""];
                let value = field
                    .iter()
                    .find_map(|field| line.trim().strip_prefix(field));
                let argument = ["self.check(\"", "variable.check(\"", ".find(\"", ".late(\""];
                let argument = argument
                    .iter()
                    .find_map(|call| Some(line.split_once(call)?.1));
                let names = value
                    .into_iter()
                    .chain(argument)
                    .filter_map(|rest| Some(rest.split_once('"')?.0.to_string()));
                found.extend(names);
            }
        }
    }

    #[test]
    fn every_name_of_an_error_is_known_where_it_arrives() {
        let mut found = Vec::new();
        names_in(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut found,
        );
        assert!(found.len() > 20, "{found:?}");
        for name in found {
            assert!(NAMES.contains(&name.as_str()), "{name}");
        }
    }
}
