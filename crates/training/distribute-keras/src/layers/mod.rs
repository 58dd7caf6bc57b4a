//! The layers of Keras, each in a file of its own.
//!
//! A new layer is one file with a struct of its options, which implements `KerasLayer`, and a row
//! in the table below (with the file's `mod`, for the compiler). If it has weights, the file also
//! has the burn module that holds them, which implements `Built`.

mod activation;
mod activity_regularization;
mod attention;
mod average_pooling_1d;
mod average_pooling_2d;
mod axes_norm;
mod batch_normalization;
mod category;
mod cell;
mod center_crop;
pub(crate) mod constraint;
mod conv_1d;
mod conv_1d_transpose;
mod conv_2d;
mod conv_2d_transpose;
mod conv_3d;
mod conv_3d_transpose;
mod conv_lstm;
mod cropping_1d;
mod cropping_2d;
mod custom_scale;
mod dense;
mod depthwise_conv_1d;
mod depthwise_conv_2d;
mod discretization;
mod dot;
mod dropout;
mod einsum_dense;
mod embedding;
mod flatten;
mod flow;
mod global_average_pooling_1d;
mod global_average_pooling_2d;
mod global_max_pooling_1d;
mod global_max_pooling_2d;
mod global_pooling_3d;
mod group_normalization;
mod grouped_query_attention;
mod hashing;
mod heads;
mod identity;
mod integer_lookup;
mod layer;
mod layer_normalization;
mod layer_scale;
mod layout;
mod masking;
mod max_pooling_1d;
mod max_pooling_2d;
mod merge;
mod multi_head_attention;
pub(crate) mod nd;
mod noise;
mod normalization;
pub(crate) mod operation;
mod options;
pub(crate) mod pass;
mod permute;
mod pooling_3d;
mod prelu;
mod random_crop;
mod random_image;
mod recurrence;
mod recurrent;
pub(crate) mod regularizer;
mod repeat_vector;
mod rescaling;
mod reshape;
mod resizing;
mod rms_normalization;
mod row;
mod separable_conv_1d;
mod separable_conv_2d;
mod sides_3d;
mod softmax;
mod string_lookup;
mod table;
mod text_vectorization;
mod time_axis;
mod unit_normalization;
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
pub use attention::Score;
pub use category::OutputMode;
pub use cell::{Cell, CellKind, RecurrentClass};
pub(crate) use flow::{Flow, Value};
use layer::{Built, KerasLayer, features, first_mask};
pub(crate) use operation::Constant;
pub(crate) use options::common;
use options::*;
pub(crate) use pass::Pass;
use pass::{Arguments, Mode};
pub use random_image::{Fill, Outside};
use regularizer::{Regularizer, penalty, regularizer};
pub use resizing::Interpolation;
use table::{LAMBDA, layers};
pub use text_vectorization::Split;
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
    "ConvLSTM1D" "ConvLSTM2D" "ConvLSTM3D": conv_lstm::ConvLstm
        => ConvLstm(conv_lstm::ConvLstmWeights);
    "TimeDistributed" "Bidirectional": time_axis::TimeAxis;
    "Masking": masking::Masking;
    "ActivityRegularization": activity_regularization::ActivityRegularization;
    "MultiHeadAttention": multi_head_attention::MultiHeadAttention
        => Attention(heads::AttentionWeights);
    "BatchNormalization": batch_normalization::BatchNormalization
        => BatchNorm(LocalBatchNorm), SyncBatchNorm(SyncBatchNorm),
            AxisBatchNorm(batch_normalization::AxisBatchNorm);
    "RMSNormalization": rms_normalization::RmsNormalization
        => AxesNorm(axes_norm::AxesNormWeights);
    "GroupNormalization": group_normalization::GroupNormalization
        => GroupNorm(group_normalization::GroupNormWeights);
    "UnitNormalization": unit_normalization::UnitNormalization;
    "EinsumDense": einsum_dense::EinsumDense
        => EinsumDense(einsum_dense::EinsumDenseWeights);
    "Attention" "AdditiveAttention": attention::Attention
        => DotAttention(attention::AttentionFactors);
    "GroupQueryAttention" "GroupedQueryAttention" as "GroupQueryAttention,":
        grouped_query_attention::GroupedQueryAttention
        => GroupedAttention(heads::AttentionWeights);
    "LayerScale": layer_scale::LayerScale;
    "CustomScaleLayer": custom_scale::CustomScale;
    "PReLU": prelu::PRelu => PRelu(prelu::PReluWeights);
    "GaussianNoise" "GaussianDropout" "AlphaDropout" "StochasticDepth": noise::Noise;
    "Identity": identity::Identity;
    "Dot": dot::Dot;
    "LayerNormalization": layer_normalization::LayerNormalization
        => LayerNorm(layer_normalization::LayerNormWeights);
    "Normalization": normalization::Normalization
        => Normalization(normalization::NormalizationWeights);
    "Rescaling": rescaling::Rescaling;
    "Resizing": resizing::Resizing;
    "CenterCrop": center_crop::CenterCrop;
    "RandomCrop": random_crop::RandomCrop;
    "CategoryEncoding": category::CategoryEncoding;
    "Discretization": discretization::Discretization;
    "StringLookup": string_lookup::StringLookup;
    "IntegerLookup": integer_lookup::IntegerLookup;
    "TextVectorization": text_vectorization::TextVectorization;
    "Hashing": hashing::Hashing;
    "RandomFlip" "RandomTranslation" "RandomRotation" "RandomZoom" "RandomContrast"
        "RandomBrightness": random_image::RandomImage;
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
    "Dropout" "SpatialDropout1D" "SpatialDropout2D" "SpatialDropout3D": dropout::Dropout;
    "Activation" "ReLU" "LeakyReLU" "ELU": activation::Activation;
    "Softmax": softmax::Softmax;
    "TFOpLambda" "SlicingOpLambda" as "operations on tensors (`x + y`, `keras.ops`),":
        operation::Operation;
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
