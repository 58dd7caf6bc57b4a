//! Errors that a restart does not fix, by their types: they have their own exit codes, and `launch`
//! does not restart a job because of them.
//!
//! Each type classifies each of its variants (`is_permanent`, an exhaustive `match`), so that a new
//! variant does not compile before it is classified.

use std::error::Error as StdError;

use distribute_classifier::TaskError;
use distribute_core::Error;
use distribute_core::checkpoint::CheckpointError;
use distribute_core::cluster::ClusterError;
use distribute_core::collectives::CollectiveError;
use distribute_core::collectives::flight_record::FlightRecordError;
use distribute_data::DataError;
use distribute_fit::FitError;
use distribute_keras::ModelError;
use distribute_launch::LaunchError;
use distribute_readers::ReadError;

#[cfg(feature = "full")]
use distribute_ps::PsError;
#[cfg(feature = "full")]
use distribute_tpu_xla::TpuError;
#[cfg(feature = "full")]
use distribute_tpu_xla::pjrt::PjrtError;

use crate::server_errors::{ServerError, server_error};

/// Why the same command would fail again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// Wrong input: flags, a configuration, data, models, checkpoints, paths, or processes that do
    /// not match.
    WrongInput,
    /// The numbers of the training are not finite, and would be the same again.
    Diverged,
}

/// Whether the same command would fail with this error, or its cause, again.
pub(crate) fn lasting(error: &(dyn StdError + 'static)) -> Option<Lasting> {
    let mut next = Some(error);
    while let Some(error) = next {
        let found = known(error).or_else(|| wrapped(error).and_then(lasting));
        if found.is_some() {
            return found;
        }
        next = error.source();
    }
    None
}

/// The error inside another one that `source` skips.
fn wrapped<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match server_error(error) {
        Some(ServerError::Core(core)) => Some(core),
        _ => error.downcast_ref().and_then(Error::wrapped),
    }
}

/// The classification of an error by its type.
fn known(error: &(dyn StdError + 'static)) -> Option<Lasting> {
    macro_rules! either {
        ($($(#[$feature:meta])* $type:ty: $diverged:expr),* $(,)?) => {$(
            $(#[$feature])*
            if let Some(error) = error.downcast_ref::<$type>() {
                let diverged: fn(&$type) -> bool = $diverged;
                return match (diverged(error), error.is_permanent()) {
                    (true, _) => Some(Lasting::Diverged),
                    (false, true) => Some(Lasting::WrongInput),
                    (false, false) => None,
                };
            }
        )*};
    }
    either!(
        Error: Error::is_not_finite,
        FitError: FitError::is_not_finite,
        CheckpointError: |_| false,
        ClusterError: |_| false,
        CollectiveError: |_| false,
        DataError: |_| false,
        FlightRecordError: |_| false,
        LaunchError: |_| false,
        ModelError: |_| false,
        ReadError: |_| false,
        TaskError: |_| false,
        #[cfg(feature = "full")]
        PsError: PsError::is_not_finite,
        #[cfg(feature = "full")]
        TpuError: |_| false,
        #[cfg(feature = "full")]
        PjrtError: |_| false,
        #[cfg(feature = "full")]
        conformance::SelectionError: |_| false,
    );
    None
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::path::PathBuf;

    use super::*;

    fn is_permanent(error: &(dyn StdError + 'static)) -> bool {
        lasting(error) == Some(Lasting::WrongInput)
    }

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
        let option = CollectiveError::InvalidOption {
            what: "no".to_string(),
        };
        let errors = [
            models,
            shared,
            Error::from(resume()),
            Error::from(ClusterError::NoLeader),
            Error::from(option),
        ];
        for error in errors {
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
    fn numbers_that_are_not_finite_are_told_apart_however_they_are_wrapped() {
        let weights = || FitError::WeightsNotFinite {
            parameter: "w".to_string(),
            step: 3,
        };
        let statistics = Error::StatisticsNotFinite {
            path: "norm.mean".to_string(),
            replica: 0,
            updates: 3,
        };
        let of_replica = Error::Replica {
            replica: 1,
            source: std::sync::Arc::new(statistics.clone()),
        };
        for error in [Error::from(weights()), statistics, of_replica] {
            assert_eq!(lasting(&error), Some(Lasting::Diverged), "{error}");
            #[cfg(feature = "full")]
            {
                let of_servers = distribute_ps::PsError::from(error);
                assert_eq!(lasting(&of_servers), Some(Lasting::Diverged));
            }
        }
        assert_eq!(lasting(&weights()), Some(Lasting::Diverged));
    }

    #[test]
    fn what_may_pass_is_not() {
        assert_eq!(lasting(&file(ErrorKind::TimedOut)), None);
        let memory = ReadError::OutOfMemory {
            path: PathBuf::from("a.csv"),
            bytes: 1,
        };
        assert_eq!(lasting(&Error::from(memory)), None);
        let busy = CheckpointError::Busy {
            path: PathBuf::from("saved"),
            holder: None,
        };
        assert_eq!(lasting(&Error::from(busy)), None);
        assert_eq!(lasting(&Error::step("no luck")), None);
    }

    /// Errors that a command never ends with: they become one of those above, or text, on their
    /// way, and say so where they do.
    const ON_THEIR_WAY: [&str; 17] = [
        "ContractError",
        "ExchangeError",
        "GoldenError",
        "HandshakeError",
        "HeaderError",
        "LowerError",
        "NcclUnavailable",
        "NetError",
        "PeersError",
        "StableHloError",
        "WireError",
        "RequestError",
        "ConnectError",
        // No command reads record files or has a pipeline.
        "MessageError",
        "ParseError",
        "PipelineError",
        "RecordError",
    ];

    /// The enums of errors that the crates of this repository make known.
    fn public_errors() -> Vec<String> {
        let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                let left_out = name.starts_with('.') || ["target", "tests"].contains(&&*name);
                if path.is_dir() && !left_out {
                    folders.push(path);
                } else if name.ends_with(".rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let lines = text.lines().filter_map(|line| {
                        let rest = line.strip_prefix("pub enum ")?;
                        rest.strip_suffix("Error {")
                    });
                    found.extend(lines.map(|name| format!("{name}Error")));
                }
            }
        }
        found
    }

    #[test]
    fn every_error_of_the_crates_is_sorted() {
        let own = include_str!("permanent_errors.rs");
        let found = public_errors();
        assert!(found.len() > 10, "{found:?}");
        for name in found {
            let sorted = own.contains(&format!("        {name}: "))
                || own.contains(&format!("::{name}: "))
                || ON_THEIR_WAY.contains(&&*name);
            assert!(sorted, "{name} is neither in `known` nor in ON_THEIR_WAY");
        }
    }
}
