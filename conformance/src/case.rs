//! One case of a golden file.

use std::fmt;

use serde_json::Value;

use crate::outcome::Failure;

/// Which of TensorFlow's strategies a case was recorded under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum StrategyKind {
    /// TensorFlow's default strategy: no distribution.
    Default,
    /// `OneDeviceStrategy`.
    OneDevice,
    /// `MirroredStrategy`.
    Mirrored,
    /// `CentralStorageStrategy`.
    CentralStorage,
    /// `MultiWorkerMirroredStrategy`.
    MultiWorkerMirrored,
    /// `ParameterServerStrategy`.
    ParameterServer,
    /// A function that needs no strategy.
    None,
}

const KINDS: [(&str, StrategyKind); 7] = [
    ("default", StrategyKind::Default),
    ("one_device", StrategyKind::OneDevice),
    ("mirrored", StrategyKind::Mirrored),
    ("central_storage", StrategyKind::CentralStorage),
    ("multi_worker_mirrored", StrategyKind::MultiWorkerMirrored),
    ("parameter_server", StrategyKind::ParameterServer),
    ("none", StrategyKind::None),
];

impl fmt::Display for StrategyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = KINDS.iter().find(|(_, kind)| kind == self);
        f.write_str(found.map_or("unknown", |(name, _)| name))
    }
}

/// A strategy as the golden files write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrategySpec {
    /// Which strategy.
    pub kind: StrategyKind,
    /// How many replicas; 1 where the file does not say.
    pub replicas: usize,
}

impl StrategySpec {
    /// Reads `{"kind": ..., "replicas": ...}`.
    ///
    /// # Errors
    /// If the kind is unknown or the count no number.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let name = value["kind"].as_str().unwrap_or("(none)");
        let kind = KINDS.iter().find(|(known, _)| *known == name);
        let (_, kind) = kind.ok_or_else(|| format!("unknown strategy kind `{name}`"))?;
        let replicas = match &value["replicas"] {
            Value::Null if value["replicas_per_worker"].is_null() => 1,
            count => {
                // Of several workers each has its own.
                let count = match count {
                    Value::Null => &value["replicas_per_worker"],
                    count => count,
                };
                let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
                count.ok_or("the replica count is no number")?
            }
        };
        Ok(Self {
            kind: *kind,
            replicas,
        })
    }
}

/// `{"worker": 2}` or nothing.
fn roles(value: &Value) -> Result<Vec<(String, usize)>, &'static str> {
    let jobs = value.as_object().into_iter().flatten();
    jobs.map(|(job, count)| {
        let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
        Ok((
            job.clone(),
            count.ok_or("the number of tasks is no number")?,
        ))
    })
    .collect()
}

/// Of a strategy with parameter servers, which has counts in place of roles.
fn servers_and_workers(strategy: &Value) -> Vec<(String, usize)> {
    let jobs = [("worker", "workers"), ("ps", "ps")].into_iter();
    let jobs = jobs.filter_map(|(job, key)| {
        let count = strategy[key].as_u64()?;
        Some((job.to_string(), usize::try_from(count).ok()?))
    });
    jobs.collect()
}

/// What TensorFlow did.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// The call returned this value.
    Value(Value),
    /// The call raised a Python exception.
    Error {
        /// The exception's class.
        class: String,
        /// Its text, cut at 900 characters.
        message: String,
    },
    /// The call crashed or never returned; the text says how.
    Unavailable(String),
}

/// One recorded call.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name of the case, for people: nothing in this crate decides by it.
    pub name: String,
    /// The strategy it ran under.
    pub strategy: StrategySpec,
    /// The jobs of its cluster and their numbers of tasks, where it had one.
    pub roles: Vec<(String, usize)>,
    /// The inputs; `op` says what was called.
    pub inputs: Value,
    /// What came out.
    pub expected: Expected,
}

impl Case {
    pub(crate) fn parse(mut value: Value) -> Result<Self, String> {
        let name = value["name"].as_str().ok_or("a case without a name")?;
        let name = name.to_string();
        let of_case = |what: &str| format!("case `{name}`: {what}");
        let strategy = StrategySpec::parse(&value["strategy"]).map_err(|what| of_case(&what))?;
        let roles = roles(&value["strategy"]["roles"]).map_err(of_case)?;
        let roles = if roles.is_empty() {
            servers_and_workers(&value["strategy"])
        } else {
            roles
        };
        if value["inputs"]["op"].as_str().is_none() {
            return Err(of_case("there is no `inputs.op`"));
        }
        let error = &value["error"];
        let expected = if let Some(class) = error["class"].as_str() {
            Expected::Error {
                class: class.to_string(),
                message: error["message"].as_str().unwrap_or_default().to_string(),
            }
        } else if let Some(text) = value["unavailable"].as_str() {
            Expected::Unavailable(text.to_string())
        } else {
            let expect = value.get_mut("expect").map(Value::take);
            Expected::Value(expect.ok_or_else(|| of_case("no `expect`, `error`, `unavailable`"))?)
        };
        Ok(Self {
            inputs: value["inputs"].take(),
            name,
            strategy,
            roles,
            expected,
        })
    }

    /// A case of a family that is not checked: it has a name, and that of its file.
    pub(crate) fn unchecked(family: &str, value: &Value) -> Self {
        let name = value["name"].as_str().unwrap_or("(without a name)");
        Self {
            name: format!("{family}/{name}"),
            strategy: StrategySpec {
                kind: StrategyKind::None,
                replicas: 1,
            },
            roles: Vec::new(),
            inputs: value["inputs"].clone(),
            expected: Expected::Value(value["expect"].clone()),
        }
    }

    /// What was called.
    pub fn op(&self) -> &str {
        self.inputs["op"].as_str().unwrap_or_default()
    }

    /// How many tasks its cluster had of a job.
    pub(crate) fn tasks(&self, job: &str) -> Result<usize, Failure> {
        let found = self.roles.iter().find(|(name, _)| name == job);
        let missing = || Failure::schema(format!("no number of tasks for `{job}`"));
        found.map(|(_, count)| *count).ok_or_else(missing)
    }

    /// Whether TensorFlow returned something.
    pub fn expects_value(&self) -> bool {
        matches!(self.expected, Expected::Value(_))
    }

    /// What TensorFlow returned, if it did.
    pub(crate) fn value(&self) -> Option<&Value> {
        match &self.expected {
            Expected::Value(value) => Some(value),
            _ => None,
        }
    }

    /// The exception's text, if TensorFlow raised one.
    pub(crate) fn error_message(&self) -> Option<&str> {
        match &self.expected {
            Expected::Error { message, .. } => Some(message),
            _ => None,
        }
    }

    /// The exception's class, if TensorFlow raised one.
    pub(crate) fn error_class(&self) -> Option<&str> {
        match &self.expected {
            Expected::Error { class, .. } => Some(class),
            _ => None,
        }
    }
}
