//! Tensors of other programs in the place of some of a model's parameters: [`load_parameters`].

use std::collections::{BTreeMap, BTreeSet};

use burn::module::Module;
use burn::tensor::TensorData;

use crate::checkpoint::Section;
use crate::remote_model::put_values;
use crate::state_leaf::{is_same_kind, model_specs};
use crate::{Error, Result, RunningStatistics};

/// What of some tensors a model has taken over, by [`load_parameters`] (TensorFlow: the status
/// that `tf.train.Checkpoint.restore` returns).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a name that does not match is no error until it is asked for"]
pub struct LoadStatus {
    /// The parameters that were found, in the order of the model.
    pub loaded: Vec<String>,
    /// The model's other parameters, which are as they were.
    pub missing: Vec<String>,
    /// The tensors that belong to no parameter of the model.
    pub unused: Vec<String>,
}

impl LoadStatus {
    /// Checks that each tensor was taken over: that a part of the model has all of them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which names the tensors that were not, and the parameters that
    /// were not found.
    pub fn assert_consumed(&self) -> Result<()> {
        self.check(&self.unused, "the model has no parameters")
    }

    /// Checks that each parameter of the model was found.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], as [`assert_consumed`](Self::assert_consumed).
    pub fn assert_existing_objects_matched(&self) -> Result<()> {
        self.check(&self.missing, "there are no tensors")
    }

    fn check(&self, wrong: &[String], what: &str) -> Result<()> {
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "load_parameters: {what} of the names {}; {} were taken over, without a tensor are: {}, \
             without a parameter: {}; give the tensors the paths of the parameters",
            listed(wrong),
            self.loaded.len(),
            listed(&self.missing),
            listed(&self.unused),
        )))
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_string();
    }
    format!("`{}`", names.join("`, `"))
}

/// The model with tensors of another program in the place of its parameters and running statistics
/// of the same paths. What has no tensor stays as it is, and the status says what did not match.
/// Whether a parameter is trained, its device and its type stay; floats are cast to it.
///
/// Call it where the model is built, in the scope of a strategy. A file in the format safetensors
/// is read by [`checkpoint::read_safetensors`](crate::checkpoint::read_safetensors); other names
/// and layouts are changed in the map.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use burn::nn::{Linear, LinearConfig};
/// use distribute_core::{Device, TensorData, load_parameters};
///
/// let layer: Linear = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
/// let bias = BTreeMap::from([("bias".to_string(), TensorData::from([0.5_f32]))]);
/// let (layer, status) = load_parameters(layer, &bias)?;
/// assert_eq!(status.loaded, ["bias"]);
/// assert_eq!(status.missing, ["weight"]);
/// status.assert_consumed()?;
/// assert!(layer.bias.is_some_and(|bias| bias.val().into_scalar::<f32>() == 0.5));
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for a tensor of another shape or kind of elements than the parameter
/// of its name, and for tensors of which none has the name of a parameter.
pub fn load_parameters<M: Module + 'static>(
    model: M,
    tensors: &BTreeMap<String, TensorData>,
) -> Result<(M, LoadStatus)> {
    let statistics = RunningStatistics::of(&model);
    let mut model = statistics.own_copy(&model);
    let (mut status, mut values) = (LoadStatus::default(), Vec::new());
    let mut unused: BTreeSet<&String> = tensors.keys().collect();
    for (index, own) in model_specs(&model, &statistics)?.into_iter().enumerate() {
        let path = Section::Model.path_of(&own.name).unwrap_or(&own.name);
        let Some((name, data)) = tensors.get_key_value(path) else {
            status.missing.push(path.to_string());
            continue;
        };
        let shape = data.shape().to_vec();
        if shape != own.shape || !is_same_kind(own.dtype, data.dtype()) {
            return Err(Error::invalid(format!(
                "load_parameters: the tensor `{path}` has shape {shape:?} and type {}, and the \
                 parameter shape {:?} and type {}: transpose or reshape it, or leave it out",
                data.dtype().name(),
                own.shape,
                own.dtype.name(),
            )));
        }
        unused.remove(name);
        status.loaded.push(path.to_string());
        values.push((index, data.clone()));
    }
    status.unused = unused.into_iter().cloned().collect();
    if status.loaded.is_empty() && !tensors.is_empty() {
        status.assert_consumed()?;
    }
    put_values(&mut model, &statistics, values)?;
    Ok((model, status))
}
