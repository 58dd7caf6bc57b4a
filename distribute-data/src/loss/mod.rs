//! Losses without reduction, and the scaling that makes their SUM over replicas right.
//!
//! Under a strategy every replica computes the loss of its own examples, and gradients are summed
//! over replicas. The loss of a replica must therefore be divided by the size of the *global*
//! batch: [`average_loss`]. What is not per example, such as a penalty on the weights, is
//! the same on every replica and must be divided by their number: [`scale_regularization_loss`].

mod batch;
mod compute;
mod function;
mod functions;
mod objects;
mod reduction;
mod scaling;

pub use batch::{BatchLoss, LossWithAccuracy, SideOfLogits};
pub use function::LossFunction;
pub use functions::{
    Labels, LastAxis, binary_crossentropy, categorical_crossentropy, l2, logits_of_sigmoid,
    logits_of_softmax, mean_squared_error, sparse_categorical_crossentropy,
};
pub use objects::{
    BinaryCrossentropy, CategoricalCrossentropy, MeanSquaredError, SparseCategoricalCrossentropy,
};
pub use reduction::{LossValue, Reduction};
pub use scaling::{AverageLoss, LossKind, SampleWeight, average_loss, scale_regularization_loss};
