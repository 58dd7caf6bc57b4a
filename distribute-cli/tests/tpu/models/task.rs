//! The built-in models with data like those that they are for.

use std::sync::Arc;

use distribute_core::optim::Optimizer;
use distribute_core::{Device, PerReplica, ReplicaContext, Result, Tensor, TensorData, TrainState};
use distribute_data::{
    AverageLoss, binary_crossentropy, scale_regularization_loss, sparse_categorical_crossentropy,
};
use distribute_keras::{Mode, Model, Plan, built_in, parse_keras_json};
use distribute_readers::{Examples, digits};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Int};

/// One replica's inputs, `[examples, values]`, and classes.
pub type Batch = (Tensor<2>, Tensor<1, Int>);

/// Words of the texts, with the two tokens that are no words.
const TOKENS: usize = 3000;
const LONGEST_TEXT: usize = 60;

/// A model and its examples.
pub struct Task {
    plan: Plan,
    inputs: Vec<Vec<f32>>,
    labels: Vec<i64>,
    rng: ChaCha8Rng,
    seed: u64,
    precision: FloatDType,
    global_batch: usize,
}

impl Task {
    /// Initial weights, the texts and the order of the examples follow from `seed`.
    pub fn new(model: &str, seed: u64, precision: FloatDType) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (features, inputs, labels) = match model {
            "text" => texts(&mut rng),
            "mnist-cnn" => images(enlarged),
            _ => images(<[f32]>::to_vec),
        };
        let spec = built_in(model, 10, TOKENS).unwrap();
        Self {
            plan: spec.plan(&features).unwrap(),
            inputs,
            labels,
            rng,
            seed,
            precision,
            // f64 is slow on the CPU, of this model above all.
            global_batch: match (model, precision) {
                ("mnist-cnn", FloatDType::F64) => 16,
                _ => 64,
            },
        }
    }

    /// Layers as Keras writes them, for the digits or for texts, and 16 examples a step.
    pub fn of_layers(layers: &str, texts_of_words: bool, precision: FloatDType) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (features, inputs, labels) = if texts_of_words {
            texts(&mut rng)
        } else {
            images(<[f32]>::to_vec)
        };
        let json = format!(r#"{{"class_name": "Sequential", "config": {{"layers": [{layers}]}}}}"#);
        let spec = parse_keras_json(&json, "a test").unwrap();
        Self {
            plan: spec.plan(&features).unwrap(),
            inputs,
            labels,
            rng,
            seed: 1,
            precision,
            global_batch: 16,
        }
    }

    /// The state before the first step.
    pub fn state(&self, optimizer: Arc<dyn Optimizer>, device: &Device) -> TrainState<Model> {
        let model = Model::initialized(&self.plan, self.seed, device).unwrap();
        let model = model.map(&mut Cast(self.precision));
        TrainState::with_optimizer(model, optimizer)
    }

    /// Examples of a step, all replicas together.
    pub fn global_batch(&self) -> usize {
        self.global_batch
    }

    /// Examples drawn for a step, in equal parts.
    pub fn batch(&mut self, replicas: usize) -> PerReplica<Batch> {
        let mut order: Vec<usize> = (0..self.inputs.len()).collect();
        let (chosen, _) = order.partial_shuffle(&mut self.rng, self.global_batch);
        let part = |part: &[usize]| {
            let values: Vec<f32> = part.iter().flat_map(|i| self.inputs[*i].clone()).collect();
            let labels: Vec<i64> = part.iter().map(|i| self.labels[*i]).collect();
            let shape = [part.len(), self.inputs[0].len()];
            let device = Device::flex();
            let values = TensorData::new(values, shape);
            (
                Tensor::from_data(values, (&device, DType::from(self.precision))),
                Tensor::from_data(TensorData::new(labels, [part.len()]), &device),
            )
        };
        PerReplica::new(
            chosen
                .chunks(self.global_batch / replicas)
                .map(part)
                .collect(),
        )
    }
}

/// Gives all weights another precision.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = Tensor::from_inner(tensor.inner().cast(self.0)).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// The step of `distribute-cli train` for the given number of examples, of all replicas together.
pub fn step(
    global_batch: usize,
) -> impl for<'x> Fn(&ReplicaContext, (&'x mut TrainState<Model>, Batch)) -> Result<Tensor<1>>
+ Sync
+ Copy {
    move |ctx, (state, (input, labels))| {
        let mut rng = ctx.rng(1, state.step());
        let logits = state
            .model
            .logits(input, &mut Mode::training(ctx, &mut rng))?;
        let [examples, outputs] = logits.dims();
        let per_example = match outputs {
            1 => binary_crossentropy(logits, labels.reshape([examples, 1])),
            _ => sparse_categorical_crossentropy(logits, labels),
        };
        let mut loss = AverageLoss::new()
            .global_batch_size(global_batch)
            .of(ctx, per_example)?;
        if let Some(l2) = state.model.regularization_loss() {
            loss = loss + scale_regularization_loss(ctx, l2)?;
        }
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(loss)
    }
}

type Data = (Vec<usize>, Vec<Vec<f32>>, Vec<i64>);

/// The handwritten digits of the library.
fn images(turn: impl Fn(&[f32]) -> Vec<f32>) -> Data {
    let examples: Examples = digits().unwrap();
    let all: Vec<usize> = (0..examples.len()).collect();
    let values = examples.features_f32(&all).unwrap();
    let inputs: Vec<Vec<f32>> = values.chunks(64).map(turn).collect();
    let side = inputs[0].len().isqrt();
    (vec![side, side], inputs, examples.labels_i64(&all).unwrap())
}

/// 8 x 8 pixels as MNIST has them: 20 x 20 in the middle of an empty frame, 28 x 28.
fn enlarged(image: &[f32]) -> Vec<f32> {
    const SIDE: usize = 28;
    const FRAME: usize = 4;
    const INNER: usize = SIDE - 2 * FRAME;
    // Between which pixels a place is, and how near to the second.
    let between = |at: usize| {
        let place = (at - FRAME) as f32 / (INNER - 1) as f32 * 7.0;
        let first = (place as usize).min(6);
        (first, place - first as f32)
    };
    let pixel = |at: usize| {
        let inside = FRAME..FRAME + INNER;
        if !inside.contains(&(at / SIDE)) || !inside.contains(&(at % SIDE)) {
            return 0.0;
        }
        let ((row, down), (column, right)) = (between(at / SIDE), between(at % SIDE));
        let along = |row: usize| {
            let left = image[row * 8 + column];
            left + (image[row * 8 + column + 1] - left) * right
        };
        let grey = along(row) + (along(row + 1) - along(row)) * down;
        // A grey value of MNIST is one of 256.
        (grey * 255.0).round() / 255.0
    };
    (0..SIDE * SIDE).map(pixel).collect()
}

/// Texts of different lengths, padded with zeros. As in a language few words are frequent and most
/// are rare; a word is more often in the texts of one class.
fn texts(rng: &mut ChaCha8Rng) -> Data {
    let mut inputs = Vec::new();
    let mut labels = Vec::new();
    for number in 0..1000 {
        let label = number % 2;
        let length = rng.random_range(5..=LONGEST_TEXT);
        let mut tokens = vec![0.0; LONGEST_TEXT];
        for token in &mut tokens[..length] {
            let uniform: f64 = rng.random();
            let mut word = ((TOKENS as f64 - 2.0).powf(uniform)) as usize + 1;
            if rng.random_bool(0.3) {
                word = (word / 2 * 2 + label).max(2);
            }
            *token = word.min(TOKENS - 1) as f32;
        }
        inputs.push(tokens);
        labels.push(label as i64);
    }
    (vec![LONGEST_TEXT], inputs, labels)
}
