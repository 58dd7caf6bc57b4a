//! Which TPU a program is meant to use.

use std::fmt;
use std::path::Path;

use distribute_core::cluster::{
    ClusterError, ClusterResolver, ClusterSpec, Description, Environment, MasterTarget,
    ProcessEnvironment, SimpleResolver,
};

use super::system::Processes;
use super::{TpuConnection, TpuError};

/// Where a [`TpuClusterResolver`] got its answer from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TpuSource {
    /// The argument.
    Argument,
    /// `COLAB_TPU_ADDR`.
    Colab,
    /// `TPU_NAME`.
    TpuName,
    /// The variables of a TPU VM or of a TPU node pool of Kubernetes: `TPU_WORKER_HOSTNAMES`.
    TpuVm,
    /// Nothing is set: the TPU of this machine.
    Local,
}

impl fmt::Display for TpuSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argument => "the argument",
            Self::Colab => "COLAB_TPU_ADDR",
            Self::TpuName => "TPU_NAME",
            Self::TpuVm => "TPU_WORKER_HOSTNAMES",
            Self::Local => "this machine",
        })
    }
}

/// Finds the TPU to use (TensorFlow: `tf.distribute.cluster_resolver.TPUClusterResolver`).
///
/// The argument counts, else `COLAB_TPU_ADDR`, else `TPU_NAME`, else the variables of a TPU VM
/// (`TPU_WORKER_HOSTNAMES`, `TPU_WORKER_ID`, `TPU_ACCELERATOR_TYPE`), else this machine.
///
/// PJRT drives the TPU of the machine that the program runs on, so a program for a TPU slice runs
/// on all its machines. A TPU that is only an address (the "TPU nodes" of TensorFlow 1 and of old
/// Colab runtimes) can be named, but not [connected](Self::connect) to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpuClusterResolver {
    source: TpuSource,
    addresses: Vec<String>,
    /// Whether the addresses belong to the machines that the program itself runs on.
    is_here: bool,
    worker: usize,
    accelerator_type: Option<String>,
    /// Given by the caller, who knows better than the environment.
    given: Option<Processes>,
}

/// The port at which process 0 listens, where an address names none (JAX: the same).
const COORDINATOR_PORT: u16 = 8476;

impl TpuClusterResolver {
    /// Resolves a name (`my-tpu`), an address (`grpc://10.0.0.2:8470`), or `local`. The empty name
    /// stands for what the environment says, as in TensorFlow.
    ///
    /// # Errors
    /// [`TpuError::Resolve`] if a variable cannot be understood.
    pub fn new(tpu: &str) -> Result<Self, TpuError> {
        Self::resolve_in(tpu, &ProcessEnvironment)
    }

    /// The TPU that the environment names (`COLAB_TPU_ADDR`, `TPU_NAME`), or the one of this
    /// machine.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_env() -> Result<Self, TpuError> {
        Self::new("")
    }

    /// [`new`](Self::new) with the variables of another environment.
    ///
    /// # Errors
    /// As `new`.
    pub fn resolve_in(tpu: &str, environment: &dyn Environment) -> Result<Self, TpuError> {
        let named = Named {
            vm: Vm::read(environment)?,
        };
        if !tpu.is_empty() {
            return Ok(named.resolve(TpuSource::Argument, tpu));
        }
        if let Some(address) = variable(environment, "COLAB_TPU_ADDR")? {
            return Ok(named.resolve(TpuSource::Colab, &address));
        }
        if let Some(name) = variable(environment, "TPU_NAME")? {
            return Ok(named.resolve(TpuSource::TpuName, &name));
        }
        Ok(named.here(None))
    }

    /// Where the answer comes from.
    pub fn source(&self) -> TpuSource {
        self.source
    }

    /// The machines of the TPU: `host:port`, a host, or a name.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The number of this machine among the machines of the TPU.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Says which process this is, of how many, and at which `host:port` process 0 can be reached.
    /// Only needed where the environment does not say so: several processes with another plugin
    /// than libtpu, which finds the other machines of a slice by itself.
    ///
    /// # Errors
    /// [`TpuError::Resolve`] if there is no such process, or the address is not `host:port`.
    pub fn processes(
        mut self,
        process_id: usize,
        num_processes: usize,
        coordinator_address: Option<&str>,
    ) -> Result<Self, TpuError> {
        if process_id >= num_processes {
            let what = format!(
                "process {process_id} of {num_processes} processes: they are counted from 0"
            );
            return Err(TpuError::Resolve { what });
        }
        if let Some(address) = coordinator_address.filter(|address| !has_port(address)) {
            let what = format!("the coordinator's address is `{address}`, not `host:port`");
            return Err(TpuError::Resolve { what });
        }
        self.given = Some(Processes {
            id: process_id,
            count: num_processes,
            coordinator: coordinator_address.map(str::to_string),
            is_certain: true,
        });
        Ok(self)
    }

    /// The number of this process in the system, from 0.
    pub fn process_id(&self) -> usize {
        self.given.as_ref().map_or(self.worker, |given| given.id)
    }

    /// The processes of the system: what was given, or else one on each machine.
    pub fn num_processes(&self) -> usize {
        let machines = if self.is_here {
            self.addresses.len()
        } else {
            1
        };
        self.given.as_ref().map_or(machines, |given| given.count)
    }

    /// Where process 0 can be reached, if there are several: what was given, or else the first
    /// machine, with port 8476 if it has none.
    pub fn coordinator_address(&self) -> Option<String> {
        if let Some(given) = self
            .given
            .as_ref()
            .and_then(|given| given.coordinator.clone())
        {
            return Some(given);
        }
        let first = self.addresses.first()?;
        let is_alone = self.num_processes() == 1 || self.addresses.len() == 1;
        (!is_alone).then(|| {
            if has_port(first) {
                first.clone()
            } else {
                format!("{first}:{COORDINATOR_PORT}")
            }
        })
    }

    /// The kind of slice, such as `v5litepod-8`, if the environment tells it.
    pub fn accelerator_type(&self) -> Option<&str> {
        self.accelerator_type.as_deref()
    }

    /// Loads the plugin of the TPU: libtpu, or the one that `PJRT_PLUGIN_LIBRARY_PATH` names
    /// (TensorFlow: `tf.config.experimental_connect_to_cluster`).
    ///
    /// # Errors
    /// [`TpuError::Initialize`] if there is no plugin, no TPU, or the TPU is not one of this
    /// machine.
    pub fn connect(&self) -> Result<TpuConnection, TpuError> {
        self.connect_with(None)
    }

    /// [`connect`](Self::connect) with this plugin.
    ///
    /// # Errors
    /// As `connect`.
    pub fn connect_with(&self, plugin: Option<&Path>) -> Result<TpuConnection, TpuError> {
        if !self.is_here {
            return Err(TpuError::initialize(format!(
                "{} names the TPU {}, which is reached over the network; PJRT drives the TPU \
                 of the machine that the program runs on: start the program on the TPU VM \
                 itself, with `local` or without a name",
                self.source,
                self.addresses.join(", ")
            )));
        }
        let processes = Processes {
            id: self.process_id(),
            count: self.num_processes(),
            coordinator: self.coordinator_address(),
            is_certain: self.given.is_some(),
        };
        TpuConnection::open(plugin, self.addresses.clone(), processes)
    }
}

/// One job `worker` with a task on every machine of the TPU; this process is one of them.
impl ClusterResolver for TpuClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        ClusterSpec::new([("worker", self.addresses.clone())])
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        Ok(Some("worker".to_string()))
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        Ok(i64::try_from(self.worker).ok())
    }

    /// The address of the given task, else of the first machine; `local` for the TPU of
    /// this machine alone.
    fn master_for(&self, target: &MasterTarget) -> Result<String, ClusterError> {
        let spec = self.cluster_spec()?;
        let first = spec.task_address("worker", 0)?.to_string();
        let simple = SimpleResolver::new(spec).master(first.as_str());
        if first.contains(':') {
            simple.rpc_layer("grpc").master_for(target)
        } else {
            simple.master_for(target)
        }
    }

    fn describe(&self) -> Description {
        let named = (self.source.to_string(), self.addresses.join(","));
        Description {
            resolver: "TPU",
            variables: vec![named],
            overrides: Vec::new(),
        }
    }
}

impl fmt::Display for TpuClusterResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (from {})", self.addresses, self.source)
    }
}

/// The information in the environment of a TPU VM.
#[derive(Debug, Default)]
struct Vm {
    hosts: Vec<String>,
    worker: usize,
    accelerator_type: Option<String>,
}

impl Vm {
    fn read(environment: &dyn Environment) -> Result<Self, TpuError> {
        // Several processes on one machine have addresses of their own (libtpu's variable).
        let addresses = variable(environment, "TPU_PROCESS_ADDRESSES")?;
        let (list, hosts, ids) = match addresses {
            Some(list) => (
                "TPU_PROCESS_ADDRESSES",
                list,
                ["CLOUD_TPU_TASK_ID", "TPU_WORKER_ID"],
            ),
            None => (
                "TPU_WORKER_HOSTNAMES",
                variable(environment, "TPU_WORKER_HOSTNAMES")?.unwrap_or_default(),
                ["TPU_WORKER_ID", "CLOUD_TPU_TASK_ID"],
            ),
        };
        let hosts: Vec<String> = hosts
            .split(',')
            .map(str::trim)
            .filter(|host| !host.is_empty())
            .map(str::to_string)
            .collect();
        let mut id = None;
        for name in ids {
            if id.is_none() {
                id = variable(environment, name)?.map(|id| (name, id));
            }
        }
        let worker = match &id {
            None => 0,
            Some((name, text)) => text.trim().parse().map_err(|_| TpuError::Resolve {
                what: format!("{name} is `{text}`, not the number of a worker"),
            })?,
        };
        if !hosts.is_empty() && worker >= hosts.len() {
            return Err(TpuError::Resolve {
                what: format!(
                    "this machine is worker {worker}, but {list} names {} machines ({}), counted \
                     from 0",
                    hosts.len(),
                    hosts.join(", ")
                ),
            });
        }
        Ok(Self {
            hosts,
            worker,
            accelerator_type: variable(environment, "TPU_ACCELERATOR_TYPE")?,
        })
    }
}

struct Named {
    vm: Vm,
}

impl Named {
    /// A TPU by name or address.
    fn resolve(self, source: TpuSource, tpu: &str) -> TpuClusterResolver {
        let address = tpu.strip_prefix("grpc://").unwrap_or(tpu);
        let host = address.split(':').next().unwrap_or(address);
        let here = ["local", "localhost", "127.0.0.1"].contains(&host);
        let is_address = tpu.starts_with("grpc://") || address.contains([':', '.', '/']);
        // The name of the TPU that this VM belongs to is as good as no name.
        if here || (!is_address && source != TpuSource::Colab) {
            let mut resolver = self.here(Some(source));
            if !here && resolver.addresses == ["local"] {
                resolver.addresses = vec![tpu.to_string()];
            }
            return resolver;
        }
        TpuClusterResolver {
            source,
            addresses: address.split(',').map(str::to_string).collect(),
            is_here: false,
            worker: 0,
            accelerator_type: self.vm.accelerator_type,
            given: None,
        }
    }

    /// The TPU of this machine.
    fn here(self, source: Option<TpuSource>) -> TpuClusterResolver {
        let found = if self.vm.hosts.is_empty() {
            TpuSource::Local
        } else {
            TpuSource::TpuVm
        };
        let mut addresses = self.vm.hosts;
        if addresses.is_empty() {
            addresses.push("local".to_string());
        }
        TpuClusterResolver {
            source: source.unwrap_or(found),
            addresses,
            is_here: true,
            worker: self.vm.worker,
            accelerator_type: self.vm.accelerator_type,
            given: None,
        }
    }
}

/// Whether an address ends with a port.
fn has_port(address: &str) -> bool {
    let port = address
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    matches!(port, Some(Ok(_)))
}

/// The value of a variable that is set and not empty.
fn variable(environment: &dyn Environment, name: &str) -> Result<Option<String>, TpuError> {
    let unreadable = |error: ClusterError| TpuError::Resolve {
        what: error.to_string(),
    };
    let value = environment.var(name).map_err(unreadable)?;
    Ok(value.filter(|value| !value.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn resolve(tpu: &str, variables: &[(&str, &str)]) -> TpuClusterResolver {
        try_resolve(tpu, variables).unwrap()
    }

    fn try_resolve(tpu: &str, variables: &[(&str, &str)]) -> Result<TpuClusterResolver, TpuError> {
        let variables = variables
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()));
        TpuClusterResolver::resolve_in(tpu, &variables.collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn the_argument_counts_before_the_environment() {
        let variables = [("COLAB_TPU_ADDR", "10.0.0.2:8470"), ("TPU_NAME", "other")];
        let found = resolve("grpc://10.1.1.1:8470", &variables);
        assert_eq!(found.source(), TpuSource::Argument);
        assert_eq!(found.addresses(), ["10.1.1.1:8470"]);
        assert_eq!(found.master().unwrap(), "grpc://10.1.1.1:8470");
        let found = resolve("", &variables);
        assert_eq!(found.source(), TpuSource::Colab);
        assert_eq!(found.addresses(), ["10.0.0.2:8470"]);
        let found = resolve("", &variables[1..]);
        assert_eq!(found.source(), TpuSource::TpuName);
        assert_eq!(found.addresses(), ["other"]);
    }

    #[test]
    fn a_tpu_vm_is_described_by_its_variables() {
        let variables = [
            ("TPU_WORKER_HOSTNAMES", "host-a, host-b"),
            ("TPU_WORKER_ID", "1"),
            ("TPU_ACCELERATOR_TYPE", "v5litepod-16"),
        ];
        for tpu in ["", "local", "my-tpu"] {
            let found = resolve(tpu, &variables);
            assert_eq!(found.addresses(), ["host-a", "host-b"]);
            assert_eq!(found.worker(), 1);
            assert_eq!(found.accelerator_type(), Some("v5litepod-16"));
        }
        assert_eq!(resolve("", &variables).source(), TpuSource::TpuVm);
        assert_eq!(resolve("", &[]).source(), TpuSource::Local);
        assert_eq!(resolve("", &[]).addresses(), ["local"]);
        assert_eq!(resolve("", &[]).master().unwrap(), "local");
        let found = resolve("", &variables);
        assert_eq!(found.task_id().unwrap(), Some(1));
        assert_eq!(
            found
                .cluster_spec()
                .unwrap()
                .task_address("worker", 1)
                .unwrap(),
            "host-b"
        );
    }

    #[test]
    fn processes_come_from_arguments_and_from_the_environment() {
        let alone = resolve("", &[]);
        assert_eq!((alone.process_id(), alone.num_processes()), (0, 1));
        assert_eq!(alone.coordinator_address(), None);
        let given = alone.processes(1, 3, Some("10.0.0.1:1234")).unwrap();
        assert_eq!((given.process_id(), given.num_processes()), (1, 3));
        let expected = Some("10.0.0.1:1234".to_string());
        assert_eq!(given.coordinator_address(), expected);
        let variables = [
            ("TPU_WORKER_HOSTNAMES", "host-a,host-b"),
            ("TPU_WORKER_ID", "1"),
        ];
        let vm = resolve("", &variables);
        assert_eq!((vm.process_id(), vm.num_processes()), (1, 2));
        assert_eq!(vm.coordinator_address(), Some("host-a:8476".to_string()));
        let variables = [
            ("TPU_WORKER_HOSTNAMES", "host-a"),
            ("TPU_WORKER_ID", "0"),
            ("TPU_PROCESS_ADDRESSES", "localhost:8471,localhost:8472"),
            ("CLOUD_TPU_TASK_ID", "1"),
        ];
        let several = resolve("", &variables);
        assert_eq!((several.process_id(), several.num_processes()), (1, 2));
        let expected = Some("localhost:8471".to_string());
        assert_eq!(several.coordinator_address(), expected);
        for (id, count, address) in [(2, 2, None), (0, 0, None), (0, 2, Some("host"))] {
            let error = resolve("", &[]).processes(id, count, address);
            assert!(matches!(error, Err(TpuError::Resolve { .. })));
        }
    }

    #[test]
    fn nonsense_is_named() {
        let error = try_resolve("", &[("TPU_WORKER_ID", "first")]).unwrap_err();
        assert!(
            error.to_string().contains("TPU_WORKER_ID is `first`"),
            "{error}"
        );
        let variables = [("TPU_WORKER_HOSTNAMES", "a,b"), ("TPU_WORKER_ID", "2")];
        let error = try_resolve("", &variables).unwrap_err();
        assert!(error.to_string().contains("names 2 machines"), "{error}");
    }

    #[test]
    fn a_tpu_behind_an_address_is_no_fallback_to_anything() {
        let resolver = resolve("", &[("COLAB_TPU_ADDR", "10.0.0.2:8470")]);
        let error = resolver.connect().unwrap_err().to_string();
        assert!(
            error.starts_with("TPU failed to initialize: COLAB_TPU_ADDR"),
            "{error}"
        );
    }
}
