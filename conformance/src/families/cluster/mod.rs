//! `cluster.json`: TF_CONFIG, cluster specs, resolvers and roles.

mod errors;
mod resolvers;

use std::collections::BTreeMap;

use distribute_core::cluster::{ClusterError, ClusterSpec, expand_hostlist, expand_tasks_per_node};
use serde_json::{Value, json};

use errors::same_error;

use crate::case::{Case, Expected};
use crate::env::Env;
use crate::outcome::{Deviation, Failure, Outcome, Rule};

/// The result of a case, or what differs.
type Checked = Result<Outcome, String>;

pub(super) fn check(case: &Case, _: &Env<'_>) -> crate::outcome::Checked {
    let mut json = json!({ "inputs": case.inputs });
    match &case.expected {
        Expected::Value(value) => json["expect"] = value.clone(),
        Expected::Error { class, message } => {
            json["error"] = json!({ "class": class, "message": message });
        }
        Expected::Unavailable(_) => return Ok(Outcome::NotApplicable(Rule::Crash)),
    }
    check_json(&json).map_err(Failure::got)
}

/// Runs a case: `{"inputs": ..., "expect" | "error": ...}`.
fn check_json(case: &Value) -> Checked {
    if needs_wrong_type(case) {
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    }
    let inputs = &case["inputs"];
    let op = inputs["op"].as_str().ok_or("the case has no operation")?;
    match op {
        "TFConfigClusterResolver" => resolvers::tf_config(case),
        "TFConfigClusterResolver.master" => whole(case, resolvers::tf_config_master(inputs)?),
        "num_accelerators on a host without accelerators" => {
            whole(case, resolvers::no_accelerators())
        }
        "change TF_CONFIG after construction" => whole(case, resolvers::changed_variable()),
        "ClusterSpec" => whole(case, described_spec(&inputs["cluster"])),
        "SimpleClusterResolver" => resolvers::simple(case),
        "UnionResolver" => resolvers::union(case),
        "UnionResolver()" => whole(case, resolvers::union_of_nothing()),
        "SlurmClusterResolver" => resolvers::slurm(case),
        "expand_hostlist" => whole(
            case,
            expand_hostlist(text(&inputs["arg"])?).map(|l| json!(l)),
        ),
        "expand_tasks_per_node" => whole(
            case,
            expand_tasks_per_node(text(&inputs["arg"])?).map(|l| json!(l)),
        ),
        _ => match op.strip_prefix("ClusterSpec.") {
            Some(method) => whole(case, asked_spec(&inputs["cluster"], method)?),
            None => Err(format!("unknown operation `{op}`")),
        },
    }
}

/// Cases about arguments of a wrong Python type, which cannot be written down in Rust: resolvers
/// that are no resolvers, specs that are no specs, task types that are no strings, and job names
/// that are no strings (in JSON they always are, so only TensorFlow's error tells).
fn needs_wrong_type(case: &Value) -> bool {
    let inputs = &case["inputs"];
    let message = case["error"]["message"].as_str().unwrap_or_default();
    let is_type_error = case["error"]["class"] == "TypeError";
    let args = &inputs["args"];
    let is_wrong_text =
        |key: &str| !matches!(args.get(key), None | Some(Value::Null | Value::String(_)));
    match inputs["op"].as_str().unwrap_or_default() {
        "ClusterSpec" => is_type_error && message.starts_with("Job name"),
        "SimpleClusterResolver" if !inputs["cluster"].is_object() => true,
        "UnionResolver()" => false,
        op if op.starts_with("UnionResolver(") => true,
        _ => ["task_type", "rpc_layer", "environment", "master"]
            .into_iter()
            .any(is_wrong_text),
    }
}

/// Compares the result of a case with its `expect` or `error`.
fn whole(case: &Value, found: Result<Value, ClusterError>) -> Checked {
    match (case.get("expect"), case.get("error")) {
        (Some(expect), _) => matches(expect, found),
        (None, Some(error)) => matches(&json!({ "error": error }), found),
        (None, None) => Err("the case expects neither a value nor an error".to_string()),
    }
}

/// Compares with a value or an `{"error": {"class", "message"}}`.
fn matches(expect: &Value, found: Result<Value, ClusterError>) -> Checked {
    match (expect.get("error"), found) {
        (Some(error), Err(found)) => same_error(error, &found).map(|()| Outcome::Passed),
        (Some(error), Ok(found)) => Err(format!("{found} instead of the error {error}")),
        (None, Ok(found)) if same(expect, &found) => Ok(Outcome::Passed),
        (None, Ok(found)) => Err(format!("{found} instead of {expect}")),
        (None, Err(ClusterError::BackwardsRange { .. })) => {
            Ok(Outcome::Deviation(Deviation::BackwardsRange))
        }
        (None, Err(ClusterError::NotAString { .. })) => Ok(Outcome::Deviation(Deviation::NotText)),
        (None, Err(ClusterError::TaskIdMissing { .. })) if expect.is_null() => {
            Ok(Outcome::Deviation(Deviation::NoRank))
        }
        (None, Err(found)) => Err(format!("the error \"{found}\" instead of {expect}")),
    }
}

/// Equal values. The order of jobs is that of a Python dict, which JSON does not keep.
fn same(expect: &Value, found: &Value) -> bool {
    let sorted = |value: &Value| {
        let mut value = value.clone();
        if let Some(Value::Array(jobs)) = value.get_mut("jobs") {
            jobs.sort_by_key(|job| job.to_string());
        }
        value
    };
    sorted(expect) == sorted(found)
}

/// Compares all entries of `expect`, each with what `property` gives for its name.
fn properties(
    expect: &Value,
    property: impl Fn(&str) -> Result<Result<Value, ClusterError>, String>,
) -> Checked {
    let entries = expect
        .as_object()
        .ok_or("the expected value is not a map")?;
    let mut outcome = Outcome::Passed;
    let mut wrong = Vec::new();
    for (name, expect) in entries {
        match property(name).and_then(|found| matches(expect, found)) {
            Ok(Outcome::Passed) => {}
            Ok(other) => outcome = other,
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    if wrong.is_empty() {
        Ok(outcome)
    } else {
        Err(wrong.join("; "))
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("{value} is not a string"))
}

fn optional(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}

fn spec_of(cluster: &Value) -> Result<ClusterSpec, ClusterError> {
    ClusterSpec::parse(&cluster.to_string())
}

fn dict(spec: &ClusterSpec) -> Value {
    json!(spec.as_dict())
}

/// A value, or an error in the form that `expect` has inside of maps; our own error is compared
/// as a whole later, so only its text is needed here.
fn or_error(found: Result<Value, ClusterError>) -> Value {
    match found {
        Ok(value) => value,
        Err(error) => errors::as_python(&error),
    }
}

fn described_spec(cluster: &Value) -> Result<Value, ClusterError> {
    let spec = spec_of(cluster)?;
    let mut map: BTreeMap<String, Value> = BTreeMap::new();
    map.insert("as_dict".to_string(), dict(&spec));
    map.insert("jobs".to_string(), json!(spec.jobs().collect::<Vec<_>>()));
    map.insert("bool".to_string(), json!(!spec.is_empty()));
    map.insert("str".to_string(), json!(spec.to_string()));
    map.insert("eq_self".to_string(), json!(spec == spec_of(&dict(&spec))?));
    for job in spec.jobs() {
        let address = |index| or_error(spec.task_address(job, index).map(|a| json!(a)));
        let entry = json!({
            "num_tasks": spec.num_tasks(job)?,
            "task_indices": spec.task_indices(job)?,
            "job_tasks": spec.job_tasks(job)?,
            "addr_0": address(0),
            "addr_1": address(1),
        });
        map.insert(job.to_string(), entry);
    }
    Ok(json!(map))
}

/// The methods that take a job are asked for a job `ps`, or for task 9 of `worker`.
fn asked_spec(cluster: &Value, method: &str) -> Result<Result<Value, ClusterError>, String> {
    let spec = spec_of(cluster).map_err(|error| error.to_string())?;
    Ok(match method {
        "num_tasks" => spec.num_tasks("ps").map(|n| json!(n)),
        "task_indices" => spec.task_indices("ps").map(|list| json!(list)),
        "job_tasks" => spec.job_tasks("ps").map(|list| json!(list)),
        "task_address_job" => spec.task_address("ps", 0).map(|a| json!(a)),
        "task_address_index" => spec.task_address("worker", 9).map(|a| json!(a)),
        other => return Err(format!("unknown method `{other}`")),
    })
}
