//! The flags of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use distribute_bench::training::BenchModel;
use distribute_core::collectives::{Algorithm, DType, ProcessTransport};

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// All-reduce of buffers, against a plain multi-threaded sum of the same buffers
    AllReduce(AllReduceArgs),
    /// Training throughput of every strategy, against hand-written burn loops
    Train(StrategiesArgs),
    /// Training throughput with parameter servers, against processes that train alone
    ParameterServer(ServersArgs),
    /// Training throughput of compiled steps on a PJRT plugin, against burn's CPU backend
    Tpu(CompiledArgs),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOutput {
    /// A table for people
    Text,
    /// One JSON object per line
    Json,
}

/// Options of `bench all-reduce`.
#[derive(Debug, Args)]
pub(crate) struct AllReduceArgs {
    /// Number of ranks: threads, or processes that the command starts
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) world: usize,
    /// Transport between the ranks
    #[arg(long, value_enum, value_name = "NAME", default_value_t = BenchTransport::InProcess)]
    pub(crate) transport: BenchTransport,
    /// Sizes of the buffers in bytes, for example 4K,1M,100M (K = 1024)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = size_bytes,
        default_value = "4K,64K,1M,16M,100M"
    )]
    pub(crate) bytes: Vec<usize>,
    /// How the buffers are reduced
    #[arg(long, value_enum, value_name = "NAME", default_value_t = AlgorithmName::Auto)]
    pub(crate) algorithm: AlgorithmName,
    /// The type of an element: a float, a signed or an unsigned integer, with its bits
    #[arg(long, value_enum, value_name = "NAME", default_value_t = TypeName::F32)]
    pub(crate) dtype: TypeName,
    /// Measured operations per size [default: 15 in-process, otherwise as many as take 0.5 s]
    #[arg(long, value_name = "N")]
    pub(crate) iterations: Option<usize>,
    /// How results are printed
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = BenchOutput::Text)]
    pub(crate) output: BenchOutput,
    /// This process is one of the ranks, started by the command itself
    #[arg(long, hide = true)]
    pub(crate) rank: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTransport {
    /// Threads of this process
    InProcess,
    /// Processes that share memory
    Shm,
    /// Processes, over gRPC connections
    Grpc,
    /// Processes, over the best transport that the ranks find
    Auto,
    /// Threads with a GPU each (0, 1, ...), over NCCL
    Nccl,
}

impl BenchTransport {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BenchTransport::InProcess => "in-process",
            BenchTransport::Shm => "shm",
            BenchTransport::Grpc => "grpc",
            BenchTransport::Auto => "auto",
            BenchTransport::Nccl => "nccl",
        }
    }

    /// `None` for threads.
    pub(crate) fn between_processes(self) -> Option<ProcessTransport> {
        match self {
            BenchTransport::InProcess | BenchTransport::Nccl => None,
            BenchTransport::Shm => Some(ProcessTransport::SharedMemory),
            BenchTransport::Grpc => Some(ProcessTransport::Grpc),
            BenchTransport::Auto => Some(ProcessTransport::Auto),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AlgorithmName {
    /// The best one for the transport, the ranks and the size
    Auto,
    /// Shared memory: every rank reduces its share of all buffers in place
    Direct,
    /// Every rank sends its whole buffer to all others: one step, for the smallest buffers
    DirectExchange,
    /// Around a ring: the fewest bytes, the most steps; for large buffers
    Ring,
    /// Halving and doubling distances: few steps; for small buffers
    HalvingDoubling,
}

impl From<AlgorithmName> for Algorithm {
    fn from(name: AlgorithmName) -> Self {
        match name {
            AlgorithmName::Auto => Self::Auto,
            AlgorithmName::Direct => Self::Direct,
            AlgorithmName::DirectExchange => Self::DirectExchange,
            AlgorithmName::Ring => Self::Ring,
            AlgorithmName::HalvingDoubling => Self::HalvingDoubling,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum TypeName {
    F32,
    F64,
    F16,
    Bf16,
    I32,
    I64,
    U8,
}

impl From<TypeName> for DType {
    fn from(name: TypeName) -> Self {
        match name {
            TypeName::F32 => Self::F32,
            TypeName::F64 => Self::F64,
            TypeName::F16 => Self::F16,
            TypeName::Bf16 => Self::BF16,
            TypeName::I32 => Self::I32,
            TypeName::I64 => Self::I64,
            TypeName::U8 => Self::U8,
        }
    }
}

/// Reads `4096`, `4K`, `1M` or `1G`.
fn size_bytes(text: &str) -> std::result::Result<usize, String> {
    let unit = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return Err(format!("unknown unit `{unit}`: use K, M or G")),
    };
    let number: usize = number
        .parse()
        .map_err(|_| "expected a number, as in 64K".to_string())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or("not a size".to_string())
}

/// Options of `bench train`.
#[derive(Debug, Args)]
pub(crate) struct StrategiesArgs {
    /// Images of one step of one replica
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) batch_size: usize,
    /// How many replicas, loops without exchange and worker processes to measure, one after the
    /// other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2])]
    pub(crate) replicas: Vec<usize>,
    /// How often each competitor is measured: once a round, in turn with the others
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// How long a competitor is measured in a round
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// How results are printed
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = BenchOutput::Text)]
    pub(crate) output: BenchOutput,
    /// This process is a worker, started by the command itself
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
}

/// Options of `bench parameter-server`.
#[derive(Debug, Args)]
pub(crate) struct ServersArgs {
    /// Images of one step of one worker
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) batch_size: usize,
    /// How many worker processes, and as many processes that train alone for comparison
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) workers: usize,
    /// How many processes hold the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) servers: usize,
    /// How often each competitor is measured: once a round, in turn with the others
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// How long a competitor is measured in a round
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// How results are printed
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = BenchOutput::Text)]
    pub(crate) output: BenchOutput,
    /// What this process is, started by the command itself
    #[arg(long, hide = true)]
    pub(crate) role: Option<Role>,
}

/// What a process of the benchmark does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    Server,
    Worker,
    Alone,
}

/// Options of `bench tpu`.
#[derive(Debug, Args)]
pub(crate) struct CompiledArgs {
    /// Name or address of the TPU [default: COLAB_TPU_ADDR, TPU_NAME, or that of this machine]
    #[arg(long, value_name = "NAME")]
    pub(crate) tpu: Option<String>,
    /// The PJRT plugin [default: the one that `doctor` shows; docs/tpu.md has the search]
    #[arg(long, value_name = "FILE")]
    pub(crate) pjrt_plugin: Option<PathBuf>,
    /// The model that is trained
    #[arg(long, value_enum, value_name = "NAME", default_value_t = ModelName::MnistCnn)]
    pub(crate) model: ModelName,
    /// Examples of one step of one replica
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) batch_size: usize,
    /// How many replicas to measure, one number after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1])]
    pub(crate) replicas: Vec<usize>,
    /// How often each competitor is measured: once a round, in turn with the others
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// How long a competitor is measured in a round
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// How results are printed
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = BenchOutput::Text)]
    pub(crate) output: BenchOutput,
}

/// A model to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelName {
    /// The CNN of TensorFlow's tutorial, on images of 28 x 28
    MnistCnn,
    /// A small CNN, on images of 8 x 8
    DigitsCnn,
    /// Two hidden layers, on 64 numbers
    Mlp,
    /// Word embeddings, on texts of 64 words out of 2,000
    Text,
}

impl From<ModelName> for BenchModel {
    fn from(name: ModelName) -> Self {
        match name {
            ModelName::MnistCnn => Self::MnistCnn,
            ModelName::DigitsCnn => Self::DigitsCnn,
            ModelName::Mlp => Self::Mlp,
            ModelName::Text => Self::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size_bytes;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size_bytes("4096"), Ok(4096));
        assert_eq!(size_bytes("4K"), Ok(4096));
        assert_eq!(size_bytes("100MiB"), Ok(100 << 20));
        assert!(size_bytes("0").is_err());
        assert!(size_bytes("4X").is_err());
        assert!(size_bytes("99999999999G").is_err());
    }
}
