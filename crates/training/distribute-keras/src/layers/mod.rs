//! The layers of Keras, each in a file of its own.
//!
//! A new layer is one file with a struct of its options, which implements `KerasLayer`, and a row
//! in the table below (with the file's `mod`, for the compiler). If it has weights, the file also
//! has the burn module that holds them, which implements `Built`.

mod activation;
mod average_pooling_1d;
mod average_pooling_2d;
mod batch_normalization;
mod cell;
mod conv_1d;
mod conv_1d_transpose;
mod conv_2d;
mod conv_2d_transpose;
mod conv_3d;
mod conv_3d_transpose;
mod cropping_1d;
mod cropping_2d;
mod dense;
mod depthwise_conv_1d;
mod depthwise_conv_2d;
mod dropout;
mod embedding;
mod flatten;
mod flow;
mod global_average_pooling_1d;
mod global_average_pooling_2d;
mod global_max_pooling_1d;
mod global_max_pooling_2d;
mod global_pooling_3d;
mod layer;
mod layer_normalization;
mod layout;
mod masking;
mod max_pooling_1d;
mod max_pooling_2d;
mod merge;
mod multi_head_attention;
mod normalization;
mod options;
pub(crate) mod pass;
mod permute;
mod pooling_3d;
mod recurrence;
mod recurrent;
pub(crate) mod regularizer;
mod repeat_vector;
mod rescaling;
mod reshape;
mod row;
mod separable_conv_1d;
mod separable_conv_2d;
mod sides_3d;
mod table;
mod time_axis;
mod up_sampling_1d;
mod up_sampling_2d;
mod up_sampling_3d;
pub(crate) mod weights;
pub(crate) mod windows;
mod zero_padding_1d;
mod zero_padding_2d;

// What a layer is made of; the files of the layers begin with `use super::*`.
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use distribute_core::{LocalBatchNorm, SyncBatchNorm};
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::{Initializer, ModelError, Shape};
use activation::{activation, activation_of};
pub use cell::{Cell, CellKind, RecurrentClass};
pub(crate) use flow::{Flow, Value};
use layer::{Built, KerasLayer, features, first_mask};
pub(crate) use options::common;
use options::*;
pub(crate) use pass::Pass;
use pass::{Arguments, Mode};
use regularizer::{Regularizer, penalty, regularizer};
use table::layers;
pub(crate) use weights::Weights;
use weights::{PlannedWeight, fixed, weight};
use windows::{Padding, Windows};

// The names of the class in a model file, and older ones behind `or`; the file and the struct; and
// if it has weights, the burn module that holds them, whose name is part of the parameters' paths.
// The error for another layer lists the names in this order, or the words behind `as`; the last row
// ends the sentence, so a new row goes above it.
layers! {
    "Dense": dense::Dense => Dense(dense::DenseWeights);
    "Conv2D" or "Convolution2D": conv_2d::Conv2D => Conv2d(conv_2d::Conv2dWeights);
    "Conv1D" or "Convolution1D": conv_1d::Conv1D;
    "Conv3D" or "Convolution3D": conv_3d::Conv3D => Conv3d(conv_3d::Conv3dWeights);
    "Conv1DTranspose" or "Convolution1DTranspose": conv_1d_transpose::Conv1DTranspose;
    "Conv2DTranspose" or "Convolution2DTranspose": conv_2d_transpose::Conv2DTranspose
        => Conv2dTranspose(conv_2d_transpose::Conv2dTransposeWeights);
    "Conv3DTranspose" or "Convolution3DTranspose": conv_3d_transpose::Conv3DTranspose
        => Conv3dTranspose(conv_3d_transpose::Conv3dTransposeWeights);
    "DepthwiseConv1D": depthwise_conv_1d::DepthwiseConv1D;
    "DepthwiseConv2D": depthwise_conv_2d::DepthwiseConv2D;
    "SeparableConv1D" or "SeparableConvolution1D": separable_conv_1d::SeparableConv1D;
    "SeparableConv2D" or "SeparableConvolution2D": separable_conv_2d::SeparableConv2D
        => SeparableConv2d(separable_conv_2d::SeparableConv2dWeights);
    "Embedding": embedding::Embedding => Embedding(embedding::EmbeddingWeights);
    "SimpleRNN" "LSTM" "GRU" "RNN": recurrent::Recurrent => Recurrent(recurrent::RecurrentWeights);
    "TimeDistributed" "Bidirectional": time_axis::TimeAxis;
    "Masking": masking::Masking;
    "MultiHeadAttention": multi_head_attention::MultiHeadAttention
        => Attention(multi_head_attention::AttentionWeights);
    "BatchNormalization": batch_normalization::BatchNormalization
        => BatchNorm(LocalBatchNorm), SyncBatchNorm(SyncBatchNorm);
    "LayerNormalization": layer_normalization::LayerNormalization
        => LayerNorm(layer_normalization::LayerNormWeights);
    "Normalization": normalization::Normalization
        => Normalization(normalization::NormalizationWeights);
    "Rescaling": rescaling::Rescaling;
    "MaxPooling1D" or "MaxPool1D": max_pooling_1d::MaxPooling1D;
    "AveragePooling1D" or "AvgPool1D": average_pooling_1d::AveragePooling1D;
    "MaxPooling2D" or "MaxPool2D": max_pooling_2d::MaxPooling2D;
    "AveragePooling2D" or "AvgPool2D": average_pooling_2d::AveragePooling2D;
    "MaxPooling3D" "AveragePooling3D" or "MaxPool3D" | "AvgPool3D": pooling_3d::Pooling3D;
    "GlobalMaxPooling1D" or "GlobalMaxPool1D": global_max_pooling_1d::GlobalMaxPooling1D;
    "GlobalAveragePooling1D" or "GlobalAvgPool1D":
        global_average_pooling_1d::GlobalAveragePooling1D;
    "GlobalMaxPooling2D" or "GlobalMaxPool2D": global_max_pooling_2d::GlobalMaxPooling2D;
    "GlobalAveragePooling2D" or "GlobalAvgPool2D":
        global_average_pooling_2d::GlobalAveragePooling2D;
    "GlobalMaxPooling3D" "GlobalAveragePooling3D" or "GlobalMaxPool3D" | "GlobalAvgPool3D":
        global_pooling_3d::GlobalPooling3D;
    "ZeroPadding1D": zero_padding_1d::ZeroPadding1D;
    "ZeroPadding2D": zero_padding_2d::ZeroPadding2D;
    "Cropping1D": cropping_1d::Cropping1D;
    "Cropping2D": cropping_2d::Cropping2D;
    "ZeroPadding3D" "Cropping3D": sides_3d::Sides3D;
    "UpSampling1D": up_sampling_1d::UpSampling1D;
    "UpSampling2D": up_sampling_2d::UpSampling2D;
    "UpSampling3D": up_sampling_3d::UpSampling3D;
    "Permute": permute::Permute;
    "RepeatVector": repeat_vector::RepeatVector;
    "Flatten": flatten::Flatten;
    "Reshape": reshape::Reshape;
    "Dropout" "SpatialDropout2D": dropout::Dropout;
    "Activation" "ReLU" "LeakyReLU" "ELU" "Softmax": activation::Activation;
    "Add" "Subtract" "Multiply" "Average" "Maximum" "Minimum" "Concatenate"
        as "Add, Subtract, Multiply, Average, Maximum, Minimum and Concatenate": merge::Merge;
}

impl LayerSpec {
    /// The layer with its weights, frozen if it is not trained.
    pub(crate) fn build(&self, trainable: bool, mut weights: Weights<'_>) -> BuiltLayer {
        let plain = || BuiltLayer::Plain(Plain { spec: self.clone() });
        let layer = self.layer().build(&mut weights).unwrap_or_else(plain);
        if trainable { layer } else { layer.freeze() }
    }
}

/// A layer without weights.
#[derive(Module, Debug)]
pub(crate) struct Plain {
    #[module(skip)]
    spec: LayerSpec,
}

impl Built for Plain {
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        Ok(self.spec.layer().call_all(inputs, pass))
    }
}
