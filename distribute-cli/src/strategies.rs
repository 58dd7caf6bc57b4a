//! Strategies by name.

use std::sync::Arc;

use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, LogicalDevice, MirroredStrategy, OneDeviceStrategy,
    Strategy, available_cores,
};

use crate::failure::Failure;
use crate::flags::{DeviceArgs, StrategyName};

/// More threads than this only get in each other's way.
const MAX_REPLICAS: usize = 1024;

/// Builds the strategy; the devices are all CPU cores unless some are named.
pub(crate) fn strategy(
    name: StrategyName,
    args: &DeviceArgs,
) -> Result<Arc<dyn Strategy>, Failure> {
    let devices = devices(args)?;
    let single = |what: &str| match devices.as_slice() {
        [] => Ok(LogicalDevice::cpu(0)),
        [device] => Ok(*device),
        more => Err(Failure::usage(format!(
            "the {what} strategy has one replica, {} were asked for; use --strategy mirrored",
            more.len()
        ))),
    };
    Ok(match name {
        StrategyName::Default => {
            let device = single("default")?;
            if device.gpu_index().is_some() {
                return Err(Failure::usage(format!(
                    "the default strategy runs on the CPU, not on {device}; use --strategy \
                     one-device"
                )));
            }
            Arc::new(DefaultStrategy::new())
        }
        StrategyName::OneDevice => Arc::new(OneDeviceStrategy::new(single("one-device")?)?),
        StrategyName::Mirrored => Arc::new(MirroredStrategy::builder().devices(devices).build()?),
        StrategyName::CentralStorage => Arc::new(CentralStorageStrategy::new(devices)?),
        StrategyName::MultiWorker => {
            return Err(Failure::usage(
                "--strategy multi-worker is for `train`; here one process does the work, use \
                 --strategy mirrored",
            ));
        }
        StrategyName::ParameterServer => {
            return Err(Failure::usage(
                "--strategy parameter-server is for `train`; here use --strategy mirrored, which \
                 reads the same checkpoints",
            ));
        }
        StrategyName::Tpu => {
            return Err(Failure::usage(
                "--strategy tpu is for `train`; here use --strategy mirrored, which reads the \
                 same checkpoints",
            ));
        }
    })
}

/// The replicas that [`strategy`] would start.
pub(crate) fn replica_count(name: StrategyName, args: &DeviceArgs) -> Result<usize, Failure> {
    let asked = devices(args)?.len();
    Ok(match name {
        StrategyName::Default | StrategyName::OneDevice | StrategyName::ParameterServer => 1,
        StrategyName::MultiWorker | StrategyName::Tpu => asked.max(1),
        StrategyName::Mirrored | StrategyName::CentralStorage if asked == 0 => available_cores(),
        StrategyName::Mirrored | StrategyName::CentralStorage => asked,
    })
}

/// The devices of a worker: one unless more are named.
pub(crate) fn worker_devices(args: &DeviceArgs) -> Result<Vec<LogicalDevice>, Failure> {
    let devices = devices(args)?;
    Ok(match devices.is_empty() {
        true => vec![LogicalDevice::cpu(0)],
        false => devices,
    })
}

/// The devices that were asked for; none means all.
fn devices(args: &DeviceArgs) -> Result<Vec<LogicalDevice>, Failure> {
    let twice = args
        .devices
        .iter()
        .enumerate()
        .find(|(index, device)| args.devices[..*index].contains(device));
    if let Some((_, device)) = twice {
        return Err(Failure::usage(format!(
            "--devices names {device} twice; name every device once"
        )));
    }
    match args.replicas {
        Some(replicas) if replicas > MAX_REPLICAS => Err(Failure::usage(format!(
            "--replicas {replicas}: at most {MAX_REPLICAS} in one process; every replica is a \
             thread"
        ))),
        Some(replicas) if args.devices.is_empty() => {
            Ok((0..replicas).map(LogicalDevice::cpu).collect())
        }
        Some(replicas) if replicas != args.devices.len() => Err(Failure::usage(format!(
            "--replicas {replicas} does not fit the {} of --devices; leave one of them out",
            args.devices.len()
        ))),
        _ => Ok(args.devices.clone()),
    }
}

/// `cpu:0, cpu:1`.
pub(crate) fn device_names(strategy: &dyn Strategy) -> Vec<String> {
    let replicas = strategy.replicas().iter();
    replicas
        .map(|replica| replica.logical.to_string())
        .collect()
}
