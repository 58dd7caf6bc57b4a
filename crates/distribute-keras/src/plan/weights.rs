//! The weights of a layer: their names, shapes and how they start.

use super::shape::{Shape, attended};
use crate::{Initializer, LayerSpec};

/// One weight of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedWeight {
    /// Keras' name of it in its layer: `kernel`, or `query/kernel`.
    pub name: &'static str,
    /// Its shape in Keras' layout.
    pub shape: Vec<usize>,
    /// How it starts.
    pub initializer: Initializer,
    /// Whether a layer that is trained trains it; statistics are not.
    pub trained: bool,
}

impl PlannedWeight {
    /// The number of its values.
    pub fn elements(&self) -> usize {
        let sizes = self.shape.iter().copied();
        sizes.fold(1, usize::saturating_mul)
    }
}

/// The weights of a layer that receives these shapes, in the order of `layer.get_weights()`.
pub(super) fn weights(spec: &LayerSpec, inputs: &[Shape]) -> Vec<PlannedWeight> {
    let last = inputs.first().map_or(1, |shape| shape.features());
    let mut list = List(Vec::new());
    match spec {
        LayerSpec::Conv2D { .. }
        | LayerSpec::DepthwiseConv2D { .. }
        | LayerSpec::SeparableConv2D { .. } => list.convolution(spec, last),
        LayerSpec::Dense {
            units,
            use_bias,
            kernel_initializer,
            bias_initializer,
            ..
        } => {
            list.add("kernel", &[last, *units], *kernel_initializer);
            list.add_if(*use_bias, "bias", &[*units], *bias_initializer);
        }
        LayerSpec::Embedding {
            input_dim,
            output_dim,
            embeddings_initializer,
            ..
        } => list.add(
            "embeddings",
            &[*input_dim, *output_dim],
            *embeddings_initializer,
        ),
        LayerSpec::MultiHeadAttention { .. } => list.attention(spec, inputs),
        LayerSpec::BatchNormalization {
            beta,
            gamma,
            moving_mean_initializer,
            moving_variance_initializer,
            ..
        } => {
            list.add_some("gamma", last, *gamma);
            list.add_some("beta", last, *beta);
            list.add_fixed("moving_mean", &[last], *moving_mean_initializer);
            list.add_fixed("moving_variance", &[last], *moving_variance_initializer);
        }
        LayerSpec::LayerNormalization { beta, gamma, .. } => {
            list.add_some("gamma", last, *gamma);
            list.add_some("beta", last, *beta);
        }
        LayerSpec::Normalization {
            statistics: None, ..
        } => {
            list.add_fixed("mean", &[last], Initializer::ZEROS);
            list.add_fixed("variance", &[last], Initializer::Constant(1.0));
            list.add_fixed("count", &[], Initializer::ZEROS);
        }
        _ => {}
    }
    list.0
}

struct List(Vec<PlannedWeight>);

impl List {
    fn add(&mut self, name: &'static str, shape: &[usize], initializer: Initializer) {
        self.push(name, shape, initializer, true);
    }

    fn add_fixed(&mut self, name: &'static str, shape: &[usize], initializer: Initializer) {
        self.push(name, shape, initializer, false);
    }

    fn push(
        &mut self,
        name: &'static str,
        shape: &[usize],
        initializer: Initializer,
        trained: bool,
    ) {
        self.0.push(PlannedWeight {
            name,
            shape: shape.to_vec(),
            initializer,
            trained,
        });
    }

    fn add_if(&mut self, is: bool, name: &'static str, shape: &[usize], initializer: Initializer) {
        if is {
            self.add(name, shape, initializer);
        }
    }

    fn add_some(&mut self, name: &'static str, extent: usize, initializer: Option<Initializer>) {
        if let Some(initializer) = initializer {
            self.add(name, &[extent], initializer);
        }
    }

    fn convolution(&mut self, spec: &LayerSpec, channels: usize) {
        match spec {
            LayerSpec::Conv2D {
                filters,
                windows,
                groups,
                use_bias,
                kernel_initializer,
                bias_initializer,
                ..
            } => {
                let [rows, columns] = windows.kernel_size;
                let kernel = [rows, columns, channels / groups, *filters];
                self.add("kernel", &kernel, *kernel_initializer);
                self.add_if(*use_bias, "bias", &[*filters], *bias_initializer);
            }
            LayerSpec::DepthwiseConv2D {
                windows,
                depth_multiplier,
                use_bias,
                depthwise_initializer,
                bias_initializer,
                ..
            } => {
                let [rows, columns] = windows.kernel_size;
                let kernel = [rows, columns, channels, *depth_multiplier];
                self.add("kernel", &kernel, *depthwise_initializer);
                let outputs = channels.saturating_mul(*depth_multiplier);
                self.add_if(*use_bias, "bias", &[outputs], *bias_initializer);
            }
            LayerSpec::SeparableConv2D {
                filters,
                windows,
                depth_multiplier,
                use_bias,
                depthwise_initializer,
                pointwise_initializer,
                bias_initializer,
                ..
            } => {
                let [rows, columns] = windows.kernel_size;
                let kernel = [rows, columns, channels, *depth_multiplier];
                self.add("depthwise_kernel", &kernel, *depthwise_initializer);
                let between = channels.saturating_mul(*depth_multiplier);
                let kernel = [1, 1, between, *filters];
                self.add("pointwise_kernel", &kernel, *pointwise_initializer);
                self.add_if(*use_bias, "bias", &[*filters], *bias_initializer);
            }
            _ => {}
        }
    }

    fn attention(&mut self, spec: &LayerSpec, inputs: &[Shape]) {
        let LayerSpec::MultiHeadAttention {
            num_heads,
            key_dim,
            value_dim,
            use_bias,
            output_shape,
            kernel_initializer,
            bias_initializer,
            ..
        } = spec
        else {
            return;
        };
        let [query, value, key] = attended(inputs).map(Shape::features);
        let (kernel, bias) = (*kernel_initializer, *bias_initializer);
        for (names, features, width) in [
            (["query/kernel", "query/bias"], query, *key_dim),
            (["key/kernel", "key/bias"], key, *key_dim),
            (["value/kernel", "value/bias"], value, *value_dim),
        ] {
            self.add(names[0], &[features, *num_heads, width], kernel);
            self.add_if(*use_bias, names[1], &[*num_heads, width], bias);
        }
        let outputs = output_shape.unwrap_or(query);
        let shape = [*num_heads, *value_dim, outputs];
        self.add("attention_output/kernel", &shape, kernel);
        self.add_if(*use_bias, "attention_output/bias", &[outputs], bias);
    }
}
