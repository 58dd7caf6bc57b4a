//! Strategies by name.

use std::sync::Arc;

use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, LogicalDevice, MirroredStrategy, OneDeviceStrategy,
    Strategy, available_cores,
};

use crate::failure::Failure;
use crate::flags::{DeviceArgs, StrategyName};

/// More threads only slow each other down.
const MAX_REPLICAS: usize = 1024;

/// Builds the strategy, by default with all CPU cores as devices.
pub(crate) fn strategy(
    name: StrategyName,
    args: &DeviceArgs,
) -> Result<Arc<dyn Strategy>, Failure> {
    let devices = devices_for(name, args)?;
    let per_device = per_device(args);
    Ok(match name {
        StrategyName::Default => Arc::new(DefaultStrategy::new()),
        StrategyName::OneDevice => {
            let device = devices.first().copied().unwrap_or(LogicalDevice::cpu(0));
            Arc::new(OneDeviceStrategy::new(device)?)
        }
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

/// The devices from the flag, if this strategy supports them; `None` means all.
fn devices_for(name: StrategyName, args: &DeviceArgs) -> Result<Vec<LogicalDevice>, Failure> {
    let devices = devices(args)?;
    let what = match name {
        StrategyName::Default => "default",
        StrategyName::OneDevice => "one-device",
        _ => return Ok(devices),
    };
    let asked = devices.len().max(1) * per_device(args);
    if asked > 1 {
        return Err(Failure::usage(format!(
            "the {what} strategy has one replica, {asked} were asked for; use --strategy mirrored"
        )));
    }
    match devices
        .first()
        .filter(|device| device.gpu_index().is_some())
    {
        Some(device) if name == StrategyName::Default => Err(Failure::usage(format!(
            "the default strategy runs on the CPU, not on {device}; use --strategy one-device"
        ))),
        _ => Ok(devices),
    }
}

/// The number of replicas per device.
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

/// The device of each replica that [`strategy`] would start in this process.
pub(crate) fn planned_devices(
    name: StrategyName,
    args: &DeviceArgs,
) -> Result<Vec<LogicalDevice>, Failure> {
    let mut devices = devices_for(name, args)?;
    if devices.is_empty() {
        let count = match name {
            StrategyName::Mirrored | StrategyName::CentralStorage => available_cores(),
            _ => 1,
        };
        devices = (0..count).map(LogicalDevice::cpu).collect();
    }
    Ok(of_replicas(devices, args))
}

/// The devices of a worker, if they are named.
pub(crate) fn worker_devices(args: &DeviceArgs) -> Result<Option<Vec<LogicalDevice>>, Failure> {
    let devices = devices(args)?;
    Ok((!devices.is_empty()).then_some(devices))
}

/// Refuses more replicas of the whole job than the processes of this number of workers can have.
pub(crate) fn check_share(total: usize, workers: usize) -> Result<(), Failure> {
    if total.div_ceil(workers.max(1)) > MAX_REPLICAS {
        Err(Failure::usage(format!(
            "--total-replicas {total} on {workers} workers: at most {MAX_REPLICAS} in one process; \
             every replica is a thread"
        )))
    } else {
        Ok(())
    }
}

/// The devices from the flag; `None` means all.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::tensor::Device;
    use distribute_core::{DeviceReducers, DeviceReduction, GpuKind, Result};

    use super::*;

    #[derive(Debug)]
    struct Pretended;

    impl GpuKind for Pretended {
        fn name(&self) -> &'static str {
            "pretended"
        }

        fn burn_device(&self, _: usize) -> Device {
            Device::flex()
        }

        fn check(&self, _: usize) -> Result<()> {
            Ok(())
        }

        fn reducers(&self, _: DeviceReduction, _: Duration) -> Arc<dyn DeviceReducers> {
            unreachable!("nothing is reduced")
        }
    }

    #[test]
    fn a_gpu_is_planned_only_where_it_would_be_used() {
        let args = DeviceArgs {
            replicas: None,
            devices: vec![LogicalDevice::Gpu(&Pretended, 0)],
            replicas_per_device: None,
        };
        let refused = planned_devices(StrategyName::Default, &args).unwrap_err();
        assert!(refused.to_string().contains("runs on the CPU"), "{refused}");
        assert!(strategy(StrategyName::Default, &args).is_err());
        let planned = planned_devices(StrategyName::OneDevice, &args).unwrap();
        assert_eq!(planned, args.devices);
    }
}
