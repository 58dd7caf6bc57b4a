//! The models of `training.json`, with weights named and laid out as there.

use burn::module::{Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::Nest;
use distribute_data::{mean_squared_error, sparse_categorical_crossentropy};
use serde_json::Value;

use crate::json::Fields;
use crate::outcome::Failure;
use crate::tensors::float;

/// A model whose initial weights a file holds.
pub(crate) trait Model: Module + Send + Sync + 'static {
    /// The features of a batch.
    type Features: Nest + Send + 'static;
    /// Its labels.
    type Labels: Nest + Send + 'static;

    /// Rows of the file as tensors on a device.
    fn batch(x: TensorData, y: TensorData, device: &Device) -> (Self::Features, Self::Labels);

    /// The model with these weights.
    fn with_weights(weights: &Value, device: &Device) -> Result<Self, Failure>;

    /// One loss per example.
    fn losses(&self, batch: (Self::Features, Self::Labels)) -> Tensor<1>;

    /// The sum of the squares of all weights that are not biases.
    fn squares(&self) -> Tensor<1>;
}

fn weight<const D: usize>(
    weights: &Value,
    name: &str,
    device: &Device,
) -> Result<Param<Tensor<D>>, Failure> {
    let tensor = float::<D>(weights.field(name)?, device)?;
    Ok(Param::from_tensor(tensor.require_grad()))
}

fn square<const D: usize>(weights: &Param<Tensor<D>>) -> Tensor<1> {
    let weights = weights.val();
    (weights.clone() * weights).sum()
}

fn dense(x: Tensor<2>, weights: &Param<Tensor<2>>, bias: &Param<Tensor<1>>) -> Tensor<2> {
    x.matmul(weights.val()) + bias.val().unsqueeze::<2>()
}

fn rows<const D: usize>(data: TensorData, device: &Device) -> Tensor<D> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}

fn classes(labels: TensorData, device: &Device) -> Tensor<1, Int> {
    let dtype = labels.dtype();
    Tensor::from_data(labels, (device, dtype))
}

/// `y = x @ w + b` with the mean squared error.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    w: Param<Tensor<2>>,
    b: Param<Tensor<1>>,
}

impl Linear {
    /// The one weight times each number.
    pub(crate) fn products(&self, x: Tensor<1>) -> Tensor<1> {
        x * self.w.val().reshape([1])
    }
}

impl Model for Linear {
    type Features = Tensor<2>;
    type Labels = Tensor<2>;

    fn batch(x: TensorData, y: TensorData, device: &Device) -> (Tensor<2>, Tensor<2>) {
        (rows(x, device), rows(y, device))
    }

    fn with_weights(weights: &Value, device: &Device) -> Result<Self, Failure> {
        Ok(Self {
            w: weight(weights, "w", device)?,
            b: weight(weights, "b", device)?,
        })
    }

    fn losses(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        mean_squared_error(dense(x, &self.w, &self.b), y)
    }

    fn squares(&self) -> Tensor<1> {
        square(&self.w)
    }
}

/// `logits = tanh(x @ w1 + b1) @ w2 + b2`.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    w1: Param<Tensor<2>>,
    b1: Param<Tensor<1>>,
    w2: Param<Tensor<2>>,
    b2: Param<Tensor<1>>,
}

impl Model for Mlp {
    type Features = Tensor<2>;
    type Labels = Tensor<1, Int>;

    fn batch(x: TensorData, y: TensorData, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        (rows(x, device), classes(y, device))
    }

    fn with_weights(weights: &Value, device: &Device) -> Result<Self, Failure> {
        Ok(Self {
            w1: weight(weights, "w1", device)?,
            b1: weight(weights, "b1", device)?,
            w2: weight(weights, "w2", device)?,
            b2: weight(weights, "b2", device)?,
        })
    }

    fn losses(&self, (x, y): (Tensor<2>, Tensor<1, Int>)) -> Tensor<1> {
        let hidden = dense(x, &self.w1, &self.b1).tanh();
        sparse_categorical_crossentropy(dense(hidden, &self.w2, &self.b2), y)
    }

    fn squares(&self) -> Tensor<1> {
        square(&self.w1) + square(&self.w2)
    }
}

/// Twice convolution, relu and 2x2 max pooling, then two dense layers. Images are NHWC and kernels
/// `[height, width, in, out]`, as in TensorFlow.
#[derive(Module, Debug)]
pub(crate) struct Cnn {
    k1: Param<Tensor<4>>,
    b1: Param<Tensor<1>>,
    k2: Param<Tensor<4>>,
    b2: Param<Tensor<1>>,
    w3: Param<Tensor<2>>,
    b3: Param<Tensor<1>>,
    w4: Param<Tensor<2>>,
    b4: Param<Tensor<1>>,
}

impl Model for Cnn {
    type Features = Tensor<4>;
    type Labels = Tensor<1, Int>;

    fn batch(x: TensorData, y: TensorData, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        (rows(x, device), classes(y, device))
    }

    fn with_weights(weights: &Value, device: &Device) -> Result<Self, Failure> {
        Ok(Self {
            k1: weight(weights, "k1", device)?,
            b1: weight(weights, "b1", device)?,
            k2: weight(weights, "k2", device)?,
            b2: weight(weights, "b2", device)?,
            w3: weight(weights, "w3", device)?,
            b3: weight(weights, "b3", device)?,
            w4: weight(weights, "w4", device)?,
            b4: weight(weights, "b4", device)?,
        })
    }

    fn losses(&self, (x, y): (Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
        let images = pooled(x.permute([0, 3, 1, 2]), &self.k1, &self.b1);
        let images = pooled(images, &self.k2, &self.b2);
        let flat = images.permute([0, 2, 3, 1]).flatten::<2>(1, 3);
        let hidden = relu(dense(flat, &self.w3, &self.b3));
        sparse_categorical_crossentropy(dense(hidden, &self.w4, &self.b4), y)
    }

    fn squares(&self) -> Tensor<1> {
        square(&self.k1) + square(&self.k2) + square(&self.w3) + square(&self.w4)
    }
}

fn pooled(images: Tensor<4>, kernel: &Param<Tensor<4>>, bias: &Param<Tensor<1>>) -> Tensor<4> {
    let kernel = kernel.val().permute([3, 2, 0, 1]);
    let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
    let images = relu(conv2d(images, kernel, Some(bias.val()), options));
    max_pool2d(images, MaxPoolOptions::new([2, 2]).with_stride([2, 2]))
}
