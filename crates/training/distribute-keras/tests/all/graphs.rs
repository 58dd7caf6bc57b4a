//! Functional models written by real Keras: the weights, outputs and losses of small graphs and of
//! networks of `keras.applications` at full depth agree with what Keras computed.
//! `keras/graphs.py` wrote the files.

use std::io::Read;
use std::sync::LazyLock;

use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use distribute_core::{DefaultStrategy, Sgd, StrategyExt, TrainState};
use distribute_keras::{
    Activation, Head, LayerSpec, Mode, Model, ModelSpec, Plan, PlannedWeight, Weight,
    parse_keras_json,
};
use rstest::rstest;
use serde_json::Value;

static EXPECTED: LazyLock<Value> = LazyLock::new(|| {
    let text = std::fs::read_to_string(crate::folder().join("graphs.expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
});

/// Examples of a batch whose outputs are compared, and of one that is trained on.
const BATCH: usize = 4;
const TRAINED: usize = 16;

fn spec(name: &str, version: &str) -> ModelSpec {
    let path = crate::folder().join(format!("{name}.{version}.json.gz"));
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap();
    parse_keras_json(&text, name).unwrap()
}

pub fn plan(name: &str, version: &str) -> Plan {
    let spec = spec(name, version);
    let declared = spec.inputs[0]
        .shape
        .iter()
        .flatten()
        .map(|extent| extent.unwrap());
    spec.plan(&declared.collect::<Vec<_>>()).unwrap()
}

/// The numbers that `graphs.py` makes of a stream.
pub fn numbers(stream: u32, count: usize) -> impl Iterator<Item = f64> {
    let start = u64::from(stream) * 0x85EB_CA6B;
    let half = 2f64.powi(31);
    (1..=count as u64).map(move |position| {
        let mut x = position.wrapping_mul(0x9E37_79B1).wrapping_add(start) as u32;
        x ^= x >> 16;
        x = x.wrapping_mul(0x21F0_AAAD);
        x ^= x >> 15;
        x = x.wrapping_mul(0x735A_2D97);
        x ^= x >> 15;
        f64::from(x) / half - 1.0
    })
}

fn weight(stream: u32, planned: &PlannedWeight) -> Weight {
    let (name, shape) = (planned.name.as_ref(), &planned.shape);
    let inputs = match shape[..] {
        [rows, columns, channels, 1] if channels > 1 => rows * columns,
        [.., last] => planned.elements() / last,
        [] => 1,
    };
    let (middle, spread) = match name {
        "count" => (0.0, 0.0),
        name if name.ends_with("variance") => (1.0, 0.5),
        "gamma" => (0.6, 0.2),
        _ if shape.len() == 1 => (0.0, 0.1),
        _ => (0.0, (6.0 / inputs as f64).sqrt()),
    };
    let values = numbers(stream, planned.elements());
    Weight {
        shape: shape.clone(),
        values: values.map(|u| (middle + spread * u) as f32).collect(),
    }
}

pub fn weights(plan: &Plan) -> Vec<Weight> {
    let streams = plan.weights().zip(0..);
    streams
        .map(|((_, planned), stream)| weight(stream, planned))
        .collect()
}

pub fn inputs(plan: &Plan, batch: usize, device: &Device) -> Tensor<2> {
    let values = plan.input().elements();
    let mut all: Vec<f32> = numbers(1 << 20, batch * values).map(|u| u as f32).collect();
    if matches!(plan.layers[0].spec, LayerSpec::Embedding { .. }) {
        let token = |u: f64| ((u + 1.0) * 9.5).floor() as f32 + 1.0;
        all = numbers(1 << 20, batch * values).map(token).collect();
        all[4..values].fill(0.0);
    }
    Tensor::from_data(TensorData::new(all, [batch, values]), device)
}

/// All numbers of some rows.
fn flat(rows: &Value) -> Vec<f64> {
    let rows = rows.as_array().unwrap().iter();
    let numbers = rows.flat_map(|row| row.as_array().unwrap());
    numbers.map(|x| x.as_f64().unwrap()).collect()
}

fn assert_close(name: &str, ours: Tensor<2>, keras: &Value, tolerance: f64) {
    let columns = ours.dims()[1];
    let ours = ours.into_data().try_into_vec::<f32>().unwrap();
    let keras = flat(keras);
    assert_eq!(ours.len(), keras.len());
    for (at, (ours, keras)) in ours.iter().zip(&keras).enumerate() {
        let (row, column) = (at / columns, at % columns);
        assert!(
            (f64::from(*ours) - keras).abs() <= tolerance,
            "{name}: output {column} of example {row} is {ours}, Keras has {keras}"
        );
    }
}

#[rstest]
fn weights_are_keras_in_number_order_shape_and_name(
    #[values(
        "blocks",
        "shared",
        "attention",
        "padded",
        "ResNet50",
        "ResNet50V2",
        "MobileNetV2",
        "EfficientNetB0",
        "DenseNet121",
        "VGG16",
        "InceptionV3",
        "Xception"
    )]
    name: &str,
    #[values("keras3", "keras2")] version: &str,
) {
    let plan = plan(name, version);
    let keras = &EXPECTED[name];
    assert_eq!(plan.parameters() as u64, keras["parameters"]);
    let shapes = keras["weights"].as_array().unwrap();
    let paths = keras["paths"].as_array().unwrap();
    assert_eq!(plan.weights().count(), shapes.len());
    for ((layer, weight), (shape, path)) in plan.weights().zip(shapes.iter().zip(paths)) {
        let path = path.as_str().unwrap();
        let shape = shape.as_array().unwrap().iter();
        let shape: Vec<usize> = shape.map(|x| x.as_u64().unwrap() as usize).collect();
        assert_eq!(weight.shape, shape, "{path}");
        // Keras 2 counts its own layers without a name in another way.
        if version == "keras3" {
            let ours = format!("{}/{}", layer.name, weight.name);
            assert!(ours.ends_with(path), "{ours} {path}");
        }
    }
}

#[rstest]
#[case("blocks", 1e-5)]
#[case("shared", 1e-5)]
#[case("attention", 1e-5)]
#[case("padded", 1e-5)]
#[case("ResNet50", 1e-4)]
#[case("ResNet50V2", 1e-4)]
#[case("MobileNetV2", 1e-4)]
#[case("EfficientNetB0", 1e-4)]
#[case("DenseNet121", 1e-4)]
#[case("VGG16", 1e-4)]
#[case("InceptionV3", 1e-4)]
#[case("Xception", 1e-4)]
fn outputs_are_those_of_keras(#[case] name: &str, #[case] tolerance: f64) {
    let plan = plan(name, "keras3");
    let device = Device::flex();
    let model = Model::new(&plan, weights(&plan), &device).unwrap();
    let input = inputs(&plan, BATCH, &device);
    let output = model.forward(input, &mut Mode::Inference).unwrap();
    assert_close(name, output, &EXPECTED[name]["output"], tolerance);
}

/// Two steps of SGD from these weights: the loss of each, and the model afterwards.
fn trained(plan: &Plan, weights: Vec<Weight>) -> ([f64; 2], TrainState<Model>) {
    let rate = EXPECTED["rate"].as_f64().unwrap();
    let strategy = DefaultStrategy::new();
    let mut state = strategy
        .try_scope(|device| {
            let model = Model::new(plan, weights.clone(), device)?;
            Ok(TrainState::new(model, Sgd::new(rate)))
        })
        .unwrap();
    let losses = [0, 1].map(|step| {
        let losses = strategy.run(&mut state, |ctx, state| {
            let input = inputs(plan, TRAINED, ctx.device());
            let mut rng = ctx.rng(1, step);
            let mut mode = Mode::training(ctx, &mut rng);
            let logits = state.model.logits(input, &mut mode)?;
            let loss = loss(state.model.head(), logits);
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        });
        f64::from(losses.unwrap().values()[0].clone().into_scalar::<f32>())
    });
    (losses, state.primary().unwrap().clone())
}

/// The weights, each times `1 + 2^-24` or `1 - 2^-24` by chance and rounded: what rounding to `f32`
/// could have made of them as well.
fn nearly(weights: &[Weight], seed: u32) -> Vec<Weight> {
    let streams = weights.iter().zip((1 << 24) + (seed << 16)..);
    let moved = streams.map(|(weight, stream)| {
        let (below, above) = (1.0 - 2f64.powi(-24), 1.0 + 2f64.powi(-24));
        let chances = numbers(stream, weight.values.len());
        let pairs = weight.values.iter().zip(chances);
        let moved = pairs.map(|(x, chance)| {
            let factor = if chance < 0.0 { below } else { above };
            (f64::from(*x) * factor) as f32
        });
        Weight {
            shape: weight.shape.clone(),
            values: moved.collect(),
        }
    });
    moved.collect()
}

/// How many runs there are from other roundings of the weights.
const OTHERS: u32 = 6;

/// Student's t for 99 of 100 and the mean of `OTHERS + 1` runs.
const T: f64 = 3.707;

/// The mean of some runs, and how far the mean of many may be from it.
fn interval(runs: &[f64]) -> (f64, f64) {
    let count = runs.len() as f64;
    let mean = runs.iter().sum::<f64>() / count;
    let squares = runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>();
    (mean, T * (squares / (count - 1.0) / count).sqrt())
}

/// The losses before and after a step of SGD, and what the model says after it. The loss after it
/// is the mean of runs that differ in the rounding of the initial weights.
#[rstest]
#[case("blocks")]
#[case("shared")]
#[case("attention")]
#[case("padded")]
#[case("ResNet50")]
#[case("MobileNetV2")]
#[case("DenseNet121")]
fn a_step_of_training_is_that_of_keras(#[case] name: &str) {
    let plan = plan(name, "keras3");
    let keras = &EXPECTED[name];
    let weights = weights(&plan);
    let (losses, state) = trained(&plan, weights.clone());
    let others = (0..OTHERS).map(|seed| trained(&plan, nearly(&weights, seed)).0[1]);
    let after: Vec<f64> = std::iter::once(losses[1]).chain(others).collect();
    let found = [(losses[0], 0.0), interval(&after)];
    for (step, (loss, half)) in found.into_iter().enumerate() {
        let [exact, rounded] = [&keras["step"], &keras["step_of_32_bits"]];
        let [exact, rounded] = [exact, rounded].map(|k| k["losses"][step].as_f64().unwrap());
        // The gradients of a deep network are far from the exact ones in `f32`, ours and Keras'.
        // How far the loss after an update is by the rounding of single operations is chance; the
        // interval says what chance does to the mean of our runs. What all roundings to `f32`
        // change in the same direction is not in it: that may be as much as it is for Keras. A
        // large spread is no excuse: twice Keras' error is too far in any case.
        let own = (exact - rounded).abs();
        let tolerance = match step {
            0 => 1e-4,
            _ => (half + own).min(2.0 * own).max(1e-4),
        };
        let error = (loss - exact).abs();
        println!("{name}, step {step}: {loss} +- {half}, Keras has {exact}, in 32 bits {rounded}");
        assert!(
            error <= tolerance,
            "{name}, step {step}: {loss}, Keras has {exact}; {error} is more than {tolerance}"
        );
    }
    let input = inputs(&plan, BATCH, &Device::flex());
    let output = state.model.forward(input, &mut Mode::Inference).unwrap();
    let exact = &keras["step"]["output_after"];
    let rounded = &keras["step_of_32_bits"]["output_after"];
    let apart = flat(exact).into_iter().zip(flat(rounded));
    let apart = apart.map(|(exact, rounded)| (exact - rounded).abs());
    let tolerance = (2.0 * apart.fold(0.0, f64::max)).max(1e-4);
    assert_close(name, output, exact, tolerance);
}

/// The labels are 0, 1, ... in turn.
pub fn loss(head: Head, logits: Tensor<2>) -> Tensor<1> {
    let [examples, outputs] = logits.dims();
    let device = logits.device();
    if outputs == 1 {
        assert_eq!(head, Head::Sigmoid);
        let signs = (0..examples).map(|example| [1.0 - 2.0 * (example % 2) as f32]);
        let signs: Vec<f32> = signs.flatten().collect();
        let signs = Tensor::<2>::from_data(TensorData::new(signs, [examples, 1]), &device);
        return activation::softplus(logits * signs, 1.0).mean();
    }
    assert_eq!(head, Head::Softmax);
    let labels = (0..examples).map(|example| (example % outputs) as i64);
    let labels = TensorData::new(labels.collect::<Vec<_>>(), [examples, 1]);
    let labels = Tensor::<2, Int>::from_data(labels, &device);
    activation::log_softmax(logits, 1)
        .gather(1, labels)
        .mean()
        .neg()
}

#[rstest]
fn every_activation_of_keras_is_read_or_refused(#[values("keras3", "keras2")] version: &str) {
    let facts = &EXPECTED["activations"];
    let points = facts["points"].as_array().unwrap().iter();
    let points: Vec<f32> = points.map(|x| x.as_f64().unwrap() as f32).collect();
    let mut found = 0;
    for (name, keras) in facts[version].as_object().unwrap() {
        let activation = match version {
            "keras3" => Activation::from_name(name),
            _ => Activation::from_keras2_name(name),
        };
        let activation = activation.unwrap_or_else(|| panic!("{name} is not known"));
        let json = serde_json::json!({ "class_name": "Sequential", "config": { "layers": [
            { "class_name": "Dense", "config": { "units": points.len(), "use_bias": false } },
            { "class_name": "Activation", "config": { "activation": name } },
        ] }, "keras_version": if version == "keras2" { "2.15.0" } else { "3.0.0" } });
        let spec = parse_keras_json(&json.to_string(), "m.json").unwrap();
        assert!(
            format!("{spec:?}").contains(&format!("{activation:?}")),
            "{name}"
        );
        let plan = spec.plan(&[1]).unwrap();
        let row = Weight {
            shape: vec![1, points.len()],
            values: points.clone(),
        };
        let device = Device::flex();
        let model = Model::new(&plan, vec![row], &device).unwrap();
        let one = Tensor::<2>::from_data([[1.0_f32]], &device);
        let output = model.forward(one, &mut Mode::Inference).unwrap();
        let output = output.into_data().try_into_vec::<f32>().unwrap();
        for ((x, ours), keras) in points.iter().zip(&output).zip(keras.as_array().unwrap()) {
            let keras = keras.as_f64().unwrap();
            let error = (f64::from(*ours) - keras).abs();
            assert!(
                error <= 1e-5 * keras.abs().max(1.0),
                "{name}({x}) = {ours}, {keras}"
            );
        }
        found += 1;
    }
    assert!(found > 10, "{found}");
}
