//! The part of `doctor` about GPUs: information from the kernel, and with the feature `nccl` from
//! the driver and NCCL. These are loaded in a separate process, so that a broken driver does not
//! end `doctor`.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::events;
use crate::failure::Failure;

/// Time limit for the driver's answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The features that this build lacks, if any.
const LACKS: Option<&str> = match (cfg!(feature = "cuda"), cfg!(feature = "nccl")) {
    (true, _) => None,
    (false, true) => Some("this build trains on CPUs: build with --features cuda for GPUs"),
    (false, false) => Some(
        "this build does not ask the driver: build with --features nccl (or cuda) for driver, \
         NCCL, peer access and topology",
    ),
};

/// What is known about the GPUs of this machine.
pub(super) struct Gpus {
    kernel_driver: Option<String>,
    /// The bus address and the model of each GPU.
    devices: Vec<(String, String)>,
    /// The information from the driver and NCCL, if this build can ask them.
    probe: Option<Value>,
}

impl Gpus {
    pub(super) fn find() -> Self {
        Self {
            kernel_driver: kernel_driver(Path::new("/sys/module/nvidia/version")),
            devices: devices(Path::new("/proc/driver/nvidia/gpus")),
            probe: cfg!(feature = "nccl").then(ask_probe),
        }
    }

    pub(super) fn json(&self) -> Value {
        let devices = self
            .devices
            .iter()
            .map(|(place, model)| json!({"pci_bus_id": place, "name": model}));
        json!({
            "kernel_driver": self.kernel_driver,
            "devices": devices.collect::<Vec<_>>(),
            "probe": self.probe,
            "lacks": LACKS,
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        match &self.kernel_driver {
            None => found.push("no NVIDIA driver in the kernel".to_string()),
            Some(version) => found.push(format!("NVIDIA driver {version} in the kernel")),
        }
        match &self.probe {
            Some(probe) => found.extend(probe_lines(probe)),
            None => found.extend(
                self.devices
                    .iter()
                    .map(|(at, model)| format!("{model} at {at}")),
            ),
        }
        found.extend(LACKS.map(String::from));
        let lines = found.into_iter().enumerate();
        lines
            .map(|(index, line)| format!("{:<14} {line}", if index == 0 { "GPUs" } else { "" }))
            .collect()
    }
}

/// The information from the driver and NCCL as lines.
fn probe_lines(probe: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let mut lines = Vec::new();
    for (name, key) in [("CUDA", "driver"), ("NCCL", "nccl")] {
        let part = &probe[key];
        lines.push(match part["version"].as_str() {
            Some(version) => format!("{name} {version} ({})", text(&part["path"])),
            None => format!("{name}: {}", text(&part["error"])),
        });
    }
    for device in probe["devices"].as_array().into_iter().flatten() {
        lines.push(text(&device["text"]));
        let links = device["links"].as_array().into_iter().flatten();
        lines.extend(links.map(|link| format!("  reaches {}", text(&link["text"]))));
    }
    lines.extend(probe["error"].as_str().map(String::from));
    lines
}

fn kernel_driver(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_string())
}

/// The GPUs that the kernel's driver lists.
fn devices(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut devices: Vec<(String, String)> = entries
        .map(|entry| {
            let text =
                std::fs::read_to_string(entry.path().join("information")).unwrap_or_default();
            let mut lines = text.lines();
            let model = lines
                .find_map(|line| line.strip_prefix("Model:"))
                .unwrap_or("a GPU")
                .trim()
                .to_string();
            (entry.file_name().to_string_lossy().into_owned(), model)
        })
        .collect();
    devices.sort();
    devices
}

/// Asks the driver in a second process of this program.
fn ask_probe() -> Value {
    let failed = |what: String| json!({ "error": what });
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(format!("cannot find this program: {error}")),
    };
    let child = Command::new(program)
        .args(["doctor", "--probe-gpus"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot start this program: {error}")),
    };
    let (send, answer) = mpsc::channel();
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.map(|mut output| output.read_to_string(&mut text));
        drop(send.send(read.and_then(Result::ok).map(|_| text)));
    });
    let answer = answer.recv_timeout(PROBE_TIMEOUT);
    if answer.is_err() {
        // It hangs in the driver; if it cannot be killed, it is left behind.
        let _ = child.kill();
        return failed(format!(
            "the driver did not answer within {PROBE_TIMEOUT:?}"
        ));
    }
    let status = child.wait();
    drop(reader.join());
    let text = answer.ok().flatten().unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_else(|_| {
        let status = status.map_or("no status".to_string(), |status| status.to_string());
        failed(format!("asking the driver ended with {status}"))
    })
}

/// The second process.
#[cfg(feature = "nccl")]
pub(super) fn run_probe() -> Result<(), Failure> {
    use distribute_core::collectives::nccl::{DeviceInfo, NcclOptions, PeerLink, driver, library};

    let options = NcclOptions::new(0);
    let link = |link: &PeerLink| {
        json!({
            "device": link.device,
            "access": link.access,
            "native_atomics": link.native_atomics,
            "performance_rank": link.performance_rank,
            "text": link.to_string(),
        })
    };
    let device = |device: &DeviceInfo| {
        json!({
            "ordinal": device.ordinal,
            "name": device.name,
            "pci_bus_id": device.pci_bus_id,
            "memory_bytes": device.memory_bytes,
            "peers": device.peers,
            "links": device.links.iter().map(link).collect::<Vec<_>>(),
            "text": device.to_string(),
        })
    };
    let (cuda, devices) = match driver(&options) {
        Ok(found) => (
            json!({ "version": found.version.to_string(), "path": found.path }),
            found.devices.iter().map(device).collect::<Vec<_>>(),
        ),
        Err(error) => (json!({ "error": error.to_string() }), Vec::new()),
    };
    let nccl = match library(&options) {
        Ok((version, path)) => json!({ "version": version.to_string(), "path": path }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let found = json!({ "driver": cuda, "nccl": nccl, "devices": devices });
    events::line(&found.to_string())
}

/// Unused in a build without the feature.
#[cfg(not(feature = "nccl"))]
pub(super) fn run_probe() -> Result<(), Failure> {
    events::line(&json!({ "error": LACKS }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_the_kernel_are_listed_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (place, text) in [
            ("0000:41:00.0", "Model: \t\t NVIDIA H200\nIRQ:   120\n"),
            ("0000:01:00.0", "IRQ:   121\n"),
        ] {
            std::fs::create_dir(folder.path().join(place)).unwrap();
            std::fs::write(folder.path().join(place).join("information"), text).unwrap();
        }
        let expected = [("0000:01:00.0", "a GPU"), ("0000:41:00.0", "NVIDIA H200")]
            .map(|(place, model)| (place.to_string(), model.to_string()));
        assert_eq!(devices(folder.path()), expected);
        assert_eq!(devices(Path::new("/nowhere")), []);
        assert_eq!(kernel_driver(Path::new("/nowhere")), None);
    }

    #[test]
    fn what_the_driver_says_is_told_line_by_line() {
        let probe = json!({
            "driver": {"version": "13.0.0", "path": "libcuda.so.1"},
            "nccl": {"error": "NCCL was not found"},
            "devices": [{"text": "GPU 0: H200", "links": [{"text": "GPU 1 directly"}]}],
        });
        let expected = [
            "CUDA 13.0.0 (libcuda.so.1)",
            "NCCL: NCCL was not found",
            "GPU 0: H200",
            "  reaches GPU 1 directly",
        ];
        assert_eq!(probe_lines(&probe), expected);
    }
}
