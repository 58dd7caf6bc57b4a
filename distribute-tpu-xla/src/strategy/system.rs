//! A TPU system: a plugin, and the client of its devices.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use distribute_core::collectives::Communicator;

use super::TpuError;
use super::slice::SliceCommunicator;
use crate::pjrt::{Client, LibtpuEnvironment, PjrtError, Plugin, Value};

/// The processes that share a TPU system, and which of them this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Processes {
    pub(super) id: usize,
    pub(super) count: usize,
    /// Where process 0 can be reached, as `host:port`.
    pub(super) coordinator: Option<String>,
    /// Whether the plugin must say the same.
    pub(super) is_certain: bool,
}

/// A loaded plugin whose devices are not in use yet.
#[derive(Clone)]
pub struct TpuConnection {
    plugin: Plugin,
    addresses: Vec<String>,
    processes: Processes,
}

impl TpuConnection {
    /// Loads the plugin in this file, or the one that is [installed](Plugin::locate).
    pub(super) fn open(
        explicit: Option<&Path>,
        addresses: Vec<String>,
        processes: Processes,
    ) -> Result<Self, TpuError> {
        let path = Plugin::locate(explicit).map_err(|error| initialize(&error))?;
        if LibtpuEnvironment::is_for(&path) {
            check_for_tpu(&path)?;
        }
        let plugin = Plugin::load(&path).map_err(|error| initialize(&error))?;
        Ok(Self {
            plugin,
            addresses,
            processes,
        })
    }

    /// Opens the devices; blocks until they are ready
    /// (TensorFlow: `tf.tpu.experimental.initialize_tpu_system`).
    ///
    /// # Errors
    /// [`TpuError::Initialize`] with the plugin's own words.
    pub fn initialize(&self) -> Result<TpuSystem, TpuError> {
        self.initialize_with(&[])
    }

    /// [`initialize`](Self::initialize) with options of the plugin, such as `cpu_device_count` of
    /// XLA's CPU client. With several processes all of them call it together, and it blocks until
    /// they have; `node_id`, `num_nodes` and `coordinator_address` are added for plugins other than
    /// libtpu, which finds its processes by itself.
    ///
    /// # Errors
    /// As `initialize`; also if the plugin has other processes than the resolver was given.
    pub fn initialize_with(&self, options: &[(&str, Value)]) -> Result<TpuSystem, TpuError> {
        let mut all = options.to_vec();
        for (name, value) in self.process_options()? {
            if !options.iter().any(|(other, _)| *other == name) {
                all.push((name, value));
            }
        }
        let client = self
            .plugin
            .client(&all)
            .map_err(|error| initialize(&error))?;
        let system = TpuSystem {
            client,
            addresses: self.addresses.clone(),
        };
        if system.client.devices().is_empty() {
            let cause = "the plugin has no device".to_string();
            return Err(TpuError::initialize(cause));
        }
        self.check_processes(&system)?;
        tracing::info!("Running on TPU {:?}", system.addresses);
        tracing::info!("Number of accelerators: {}", system.num_accelerators());
        Ok(system)
    }
}

impl TpuConnection {
    /// The information about the processes for a plugin.
    fn process_options(&self) -> Result<Vec<(&'static str, Value)>, TpuError> {
        let Processes {
            id,
            count,
            coordinator,
            ..
        } = &self.processes;
        if *count == 1 || LibtpuEnvironment::is_for(self.plugin.path()) {
            return Ok(Vec::new());
        }
        let unknown = || TpuError::Processes {
            processes: *count,
            cause:
                "it is not known where process 0 can be reached; give the coordinator's address \
                    to `TpuClusterResolver::processes`, or set TPU_WORKER_HOSTNAMES"
                    .to_string(),
        };
        let coordinator = coordinator.clone().ok_or_else(unknown)?;
        let number = |number: usize| Value::Int64(i64::try_from(number).unwrap_or(i64::MAX));
        Ok(vec![
            ("node_id", number(*id)),
            ("num_nodes", number(*count)),
            ("coordinator_address", Value::String(coordinator)),
        ])
    }

    /// Checks that the named processes are the plugin's processes.
    fn check_processes(&self, system: &TpuSystem) -> Result<(), TpuError> {
        let named = (self.processes.id, self.processes.count);
        let found = (system.process(), system.processes());
        if named == found {
            return Ok(());
        }
        let cause = format!(
            "this is process {} of {}, but the plugin says it is process {} of {}",
            named.0, named.1, found.0, found.1
        );
        if self.processes.is_certain {
            return Err(TpuError::initialize(cause));
        }
        tracing::warn!("{cause}; the plugin is believed");
        Ok(())
    }
}

impl fmt::Debug for TpuConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpuConnection")
            .field("plugin", &self.plugin.path())
            .field("addresses", &self.addresses)
            .finish()
    }
}

fn initialize(error: &PjrtError) -> TpuError {
    TpuError::Initialize {
        cause: error.to_string(),
        searched: error.searched().to_vec(),
        lasts: error.is_permanent(),
    }
}

/// libtpu on a machine without a TPU asks Google's metadata server for minutes before it gives up.
fn check_for_tpu(libtpu: &Path) -> Result<(), TpuError> {
    let devices = || -> Vec<PathBuf> {
        let list = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten();
        let accelerators = list("/dev")
            .chain(list("/dev/vfio"))
            .map(|entry| entry.path());
        accelerators.filter(|path| is_tpu_device(path)).collect()
    };
    if devices().is_empty() {
        return Err(TpuError::initialize(format!(
            "this machine has no TPU: there is no /dev/accel* and no numbered /dev/vfio/* \
             ({} was found); run the program on a TPU VM, or name another plugin with \
             PJRT_PLUGIN_LIBRARY_PATH",
            libtpu.display()
        )));
    }
    Ok(())
}

fn is_tpu_device(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let numbered = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match path.parent().and_then(Path::to_str) {
        Some("/dev/vfio") => numbered(name),
        _ => name.strip_prefix("accel").is_some_and(numbered),
    }
}

/// The devices of a plugin, ready for a [`TpuStrategy`](super::TpuStrategy).
#[derive(Clone)]
pub struct TpuSystem {
    client: Client,
    addresses: Vec<String>,
}

impl TpuSystem {
    /// The devices that a client has opened.
    pub fn from_client(client: Client) -> Self {
        Self {
            client,
            addresses: vec!["local".to_string()],
        }
    }

    /// The devices of all processes (TensorFlow: `tf.config.list_logical_devices('TPU')`).
    pub fn num_accelerators(&self) -> usize {
        self.client.devices().len()
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The machines, as the resolver has found them.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The plugin's number for this process among the processes that share the devices, from 0.
    pub fn process_id(&self) -> usize {
        self.process()
    }

    /// The processes that share the devices, as the plugin says.
    pub fn num_processes(&self) -> usize {
        self.processes()
    }

    /// The processes as the ranks of a group that exchanges values over their devices: slow beside
    /// a network, and there where none is known. Send and receive are refused. All processes call
    /// it together; `timeout` is the limit of every operation.
    ///
    /// # Errors
    /// [`TpuError::Processes`] if a process has no device; the errors of the plugin.
    pub fn communicator(&self, timeout: Duration) -> Result<Box<dyn Communicator>, TpuError> {
        let devices = self.client.devices();
        let (process, processes) = (self.process(), self.processes());
        let group = SliceCommunicator::over(&self.client, &devices, process, processes, timeout)?;
        Ok(Box::new(group))
    }

    /// The number of this process.
    pub(super) fn process(&self) -> usize {
        usize::try_from(self.client.process_index()).unwrap_or(0)
    }

    /// The processes that share the devices.
    pub(super) fn processes(&self) -> usize {
        let devices = self.client.devices();
        let last = devices
            .iter()
            .map(|device| device.description().process_index)
            .max();
        usize::try_from(last.unwrap_or(0)).unwrap_or(0) + 1
    }

    /// The devices in words.
    pub(super) fn describe(&self) -> String {
        let devices = self.client.devices();
        let kind = devices.first().map_or("no device", |device| device.kind());
        format!("{}: {kind}", self.client.platform_name())
    }
}

impl fmt::Debug for TpuSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpuSystem")
            .field("addresses", &self.addresses)
            .field("devices", &self.describe())
            .field("accelerators", &self.num_accelerators())
            .finish()
    }
}
