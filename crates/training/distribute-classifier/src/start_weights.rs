//! The weights that a training starts with, if they are not drawn at random.

use std::path::{Path, PathBuf};

use distribute_keras::{FoundWeights, ModelError, Plan, read_fitting_weights, read_weights};

/// Where the first weights come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StartWeights {
    /// From the model's file, if it holds weights (`.keras`, `.h5`); else they are drawn.
    #[default]
    OfModel,
    /// They are drawn, whatever the model's file holds.
    Initial,
    /// From this file: every layer must fit.
    File(PathBuf),
    /// From this file (or the model's), for the layers that are in it in the same shapes.
    Fitting(Option<PathBuf>),
}

/// The weights to start with, and what is to be said of them; nothing if they are drawn.
pub(crate) fn start(
    asked: &StartWeights,
    of_model: Option<&Path>,
    plan: &Plan,
) -> Result<Option<(FoundWeights, Vec<String>)>, ModelError> {
    let (path, fitting) = match asked {
        StartWeights::OfModel => (of_model, false),
        StartWeights::Initial => (None, false),
        StartWeights::File(path) => (Some(path.as_path()), false),
        StartWeights::Fitting(path) => (path.as_deref().or(of_model), true),
    };
    let Some(path) = path else {
        return Ok(None);
    };
    let found = if fitting {
        read_fitting_weights(path, plan)?
    } else {
        read_weights(path, plan)?.into()
    };
    let mut remarks = vec![format!("weights: of {}", path.display())];
    let skipped = found.skipped.iter();
    remarks.extend(skipped.map(|layer| {
        format!(
            "the layer {} starts with new weights: {}",
            layer.name, layer.why
        )
    }));
    let unused = found.unused.iter();
    remarks.extend(unused.map(|name| format!("not used of {}: {name}", path.display())));
    Ok(Some((found, remarks)))
}
