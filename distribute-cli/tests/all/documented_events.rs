//! The fields of `--output json` match the table in docs/observing.md, in its order.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::common::{QUICK, behind, succeed};

/// The documented fields of each event.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/observing.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, table) = text.split_once("| event | when | fields |").unwrap();
    let rows = table.lines().skip(2);
    rows.map_while(|row| {
        let mut cells = row.strip_prefix("| ")?.split(" | ");
        let name = cells.next()?.trim_matches('`').to_string();
        let fields = cells.nth(1)?;
        Some((name, names(fields)))
    })
    .collect()
}

/// The names in a cell, without what stands in brackets.
fn names(cell: &str) -> Vec<String> {
    let mut outside = String::new();
    let mut depth = 0;
    for letter in cell.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 => outside.push(letter),
            _ => {}
        }
    }
    let parts: Vec<&str> = outside.split('`').collect();
    let names = parts.iter().skip(1).step_by(2);
    names.map(ToString::to_string).collect()
}

/// Compares a line with the documents; the order is that of the text.
fn check(documented: &BTreeMap<String, Vec<String>>, line: &str) -> String {
    let event: Value = serde_json::from_str(line).unwrap();
    let name = event["event"].as_str().unwrap().to_string();
    let fields = &documented[&name];
    let found = event.as_object().unwrap().len() - 1;
    assert_eq!(found, fields.len(), "{name}: {line}");
    let mut after = 0;
    for field in fields {
        let quoted = format!("\"{field}\":");
        let place = line[after..].find(&quoted);
        after += place.unwrap_or_else(|| panic!("{name} has no {field} there: {line}"));
    }
    name
}

/// A cluster of one worker.
fn only_worker() -> String {
    let address = crate::job::addresses(1).remove(0);
    format!(r#"--cluster-spec {{"worker":["{address}"]}} --task-type worker --task-id 0"#)
}

#[test]
fn every_event_has_the_fields_of_the_documents() {
    let documented = documented();
    assert!(documented.len() >= 10, "{documented:?}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut seen = Vec::new();
    for command in [
        &*format!("{QUICK} --log-steps 2 --checkpoint-dir saved"),
        "train --model mlp --dry-run --output json",
        "evaluate --checkpoint-dir saved --report --output json",
        "doctor --output json",
        &*format!("doctor --peers --output json {}", only_worker()),
    ] {
        let out = succeed(path, command);
        seen.extend(out.lines().map(|line| check(&documented, line)));
    }
    // A file that cannot grow any more is warned of.
    let train = "train --model mlp --epochs 8 --replicas 1 --log-bits b.jsonl --log-format json";
    let warned = behind(path, "trap '' XFSZ; ulimit -f 2; exec \"$@\"", train);
    let logged = warned.stderr.lines().filter(|line| line.starts_with('{'));
    seen.extend(logged.map(|line| check(&documented, line)));
    for name in documented.keys() {
        // It takes a plugin that compiles for a TPU; its fields are compared where there is one.
        let here = seen.contains(name) || name == "compiled";
        assert!(here, "{name} never came: {seen:?}");
    }
}
