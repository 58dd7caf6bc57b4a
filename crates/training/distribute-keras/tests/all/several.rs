//! Models with several inputs and outputs and with layers that are not trained: what real Keras
//! computed, before and after a step of training. `keras/several.py` wrote the files.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use distribute_core::{
    DefaultStrategy, MirroredStrategy, PerReplica, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_keras::{
    Head, Mode, Model, ModelError, ModelOutput, ModelSpec, Plan, built_in, read_keras_json,
};
use rstest::rstest;
use serde_json::Value;

use crate::graphs::{numbers, weights};

static EXPECTED: LazyLock<Value> = LazyLock::new(|| {
    let text = std::fs::read_to_string(crate::folder().join("several.expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
});

/// The inputs by name, and the shapes of their examples.
const SHAPES: [(&str, &[usize]); 3] = [("image", &[6, 5, 2]), ("numbers", &[3]), ("tokens", &[4])];

fn spec(name: &str, version: &str) -> ModelSpec {
    read_keras_json(crate::folder().join(format!("{name}.{version}.json"))).unwrap()
}

fn plan(spec: &ModelSpec) -> Plan {
    let shape = |name: &str| SHAPES.iter().find(|(known, _)| *known == name).unwrap().1;
    let shapes = spec.inputs.iter().map(|input| shape(&input.name));
    spec.plan_all(&shapes.collect::<Vec<_>>()).unwrap()
}

/// Some of the examples that `several.py` makes.
fn inputs(model: &Model, range: std::ops::Range<usize>, device: &Device) -> Vec<Tensor<2>> {
    let named = SHAPES.iter().enumerate().map(|(index, (name, shape))| {
        let values: usize = shape.iter().product();
        let all = numbers((1 << 20) + index as u32, range.end * values);
        let value = |u: f64| match *name {
            "tokens" => ((u + 1.0) * 9.5).floor() as f32,
            _ => u as f32,
        };
        let part: Vec<f32> = all.skip(range.start * values).map(value).collect();
        let data = TensorData::new(part, [range.len(), values]);
        (*name, Tensor::from_data(data, device))
    });
    model.in_order(named).unwrap()
}

/// The outputs that the loss is made of, which have other places in a dictionary.
fn of_loss(model: &Model, outputs: &[Tensor<2>]) -> [Tensor<2>; 3] {
    let named: BTreeMap<&str, &Tensor<2>> = model.output_names().zip(outputs).collect();
    let find = |names: [&str; 2]| {
        let mut found = names.iter().filter_map(|name| named.get(name));
        (*found.next().unwrap()).clone()
    };
    [["choice", "z"], ["flag", "b"], ["score", "a"]].map(find)
}

fn assert_close(ours: &Tensor<2>, keras: &Value, tolerance: f64) {
    let ours = ours.to_data().try_into_vec::<f32>().unwrap();
    let rows = keras.as_array().unwrap().iter();
    let keras: Vec<&Value> = rows.flat_map(|row| row.as_array().unwrap()).collect();
    assert_eq!(ours.len(), keras.len());
    for (ours, keras) in ours.iter().zip(keras) {
        let keras = keras.as_f64().unwrap();
        assert!(
            (f64::from(*ours) - keras).abs() <= tolerance,
            "{ours} {keras}"
        );
    }
}

#[rstest]
fn weights_and_what_is_trained_are_those_of_keras(
    #[values("towers", "named")] name: &str,
    #[values("keras3", "keras2")] version: &str,
) {
    let plan = plan(&spec(name, version));
    let facts = &EXPECTED[name];
    let shapes = plan
        .weights()
        .map(|(_, weight)| Value::from(weight.shape.clone()));
    assert_eq!(shapes.collect::<Value>(), facts["weights"]);
    assert_eq!(plan.trained_parameters() as u64, facts["trained"]);
    let names = plan.inputs.iter().map(|input| Value::from(&*input.name));
    assert_eq!(names.collect::<Value>(), facts["inputs"]);
    let outputs: Vec<&str> = plan.outputs.iter().map(|output| &*output.name).collect();
    let expected = match name {
        "towers" => &["choice", "flag", "score", "flat"][..],
        _ => &["a", "b", "z"],
    };
    assert_eq!(outputs, expected);
}

#[rstest]
fn outputs_are_those_of_keras(
    #[values("towers", "named")] name: &str,
    #[values("keras3", "keras2")] version: &str,
) {
    let device = Device::flex();
    let plan = plan(&spec(name, version));
    let model = Model::new(&plan, weights(&plan), &device).unwrap();
    let inputs = inputs(&model, 0..4, &device);
    let mode = &mut Mode::Inference;
    let outputs = model.forward_all(inputs.clone(), mode).unwrap();
    let keras = EXPECTED[name]["outputs"].as_array().unwrap();
    for (ours, keras) in of_loss(&model, &outputs).iter().zip(keras) {
        assert_close(ours, keras, 1e-5);
    }
    if let Some(flat) = keras.get(3) {
        assert_close(&outputs[3], flat, 1e-5);
    }
    let [choice, flag, _] = of_loss(&model, &model.logits_all(inputs, mode).unwrap());
    assert_close(&activation::softmax(choice, 1), &keras[0], 1e-5);
    assert_close(&activation::sigmoid(flag), &keras[1], 1e-5);
    let losses = model.regularization_loss().unwrap().into_scalar::<f32>();
    let expected = EXPECTED[name]["regularization"].as_f64().unwrap();
    assert!(
        (f64::from(losses) - expected).abs() < 1e-6,
        "{losses} {expected}"
    );
}

/// The loss of `several.py` for some of 16 examples.
fn loss(model: &Model, logits: &[Tensor<2>], range: std::ops::Range<usize>) -> Tensor<1> {
    let [choice, flag, score] = of_loss(model, logits);
    let device = choice.device();
    let examples = range.len();
    let labels: Vec<i64> = range.clone().map(|example| (example % 3) as i64).collect();
    let labels = TensorData::new(labels, [examples, 1]);
    let labels = Tensor::<2, Int>::from_data(labels, &device);
    let chosen = activation::log_softmax(choice, 1).gather(1, labels);
    let signs: Vec<f32> = range
        .map(|example| 1.0 - 2.0 * (example % 2) as f32)
        .collect();
    let signs = Tensor::<2>::from_data(TensorData::new(signs, [examples, 1]), &device);
    let flags = activation::softplus(flag * signs, 1.0);
    let all = score.powi_scalar(2).sum() / 32.0 + flags.sum() / 16.0;
    all - chosen.sum() / 16.0
}

/// Two steps of training with these parts of the examples, one for each replica.
fn trained<S: Strategy>(
    strategy: &S,
    plan: &Plan,
    parts: &[std::ops::Range<usize>],
) -> (Vec<f64>, TrainState<Model>) {
    let rate = EXPECTED["rate"].as_f64().unwrap();
    let mut state = strategy
        .try_scope(|device| {
            let model = Model::new(plan, weights(plan), device)?;
            Ok(TrainState::new(model, Sgd::new(rate)))
        })
        .unwrap();
    let losses = (0..2).map(|step| {
        let parts = PerReplica::new(parts.iter().map(|part| (part.start, part.end)).collect());
        let losses = strategy.run((&mut state, parts), |ctx, (state, (start, end))| {
            let inputs = inputs(&state.model, start..end, ctx.device());
            let mut rng = ctx.rng(1, step);
            let mut mode = Mode::training(ctx, &mut rng);
            let logits = state.model.logits_all(inputs, &mut mode)?;
            let loss = loss(&state.model, &logits, start..end);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        });
        let losses = losses.unwrap().into_values().into_iter();
        losses
            .map(|loss| f64::from(loss.into_scalar::<f32>()))
            .sum()
    });
    (losses.collect(), state.primary().unwrap().clone())
}

/// Keras' synchronized statistics cover the whole batch, on any number of replicas. Keras 2
/// does not write down that they are.
#[rstest]
fn a_step_of_training_is_that_of_keras_on_any_number_of_replicas(
    #[values("towers", "named")] name: &str,
    #[values(("keras2", 1), ("keras3", 1), ("keras3", 2), ("keras3", 3), ("keras3", 4))] of: (
        &str,
        usize,
    ),
) {
    let (version, replicas) = of;
    let plan = plan(&spec(name, version));
    let whole = std::iter::once(0..16).collect();
    let parts: [Vec<_>; 3] = [whole, vec![0..9, 9..16], vec![0..12, 12..16, 16..16]];
    let (losses, state) = match replicas {
        1 => trained(&DefaultStrategy::new(), &plan, &parts[0]),
        _ => {
            let strategy = MirroredStrategy::builder().replicas(replicas);
            let parts = match parts.get(replicas - 1) {
                Some(parts) => parts.clone(),
                None => (0..4).map(|i| i * 4..i * 4 + 4).collect(),
            };
            trained(&strategy.build().unwrap(), &plan, &parts)
        }
    };
    let keras = &EXPECTED[name]["step"];
    for (loss, keras) in losses.iter().zip(keras["losses"].as_array().unwrap()) {
        let keras = keras.as_f64().unwrap();
        assert!((loss - keras).abs() < 1e-4, "{loss} {keras}");
    }
    let model = &state.model;
    let inputs = inputs(model, 0..4, &Device::flex());
    let outputs = model.forward_all(inputs, &mut Mode::Inference).unwrap();
    let keras = keras["outputs_after"].as_array().unwrap();
    for (ours, keras) in of_loss(model, &outputs).iter().zip(keras) {
        assert_close(ours, &first_rows(keras, 4), 1e-4);
    }
}

fn first_rows(rows: &Value, count: usize) -> Value {
    rows.as_array()
        .unwrap()
        .iter()
        .take(count)
        .cloned()
        .collect()
}

/// A model of the program with more outputs gives what it gives with each of them alone.
#[test]
fn an_output_does_not_depend_on_what_else_is_returned() {
    let mut spec = built_in("mlp", 10, 0).unwrap();
    let last = spec.outputs[0].value;
    let output = |name: &str, value| ModelOutput {
        name: name.to_string(),
        value,
    };
    // The model's input is one too, and an output may be returned twice.
    spec.outputs = vec![
        output("last", last),
        output("input", 0),
        output("again", last),
    ];
    spec.outputs.push(output("hidden", last - 1));
    let device = Device::flex();
    let all = spec.plan_all(&[&[8, 8]]).unwrap();
    let model = Model::initialized(&all, 3, &device).unwrap();
    let x = Tensor::<2>::arange_like(&device);
    let found = model
        .logits_all(vec![x.clone()], &mut Mode::Inference)
        .unwrap();
    for (index, output) in spec.outputs.clone().into_iter().enumerate() {
        let mut alone = spec.clone();
        alone.outputs = vec![output];
        let plan = alone.plan(&[8, 8]).unwrap();
        let model = Model::initialized(&plan, 3, &device).unwrap();
        let expected = model.logits(x.clone(), &mut Mode::Inference).unwrap();
        assert_eq!(found[index].to_data(), expected.to_data(), "output {index}");
    }
}

trait Numbered {
    fn arange_like(device: &Device) -> Self;
}

impl Numbered for Tensor<2> {
    fn arange_like(device: &Device) -> Self {
        let values: Vec<f32> = numbers(9, 3 * 64).map(|u| u as f32).collect();
        Self::from_data(TensorData::new(values, [3, 64]), device)
    }
}

#[test]
fn heads_are_those_of_every_output() {
    let plan = plan(&spec("towers", "keras3"));
    plan.check_head().unwrap();
    let model = Model::new(&plan, weights(&plan), &Device::flex()).unwrap();
    let heads: Vec<Head> = model.heads().collect();
    assert_eq!(
        heads,
        [Head::Softmax, Head::Sigmoid, Head::Linear, Head::Linear]
    );
}

#[test]
fn inputs_that_are_not_those_of_the_model_are_errors() {
    let device = Device::flex();
    let spec = spec("towers", "keras3");
    let several = spec.plan(&[3]).unwrap_err();
    assert!(matches!(
        several,
        ModelError::SeveralTensors { count: 3, .. }
    ));
    insta::assert_snapshot!(several, @"towers.keras3.json: the model has 3 inputs, which only a program of your own can run (`ModelSpec::plan_all`); make a model of one input and one output of it (keras.Model), inside of which there may be as many as you like");
    insta::assert_snapshot!(spec.plan_all(&[&[3]]).unwrap_err(), @"towers.keras3.json: 1 inputs were given, the model has these: numbers, image, tokens; give one of each");
    let other = spec.plan_all(&[&[3], &[6, 5, 3], &[4]]).unwrap_err();
    insta::assert_snapshot!(other, @"towers.keras3.json, input image, is made for inputs of shape (6, 5, 2), the data has (6, 5, 3); choose another model or data set");
    let plan = plan(&spec);
    let model = Model::new(&plan, weights(&plan), &device).unwrap();
    let good = inputs(&model, 0..2, &device);
    let mode = &mut Mode::Inference;
    let one = model.logits(good[0].clone(), mode).unwrap_err();
    insta::assert_snapshot!(one, @"the model has the inputs numbers, image, tokens and the outputs choice, flag, score, flat, and takes one of each here; use `logits_all` or `forward_all`");
    let two = model.logits_all(good[..2].to_vec(), mode).unwrap_err();
    insta::assert_snapshot!(two, @"2 inputs were given, the model has these: numbers, image, tokens");
    let mut wide = good.clone();
    wide[2] = Tensor::zeros([2, 5], &device);
    insta::assert_snapshot!(model.logits_all(wide, mode).unwrap_err(), @"the input tokens has the shape [2, 5], but an example of it is (4) and so has 4 values");
    let mut uneven = good.clone();
    uneven[0] = Tensor::zeros([3, 3], &device);
    insta::assert_snapshot!(model.logits_all(uneven, mode).unwrap_err(), @"the inputs numbers, image, tokens have [3, 2, 2] examples; give as many of each");
    let x = || good[0].clone();
    let missing = model
        .in_order([("numbers", x()), ("tokens", x())])
        .unwrap_err();
    insta::assert_snapshot!(missing, @"the input image is missing; the model has these: numbers, image, tokens");
    let other = model.in_order([("words", x())]).unwrap_err();
    insta::assert_snapshot!(other, @"the input words is not the model's; the model has these: numbers, image, tokens");
    let twice = model
        .in_order([("numbers", x()), ("numbers", x())])
        .unwrap_err();
    insta::assert_snapshot!(twice, @"the input numbers is given twice; the model has these: numbers, image, tokens");
}
