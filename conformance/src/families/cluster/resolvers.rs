//! The cases about resolvers and roles.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use distribute_core::cluster::{
    Accelerators, ClusterError, ClusterResolver, Environment, MasterTarget, Overridden, Overrides,
    SimpleResolver, SlurmResolver, TfConfigResolver, UnionResolver, collective_leader,
    coordination_leader, expand_hostlist, id_in_cluster, is_chief, parse_task_index, validate,
    worker_count,
};
use serde_json::{Value, json};

use super::{Checked, dict, optional, properties, spec_of, text, whole};
use crate::outcome::{Deviation, Outcome};

type Found = Result<Value, ClusterError>;

/// An index argument: TensorFlow's `int` is applied to it at each access.
fn index_argument(value: &Value) -> Result<Option<Result<i64, ClusterError>>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) => {
            let number = number.as_i64().ok_or("an index that is not an integer")?;
            Ok(Some(Ok(number)))
        }
        Value::String(text) => Ok(Some(parse_task_index(text))),
        other => Err(format!("an index {other}")),
    }
}

fn tf_config_resolver(inputs: &Value) -> Result<Overridden, String> {
    let text = optional(&inputs["tf_config"]).map(|text| ("TF_CONFIG".to_string(), text));
    let env: BTreeMap<String, String> = text.into_iter().collect();
    let mut resolver = TfConfigResolver::new(env);
    let args = &inputs["args"];
    if let Some(environment) = optional(&args["environment"]) {
        resolver = resolver.environment(environment);
    }
    let index = index_argument(&args["task_id"])?;
    let given = Overrides {
        task_type: optional(&args["task_type"]),
        task_id: index.transpose().map_err(|error| error.to_string())?,
        rpc_layer: optional(&args["rpc_layer"]),
        ..Overrides::default()
    };
    Ok(Overridden::new(Box::new(resolver), given))
}

pub(super) fn tf_config(case: &Value) -> Checked {
    let resolver = tf_config_resolver(&case["inputs"])?;
    let resolver: &dyn ClusterResolver = &resolver;
    properties(&case["expect"], |name| property(resolver, name))
}

/// A property of a resolver, or of the task it describes.
fn property(resolver: &dyn ClusterResolver, name: &str) -> Result<Found, String> {
    let spec = || resolver.cluster_spec();
    // The arguments of the role functions, in the order in which Python evaluates them.
    let task = || Ok((spec()?, resolver.task_type()?, resolver.task_id()?));
    Ok(match name {
        "cluster_spec" | "spec" => spec().map(|spec| dict(&spec)),
        "task_type" => resolver.task_type().map(|value| json!(value)),
        "task_id" => resolver.task_id().map(|value| json!(value)),
        "rpc_layer" => resolver.rpc_layer().map(|value| json!(value)),
        "environment" => Ok(json!(resolver.environment())),
        "num_accelerators" => resolver.num_accelerators().map(|value| json!(value)),
        "master" => resolver.master().map(|value| json!(value)),
        "master_args" => {
            let target = MasterTarget {
                rpc_layer: Some("r".to_string()),
                ..MasterTarget::task("ps", 0)
            };
            resolver.master_for(&target).map(|value| json!(value))
        }
        "task" => task().map(|(_, task_type, task_id)| json!([task_type, task_id])),
        "validate" => task()
            .and_then(|(spec, t, id)| validate(&spec, t.as_deref(), id))
            .map(|()| Value::Null),
        "is_chief" => task()
            .and_then(|(spec, t, id)| is_chief(&spec, t.as_deref(), id))
            .map(|v| json!(v)),
        "id_in_cluster" => task()
            .and_then(|(spec, t, id)| id_in_cluster(&spec, t.as_deref(), id))
            .map(|v| json!(v)),
        "collective_leader" => task()
            .and_then(|(spec, t, id)| collective_leader(&spec, t.as_deref(), id))
            .map(|v| json!(v)),
        "worker_count" => spec()
            .and_then(|spec| worker_count(&spec, resolver.task_type()?.as_deref()))
            .map(|v| json!(v)),
        "coordination_leader" => spec()
            .and_then(|spec| coordination_leader(&spec))
            .map(|v| json!(v)),
        other => return Err(format!("unknown property `{other}`")),
    })
}

/// Here `args` are arguments of `master`, not of the constructor.
pub(super) fn tf_config_master(inputs: &Value) -> Result<Found, String> {
    let mut plain = inputs.clone();
    plain["args"] = json!({});
    let resolver = tf_config_resolver(&plain)?;
    let args = &inputs["args"];
    let target = MasterTarget {
        task_type: optional(&args["task_type"]),
        task_id: args["task_id"].as_i64(),
        rpc_layer: optional(&args["rpc_layer"]),
    };
    Ok(resolver.master_for(&target).map(|master| json!(master)))
}

pub(super) fn no_accelerators() -> Found {
    let resolver = TfConfigResolver::new(BTreeMap::new());
    resolver
        .num_accelerators()
        .map(|accelerators| json!(accelerators))
}

/// A variable that changes while a resolver exists.
struct Changing(Mutex<String>);

impl Environment for Changing {
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError> {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((name == "TF_CONFIG").then(|| text.clone()))
    }
}

pub(super) fn changed_variable() -> Found {
    let config = |index: u32| {
        format!(
            r#"{{"cluster": {{"worker": ["a:1", "b:1"]}},
                 "task": {{"type": "worker", "index": {index}}}}}"#
        )
    };
    let env = Arc::new(Changing(Mutex::new(config(0))));
    let resolver = TfConfigResolver::new(env.clone());
    let mut resolver = Overridden::new(Box::new(resolver), Overrides::default());
    let before = ClusterResolver::task_id(&resolver)?;
    *env.0.lock().unwrap_or_else(PoisonError::into_inner) = config(1);
    let after = ClusterResolver::task_id(&resolver)?;
    resolver.overrides.task_type = Some("ps".to_string());
    resolver.overrides.task_id = Some(7);
    let set = (
        ClusterResolver::task_type(&resolver)?,
        ClusterResolver::task_id(&resolver)?,
    );
    Ok(json!({ "before": before, "after_env_change": after, "after_set": [set.0, set.1] }))
}

fn simple_resolver(cluster: &Value, args: &Value) -> Result<SimpleResolver, String> {
    let spec = spec_of(cluster).map_err(|error| error.to_string())?;
    let mut resolver = SimpleResolver::new(spec);
    if let Some(value) = args["task_type"].as_str() {
        resolver = resolver.task_type(value);
    }
    if let Some(value) = args["task_id"].as_i64() {
        resolver = resolver.task_id(value);
    }
    if let Some(value) = args["master"].as_str() {
        resolver = resolver.master(value);
    }
    if let Some(value) = args["rpc_layer"].as_str() {
        resolver = resolver.rpc_layer(value);
    }
    if let Some(value) = args["environment"].as_str() {
        resolver = resolver.environment(value);
    }
    if let Some(map) = args["num_accelerators"].as_object() {
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let map: Option<Accelerators> = map
            .iter()
            .map(|(name, value)| Some((name.clone(), number(value)?)))
            .collect();
        resolver = resolver.accelerators(map.ok_or("num_accelerators are not numbers")?);
    }
    Ok(resolver)
}

/// Compares the properties that the case expects, or the first error of all of them.
fn resolver_case(case: &Value, resolver: &dyn ClusterResolver) -> Checked {
    match case.get("expect") {
        Some(expect) => properties(expect, |name| property(resolver, name)),
        None => {
            let all = ["cluster_spec", "task", "master", "num_accelerators"];
            let first = all.into_iter().map(|name| property(resolver, name));
            let found: Result<Vec<Found>, String> = first.collect();
            let error = found?.into_iter().find(Result::is_err);
            whole(case, error.unwrap_or(Ok(Value::Null)))
        }
    }
}

pub(super) fn simple(case: &Value) -> Checked {
    let inputs = &case["inputs"];
    resolver_case(case, &simple_resolver(&inputs["cluster"], &inputs["args"])?)
}

pub(super) fn union(case: &Value) -> Checked {
    let inputs = &case["inputs"];
    let clusters = inputs["clusters"].as_array().ok_or("no clusters")?;
    let mut parts: Vec<Box<dyn ClusterResolver>> = Vec::new();
    for cluster in clusters {
        parts.push(Box::new(simple_resolver(cluster, &Value::Null)?));
    }
    let mut resolver = UnionResolver::new(parts).map_err(|error| error.to_string())?;
    if let Some(value) = inputs["args"]["task_type"].as_str() {
        resolver = resolver.task_type(value);
    }
    if let Some(value) = inputs["args"]["task_id"].as_i64() {
        resolver = resolver.task_id(value);
    }
    if let Some(value) = inputs["args"]["rpc_layer"].as_str() {
        resolver = resolver.rpc_layer(value);
    }
    resolver_case(case, &resolver)
}

pub(super) fn union_of_nothing() -> Found {
    UnionResolver::new(Vec::new()).map(|_| Value::Null)
}

fn slurm_resolver(inputs: &Value) -> Result<SlurmResolver, String> {
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in inputs["env"].as_object().ok_or("no variables")? {
        env.insert(name.clone(), text(value)?.to_string());
    }
    let mut resolver = SlurmResolver::new(env);
    let args = &inputs["args"];
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    if let Some(jobs) = args["jobs"].as_object() {
        let jobs: Option<Vec<_>> = jobs
            .iter()
            .map(|(job, value)| Some((job.clone(), number(value)?)))
            .collect();
        resolver = resolver.jobs(jobs.ok_or("jobs are not numbers")?);
    }
    if let Some(port) = args["port_base"].as_u64() {
        resolver = resolver.port_base(u16::try_from(port).map_err(|error| error.to_string())?);
    }
    if let Some(gpus) = number(&args["gpus_per_node"]) {
        resolver = resolver.gpus_per_node(gpus);
    }
    if let Some(gpus) = number(&args["gpus_per_task"]) {
        resolver = resolver.gpus_per_task(gpus);
    }
    if let Some(tasks) = number(&args["tasks_per_node"]) {
        resolver = resolver.tasks_per_node(tasks);
    }
    if let Some(layer) = args["rpc_layer"].as_str() {
        resolver = resolver.rpc_layer(layer);
    }
    Ok(resolver)
}

pub(super) fn slurm(case: &Value) -> Checked {
    let inputs = &case["inputs"];
    let resolver = slurm_resolver(inputs)?;
    let message = case["error"]["message"].as_str().unwrap_or_default();
    let works = resolver.cluster_spec().is_ok() && resolver.master().is_ok();
    if message.starts_with("range() arg 3 must not be zero") && works {
        return Ok(Outcome::Deviation(Deviation::NoGpus));
    }
    if message.starts_with("SLURM_STEP_") && message.contains("not found") && works {
        return Ok(Outcome::Deviation(Deviation::JobVariables));
    }
    let checked = resolver_case(case, &resolver);
    if checked.is_err() && has_other_order(case, &resolver) {
        return Ok(Outcome::Deviation(Deviation::NodeOrder));
    }
    checked
}

/// Whether the nodes are not listed by name, and the tasks have the same addresses in another
/// order.
fn has_other_order(case: &Value, resolver: &SlurmResolver) -> bool {
    let list = case["inputs"]["env"]["SLURM_STEP_NODELIST"]
        .as_str()
        .unwrap_or_default();
    let hosts = expand_hostlist(list).unwrap_or_default();
    let addresses = |spec: &Value| {
        let jobs = spec.as_object().into_iter().flat_map(|jobs| jobs.values());
        let mut all: Vec<String> = jobs
            .filter_map(Value::as_array)
            .flatten()
            .map(Value::to_string)
            .collect();
        all.sort();
        all
    };
    let spec = resolver
        .cluster_spec()
        .map(|spec| dict(&spec))
        .unwrap_or_default();
    !hosts.is_sorted() && addresses(&spec) == addresses(&case["expect"]["spec"])
}
