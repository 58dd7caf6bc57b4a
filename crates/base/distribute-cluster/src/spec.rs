//! The tasks of a cluster and their addresses.

use std::collections::BTreeMap;
use std::fmt;

use indexmap::IndexMap;
use serde::Serialize;

use super::error::shortened;
use super::json::{Json, Repr, parse_index};
use super::{ClusterError, MAX_TASKS, Result};

/// The tasks of a cluster, by job: which there are and where they listen (TensorFlow's
/// `tf.train.ClusterSpec`).
///
/// A job's tasks are numbered from 0 (dense), or are any set of indices (sparse), for a process
/// that only knows some of them. Addresses are usually `host:port`; they are not interpreted
/// here. An address that is not known, as of the ranks that a launcher numbers without saying
/// where they are, is `None`: it is no text that could pass for an address. Two specs are equal if
/// they have the same tasks, whatever the order of their jobs.
///
/// `Display` writes it as TensorFlow does: `ClusterSpec({'worker': ['a:1', 'b:1']})`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    /// In the order they were given in, which is nothing to a comparison.
    jobs: IndexMap<String, Addresses>,
}

/// The tasks of a job: the address of each, where it is known.
pub(super) type Addresses = BTreeMap<i64, Option<String>>;

/// The tasks of one job, in the form that TensorFlow's `as_dict` gives them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Tasks {
    /// Tasks 0, 1, 2, ...
    Dense(Vec<String>),
    /// Tasks by index; also a job without tasks.
    Sparse(BTreeMap<i64, String>),
}

impl ClusterSpec {
    /// A cluster whose jobs have the tasks 0, 1, 2, ... at these addresses.
    ///
    /// ```
    /// use distribute_cluster::ClusterSpec;
    ///
    /// let spec = ClusterSpec::new([("worker", vec!["a:1", "b:1"]), ("ps", vec!["c:1"])])?;
    /// assert_eq!(spec.task_address("worker", 1)?, "b:1");
    /// # Ok::<(), distribute_cluster::ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClusterError::TooMany`] beyond [`MAX_TASKS`].
    pub fn new<J, L, A>(jobs: impl IntoIterator<Item = (J, L)>) -> Result<Self>
    where
        J: Into<String>,
        L: IntoIterator<Item = A>,
        A: Into<String>,
    {
        Self::sparse(jobs.into_iter().map(|(job, list)| (job, (0..).zip(list))))
    }

    /// A cluster whose jobs have tasks with these indices at these addresses. Of equal jobs or
    /// indices the last one counts.
    ///
    /// # Errors
    ///
    /// [`ClusterError::TooMany`] beyond [`MAX_TASKS`]; [`ClusterError::InvalidIndex`] if an index
    /// has more than 32 bits.
    pub fn sparse<J, L, A>(jobs: impl IntoIterator<Item = (J, L)>) -> Result<Self>
    where
        J: Into<String>,
        L: IntoIterator<Item = (i64, A)>,
        A: Into<String>,
    {
        let known = |(job, tasks): (J, L)| {
            let tasks = tasks.into_iter();
            (job, tasks.map(|(index, address)| (index, Some(address))))
        };
        Self::partly_known(jobs.into_iter().map(known))
    }

    /// As [`Self::sparse`], with `None` for tasks that there are, but whose addresses are not
    /// known.
    ///
    /// # Errors
    ///
    /// As [`Self::sparse`].
    pub fn partly_known<J, L, A>(jobs: impl IntoIterator<Item = (J, L)>) -> Result<Self>
    where
        J: Into<String>,
        L: IntoIterator<Item = (i64, Option<A>)>,
        A: Into<String>,
    {
        let mut spec = Self::default();
        let mut total = 0;
        let check_total = |count| ClusterError::check_limit(count, MAX_TASKS, "tasks of a cluster");
        for (job, tasks) in jobs {
            let job = job.into();
            total -= spec.task_count(&job);
            let mut addresses = BTreeMap::new();
            for (index, address) in tasks {
                // The tasks of TensorFlow's ClusterDef are a map<int32, string>.
                i32::try_from(index).map_err(|_| {
                    ClusterError::invalid_index(format!("job '{job}'"), index.to_string())
                })?;
                addresses.insert(index, address.map(Into::into));
                check_total(total + addresses.len())?;
            }
            total += addresses.len();
            spec.jobs.insert(job, addresses);
            check_total(spec.jobs.len())?;
        }
        Ok(spec)
    }

    /// Reads the JSON form: `{"worker": ["a:1", "b:1"], "ps": {"1": "c:1"}}`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Json`], [`ClusterError::NotACluster`], [`ClusterError::TasksNotAList`],
    /// [`ClusterError::AddressNotAString`], [`ClusterError::InvalidIndex`] or
    /// [`ClusterError::TooMany`], whichever TensorFlow would find first.
    pub fn parse(json: &str) -> Result<Self> {
        Self::from_json(&Json::parse("the cluster", json)?)
    }

    pub(super) fn from_json(json: &Json) -> Result<Self> {
        let Json::Object(entries) = json else {
            return Err(ClusterError::NotACluster { found: json.kind() });
        };
        let mut jobs = Vec::new();
        for (job, tasks) in entries {
            jobs.push((job, indexed_tasks(job, tasks)?));
        }
        // TensorFlow looks at the addresses only now, and in this order.
        let mut sorted: Vec<_> = jobs.iter().collect();
        sorted.sort_by_key(|(job, _)| *job);
        for (job, tasks) in sorted {
            let mut tasks = tasks.iter();
            if let Some((&index, address)) = tasks.find(|(_, task)| !matches!(task, Json::Text(_)))
            {
                let (job, found) = (job.to_string(), shortened(&format!("{:?}", Repr(*address))));
                return Err(ClusterError::AddressNotAString { job, index, found });
            }
        }
        Self::sparse(jobs.into_iter().map(|(job, tasks)| {
            let text = |(index, address): (i64, &Json)| (index, address.python_str());
            (job.as_str(), tasks.into_iter().map(text))
        }))
    }

    /// Whether there are no jobs at all: the process runs by itself.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The names of the jobs, in the order they were given in.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.jobs.keys().map(String::as_str)
    }

    /// Whether there is such a job, even one without tasks.
    pub fn has_job(&self, job: &str) -> bool {
        self.jobs.contains_key(job)
    }

    /// The number of tasks in a job.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoSuchJob`].
    pub fn num_tasks(&self, job: &str) -> Result<usize> {
        self.job(job).map(BTreeMap::len)
    }

    /// The number of tasks in a job, 0 if there is no such job.
    pub fn task_count(&self, job: &str) -> usize {
        self.jobs.get(job).map_or(0, BTreeMap::len)
    }

    /// The indices of a job's tasks, ascending.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoSuchJob`].
    pub fn task_indices(&self, job: &str) -> Result<Vec<i64>> {
        self.job(job).map(|tasks| tasks.keys().copied().collect())
    }

    /// The address of a task.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoSuchJob`] or [`ClusterError::NoSuchTask`];
    /// [`ClusterError::AddressNotKnown`] if there is such a task, and nothing says where.
    pub fn task_address(&self, job: &str, index: i64) -> Result<&str> {
        let address = self
            .job(job)?
            .get(&index)
            .ok_or_else(|| ClusterError::no_such_task(job, Some(index)))?;
        let job = || job.to_string();
        (address.as_deref()).ok_or_else(|| ClusterError::AddressNotKnown { job: job(), index })
    }

    /// Whether there are tasks whose addresses are not known.
    pub fn has_unknown_addresses(&self) -> bool {
        let mut addresses = self.jobs.values().flat_map(BTreeMap::values);
        addresses.any(Option::is_none)
    }

    /// The addresses of a job by task index, with gaps where a sparse job has no task, or a task's
    /// address is not known.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoSuchJob`]; [`ClusterError::EmptyJob`] as TensorFlow has it;
    /// [`ClusterError::SparseJob`] if an index is negative or beyond [`MAX_TASKS`].
    pub fn job_tasks(&self, job: &str) -> Result<Vec<Option<&str>>> {
        let tasks = self.job(job)?;
        let (Some((&first, _)), Some((&last, _))) =
            (tasks.first_key_value(), tasks.last_key_value())
        else {
            return Err(ClusterError::EmptyJob {
                job: job.to_string(),
            });
        };
        let furthest = if first < 0 { first } else { last };
        if !(0..MAX_TASKS as i64).contains(&furthest) {
            let (job, index) = (job.to_string(), furthest);
            return Err(ClusterError::SparseJob { job, index });
        }
        let address = |index| tasks.get(&index).and_then(Option::as_deref);
        Ok((0..=last).map(address).collect())
    }

    /// The jobs and their tasks (TensorFlow's `as_dict`): a list where the tasks are 0, 1, 2, ...,
    /// else a map. Tasks whose addresses are not known are left out, as by a TensorFlow process
    /// that only knows some of them. It serialises to the JSON form that [`ClusterSpec::parse`]
    /// reads.
    pub fn as_dict(&self) -> BTreeMap<String, Tasks> {
        let jobs = self.jobs.iter();
        jobs.map(|(job, tasks)| (job.clone(), normalised(tasks)))
            .collect()
    }

    /// The addresses of a job as far as they are known, none if there is no such job.
    pub(super) fn addresses(&self, job: &str) -> impl Iterator<Item = Option<&str>> {
        let tasks = self.jobs.get(job).into_iter();
        tasks.flat_map(BTreeMap::values).map(Option::as_deref)
    }

    /// All jobs with their tasks.
    pub(super) fn tasks(&self) -> impl Iterator<Item = (&str, &Addresses)> {
        self.jobs.iter().map(|(job, tasks)| (job.as_str(), tasks))
    }

    fn job(&self, job: &str) -> Result<&Addresses> {
        self.jobs.get(job).ok_or_else(|| ClusterError::NoSuchJob {
            job: Some(job.to_string()),
        })
    }
}

/// Whether a job has tasks, and they are 0, 1, 2, ...
pub(super) fn is_dense<T>(tasks: &BTreeMap<i64, T>) -> bool {
    !tasks.is_empty() && tasks.keys().copied().eq(0..tasks.len() as i64)
}

fn normalised(tasks: &Addresses) -> Tasks {
    let known: BTreeMap<i64, String> = tasks
        .iter()
        .filter_map(|(index, address)| Some((*index, address.clone()?)))
        .collect();
    if is_dense(&known) {
        Tasks::Dense(known.into_values().collect())
    } else {
        Tasks::Sparse(known)
    }
}

fn indexed_tasks<'a>(job: &str, tasks: &'a Json) -> Result<BTreeMap<i64, &'a Json>> {
    match tasks {
        Json::List(list) => Ok((0..).zip(list).collect()),
        Json::Object(entries) => entries
            .iter()
            .map(|(key, task)| Ok((parse_index(&format!("job '{job}'"), key)?, task)))
            .collect(),
        other => Err(ClusterError::TasksNotAList {
            job: job.to_string(),
            found: other.kind(),
        }),
    }
}

impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSpec(")?;
        let dict = self.as_dict();
        let jobs = dict.iter().map(|(job, tasks)| (Repr(job), Repr(tasks)));
        f.debug_map().entries(jobs).finish()?;
        f.write_str(")")
    }
}

impl fmt::Debug for Repr<'_, Tasks> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Tasks::Dense(list) => f.debug_list().entries(list.iter().map(Repr)).finish(),
            Tasks::Sparse(map) => {
                let tasks = map.iter().map(|(index, address)| (index, Repr(address)));
                f.debug_map().entries(tasks).finish()
            }
        }
    }
}
