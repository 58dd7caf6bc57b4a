//! `TF_CONFIG`, as TensorFlow reads it.

use serde::Serialize;

use super::environment::{Environment, Variables};
use super::json::Json;
use super::resolver::{address_of, master_url};
use super::{
    Accelerators, ClusterError, ClusterResolver, ClusterSpec, Description, MasterTarget, Tasks,
};

const VARIABLE: &str = "TF_CONFIG";

/// Reads the cluster and the task from the variable `TF_CONFIG` (TensorFlow's
/// `TFConfigClusterResolver`):
///
/// ```json
/// {"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": 0}}
/// ```
///
/// The variable is read at each access. What was given to the builder methods or setters wins
/// over it. Without the variable, or without `cluster` in it, the process runs by itself.
/// `task.index` may be a number, which is cut to a whole one, or text such as `"1"`.
#[derive(Debug, Clone)]
#[must_use]
pub struct TfConfigResolver {
    env: Variables,
    task_type: Option<String>,
    task_id: Option<i64>,
    rpc_layer: Option<String>,
    environment: Option<String>,
    accelerators: Accelerators,
}

impl TfConfigResolver {
    /// Reads `TF_CONFIG` of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self::with_variables(Variables::new(env))
    }

    pub(super) fn with_variables(env: Variables) -> Self {
        Self {
            env,
            task_type: None,
            task_id: None,
            rpc_layer: None,
            environment: None,
            accelerators: Accelerators::new(),
        }
    }

    /// The task type, whatever the variable says.
    pub fn task_type(mut self, task_type: impl Into<String>) -> Self {
        self.set_task_type(Some(task_type.into()));
        self
    }

    /// The task's index, whatever the variable says.
    pub fn task_id(mut self, task_id: i64) -> Self {
        self.set_task_id(Some(task_id));
        self
    }

    /// The protocol, whatever the variable says.
    pub fn rpc_layer(mut self, rpc_layer: impl Into<String>) -> Self {
        self.set_rpc_layer(Some(rpc_layer.into()));
        self
    }

    /// The name of the environment. The variable's is not read, as in TensorFlow.
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = Some(environment.into());
        self
    }

    /// The accelerators of this host; none if not given.
    pub fn accelerators(mut self, accelerators: Accelerators) -> Self {
        self.accelerators = accelerators;
        self
    }

    /// Replaces the task type; `None` goes back to the variable's.
    pub fn set_task_type(&mut self, task_type: Option<String>) {
        self.task_type = task_type;
    }

    /// Replaces the task's index; `None` goes back to the variable's.
    pub fn set_task_id(&mut self, task_id: Option<i64>) {
        self.task_id = task_id;
    }

    /// Replaces the protocol; `None` goes back to the variable's.
    pub fn set_rpc_layer(&mut self, rpc_layer: Option<String>) {
        self.rpc_layer = rpc_layer;
    }

    fn config(&self) -> Result<Json, ClusterError> {
        let text = self.env.get(VARIABLE)?;
        Json::parse(VARIABLE, text.as_deref().unwrap_or("{}"))
    }

    /// Reads `key` of the `task` object.
    fn task<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str, &Json) -> Result<T, ClusterError>,
    ) -> Result<Option<T>, ClusterError> {
        let config = self.config()?;
        let Some(task) = config.get(VARIABLE, "task")? else {
            return Ok(None);
        };
        let value = task.get("task in TF_CONFIG", key)?;
        value
            .map(|value| read(&format!("task.{key} in TF_CONFIG"), value))
            .transpose()
    }

    fn text(&self, key: &str) -> Result<Option<String>, ClusterError> {
        let config = self.config()?;
        let value = config.get(VARIABLE, key)?.unwrap_or(&Json::Null);
        value.optional_text(&format!("{key} in TF_CONFIG"))
    }
}

impl ClusterResolver for TfConfigResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let config = self.config()?;
        let cluster = config.get(VARIABLE, "cluster")?;
        cluster.map_or_else(|| Ok(ClusterSpec::default()), ClusterSpec::from_json)
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        match &self.task_type {
            Some(task_type) => Ok(Some(task_type.clone())),
            None => self.task("type", |_, value| Ok(value.python_str())),
        }
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        match self.task_id {
            Some(task_id) => Ok(Some(task_id)),
            None => self.task("index", |what, value| value.index(what)),
        }
    }

    fn master_for(&self, target: &MasterTarget) -> Result<String, ClusterError> {
        if let Some(master) = self.text("session_master")? {
            return Ok(master);
        }
        let spec = self.cluster_spec()?;
        let mut jobs = spec.jobs();
        match (jobs.next(), jobs.next()) {
            (None, _) => return Ok(String::new()),
            (Some(only), None) if spec.job_tasks(only)?.len() == 1 => return Ok(String::new()),
            _ => {}
        }
        let task_type = match &target.task_type {
            Some(task_type) => Some(task_type.clone()),
            None => ClusterResolver::task_type(self)?,
        };
        let task_id = match target.task_id {
            Some(task_id) => Some(task_id),
            None => ClusterResolver::task_id(self)?,
        };
        let rpc_layer = match &target.rpc_layer {
            Some(rpc_layer) => Some(rpc_layer.clone()),
            None => ClusterResolver::rpc_layer(self)?,
        };
        let address = address_of(&spec, task_type.as_deref(), task_id)?;
        Ok(master_url(&address, rpc_layer.as_deref()))
    }

    fn rpc_layer(&self) -> Result<Option<String>, ClusterError> {
        match &self.rpc_layer {
            Some(rpc_layer) => Ok(Some(rpc_layer.clone())),
            None => self.text("rpc_layer"),
        }
    }

    fn environment(&self) -> Option<String> {
        self.environment.clone()
    }

    fn num_accelerators(&self) -> Result<Accelerators, ClusterError> {
        Ok(self.accelerators.clone())
    }

    fn describe(&self) -> Description {
        Description::new("TF_CONFIG", self.env.set_among(&[VARIABLE]))
            .given("task_type", self.task_type.as_ref())
            .given("task_id", self.task_id)
            .given("rpc_layer", self.rpc_layer.as_ref())
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
