//! The flags about TPUs.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use crate::failure::Failure;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "TPU")]
pub(crate) struct TpuArgs {
    /// Name or address of the TPU [default: COLAB_TPU_ADDR, TPU_NAME, or the TPU of this machine]
    #[arg(long, value_name = "NAME")]
    pub(crate) tpu: Option<String>,
    /// The PJRT plugin [default: found by a search, see `doctor` and docs/tpu.md]
    #[arg(long, value_name = "FILE")]
    pub(crate) pjrt_plugin: Option<PathBuf>,
    /// Only compile the step of this job, and print its cost and whether it fits into memory
    #[arg(long, requires = "topology")]
    pub(crate) compile_only: bool,
    /// The TPU for which to compile, without having it: v5e:2x4, v4:2x2x2, v5p:2x2x2, v6e:2x4, ...
    #[arg(
        long,
        value_name = "NAME",
        requires = "compile_only",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) topology: Option<String>,
    /// Write the StableHLO program to this file before it is compiled
    #[arg(long, value_name = "FILE", requires = "compile_only")]
    pub(crate) dump_stablehlo: Option<PathBuf>,
    /// Precision of a TPU's matrix products in f32 [default: highest]
    #[arg(long, value_name = "PRECISION")]
    pub(crate) precision_of_matmul: Option<PrecisionName>,
}

/// The precisions of a TPU's matrix products, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionName {
    /// One bf16 product, TensorFlow's and JAX's default: 8 bits of mantissa
    Default,
    /// Three bf16 products: about 16 bits
    High,
    /// Six bf16 products: f32 as on a CPU
    Highest,
}

impl TpuArgs {
    /// Refuses flags that have no effect with another strategy.
    pub(crate) fn refuse_without_tpu(&self) -> Result<(), Failure> {
        let given = [
            ("--tpu", self.tpu.is_some()),
            ("--pjrt-plugin", self.pjrt_plugin.is_some()),
            ("--compile-only", self.compile_only),
            ("--precision-of-matmul", self.precision_of_matmul.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!("{flag} is for --strategy tpu"))),
            None => Ok(()),
        }
    }
}
