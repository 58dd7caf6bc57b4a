//! The program's configuration, which coordinator and worker compare.

use distribute_core::{Configuration, Error};

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
