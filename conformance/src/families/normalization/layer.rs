//! The layers of the file, on inputs `[batch, features, rest]`.

use burn::module::{Module, Param, ParamId, RunningState};
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{Result, SyncBatchNorm, SyncBatchNormConfig};
use serde_json::Value;

use crate::json::Fields;
use crate::outcome::Failure;
use crate::tensors::{float, reshaped, tensor};

/// One layer of each kind.
#[derive(Module, Debug)]
pub(super) enum Layer {
    /// Each replica normalizes its own part.
    Local(BatchNorm),
    /// Over the parts of all replicas.
    Synchronized(SyncBatchNorm),
    /// Over the features of each example.
    PerExample(LayerNorm),
    /// Over groups of features.
    Grouped(GroupNorm),
}

/// A trained parameter, or the constant that stands where the layer has none.
fn parameter(
    inputs: &Value,
    name: &str,
    count: usize,
    otherwise: f32,
    device: &Device,
) -> std::result::Result<Param<Tensor<1>>, Failure> {
    Ok(match inputs.get(name) {
        None | Some(Value::Null) => {
            let constant = Tensor::full([count], otherwise, device);
            Param::initialized(ParamId::new(), constant)
        }
        Some(value) => {
            let flat = reshaped(&per_feature(name, value, count)?, &[count]);
            Param::from_tensor(Tensor::from_data(flat, device))
        }
    })
}

/// A tensor with one number for each feature.
fn per_feature(
    name: &str,
    value: &Value,
    features: usize,
) -> std::result::Result<TensorData, Failure> {
    let data = tensor(value)?;
    if data.num_elements() != features {
        let what = format!(
            "`{name}` with {} numbers for {features} features",
            data.num_elements()
        );
        return Err(Failure::schema(what));
    }
    Ok(data)
}

impl Layer {
    /// The layer of a case on a number of features.
    pub(super) fn of(
        inputs: &Value,
        features: usize,
        device: &Device,
    ) -> std::result::Result<Self, Failure> {
        let op = inputs.text("op")?;
        let epsilon = inputs.float("epsilon")?;
        if epsilon <= 0.0 {
            return Err(Failure::schema("`epsilon` is not positive"));
        }
        let gamma = parameter(inputs, "gamma", features, 1.0, device)?;
        let beta = parameter(inputs, "beta", features, 0.0, device)?;
        if op == "layer_norm" {
            let mut layer = LayerNormConfig::new(features)
                .with_epsilon(epsilon)
                .init(device);
            (layer.gamma, layer.beta) = (gamma, Some(beta));
            return Ok(Self::PerExample(layer));
        }
        if op == "group_norm" {
            let groups = inputs["groups"]
                .as_i64()
                .and_then(|count| usize::try_from(count).ok());
            let config = GroupNormConfig::new(groups.unwrap_or(features), features);
            let mut layer = config.with_epsilon(epsilon).init(device);
            (layer.gamma, layer.beta) = (Some(gamma), Some(beta));
            return Ok(Self::Grouped(layer));
        }
        let momentum = inputs.float("momentum")?;
        let statistic = |name| {
            let value = inputs.field(name)?;
            per_feature(name, value, features)?;
            Ok::<_, Failure>(RunningState::new(float::<1>(value, device)?))
        };
        let (mean, variance) = (statistic("moving_mean")?, statistic("moving_variance")?);
        if inputs.flag("synchronized")? {
            let config = SyncBatchNormConfig::new(features).with_momentum(momentum);
            let mut layer = config.with_epsilon(epsilon).init(device)?;
            layer.gamma = inputs.flag("scale")?.then_some(gamma);
            layer.beta = inputs.flag("center")?.then_some(beta);
            (layer.moving_mean, layer.moving_variance) = (mean, variance);
            return Ok(Self::Synchronized(layer));
        }
        let config = BatchNormConfig::new(features).with_momentum(1.0 - momentum);
        let mut layer = config.with_epsilon(epsilon).init(device);
        (layer.gamma, layer.beta) = (gamma, beta);
        (layer.running_mean, layer.running_var) = (mean, variance);
        Ok(Self::Local(layer))
    }

    /// The moving mean and variance of a batch normalization.
    pub(super) fn statistics(&self) -> Vec<Tensor<1>> {
        match self {
            Self::Local(layer) => vec![
                layer.running_mean.value_sync(),
                layer.running_var.value_sync(),
            ],
            Self::Synchronized(layer) => vec![
                layer.moving_mean.value_sync(),
                layer.moving_variance.value_sync(),
            ],
            Self::PerExample(_) | Self::Grouped(_) => Vec::new(),
        }
    }

    /// The output; with the moving statistics if it does not train. The weights are of the examples
    /// of a batch that was filled up.
    pub(super) fn forward(
        &self,
        (x, weights): (Tensor<3>, Option<Tensor<1>>),
        trains: bool,
    ) -> Result<Tensor<3>> {
        match self {
            Self::Synchronized(layer) => {
                let mut layer = layer.clone();
                layer.training = Param::from_bool(trains);
                Ok(match weights {
                    Some(weights) => layer.forward_weighted(x, weights),
                    None => layer.forward(x),
                })
            }
            _ => self.forward_alone(x, trains),
        }
    }

    /// The output of a layer that needs no other replicas; a synchronized one does not train.
    pub(super) fn forward_alone(&self, x: Tensor<3>, trains: bool) -> Result<Tensor<3>> {
        let dims = x.dims();
        Ok(match self {
            Self::Local(layer) => {
                let mut layer = layer.clone();
                layer.training = Param::from_bool(trains);
                layer.forward(x)
            }
            Self::Synchronized(layer) => layer.forward_inference(x)?,
            Self::PerExample(layer) => {
                let rows: Tensor<2> = x.reshape([dims[0], dims[1]]);
                layer.forward(rows).reshape(dims)
            }
            Self::Grouped(layer) => layer.forward(x),
        })
    }
}

/// How a tensor of the file becomes `[batch, features, rest]`.
#[derive(Debug, Clone, Copy)]
pub(super) enum View {
    /// This axis is the features'.
    Axis(i64),
    /// The features are all axes from this one on.
    From(i64),
}

impl View {
    pub(super) fn of(inputs: &Value) -> std::result::Result<Self, Failure> {
        let first = match &inputs["axis"] {
            Value::Array(axes) => axes.first().and_then(Value::as_i64),
            axis => axis.as_i64(),
        };
        let first = first.ok_or_else(|| Failure::schema("axis"))?;
        Ok(match inputs.text("op")? {
            "layer_norm" => Self::From(first),
            _ => Self::Axis(first),
        })
    }

    /// A tensor of the file in this form.
    pub(super) fn read(self, value: &Value) -> std::result::Result<TensorData, Failure> {
        let data = tensor(value)?;
        let shape = data.shape().to_vec();
        let count = |axes: &[usize]| axes.iter().product::<usize>();
        let (Self::Axis(axis) | Self::From(axis)) = self;
        let rank = i64::try_from(shape.len()).map_err(Failure::schema)?;
        if rank < 2 || axis.rem_euclid(rank) == 0 {
            let what = format!("features on axis {axis} of a tensor of rank {rank}");
            return Err(Failure::schema(what));
        }
        let axis = usize::try_from(axis.rem_euclid(rank)).map_err(Failure::schema)?;
        if let Self::From(_) = self {
            let (rows, features) = shape.split_at(axis);
            return Ok(reshaped(&data, &[count(rows), count(features), 1]));
        }
        if axis == 1 {
            return Ok(reshaped(&data, &[shape[0], shape[1], count(&shape[2..])]));
        }
        let (features, rest) = (shape[axis], count(&shape[1..axis]));
        if shape[0] == 0 {
            return Ok(reshaped(&data, &[0, features, rest]));
        }
        let data = reshaped(&data, &[shape[0], rest, features]);
        let dtype = data.dtype();
        let last = Tensor::<3>::from_data(data, (&Device::flex(), dtype));
        Ok(last.swap_dims(1, 2).into_data())
    }
}
