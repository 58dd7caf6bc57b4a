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
    let per_device = per_device(args);
    Ok(match name {
        StrategyName::Default | StrategyName::OneDevice if per_device > 1 => {
            return Err(one_replica(name, per_device));
        }
        StrategyName::Default => {
            let device = single(name, &devices)?;
            if device.gpu_index().is_some() {
                return Err(Failure::usage(format!(
                    "the default strategy runs on the CPU, not on {device}; use --strategy \
                     one-device"
                )));
            }
            Arc::new(DefaultStrategy::new())
        }
        StrategyName::OneDevice => Arc::new(OneDeviceStrategy::new(single(name, &devices)?)?),
        StrategyName::Mirrored => {
            let builder = MirroredStrategy::builder().devices(devices);
            Arc::new(builder.replicas_per_device(per_device).build()?)
        }
        StrategyName::CentralStorage => Arc::new(CentralStorageStrategy::with_replicas_per_device(
            devices, per_device,
        )?),
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

/// The device of a strategy with one replica.
fn single(name: StrategyName, devices: &[LogicalDevice]) -> Result<LogicalDevice, Failure> {
    match devices {
        [] => Ok(LogicalDevice::cpu(0)),
        [device] => Ok(*device),
        more => Err(one_replica(name, more.len())),
    }
}

/// Refuses several replicas where there is one.
fn one_replica(name: StrategyName, asked: usize) -> Failure {
    let what = match name {
        StrategyName::Default => "default",
        _ => "one-device",
    };
    Failure::usage(format!(
        "the {what} strategy has one replica, {asked} were asked for; use --strategy mirrored"
    ))
}

/// How many replicas a device has.
fn per_device(args: &DeviceArgs) -> usize {
    args.replicas_per_device.unwrap_or(1)
}

/// The device of each replica.
pub(crate) fn of_replicas(devices: Vec<LogicalDevice>, args: &DeviceArgs) -> Vec<LogicalDevice> {
    let devices = devices.into_iter();
    devices
        .flat_map(|device| std::iter::repeat_n(device, per_device(args)))
        .collect()
}

/// The replicas that [`strategy`] would start.
pub(crate) fn replica_count(name: StrategyName, args: &DeviceArgs) -> Result<usize, Failure> {
    let asked = devices(args)?.len();
    Ok(match name {
        StrategyName::Default | StrategyName::OneDevice | StrategyName::ParameterServer => 1,
        StrategyName::Tpu => asked.max(1),
        StrategyName::MultiWorker => asked.max(1) * per_device(args),
        StrategyName::Mirrored | StrategyName::CentralStorage if asked == 0 => {
            available_cores() * per_device(args)
        }
        StrategyName::Mirrored | StrategyName::CentralStorage => asked * per_device(args),
    })
}

/// The devices that [`strategy`] would use.
pub(crate) fn planned_devices(
    name: StrategyName,
    args: &DeviceArgs,
) -> Result<Vec<LogicalDevice>, Failure> {
    let devices = devices(args)?;
    if devices.is_empty() {
        let replicas = replica_count(name, args)?;
        let each = match name {
            StrategyName::Mirrored | StrategyName::CentralStorage => per_device(args),
            _ => 1,
        };
        let devices = (0..replicas / each).map(LogicalDevice::cpu);
        return Ok(of_replicas(devices.collect(), args));
    }
    match name {
        StrategyName::Default | StrategyName::OneDevice => Ok(vec![single(name, &devices)?]),
        _ => Ok(of_replicas(devices, args)),
    }
}

/// The devices of a worker, if they are named.
pub(crate) fn worker_devices(args: &DeviceArgs) -> Result<Option<Vec<LogicalDevice>>, Failure> {
    let devices = devices(args)?;
    Ok((!devices.is_empty()).then_some(devices))
}

/// Refuses more replicas of the whole job than a process of so many workers can have.
pub(crate) fn check_share(total: usize, workers: usize) -> Result<(), Failure> {
    match total.div_ceil(workers.max(1)) > MAX_REPLICAS {
        true => Err(Failure::usage(format!(
            "--total-replicas {total} on {workers} workers: at most {MAX_REPLICAS} in one process; \
             every replica is a thread"
        ))),
        false => Ok(()),
    }
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
    let all = args.devices.len().max(1).saturating_mul(per_device(args));
    if all > MAX_REPLICAS {
        return Err(Failure::usage(format!(
            "--replicas-per-device {}: at most {MAX_REPLICAS} replicas in one process; every \
             replica is a thread",
            per_device(args)
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
