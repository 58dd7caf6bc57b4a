//! The program's configuration on its way between coordinator and worker.

use distribute_core::{Configuration, Error};

use super::generated::Setting;

/// For the other process.
pub(crate) fn settings(configuration: &Configuration) -> Vec<Setting> {
    let setting = |(name, value): (&str, Option<&str>)| Setting {
        name: name.to_string(),
        value: value.map(str::to_string),
        left: false,
    };
    let left = |name: &str| Setting {
        name: name.to_string(),
        value: None,
        left: true,
    };
    let set = configuration.iter().map(setting);
    set.chain(configuration.left().map(left)).collect()
}

/// From the other process.
pub(crate) fn read_settings(settings: &[Setting]) -> Configuration {
    let mut configuration = Configuration::new();
    for Setting { name, value, left } in settings {
        match left {
            true => configuration.leave(name),
            false => configuration.set(name, value.as_deref()),
        }
    }
    configuration
}

/// Refuses a worker with another configuration than the coordinator; both sides ask, and find the
/// same.
pub(crate) fn same_settings(
    worker: usize,
    of_worker: &Configuration,
    of_chief: &Configuration,
) -> Result<(), Error> {
    match of_worker.difference(of_chief) {
        Some(difference) => Err(Error::DifferentConfigurations {
            worker,
            difference: Box::new(difference),
        }),
        None => Ok(()),
    }
}
