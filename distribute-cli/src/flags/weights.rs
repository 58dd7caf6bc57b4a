//! The flags about the weights with which a training starts, and about those that it keeps.

use std::path::PathBuf;

use clap::Args;
use distribute_classifier::StartWeights;

/// What `--weights` calls weights that are drawn at random.
const NONE: &str = "none";

#[derive(Debug, Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct WeightArgs {
    /// Start with these (.keras, .h5, .npz, .safetensors), or none [default: those in --model FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Option<PathBuf>,
    /// Start layers with new weights that the file has not, or in other shapes, as another head
    #[arg(long)]
    pub(crate) skip_mismatch: bool,
    /// Do not train layers of these names, or of models of these names, such as 'block*,stem'
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) freeze: Vec<String>,
}

impl WeightArgs {
    /// Where the first weights come from.
    pub(crate) fn start(&self) -> StartWeights {
        match (&self.weights, self.skip_mismatch) {
            (Some(path), _) if path.as_os_str() == NONE => StartWeights::Initial,
            (path, true) => StartWeights::Fitting(path.clone()),
            (Some(path), false) => StartWeights::File(path.clone()),
            (None, false) => StartWeights::OfModel,
        }
    }
}
