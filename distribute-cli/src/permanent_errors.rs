//! Which errors starting again does not mend: they end with exit code 2, and `launch` does not
//! start a job again because of them.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use distribute_core::Error;
use distribute_core::checkpoint::CheckpointError;
use distribute_data::fit::FitError;
use distribute_data::readers::ReadError;
use distribute_keras::ModelError;

use crate::server_errors::{ServerError, server_error};

/// Whether an error, or what caused it, is that of flags, models, data or checkpoints that are not
/// there, are damaged or do not fit each other or those of another process.
pub(crate) fn is_permanent(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if known(error) {
            return true;
        }
        next = error.source();
    }
    false
}

fn known(error: &(dyn StdError + 'static)) -> bool {
    let own = error.downcast_ref::<Error>().map(of_core);
    let servers = || of_servers(error);
    let data = || error.downcast_ref::<ReadError>().map(of_data);
    let model = || error.downcast_ref::<ModelError>().map(of_model);
    let checkpoint = || error.downcast_ref::<CheckpointError>().map(of_checkpoint);
    let fit = || error.downcast_ref::<FitError>().map(of_fit);
    let found = own.or_else(servers).or_else(data).or_else(model);
    found.or_else(checkpoint).or_else(fit).unwrap_or(false)
}

fn of_core(error: &Error) -> bool {
    match error {
        Error::DifferentConfigurations { .. }
        | Error::DifferentModels { .. }
        | Error::TooFewReplicas { .. }
        | Error::TooFewDevices { .. }
        | Error::DifferentTotals { .. }
        | Error::NotShared { .. } => true,
        // `source` goes on with the cause of the error that they are made of.
        other => other.wrapped().is_some_and(is_permanent),
    }
}

fn of_fit(error: &FitError) -> bool {
    match error {
        FitError::Resume { .. }
        | FitError::NoStateMemory { .. }
        | FitError::StateNotReplicated { .. } => true,
        FitError::File { source, .. } => of_file(source),
        _ => false,
    }
}

fn of_servers(error: &(dyn StdError + 'static)) -> Option<bool> {
    let error = server_error(error)?;
    Some(matches!(error, ServerError::Core(core) if of_core(core)))
}

fn of_data(error: &ReadError) -> bool {
    match error {
        ReadError::Io { source, .. } => of_file(source),
        ReadError::OutOfMemory { .. } => false,
        _ => true,
    }
}

fn of_model(error: &ModelError) -> bool {
    match error {
        ModelError::Io { source, .. } => of_file(source),
        ModelError::Npz(error) => of_data(error),
        _ => true,
    }
}

fn of_checkpoint(error: &CheckpointError) -> bool {
    match error {
        CheckpointError::Io { source, .. } => of_file(source),
        CheckpointError::Missing { .. }
        | CheckpointError::Incomplete { .. }
        | CheckpointError::Corrupt { .. }
        | CheckpointError::Version { .. }
        | CheckpointError::WrongModel { .. }
        | CheckpointError::WrongOptimizer { .. }
        | CheckpointError::NotWritable { .. }
        | CheckpointError::Unsupported { .. } => true,
        // Another process ends, or somebody makes room.
        _ => false,
    }
}

/// Whether a file is not what it is taken for; a disk or a network may recover.
fn of_file(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidData
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidFilename
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn file(kind: ErrorKind) -> ReadError {
        ReadError::Io {
            path: PathBuf::from("a.csv"),
            source: io::Error::from(kind),
        }
    }

    #[test]
    fn what_does_not_fit_is_permanent_however_it_is_wrapped() {
        let models = Error::DifferentModels {
            worker: 1,
            what: "w".to_string(),
        };
        let shared = Error::NotShared {
            worker: 1,
            path: PathBuf::from("saved"),
        };
        let resume = || FitError::Resume {
            what: "no".to_string(),
        };
        for error in [models, shared, Error::from(resume())] {
            assert!(is_permanent(&error), "{error}");
            #[cfg(feature = "full")]
            assert!(is_permanent(&distribute_ps::PsError::from(error)));
        }
        let missing = || CheckpointError::Missing {
            path: PathBuf::from("saved"),
        };
        assert!(is_permanent(&missing()));
        assert!(is_permanent(&Error::from(missing())));
        assert!(is_permanent(&Error::from(file(ErrorKind::NotFound))));
        assert!(is_permanent(&file(ErrorKind::IsADirectory)));
    }

    #[test]
    fn what_may_pass_is_not() {
        assert!(!is_permanent(&file(ErrorKind::TimedOut)));
        let memory = ReadError::OutOfMemory {
            path: PathBuf::from("a.csv"),
            bytes: 1,
        };
        assert!(!is_permanent(&Error::from(memory)));
        let busy = CheckpointError::Busy {
            path: PathBuf::from("saved"),
            holder: None,
            host: None,
        };
        assert!(!is_permanent(&Error::from(busy)));
        assert!(!is_permanent(&Error::step("no luck")));
    }
}
