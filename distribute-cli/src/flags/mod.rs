//! The command line: one struct per group of flags, without their effects.

#[cfg(feature = "full")]
mod bench;
mod checks;
mod cluster;
mod dataset;
mod examples;
mod metric_list;
mod observing;
mod optimizer;
mod other_names;
mod outputs;
mod parameter_server;
mod path;
mod peers;
mod reading;
mod schedule;
mod tpu;
mod usual;
mod validation;
mod weights;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use distribute_classifier::{DatasetName, ScaleName, SplitName, TargetsName};
use distribute_core::{GpuKind, LogicalDevice, Policy};
use distribute_readers::{CsvHeader, ImageColor};

#[cfg(feature = "full")]
pub(crate) use bench::{
    AllReduceArgs, BenchCommand, BenchOutput, BenchTransport, CompiledArgs, Role, ServersArgs,
    StrategiesArgs,
};
pub(crate) use checks::CheckArgs;
pub(crate) use cluster::{ClusterArgs, ClusterName, CommunicationName, TransportName, WireName};
use dataset::delimiter;
pub(crate) use metric_list::{LossFlag, MetricList};
use metric_list::{class_weight, columns, loss_weight};
pub(crate) use observing::ObservingArgs;
pub(crate) use optimizer::OptimizerName;
pub(crate) use other_names::instead_of;
pub(crate) use outputs::check as check_outputs;
pub(crate) use parameter_server::ParameterServerArgs;
#[cfg(feature = "full")]
pub(crate) use parameter_server::{NonFiniteGradients, StaleGradients};
pub(crate) use peers::PeersArgs;
pub(crate) use schedule::ScheduleFlag;
pub(crate) use tpu::{PrecisionName, TpuArgs};
pub(crate) use validation::ValidationArgs;
pub(crate) use weights::WeightArgs;

use crate::notes::TERMINAL_COLUMNS;

/// The version with the names of its features.
macro_rules! version {
    ($($names:literal),+) => {
        concat!(env!("CARGO_PKG_VERSION"), " (features: ", $($names,)+ ")")
    };
}

/// The version with features for GPUs.
macro_rules! gpu_version {
    ($names:literal) => {
        match (cfg!(feature = "full"), cfg!(feature = "otlp")) {
            (true, true) => version!("full, ", $names, ", otlp"),
            (true, false) => version!("full, ", $names),
            (false, true) => version!($names, ", otlp"),
            (false, false) => version!($names),
        }
    };
}

/// The version and the features of this build. Each feature for GPUs includes the previous one.
pub(crate) const VERSION: &str = if cfg!(feature = "autotune") {
    gpu_version!("nccl, cuda, fusion, autotune")
} else if cfg!(feature = "fusion") {
    gpu_version!("nccl, cuda, fusion")
} else if cfg!(feature = "cuda") {
    gpu_version!("nccl, cuda")
} else if cfg!(feature = "nccl") {
    gpu_version!("nccl")
} else {
    match (cfg!(feature = "full"), cfg!(feature = "otlp")) {
        (true, true) => version!("full, otlp"),
        (true, false) => version!("full"),
        (false, true) => version!("otlp"),
        (false, false) => version!("none"),
    }
};

/// Trains burn models on all cores of this machine, as TensorFlow's tf.distribute does.
#[derive(Debug, Parser)]
#[command(name = "distribute-cli", version = VERSION, term_width = TERMINAL_COLUMNS)]
// Even if the program's file has another name.
#[command(bin_name = "distribute-cli")]
#[command(after_help = examples::EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which log messages of the libraries are shown, for all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Events")]
pub(crate) struct LogArgs {
    /// Log messages of the libraries to show: off, error, warn, info, debug or trace
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        default_value = "warn",
        hide_possible_values = true
    )]
    pub(crate) log: LogLevel,
    /// Write log messages as text, or as json with one object per line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub(crate) log_format: OutputFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Train(Box<TrainArgs>),
    Launch(LaunchArgs),
    Evaluate(EvaluateArgs),
    Predict(PredictArgs),
    Export(ExportArgs),
    Doctor(DoctorArgs),
    #[cfg(feature = "full")]
    Bench(BenchArgs),
    #[cfg(feature = "full")]
    Conformance(ConformanceArgs),
    Blame(BlameArgs),
    SameBits(SameBitsArgs),
    Certs(CertsArgs),
    New(NewArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Runs beside a job and ends its remaining processes when the launcher is killed
    #[command(hide = true)]
    LaunchGuard,
}

/// Starts the processes of a job, watches them, and restarts all of them when one fails.
///
/// Every process runs COMMAND with its own TF_CONFIG, which `train --strategy multi-worker` reads.
/// The output of worker 0 (with --ps: of the chief) is shown unchanged; the output of all processes
/// is in the log files. After a restart `train` continues from the newest checkpoint in its
/// --checkpoint-dir. On a terminal one line shows the progress of the whole job.
#[derive(Debug, Args)]
#[command(after_help = examples::LAUNCH)]
pub(crate) struct LaunchArgs {
    /// Workers on this host (rank 0 is the chief); MIN..MAX workers of a job that shrinks and grows
    #[arg(long, value_name = "N|MIN..MAX", value_parser = workers, allow_negative_numbers = true)]
    pub(crate) workers: RangeInclusive<usize>,
    /// How long a job with MIN..MAX workers waits for a missing host [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = shrink_after, allow_negative_numbers = true)]
    pub(crate) shrink_after: Option<u64>,
    /// Go on without a host that is slow for this long (if no number: 60) while enough are left
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = shrink_after,
        num_args = 0..=1,
        default_missing_value = "60",
        allow_negative_numbers = true
    )]
    pub(crate) drop_stragglers: Option<u64>,
    /// Exclusive GPUs for each worker, named cuda:0, ... in it [default: all workers see all GPUs]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) gpus_per_worker: usize,
    /// Number of parameter servers to start; also starts a chief, and the job ends with it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) ps: usize,
    /// Also start an evaluator
    #[arg(long)]
    pub(crate) evaluator: bool,
    /// Ports for the processes of this host [default: free ports from 20000 on]
    #[arg(long, value_name = "FIRST..LAST", value_parser = ports)]
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// Maximum number of restarts after failures (with --ps a dead worker is restarted alone)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) max_restarts: u32,
    /// Wait before a restart; doubled each time after the same failure, up to a minute [default: 1]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(0..=86_400),
        allow_negative_numbers = true
    )]
    pub(crate) restart_pause: Option<u64>,
    /// Write a log file per process here [default: a new temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Show the lines of all processes, as `rank 1: line`, on standard error
    #[arg(long)]
    pub(crate) all_output: bool,
    /// Time between SIGTERM and SIGKILL when a process is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
    /// Address of host 0; all hosts need the same token, in --certs or DISTRIBUTE_JOB_TOKEN
    #[arg(long, value_name = "IP:PORT", help_heading = "Several hosts", requires_all = ["hosts", "host"])]
    pub(crate) rendezvous: Option<std::net::SocketAddr>,
    /// The number of hosts
    #[arg(
        long,
        value_name = "N",
        help_heading = "Several hosts",
        requires = "rendezvous"
    )]
    pub(crate) hosts: Option<usize>,
    /// The number of this host, from 0
    #[arg(
        long,
        value_name = "N",
        help_heading = "Several hosts",
        requires = "rendezvous"
    )]
    pub(crate) host: Option<usize>,
    /// Address of this host for the others [default: its own in the connection to host 0]
    #[arg(
        long,
        value_name = "IP",
        help_heading = "Several hosts",
        requires = "rendezvous"
    )]
    pub(crate) host_address: Option<std::net::IpAddr>,
    /// How long to wait for the launchers of the other hosts [default: 300]
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Several hosts",
        requires = "rendezvous",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    pub(crate) rendezvous_timeout: Option<u64>,
    /// How long a host may be unreachable [default: 12, or COMMAND's --heartbeat-timeout if longer]
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Several hosts",
        requires = "rendezvous",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    pub(crate) host_timeout: Option<u64>,
    /// Encrypt launchers' messages: this host's directory from `certs`, next to ca.pem and token
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Several hosts",
        requires = "rendezvous"
    )]
    pub(crate) certs: Option<PathBuf>,
    /// Allow addresses beyond this machine without certificates and encryption
    #[arg(long, help_heading = "Several hosts", requires = "rendezvous")]
    pub(crate) insecure: bool,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
    /// The command of every process, after `--`: distribute-cli train --strategy multi-worker
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// Trains a model. Without options: a small CNN on the embedded digits, one replica per core.
#[derive(Debug, Args)]
#[command(after_help = examples::TRAIN)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) general: GeneralArgs,
    /// Do not train: print the model, the devices, the number of steps and the memory needed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How training is distributed
    #[arg(
        long,
        value_name = "NAME",
        default_value = "mirrored",
        help_heading = "Strategy"
    )]
    pub(crate) strategy: StrategyName,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    #[command(flatten)]
    pub(crate) validation: ValidationArgs,
    #[command(flatten)]
    pub(crate) weights: WeightArgs,
    #[command(flatten)]
    pub(crate) files: FileArgs,
    #[command(flatten)]
    pub(crate) observing: ObservingArgs,
    #[command(flatten)]
    pub(crate) checks: CheckArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) servers: ParameterServerArgs,
    #[command(flatten)]
    pub(crate) tpu: TpuArgs,
}

/// Measures loss and accuracy of a checkpoint.
#[derive(Debug, Args)]
#[command(after_help = examples::EVALUATE)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    pub(crate) general: GeneralArgs,
    /// Keras' names, such as accuracy,auc:curve=PR (docs/losses.md) [default: as in training]
    #[arg(long, value_name = "LIST")]
    pub(crate) metrics: Option<MetricList>,
    /// Add accuracy and precision of each class, and the confusion matrix
    #[arg(long)]
    pub(crate) report: bool,
    /// Draw the confusion matrix as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) picture: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) restore: RestoreArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

/// Predicts classes or values with a checkpoint, as CSV: index, label, probability.
#[derive(Debug, Args)]
#[command(after_help = examples::PREDICT)]
pub(crate) struct PredictArgs {
    /// A TOML file with flags as keys; flags on the command line take precedence
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Write the predictions here [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) predictions: Option<PathBuf>,
    /// csv, json with one object per line and all probabilities, or npz with NumPy arrays
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "csv",
        hide_possible_values = true
    )]
    pub(crate) output: PredictionFormat,
    /// Add a column of csv for the probability of each class
    #[arg(long)]
    pub(crate) probabilities: bool,
    #[command(flatten)]
    pub(crate) restore: RestoreArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

/// Writes the weights of a checkpoint to a file that Keras reads.
#[derive(Debug, Args)]
#[command(after_help = examples::EXPORT)]
pub(crate) struct ExportArgs {
    /// A --checkpoint-dir of `train`, or one checkpoint in it
    #[arg(value_name = "DIR")]
    pub(crate) checkpoint: PathBuf,
    /// The file: NAME.weights.h5, NAME.keras, NAME.safetensors or NAME.npz
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Measures competitors interleaved in one run.
#[cfg(feature = "full")]
#[derive(Debug, Args)]
#[command(after_help = examples::BENCH)]
pub(crate) struct BenchArgs {
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

/// Names the rank for which a hung group waited, from the flight records of its ranks.
#[derive(Debug, Args)]
pub(crate) struct BlameArgs {
    /// The directory with the flight-*.jsonl files of all ranks
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Says at which step and in which parameters two runs diverge, from files of `train --log-bits`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 equal, 1 different, 2 cannot be compared: a file is missing or \
                        damaged, or has another model or another number of updates."
)]
pub(crate) struct SameBitsArgs {
    /// The file of one run, or the directory with its bits.jsonl
    #[arg(value_name = "RUN_A")]
    pub(crate) first: PathBuf,
    /// The same of the other run
    #[arg(value_name = "RUN_B")]
    pub(crate) second: PathBuf,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Creates a certificate authority, a certificate per host and a job token.
#[derive(Debug, Args)]
#[command(after_help = examples::CERTS)]
pub(crate) struct CertsArgs {
    /// The directory to create; must not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Host names or IP addresses, as in the addresses of the ranks
    #[arg(
        long,
        value_name = "HOST,HOST,...",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) hosts: Vec<String>,
    /// Validity of the certificates in days
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    pub(crate) days: u32,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Creates a Cargo project with a training program.
///
/// The program trains in one process or in many, and resumes after it was killed. The project uses
/// the profiles and the versions of this repository and shares its target folder, so burn is built
/// only once for the program and for distribute-cli.
#[derive(Debug, Args)]
#[command(after_help = examples::NEW)]
pub(crate) struct NewArgs {
    /// The folder to create, which names the program; must not exist
    #[arg(value_name = "NAME")]
    pub(crate) directory: PathBuf,
    /// A clone of the repository, or its URL [default: the clone in which this program was built]
    #[arg(long, value_name = "CLONE|URL")]
    pub(crate) source: Option<String>,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Prints the script by which a shell completes commands and flags.
#[derive(Debug, Args)]
#[command(after_help = examples::COMPLETIONS)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Writes the manual pages of the program and of its commands.
#[derive(Debug, Args)]
#[command(after_help = examples::MAN)]
pub(crate) struct ManArgs {
    /// The directory for the pages; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// Compares every strategy and communicator with recorded outputs of TensorFlow.
#[cfg(feature = "full")]
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// A directory with golden files of the same schema [default: the built-in files]
    #[arg(long, value_name = "DIR")]
    pub(crate) golden: Option<PathBuf>,
    /// Check only this: default, one-device, mirrored, multi-worker, central-storage or tpu
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Vec<String>,
    /// Check only this: an algorithm between threads (direct, ring, ...), shm or grpc
    #[arg(long, value_name = "NAME")]
    pub(crate) communicator: Vec<String>,
    /// This process is a worker, started by the command itself
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// Run only this family: the name of a golden file, such as loss or cross_device
    #[arg(long, value_name = "NAME")]
    pub(crate) family: Vec<conformance::FamilyName>,
    /// A table for people, or one JSON object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: OutputFormat,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Shows cores, memory, devices, optional libraries and cluster variables of this machine; with
/// --peers which processes of the job reach each other, and how fast.
#[derive(Debug, Args)]
#[command(after_help = examples::DOCTOR)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) general: GeneralArgs,
    /// As --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
    /// Show names and dates of certificates; with --peers use those in this directory of `certs`
    #[arg(long, value_name = "DIR")]
    pub(crate) certs: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) peers: PeersArgs,
    /// This process asks the driver, started by the command itself
    #[arg(long, hide = true)]
    pub(crate) probe_gpus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GeneralArgs {
    /// A TOML file with flags as keys; flags on the command line take precedence
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
    /// Text for people, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: OutputFormat,
    /// Print the chain of causes behind an error
    #[arg(long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Strategy")]
pub(crate) struct DeviceArgs {
    /// Copies of the model in this process [default: one per core, multi-worker: one]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) replicas: Option<usize>,
    /// Device of each replica: cpu:0,cpu:1,... (a thread each, on any core); with the feature cuda
    /// also cuda:0,...
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = device)]
    pub(crate) devices: Vec<LogicalDevice>,
    /// Replicas on each device (or core), which take turns [default: 1]
    #[arg(
        long,
        value_name = "N",
        value_parser = positive,
        allow_negative_numbers = true,
        conflicts_with = "replicas"
    )]
    pub(crate) replicas_per_device: Option<usize>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and data")]
pub(crate) struct DataArgs {
    /// digits-cnn, mnist-cnn, mlp, text, or a Keras model file [default: depends on the dataset]
    #[arg(long, value_name = "NAME|FILE", value_parser = model)]
    pub(crate) model: Option<String>,
    /// digits, mnist, fashion-mnist, images:DIR, idx:DIR, csv:FILE, npz:FILE or (to predict)
    /// text:FILE [default: digits]
    #[arg(long, value_name = "NAME")]
    pub(crate) dataset: Option<DatasetName>,
    /// Folder of mnist, fashion-mnist [default: data/NAME] or images (one folder per class)
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether the first line of csv:FILE names the columns [default: auto]
    #[arg(long, value_name = "WHETHER", value_parser = dataset::csv_header())]
    pub(crate) csv_header: Option<CsvHeader>,
    /// Separator of the fields of csv:FILE: a character, or tab [default: a comma]
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub(crate) csv_delimiter: Option<char>,
    /// Column of csv:FILE with the label, or several: a,b [default: `label`, otherwise the last]
    #[arg(long, value_name = "NAME")]
    pub(crate) label_column: Option<String>,
    /// The column of csv:FILE with how much each example counts [default: all count alike]
    #[arg(long, value_name = "NAME")]
    pub(crate) sample_weight_column: Option<String>,
    /// Columns or the array of an input or output of a model [default: what is called as it]
    #[arg(long, value_name = "NAME=COLUMN,...", value_parser = columns)]
    pub(crate) columns: Vec<(String, Vec<String>)>,
    /// Divide values: auto (bytes by 255, unless the model rescales them), none or 255
    #[arg(
        long,
        value_name = "WHAT",
        hide_possible_values = true,
        value_parser = dataset::scale()
    )]
    pub(crate) scale: Option<ScaleName>,
    /// Convert images: as-stored, grayscale or rgb [default: as-stored]
    #[arg(
        long,
        value_name = "MODE",
        hide_possible_values = true,
        value_parser = dataset::color_mode()
    )]
    pub(crate) color_mode: Option<ImageColor>,
    /// Examples of one replica in one step [default: up to 64, with at least 20 steps per epoch]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) batch_size: Option<usize>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct TrainingArgs {
    /// Number of passes over the examples [default: 30 for digits, otherwise 10]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) epochs: Option<usize>,
    /// End after this total number of updates, even in the middle of an epoch
    #[arg(long, value_name = "N", value_parser = positive_u64, allow_negative_numbers = true)]
    pub(crate) steps: Option<u64>,
    /// Keras' adadelta, adagrad, adam, adamax, adamw, ftrl, lion, nadam, rmsprop, sgd, or
    /// burn:NAME; with options: sgd:momentum=0.9,nesterov=true [default: as the model was compiled,
    /// otherwise adam]
    #[arg(long, value_name = "NAME")]
    pub(crate) optimizer: Option<OptimizerName>,
    /// The optimizer with which the model was compiled, once its file has been read; not a flag
    #[arg(skip)]
    pub(crate) compiled_optimizer: Option<serde_json::Map<String, serde_json::Value>>,
    /// What labels are: auto (classes, if data, model and loss allow it), classes or values
    #[arg(
        long,
        value_name = "KIND",
        hide_possible_values = true,
        value_parser = dataset::targets()
    )]
    pub(crate) targets: Option<TargetsName>,
    /// cross-entropy, mse, mae, or Keras' name, huber:delta=2 (docs/losses.md); of an output:
    /// OUTPUT=NAME [default: as the model was compiled, otherwise cross-entropy, for values mse]
    #[arg(long, value_name = "NAME")]
    pub(crate) loss: Vec<LossFlag>,
    /// Factors of the losses of outputs, such as a=1,b=0.5 [default: 1]
    #[arg(
        long,
        value_name = "OUTPUT=F,...",
        value_delimiter = ',',
        value_parser = loss_weight
    )]
    pub(crate) loss_weights: Vec<(String, f64)>,
    /// Keras' names, such as accuracy,auc:curve=PR,f1_score (docs/losses.md); of an output:
    /// OUTPUT=NAME [default: as the model was compiled, otherwise accuracy, for values mae]
    #[arg(long, value_name = "LIST")]
    pub(crate) metrics: Option<MetricList>,
    /// Metrics that count by the weights of the examples, as those of --metrics
    #[arg(long, value_name = "LIST")]
    pub(crate) weighted_metrics: Option<MetricList>,
    /// How much the examples of a class count in training, such as 0=1,1=2.5 [default: 1]
    #[arg(
        long,
        value_name = "CLASS=F,...",
        value_delimiter = ',',
        value_parser = class_weight
    )]
    pub(crate) class_weight: Vec<(String, f32)>,
    /// The learning rate [default: 0.001, for sgd 0.01]
    #[arg(long, value_name = "F", value_parser = learning_rate, allow_negative_numbers = true)]
    pub(crate) learning_rate: Option<f64>,
    /// Schedule of the rate: cosine, polynomial:power=2, ... (docs/from-keras.md) [default: none]
    #[arg(long, value_name = "NAME")]
    pub(crate) lr_schedule: Option<ScheduleFlag>,
    /// Updates during which the rate rises from 0, before the schedule
    #[arg(long, value_name = "N", value_parser = positive_u64, allow_negative_numbers = true)]
    pub(crate) warmup_steps: Option<u64>,
    /// Weight decay: in every update weights shrink by this times the rate [default: adamw 0.004]
    #[arg(long, value_name = "F", value_parser = factor, allow_negative_numbers = true)]
    pub(crate) weight_decay: Option<f64>,
    /// Exclude parameters whose names contain one of these texts, such as bias,gamma,beta
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) weight_decay_exclude: Vec<String>,
    /// Scale the summed gradients of an update to at most this norm
    #[arg(long, value_name = "F", value_parser = learning_rate, allow_negative_numbers = true)]
    pub(crate) clip_norm: Option<f64>,
    /// Update once per N steps, with the mean of their gradients
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) accumulate: Option<usize>,
    /// Average the weights with this momentum; the averages are evaluated and are the result
    #[arg(long, value_name = "F", value_parser = momentum, allow_negative_numbers = true)]
    pub(crate) ema: Option<f64>,
    /// Precision of forward and backward passes; weights and updates stay in f32
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub(crate) precision: FloatName,
    /// L2 factor of all kernels [default: as in the model]
    #[arg(long, value_name = "F", value_parser = factor, allow_negative_numbers = true)]
    pub(crate) l2: Option<f64>,
    /// Drop the last batch of an epoch if it is short (Keras: drop_remainder)
    #[arg(long)]
    pub(crate) drop_remainder: bool,
    /// Seed for initial weights, the order of the examples and dropout
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = whole,
        allow_negative_numbers = true
    )]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
pub(crate) struct FileArgs {
    /// Save here after every epoch and when interrupted; the newest 5 checkpoints are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// Save every N updates instead of every epoch
    #[arg(
        long,
        value_name = "N",
        value_parser = positive_u64,
        allow_negative_numbers = true,
        conflicts_with = "checkpoint_seconds"
    )]
    pub(crate) checkpoint_steps: Option<u64>,
    /// Save every N seconds instead of every epoch
    #[arg(long, value_name = "SECONDS", value_parser = positive_u64, allow_negative_numbers = true)]
    pub(crate) checkpoint_seconds: Option<u64>,
    /// Continue from the checkpoint in --checkpoint-dir, or start from the beginning without one
    #[arg(long, conflicts_with = "resume")]
    pub(crate) restartable: bool,
    /// Continue from the checkpoint in --checkpoint-dir; an error without one
    #[arg(long)]
    pub(crate) resume: bool,
    /// Write history.jsonl, history.csv and TensorBoard files here
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Write a hash of every parameter after every update (the chief does), for `same-bits`
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) log_bits: Option<PathBuf>,
    /// Print the averages of the epoch so far every N updates, and log the loss
    #[arg(long, value_name = "N", value_parser = positive_u64, allow_negative_numbers = true)]
    pub(crate) log_steps: Option<u64>,
    /// Also log the distributions of all weights every N epochs, for TensorBoard
    #[arg(
        long,
        value_name = "N",
        value_parser = positive,
        allow_negative_numbers = true,
        requires = "log_dir"
    )]
    pub(crate) log_histograms: Option<usize>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Checkpoint")]
pub(crate) struct RestoreArgs {
    /// A --checkpoint-dir of `train`, or one checkpoint in it
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// The examples to use [default: test, or all of a dataset that was not used for training]
    #[arg(long, value_name = "NAME", value_parser = dataset::split())]
    pub(crate) split: Option<SplitName>,
    /// How the work is distributed
    #[arg(
        long,
        value_name = "NAME",
        default_value = "default",
        help_heading = "Strategy",
        value_parser = reading::StrategyOfReaders
    )]
    pub(crate) strategy: StrategyName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StrategyName {
    /// No distribution: one replica on the calling thread
    Default,
    /// One replica on one chosen device
    OneDevice,
    /// A copy of the model per device, all kept equal
    Mirrored,
    /// A copy of the model per device of several worker processes, all kept equal
    MultiWorker,
    /// One copy of the weights, computation on all devices
    CentralStorage,
    /// The weights on parameter servers; workers train asynchronously
    ParameterServer,
    /// A copy of the model per TPU core, or per device of another PJRT plugin; compiled steps
    Tpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FloatName {
    F32,
    Bf16,
    /// With a dynamic loss scale
    F16,
}

impl FloatName {
    pub(crate) fn policy(self) -> Policy {
        match self {
            Self::F32 => Policy::float32(),
            Self::Bf16 => Policy::mixed_bfloat16(),
            Self::F16 => Policy::mixed_float16(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

/// What predictions are written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PredictionFormat {
    /// A table
    Csv,
    /// One object per line
    Json,
    /// NumPy arrays
    Npz,
}

/// The name of a value on the command line.
pub(crate) fn named(value: impl ValueEnum) -> Option<String> {
    let value = value.to_possible_value()?;
    Some(value.get_name().to_string())
}

/// The program's arguments. In `evaluate` and `predict`, flags shared with `train` have other help
/// texts.
pub(crate) fn program() -> clap::Command {
    let reading = |command: clap::Command| {
        command
            .mut_arg("replicas", |flag| {
                flag.help("Replicas that share the examples [default: one per core]")
            })
            .mut_arg("model", |flag| {
                flag.help("The model of the checkpoint: a name or a file [default: from it]")
            })
            .mut_arg("dataset", |flag| {
                flag.help(
                    "digits, mnist, fashion-mnist, images, idx:DIR, csv:FILE, npz:FILE [default: \
                     from the checkpoint]",
                )
            })
            .mut_arg("batch_size", |flag| {
                flag.help("Examples of one replica in one step [default: 128]")
            })
    };
    let mut program = Cli::command();
    path::in_all_flags(&mut program);
    for command in program.get_subcommands_mut() {
        // Replaced in place: `mut_subcommand` would move it to the end.
        if ["evaluate", "predict"].contains(&command.get_name()) {
            *command = reading(std::mem::take(command));
        }
    }
    usual::usual_first(any_case(program))
}

/// Listed values are accepted in any case: `Mirrored`, `JSON`.
fn any_case(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|flag| {
        let is_listed = !flag.get_possible_values().is_empty();
        flag.ignore_case(is_listed)
    });
    command.mut_subcommands(any_case)
}

impl Command {
    /// The value of `--verbose`.
    pub(crate) fn verbose(&self) -> bool {
        match self {
            Self::Train(args) => args.general.verbose,
            Self::Evaluate(args) => args.general.verbose,
            Self::Predict(args) => args.verbose,
            Self::Export(args) => args.verbose,
            Self::Doctor(args) => args.general.verbose,
            #[cfg(feature = "full")]
            Self::Bench(args) => args.verbose,
            #[cfg(feature = "full")]
            Self::Conformance(args) => args.verbose,
            Self::Blame(args) => args.verbose,
            Self::SameBits(args) => args.verbose,
            Self::Certs(args) => args.verbose,
            Self::New(args) => args.verbose,
            Self::Launch(args) => args.verbose,
            Self::Completions(_) | Self::Man(_) | Self::LaunchGuard => false,
        }
    }
}

/// The kinds of GPUs that this build supports.
const GPUS: &[&dyn GpuKind] = &[
    #[cfg(feature = "cuda")]
    &distribute_cuda::Cuda,
];

fn device(text: &str) -> distribute_core::Result<LogicalDevice> {
    LogicalDevice::parse(text, GPUS)
}

/// The name of a built-in model in its usual case, otherwise the text itself.
fn model(text: &str) -> Result<String, String> {
    let mut names = distribute_keras::BUILT_IN.iter().map(|(name, _)| *name);
    let known = names.find(|name| name.eq_ignore_ascii_case(text));
    match known {
        Some(name) => Ok(name.to_string()),
        None => path::name_or_file(text),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a whole number from 1 on is needed".to_string())
}

/// A port on which a process can listen.
fn port() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

/// `9000..9020`: from 9000 to 9020.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text
        .split_once("..")
        .or_else(|| text.split_once('-'))
        .unwrap_or((text, text));
    let number = |text: &str| text.trim().parse().ok().filter(|port| *port > 0);
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => {
            Err("two ports from 1 to 65535 are needed, the lower one first: 9000..9020".to_string())
        }
    }
}

/// `3`, or `2..8`: from 2 to 8. 0 is for one of several hosts.
fn workers(text: &str) -> Result<RangeInclusive<usize>, String> {
    if text == "0" {
        return Ok(0..=0);
    }
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    match (number(least), number(most)) {
        (Some(least), Some(most)) if least <= most => Ok(least..=most),
        (Some(least), Some(most)) => Err(format!(
            "the least number, {least}, is above the greatest, {most}"
        )),
        _ => Err("a whole number from 1 on is needed, or two as in 2..8".to_string()),
    }
}

/// `30` or `30s`.
fn shrink_after(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let number = number.filter(|number| *number <= 10_000_000);
    number.ok_or_else(|| "seconds up to 10000000 are needed, as 30 or 30s".to_string())
}

fn positive_u64(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a whole number from 1 on is needed".to_string())
}

fn whole(text: &str) -> Result<u64, String> {
    let number = text.parse().ok();
    number.ok_or_else(|| "a whole number from 0 on is needed".to_string())
}

fn learning_rate(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x > 0.0);
    number.ok_or_else(|| "a number above 0 is needed".to_string())
}

fn momentum(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| (0.0..1.0).contains(x));
    number.ok_or_else(|| "a number from 0 to less than 1 is needed".to_string())
}

fn factor(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| "a number from 0 on is needed".to_string())
}
