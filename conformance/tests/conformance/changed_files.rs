//! The adapters fit the format and not the shipped files: every family runs on files that a rule
//! has made of the shipped ones, with other names, counts, orders and shapes, and on malformed
//! ones.

use std::collections::{BTreeMap, BTreeSet};

use conformance::{FamilyName, Golden, GoldenFile, Report, Suite, WorkerProgram};
use rstest::rstest;
use serde_json::{Map, Value, json};

fn shipped(family: FamilyName) -> Value {
    let path = format!("{}/golden/{family}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn cases(file: &mut Value) -> &mut Vec<Value> {
    file["cases"].as_array_mut().unwrap()
}

fn run(family: FamilyName, file: &Value) -> Report {
    let parsed = GoldenFile::parse(family.name(), &file.to_string()).unwrap();
    let golden = Golden {
        source: "a changed file".to_string(),
        files: BTreeMap::from([(family, parsed)]),
    };
    let workers = WorkerProgram::new(env!("CARGO_BIN_EXE_conformance-worker"));
    Suite::everything(golden).workers(workers).run()
}

/// What all cases of an operation have in common.
fn operation(case: &Value) -> (String, String) {
    let inputs = &case["inputs"];
    (inputs["op"].to_string(), inputs["class"].to_string())
}

/// The places of the cases of each operation.
fn by<K: Ord>(cases: &[Value], key: impl Fn(&Value) -> K) -> BTreeMap<K, Vec<usize>> {
    let mut groups = BTreeMap::<K, Vec<usize>>::new();
    for (index, case) in cases.iter().enumerate() {
        groups.entry(key(case)).or_default().push(index);
    }
    groups
}

/// At most three cases of each operation of each kind of strategy; which ones, the seed says.
fn thinned(cases: &mut Vec<Value>, seed: usize) {
    let kind = |case: &Value| case["strategy"]["kind"].to_string();
    let groups = by(cases, |case| (operation(case), kind(case)));
    let mut kept = BTreeSet::new();
    for group in groups.values() {
        let third = |turn| group[(seed + turn * group.len() / 3) % group.len()];
        kept.extend((0..3).map(third));
    }
    *cases = kept.into_iter().map(|it| cases[it].clone()).collect();
}

/// Some cases of each operation and strategy, last to first, under other names, and the
/// first of them twice. Where servers take turns over what the cases before have created, the order
/// stays and the last case of each scenario goes.
fn named_counted_and_ordered_anew(family: FamilyName, file: &mut Value) {
    let mut kept = std::mem::take(cases(file));
    if family == FamilyName::ParameterServer {
        let scenario = |case: &Value| case["inputs"]["scenario"].clone();
        let pairs = kept
            .windows(2)
            .filter(|pair| scenario(&pair[0]) == scenario(&pair[1]));
        kept = pairs.map(|pair| pair[0].clone()).collect();
    } else {
        thinned(&mut kept, 1);
        kept.reverse();
        kept.push(kept[0].clone());
    }
    for (index, case) in kept.iter_mut().enumerate() {
        case["name"] = json!(format!("unseen case {index}"));
    }
    *cases(file) = kept;
}

#[rstest]
fn names_counts_and_orders_of_cases_do_not_matter(
    #[values(
        FamilyName::Loss,
        FamilyName::Reduce,
        FamilyName::Variables,
        FamilyName::Datasets,
        FamilyName::Properties,
        FamilyName::CrossDevice,
        FamilyName::Training,
        FamilyName::Cluster,
        FamilyName::Checkpoint,
        FamilyName::MultiWorker,
        FamilyName::ParameterServer,
        FamilyName::Documents,
        FamilyName::TrainingLoop,
        FamilyName::Schedules,
        FamilyName::Normalization
    )]
    family: FamilyName,
) {
    let mut file = shipped(family);
    named_counted_and_ordered_anew(family, &mut file);
    let report = run(family, &file);
    assert!(report.is_success(), "{report}");
}

/// Every tensor inside of a value.
fn tensors(value: &mut Value, change: &dyn Fn(&mut Map<String, Value>)) {
    match value {
        Value::Object(fields) if fields.contains_key("dtype") && fields.contains_key("data") => {
            change(fields);
        }
        Value::Object(fields) => fields.values_mut().for_each(|it| tensors(it, change)),
        Value::Array(list) => list.iter_mut().for_each(|it| tensors(it, change)),
        _ => {}
    }
}

/// Axes of length 1 around those that are there, which change nothing of what is computed element
/// by element; for rank 0 the first element alone.
fn of_rank(tensor: &mut Map<String, Value>, rank: usize) {
    let shape = tensor["shape"].as_array_mut().unwrap();
    if shape.is_empty() {
        return;
    }
    if rank == 0 {
        shape.clear();
        tensor["data"].as_array_mut().unwrap().truncate(1);
        return;
    }
    while shape.len() < rank {
        let place = if shape.len().is_multiple_of(2) {
            shape.len()
        } else {
            0
        };
        shape.insert(place, json!(1));
    }
}

/// Lists of numbers of a case of variables as tensors.
fn written_out(case: &mut Value) {
    for key in ["initial", "base", "value"] {
        let inputs = &mut case["inputs"];
        let dtype = inputs["dtype"].as_str().unwrap_or("float32").to_string();
        if let Some(list) = inputs[key].as_array().cloned() {
            inputs[key] = json!({"dtype": dtype, "shape": [list.len()], "data": list});
        }
    }
}

/// Whether a number that is not finite decides what becomes of the others.
fn is_decided_by_one(case: &Value) -> bool {
    let text = case["inputs"].to_string();
    text.contains("\"NaN\"") || text.contains("Infinity\"")
}

/// Whether a case computes element by element, and says every tensor in full.
fn is_elementwise(family: FamilyName, case: &Value) -> bool {
    let inputs = &case["inputs"];
    let op = inputs["op"].as_str().unwrap();
    match family {
        FamilyName::TrainingLoop => {
            let config = &inputs["optimizer"];
            config.get("clipnorm").is_none() && config.get("global_clipnorm").is_none()
        }
        FamilyName::Schedules => op == "schedule_in_optimizer",
        FamilyName::Reduce => {
            let is_listed = inputs["values"]
                .as_array()
                .is_some_and(|it| it[0].is_object());
            ["reduce", "all_reduce"].contains(&op)
                && inputs["axis"].is_null()
                && is_listed
                && case["error"].is_null()
        }
        FamilyName::CrossDevice => ["batch_reduce_to", "reduce_to"].contains(&op),
        FamilyName::Variables => {
            let is_formula = inputs["value"]
                .as_str()
                .is_some_and(|it| it.starts_with('['));
            inputs.get("initial").is_some() && !is_formula && op.starts_with("assign")
        }
        // The other variables are described in words.
        FamilyName::Checkpoint => op == "write then restore",
        _ => false,
    }
}

/// The parts of a case whose tensors have shapes that follow from its inputs' shapes.
fn shaped(family: FamilyName, case: &mut Value) -> Vec<&mut Value> {
    if family != FamilyName::Checkpoint {
        return vec![case];
    }
    let parts = case.as_object_mut().unwrap().values_mut();
    let mut found = Vec::new();
    for part in parts.filter(|part| part.is_object()) {
        let is_expected = part.get("stored").is_some();
        let fields = part.as_object_mut().unwrap();
        if is_expected {
            found.extend(fields.values_mut().filter_map(|it| it.get_mut("w")))
        } else {
            found.extend(fields.get_mut("w"))
        }
    }
    found
}

#[rstest]
fn shapes_of_tensors_do_not_matter(
    #[values(
        FamilyName::TrainingLoop,
        FamilyName::Schedules,
        FamilyName::Reduce,
        FamilyName::CrossDevice,
        FamilyName::Variables,
        FamilyName::Checkpoint
    )]
    family: FamilyName,
    #[values(0, 2, 3, 5)] rank: usize,
) {
    let mut file = shipped(family);
    cases(&mut file).retain(|case| is_elementwise(family, case));
    if rank == 0 {
        // The first element must be there, and decide alone.
        let is_empty = |case: &Value| case.to_string().contains("\"data\":[]");
        cases(&mut file).retain(|case| !is_empty(case) && !is_decided_by_one(case));
    }
    assert!(!cases(&mut file).is_empty());
    thinned(cases(&mut file), rank);
    for case in cases(&mut file) {
        written_out(case);
        for part in shaped(family, case) {
            tensors(part, &|tensor| of_rank(tensor, rank));
        }
    }
    let report = run(family, &file);
    assert!(report.is_success(), "{report}");
}

/// The variables of `training_loop.json` by other names.
fn renamed(value: &mut Value) {
    let name = |name: &str| match name {
        "w" => "layers/0/kernel:0".to_string(),
        "b" => "bias".to_string(),
        other => other.to_string(),
    };
    match value {
        Value::Object(fields) => {
            let old = std::mem::take(fields).into_iter();
            *fields = old.map(|(key, value)| (name(&key), value)).collect();
            for (key, value) in fields {
                if key == "exclude" {
                    *value = json!([name(value[0].as_str().unwrap())])
                } else {
                    renamed(value)
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(renamed),
        _ => {}
    }
}

/// Beside every variable w there is a second one of the same values, or no variable b.
fn counted_anew(value: &mut Value, more: bool) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|it| counted_anew(it, more));
            if let Some(w) = fields.get("w").filter(|_| more).cloned() {
                fields.insert("another w".to_string(), w);
            } else if fields.contains_key("w") {
                fields.remove("b");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|it| counted_anew(it, more)),
        _ => {}
    }
}

#[rstest]
#[case::other_names(renamed)]
#[case::one_variable(|file: &mut Value| counted_anew(file, false))]
#[case::three_variables(|file: &mut Value| counted_anew(file, true))]
fn names_and_counts_of_variables_do_not_matter(#[case] change: fn(&mut Value)) {
    let mut file = shipped(FamilyName::TrainingLoop);
    let is_global = |case: &Value| case["inputs"]["optimizer"].get("global_clipnorm").is_some();
    cases(&mut file).retain(|case| !is_global(case) && !is_decided_by_one(case));
    change(&mut file["cases"]);
    let report = run(FamilyName::TrainingLoop, &file);
    assert!(report.is_success(), "{report}");
}

/// The places inside of a value, as JSON pointers; the elements of a tensor are no places.
fn places(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let at = format!("{at}/{}", escaped(key));
                if key != "data" {
                    places(value, &at, found);
                }
                found.insert(at);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate().take(2) {
                let at = format!("{at}/{index}");
                places(value, &at, found);
                found.insert(at);
            }
        }
        _ => {}
    }
}

/// How many numbers and texts a case holds, which tells the quick ones.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.values().map(size).sum(),
        Value::Array(list) => list.iter().map(size).sum(),
        _ => 1,
    }
}

/// The smallest case of each operation with one field made unlike the format: every kind of wrong
/// value once to four times, in fields that lie evenly between all.
fn malformed(file: &mut Value) {
    let wrong = [
        json!(null),
        json!("?"),
        json!(-1),
        json!([]),
        json!({}),
        json!(0),
        json!([[0.5]]),
    ];
    let all = std::mem::take(cases(file));
    let mut made = Vec::new();
    for (seed, group) in by(&all, operation).into_values().enumerate() {
        let replicas = |case: &Value| case["strategy"]["replicas"].as_u64();
        let smallest = group.into_iter().map(|index| &all[index]);
        let case = smallest.min_by_key(|case| (replicas(case), size(case)));
        let case = case.unwrap();
        let mut found = BTreeSet::new();
        for part in ["inputs", "expect"] {
            places(&case[part], &format!("/{part}"), &mut found);
        }
        found.remove("/inputs/op");
        let found: Vec<_> = found.into_iter().collect();
        let count = found.len().clamp(wrong.len(), 4 * wrong.len());
        for turn in 0..count {
            let Some(place) = found.get((turn * found.len() / count + seed) % found.len().max(1))
            else {
                continue;
            };
            let value = &wrong[(turn + seed) % wrong.len()];
            let mut changed = case.clone();
            *changed.pointer_mut(place).unwrap() = value.clone();
            changed["name"] = json!(format!("{} with {place} = {value}", case["name"]));
            made.push(changed);
        }
    }
    *cases(file) = made;
}

#[rstest]
fn what_is_malformed_fails_without_a_panic(
    #[values(
        FamilyName::Loss,
        FamilyName::Reduce,
        FamilyName::Variables,
        FamilyName::Datasets,
        FamilyName::Properties,
        FamilyName::CrossDevice,
        FamilyName::Training,
        FamilyName::Cluster,
        FamilyName::Checkpoint,
        FamilyName::Documents,
        FamilyName::TrainingLoop,
        FamilyName::Schedules,
        FamilyName::Normalization
    )]
    family: FamilyName,
) {
    let mut file = shipped(family);
    malformed(&mut file);
    let report = run(family, &file);
    let failures = report.failures().iter();
    let panics = failures.filter(|case| case.got.contains("panic"));
    let panics: Vec<_> = panics
        .map(|it| format!("{} ({}): {}", it.name, it.subject, it.got))
        .collect();
    assert!(panics.is_empty(), "{} panics: {panics:#?}", panics.len());
}
