//! The golden files: which there are, and reading them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::Value;

use crate::case::Case;
use crate::compare::Tolerance;

macro_rules! families {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// What a golden file is about; the file is called `<name>.json`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FamilyName {
            $($(#[$doc])* $variant,)*
            /// The cases of files that are called like no family; all of them fail.
            Unknown,
        }

        impl FamilyName {
            /// All families, in the order of the report.
            pub const ALL: &[FamilyName] = &[$(Self::$variant),*];

            /// The name on the command line and of the file.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Unknown => "unknown",
                }
            }

            /// The file of the crate, where it ships one.
            fn embedded(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some(include_str!(concat!("../golden/", $name, ".json"))),)*
                    _ => None,
                }
            }
        }
    };
}

families! {
    /// How losses are scaled.
    Loss "loss",
    /// `reduce`, `gather`, `all_reduce`, `merge_call` and `run`.
    Reduce "reduce",
    /// Variables: synchronization x aggregation x update x context.
    Variables "variables",
    /// How datasets are cut over replicas and workers.
    Datasets "datasets",
    /// Strategies' properties, scopes, placement and partitioners.
    Properties "properties",
    /// Cross-device ops, packing and communication options.
    CrossDevice "cross_device",
    /// Training runs: losses, gradients and weights of every step.
    Training "training",
    /// Cluster resolvers.
    Cluster "cluster",
    /// Checkpoints across strategies.
    Checkpoint "checkpoint",
    /// Runs of several processes.
    MultiWorker "multi_worker",
    /// Parameter servers and their coordinator.
    ParameterServer "parameter_server",
    /// What TensorFlow's documents print, count and say.
    Documents "documents",
    /// Optimizers with clipping, accumulation, averages and decay of weights.
    TrainingLoop "training_loop",
    /// Learning rate schedules, and callbacks that watch a value.
    Schedules "schedules",
    /// Batch and other normalization, alone and between replicas.
    Normalization "normalization",
    /// TFRecord files, and messages of `tf.train`.
    Records "records",
    /// Chains of transformations of `tf.data`.
    Pipelines "pipelines",
}

impl fmt::Display for FamilyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FamilyName {
    type Err = GoldenError;

    fn from_str(name: &str) -> Result<Self, GoldenError> {
        let found = Self::ALL.iter().find(|family| family.name() == name);
        found.copied().ok_or_else(|| GoldenError::UnknownFamily {
            name: name.to_string(),
        })
    }
}

/// Why golden files cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file does not follow the schema.
    #[error("{file} is not a golden file: {what}; golden/README.md explains the schema")]
    Schema {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The directory has no JSON file.
    #[error("{} holds no golden file: expected loss.json, reduce.json, ...", path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// No such family.
    #[error("unknown family `{name}`: choose among {}", names())]
    UnknownFamily {
        /// What was asked for.
        name: String,
    },
}

distribute_error::debug_as_message!(GoldenError);

distribute_core::wrap_errors!(Input: GoldenError);

impl GoldenError {
    /// Whether the same files would be refused again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Read { source, .. } => distribute_error::lasts(source),
            Self::Schema { .. } | Self::Empty { .. } | Self::UnknownFamily { .. } => true,
        }
    }
}

fn names() -> String {
    let names: Vec<_> = FamilyName::ALL.iter().map(|family| family.name()).collect();
    names.join(", ")
}

/// One golden file.
#[derive(Debug, Clone)]
pub struct GoldenFile {
    /// The cases in the file's order.
    pub cases: Vec<Case>,
    /// How close floats must be.
    pub tolerance: Tolerance,
    /// The whole file, with the models and optimizers beside the cases.
    pub root: Value,
}

impl GoldenFile {
    /// Reads the text of a golden file; `file` is its name for errors.
    ///
    /// # Errors
    /// [`GoldenError::Schema`] if it is not of the schema.
    pub fn parse(file: &str, text: &str) -> Result<Self, GoldenError> {
        let schema = |what: String| GoldenError::Schema {
            file: file.to_string(),
            what,
        };
        Self::parse_with(text, Case::parse).map_err(schema)
    }

    /// Reads a file of a family that is not checked: its cases are only counted and named.
    fn parse_unchecked(family: &str, file: &str, text: &str) -> Result<Self, GoldenError> {
        let found = Self::parse_with(text, |case| Ok(Case::unchecked(family, &case)));
        found.map_err(|what| GoldenError::Schema {
            file: file.to_string(),
            what,
        })
    }

    fn parse_with(
        text: &str,
        case: impl Fn(Value) -> Result<Case, String>,
    ) -> Result<Self, String> {
        let mut root: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let cases = match root.get_mut("cases").map(Value::take) {
            Some(Value::Array(cases)) => cases,
            _ => return Err("there is no list `cases`".to_string()),
        };
        Ok(Self {
            cases: cases.into_iter().map(case).collect::<Result<_, _>>()?,
            tolerance: Tolerance::parse(&root["tolerance"]),
            root,
        })
    }
}

/// Golden files by family.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Where they came from, for the report.
    pub source: String,
    /// The families that are there.
    pub files: BTreeMap<FamilyName, GoldenFile>,
}

impl Golden {
    /// The files that this crate ships: TensorFlow 2.21.0's outputs.
    ///
    /// # Errors
    /// None, unless the crate was built with damaged files.
    pub fn embedded() -> Result<Self, GoldenError> {
        let parse = |family: &FamilyName| {
            let text = family.embedded().unwrap_or_default();
            Ok((*family, GoldenFile::parse(family.name(), text)?))
        };
        Ok(Self {
            source: "the embedded golden files".to_string(),
            files: FamilyName::ALL
                .iter()
                .map(parse)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Reads all `*.json` of a directory; families may be absent. Cases of a file with the name
    /// of no family belong to [`FamilyName::Unknown`], so that none is left out in silence.
    ///
    /// # Errors
    /// [`GoldenError::Read`], [`GoldenError::Schema`], and [`GoldenError::Empty`] if no file is
    /// there.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self, GoldenError> {
        let directory = directory.as_ref();
        let mut files: BTreeMap<FamilyName, GoldenFile> = BTreeMap::new();
        for path in json_files(directory)? {
            let read = std::fs::read_to_string(&path);
            let text = read.map_err(|source| GoldenError::Read {
                path: path.clone(),
                source,
            })?;
            let file = path.display().to_string();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            match name.parse().unwrap_or(FamilyName::Unknown) {
                family if FamilyName::ALL.contains(&family) => {
                    files.insert(family, GoldenFile::parse(&file, &text)?);
                }
                family => {
                    let found = GoldenFile::parse_unchecked(&name, &file, &text)?;
                    match files.get_mut(&family) {
                        Some(all) => all.cases.extend(found.cases),
                        None => drop(files.insert(family, found)),
                    }
                }
            }
        }
        if files.is_empty() {
            return Err(GoldenError::Empty {
                path: directory.to_path_buf(),
            });
        }
        Ok(Self {
            source: directory.display().to_string(),
            files,
        })
    }

    /// How many cases the files hold.
    pub fn cases(&self) -> usize {
        self.files.values().map(|file| file.cases.len()).sum()
    }
}

/// The JSON files of a directory, in the order of their names.
fn json_files(directory: &Path) -> Result<Vec<PathBuf>, GoldenError> {
    let unreadable = |source| GoldenError::Read {
        path: directory.to_path_buf(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let extension = path.extension().unwrap_or_default();
        if extension.eq_ignore_ascii_case("json") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
