//! A decoder-only transformer for texts.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData, s};
use distribute_core::{Error, Result};
use rand::{Rng, RngExt};

/// What a [`Gpt`] is made of. The defaults have 3.2 million parameters.
#[derive(Config, Debug)]
pub struct GptConfig {
    /// The number of tokens there are.
    pub vocabulary: usize,
    /// The longest sequence.
    #[config(default = 64)]
    pub length: usize,
    /// The features of a position; a multiple of the heads.
    #[config(default = 256)]
    pub width: usize,
    /// The heads of each attention.
    #[config(default = 4)]
    pub heads: usize,
    /// The number of layers.
    #[config(default = 4)]
    pub layers: usize,
}

impl GptConfig {
    /// The network, with GPT-2's normal initial weights (deviation 0.02) in the embeddings and
    /// burn's elsewhere.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that is 0, and a width that the heads do not divide.
    pub fn init(&self, device: &Device) -> Result<Gpt> {
        let Self {
            vocabulary,
            length,
            width,
            heads,
            layers,
        } = *self;
        if [vocabulary, length, width, heads, layers].contains(&0) {
            return Err(Error::invalid(format!(
                "GptConfig: all numbers must be 1 or more, in {self}"
            )));
        }
        if width % heads != 0 {
            return Err(Error::invalid(format!(
                "GptConfig: the width {width} must be a multiple of the {heads} heads"
            )));
        }
        let embedding = |rows| {
            let normal = Initializer::Normal {
                mean: 0.0,
                std: 0.02,
            };
            let config = EmbeddingConfig::new(rows, width).with_initializer(normal);
            config.init(device)
        };
        // burn's dropout draws other numbers in every run.
        let layers = TransformerEncoderConfig::new(width, 4 * width, heads, layers)
            .with_dropout(0.0)
            .with_norm_first(true);
        Ok(Gpt {
            tokens: embedding(vocabulary),
            positions: embedding(length),
            layers: layers.init(device),
            norm: LayerNormConfig::new(width).init(device),
            output: LinearConfig::new(width, vocabulary)
                .with_bias(false)
                .init(device),
        })
    }
}

/// A decoder-only transformer, normalized before each part (Radford et al., *Language Models are
/// Unsupervised Multitask Learners*, 2019), without dropout.
///
/// ```
/// use burn::tensor::Int;
/// use distribute_core::{Device, Tensor};
/// use distribute_models::GptConfig;
///
/// let device = Device::flex();
/// let config = GptConfig::new(10).with_length(8).with_width(16).with_layers(1);
/// let model = config.init(&device)?;
/// let logits = model.forward(Tensor::<2, Int>::zeros([2, 5], &device))?;
/// assert_eq!(logits.dims(), [2, 5, 10]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    layers: TransformerEncoder,
    norm: LayerNorm,
    output: Linear,
}

impl Gpt {
    /// Tokens `[batch, length]` to the logits of the token after each, `[batch, length,
    /// vocabulary]`. A position sees itself and those before it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sequences that are longer than the model's.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Result<Tensor<3>> {
        let [batch, length] = tokens.dims();
        let longest = self.length();
        if length > longest {
            return Err(Error::invalid(format!(
                "Gpt: sequences of {length} tokens, the model was made for {longest}; set \
                 GptConfig::length"
            )));
        }
        let device = tokens.device();
        let positions = Tensor::arange(0..length as i64, &device).reshape([1, length]);
        let embedded = self.tokens.forward(tokens) + self.positions.forward(positions);
        let mask = generate_autoregressive_mask(batch, length, &device);
        let input = TransformerEncoderInput::new(embedded).mask_attn(mask);
        let features = self.norm.forward(self.layers.forward(input));
        Ok(self.output.forward(features))
    }

    /// `count` more tokens behind `prompt`, each sample with the probability that the model gives
    /// it. Outside of steps; the same generator gives the same tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty prompt, or a token that there is not.
    pub fn generate(
        &self,
        prompt: &[i64],
        count: usize,
        random: &mut impl Rng,
    ) -> Result<Vec<i64>> {
        let vocabulary = self.tokens.weight.dims()[0];
        let is_known = |token: &i64| (0..vocabulary as i64).contains(token);
        if prompt.is_empty() || !prompt.iter().all(is_known) {
            return Err(Error::invalid(format!(
                "Gpt: a prompt is one or more tokens from 0 to {}, got {prompt:?}",
                vocabulary - 1
            )));
        }
        let device = self.tokens.weight.val().device().without_autodiff();
        let model = self.clone().valid();
        let mut all = prompt.to_vec();
        for _ in 0..count {
            let seen = &all[all.len().saturating_sub(self.length())..];
            let tokens = TensorData::new(seen.to_vec(), [1, seen.len()]);
            let logits = model.forward(Tensor::from_data(tokens, &device))?;
            let next = logits.slice(s![.., -1, ..]).flatten::<1>(0, 2);
            let probabilities = softmax(next, 0)
                .into_data()
                .try_to_vec::<f32>()
                .map_err(Error::internal)?;
            all.push(sample(&probabilities, random.random()) as i64);
        }
        Ok(all.split_off(prompt.len()))
    }

    fn length(&self) -> usize {
        self.positions.weight.dims()[0]
    }
}

/// Draws from a distribution: the index at which the sum of the probabilities exceeds `u`, a
/// uniform number from 0 to 1.
fn sample(probabilities: &[f32], u: f32) -> usize {
    let mut sum = 0.0;
    let passes = |probability: &f32| {
        sum += probability;
        sum > u
    };
    let last = probabilities.len().saturating_sub(1);
    probabilities.iter().position(passes).unwrap_or(last)
}
