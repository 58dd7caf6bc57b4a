//! `TF_CONFIG`, as TensorFlow reads it.

use serde::Serialize;

use super::environment::{Environment, Variables};
use super::error::{CLUSTER_FILE_VARIABLE, shortened};
use super::json::{Json, MAX_BYTES};
use super::resolver::{given_or, master_url};
use super::{ClusterError, ClusterResolver, ClusterSpec, Description, MasterTarget, Result, Tasks};

const VARIABLE: &str = "TF_CONFIG";

/// Reads the cluster and the task from the variable `TF_CONFIG` (TensorFlow's
/// `TFConfigClusterResolver`):
///
/// ```json
/// {"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": 0}}
/// ```
///
/// A large cluster may be in a file instead: [`CLUSTER_FILE_VARIABLE`]. `cluster` is then left out,
/// or a string as a remark.
///
/// The variable is read at each access. Without it, or without `cluster` in it, the process runs
/// by itself. `task.index` may be a number, which is cut to a whole one, or text such as `"1"`.
/// [`super::Overridden`] replaces parts of it, as the arguments of TensorFlow's do.
#[derive(Debug, Clone)]
#[must_use]
pub struct TfConfigResolver {
    env: Variables,
    environment: Option<String>,
}

impl TfConfigResolver {
    /// Reads `TF_CONFIG` of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self {
            env: Variables::new(env),
            environment: None,
        }
    }

    /// The name of the environment. The variable's is not read, as in TensorFlow.
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = Some(environment.into());
        self
    }

    fn config(&self) -> Result<Json> {
        let text = self.env.var(VARIABLE)?;
        Json::parse(VARIABLE, text.as_deref().unwrap_or("{}"))
    }

    /// The file with the cluster, if `TF_CONFIG` has none.
    fn cluster_file(&self, config: &Json) -> Result<Option<String>> {
        let own = config.get(VARIABLE, "cluster")?;
        let path = self.env.var(CLUSTER_FILE_VARIABLE)?;
        let path = path.filter(|path| !path.is_empty());
        match (own, path) {
            (None | Some(Json::Null | Json::Text(_)), Some(path)) => Ok(Some(path)),
            (Some(Json::Text(text)), None) if text.contains(CLUSTER_FILE_VARIABLE) => {
                Err(ClusterError::NoClusterFile)
            }
            _ => Ok(None),
        }
    }

    /// Reads the cluster from a file.
    fn in_file(&self, path: &str) -> Result<ClusterSpec> {
        let text = self.env.file(path, MAX_BYTES)?;
        let read = || {
            let file = Json::parse("the file", &text)?;
            match file.get("the file", "cluster")? {
                Some(cluster) => ClusterSpec::from_json(cluster),
                None => Err(ClusterError::NotACluster { found: "missing" }),
            }
        };
        read().map_err(|error| ClusterError::InFile {
            path: shortened(path),
            error: Box::new(error),
        })
    }

    /// Reads `key` of the `task` object.
    fn task<T>(&self, key: &str, read: impl FnOnce(&str, &Json) -> Result<T>) -> Result<Option<T>> {
        let config = self.config()?;
        let task = config.get(VARIABLE, "task")?;
        let value = task
            .map(|task| task.get("task in TF_CONFIG", key))
            .transpose()?;
        let read = |value| read(&format!("task.{key} in TF_CONFIG"), value);
        value.flatten().map(read).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        let config = self.config()?;
        let value = config.get(VARIABLE, key)?.unwrap_or(&Json::Null);
        value.optional_text(&format!("{key} in TF_CONFIG"))
    }
}

impl ClusterResolver for TfConfigResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        let config = self.config()?;
        if let Some(path) = self.cluster_file(&config)? {
            return self.in_file(&path);
        }
        let cluster = config.get(VARIABLE, "cluster")?;
        cluster.map_or_else(|| Ok(ClusterSpec::default()), ClusterSpec::from_json)
    }

    fn task_type(&self) -> Result<Option<String>> {
        self.task("type", |_, value| Ok(value.python_str()))
    }

    fn task_id(&self) -> Result<Option<i64>> {
        self.task("index", |what, value| value.index(what))
    }

    fn master_for(&self, target: &MasterTarget) -> Result<String> {
        if let Some(master) = self.text("session_master")? {
            return Ok(master);
        }
        let spec = self.cluster_spec()?;
        match spec.jobs().collect::<Vec<_>>()[..] {
            [] => return Ok(String::new()),
            [only] if spec.job_tasks(only)?.len() == 1 => return Ok(String::new()),
            _ => {}
        }
        let task_type = given_or(target.task_type.clone(), || self.task_type())?;
        let task_id = given_or(target.task_id, || self.task_id())?;
        let rpc_layer = given_or(target.rpc_layer.clone(), || self.rpc_layer())?;
        let job = task_type.ok_or(ClusterError::NoSuchJob { job: None })?;
        spec.num_tasks(&job)?;
        let index = task_id.ok_or_else(|| ClusterError::no_such_task(&job, None))?;
        let address = spec.task_address(&job, index)?;
        Ok(master_url(address, rpc_layer.as_deref()))
    }

    fn rpc_layer(&self) -> Result<Option<String>> {
        self.text("rpc_layer")
    }

    fn environment(&self) -> Option<String> {
        self.environment.clone()
    }

    fn describe(&self) -> Description {
        let config = self.config();
        let file = config.and_then(|config| self.cluster_file(&config));
        let names: &[&str] = match file {
            Ok(None) => &[VARIABLE],
            _ => &[VARIABLE, CLUSTER_FILE_VARIABLE],
        };
        Description::new(VARIABLE, self.env.set_among(names))
    }
}

/// The value of `TF_CONFIG` for one task of a cluster, as a launcher sets it.
///
/// ```
/// use distribute_cluster::{ClusterSpec, tf_config_json};
///
/// let spec = ClusterSpec::new([("worker", ["a:1", "b:1"])])?;
/// assert_eq!(
///     tf_config_json(&spec, "worker", 1),
///     r#"{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}"#,
/// );
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
pub fn tf_config_json(spec: &ClusterSpec, task_type: &str, task_id: i64) -> String {
    #[derive(Serialize)]
    struct Task<'a> {
        r#type: &'a str,
        index: i64,
    }
    #[derive(Serialize)]
    struct Config<'a> {
        cluster: std::collections::BTreeMap<String, Tasks>,
        task: Task<'a>,
    }
    let config = Config {
        cluster: spec.as_dict(),
        task: Task {
            r#type: task_type,
            index: task_id,
        },
    };
    // Maps with string and integer keys always serialise.
    serde_json::to_string(&config).unwrap_or_default()
}
