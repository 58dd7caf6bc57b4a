//! Every layer and option: outputs, a loss and updated weights are those of real Keras, which
//! `keras/layers.py` wrote down for the tiny models in `keras/cases`.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{DefaultStrategy, Sgd, StrategyExt, TrainState};
use distribute_keras::{Mode, Model, Plan, Weight, parse_keras_json};
use rstest::rstest;
use serde_json::Value;

fn read(group: &str) -> Value {
    let path = crate::folder()
        .join("cases")
        .join(format!("{group}.json.gz"));
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    let mut reader = flate2::read::GzDecoder::new(file);
    reader.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn array(value: &Value) -> Weight {
    let shape = list(&value["shape"]).iter();
    let values = list(&value["values"]).iter();
    Weight {
        shape: shape.map(|x| x.as_u64().unwrap() as usize).collect(),
        values: values.map(|x| x.as_f64().unwrap() as f32).collect(),
    }
}

/// What is compared, and how much of its size it may be off.
struct Check<'a> {
    what: String,
    tolerance: f64,
    failures: &'a mut Vec<String>,
}

impl Check<'_> {
    fn fail(&mut self, what: impl std::fmt::Display) {
        self.failures.push(format!("{}: {what}", self.what));
    }

    /// Numbers near to Keras' numbers, to a part of themselves and of the largest one.
    fn numbers(&mut self, what: &str, ours: &[f32], keras: &[f32]) {
        if ours.len() != keras.len() {
            let (ours, keras) = (ours.len(), keras.len());
            self.fail(format!("{what}: {ours} numbers, Keras has {keras}"));
            return;
        }
        let largest = keras.iter().fold(0f32, |most, x| most.max(x.abs()));
        let bound = |x: f32| self.tolerance * f64::from(x.abs() + largest).max(1e-3);
        let pairs = ours.iter().zip(keras);
        let far = |(ours, keras): &(&f32, &f32)| {
            let off = f64::from(**ours - **keras).abs();
            off.is_nan() || off > bound(**keras)
        };
        let wrong: Vec<_> = pairs.enumerate().filter(|(_, pair)| far(pair)).collect();
        if let Some((at, (first, expected))) = wrong.first() {
            let count = wrong.len();
            let what =
                format!("{what}: number {at} is {first}, Keras has {expected} ({count} off)");
            self.fail(what);
        }
    }

    fn case(&mut self, case: &Value, rate: f64, version: &str) {
        let inputs: Vec<Weight> = list(&case["inputs"]).iter().map(array).collect();
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| &input.shape[1..]).collect();
        let text = case[version].as_str().unwrap();
        let plan = parse_keras_json(text, "m.json").and_then(|spec| spec.plan_all(&shapes));
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return self.fail(error),
        };
        if version == "keras3" {
            self.paths(&plan, &case["paths"]);
        }
        let weights: Vec<Weight> = list(&case["weights"]).iter().map(array).collect();
        let device = Device::flex();
        let model = match Model::new(&plan, weights.clone(), &device) {
            Ok(model) => model,
            Err(error) => return self.fail(error),
        };
        let outputs = model
            .forward_all(tensors(&inputs, &device), &mut Mode::Inference)
            .unwrap();
        let keras = list(&case["outputs"]).iter().map(array);
        for (index, (ours, keras)) in outputs.into_iter().zip(keras).enumerate() {
            let shape = plan.outputs[index].shape.dims();
            if shape != keras.shape[1..] {
                self.fail(format!(
                    "shape {shape:?}, Keras has {:?}",
                    &keras.shape[1..]
                ));
            }
            self.numbers(&format!("output {index}"), &values(ours), &keras.values);
        }
        if let Some(loss) = case["loss"].as_f64() {
            let updated = list(&case["updated"]).iter().map(array).collect();
            self.step(&plan, weights, &inputs, rate, loss, updated);
        }
    }

    fn paths(&mut self, plan: &Plan, paths: &Value) {
        let ours = plan
            .weights()
            .map(|(layer, weight)| format!("{}/{}", layer.name, weight.name));
        let ours: Vec<String> = ours.collect();
        let keras: Vec<&str> = list(paths)
            .iter()
            .map(|path| path.as_str().unwrap())
            .collect();
        let pairs = ours.iter().zip(&keras);
        if ours.len() != keras.len() || pairs.clone().any(|(ours, keras)| !ours.ends_with(keras)) {
            self.fail(format!("weights {ours:?}, Keras has {keras:?}"));
        }
    }

    /// One step of training from these weights.
    fn step(
        &mut self,
        plan: &Plan,
        weights: Vec<Weight>,
        inputs: &[Weight],
        rate: f64,
        keras: f64,
        updated: Vec<Weight>,
    ) {
        let strategy = DefaultStrategy::new();
        let mut state = strategy
            .try_scope(|device| {
                let model = Model::new(plan, weights.clone(), device)?;
                let optimizer = model.constrained(plan, Arc::new(Sgd::new(rate)))?;
                Ok(TrainState::with_optimizer(model, optimizer))
            })
            .unwrap();
        let losses = strategy.run(&mut state, |ctx, state| {
            let mut rng = ctx.rng(1, 0);
            let given = tensors(inputs, ctx.device());
            let mut mode = Mode::training(ctx, &mut rng);
            let outputs = state.model.outputs_all(given, &mut mode)?;
            let has_losses = outputs.activity_losses.is_some();
            assert_eq!(has_losses, state.model.has_activity_losses());
            let losses = state.model.returned(outputs.logits).into_iter().map(loss);
            let losses = losses.chain(state.model.regularization_loss());
            let losses = losses.chain(outputs.activity_losses.map(Tensor::mean));
            let loss = losses.reduce(|sum, loss| sum + loss).unwrap();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        });
        let loss = losses.unwrap().into_values().remove(0).into_scalar::<f32>();
        self.numbers("loss", &[loss], &[keras as f32]);
        let found = model_tensors(state.primary().unwrap());
        let wanted = Model::new(plan, updated, &Device::flex()).unwrap();
        let wanted = model_tensors(&TrainState::new(wanted, Sgd::new(rate)));
        for (path, wanted) in wanted {
            let [found, wanted] = [&found[&path], &wanted].map(|x| x.iter::<f32>().collect());
            let (found, wanted): (Vec<f32>, Vec<f32>) = (found, wanted);
            self.numbers(&format!("updated {path}"), &found, &wanted);
        }
    }
}

fn model_tensors(state: &TrainState<Model>) -> BTreeMap<String, TensorData> {
    let tensors = state.to_tensors().unwrap().into_iter();
    tensors
        .filter(|(path, _)| path.starts_with("model/"))
        .collect()
}

fn tensors(inputs: &[Weight], device: &Device) -> Vec<Tensor<2>> {
    let rows = inputs.iter().map(|input| {
        let row = input.shape[1..].iter().product();
        let data = TensorData::new(input.values.clone(), [input.shape[0], row]);
        Tensor::from_data(data, device)
    });
    rows.collect()
}

fn values(x: Tensor<2>) -> Vec<f32> {
    x.into_data().try_into_vec().unwrap()
}

/// The mean of (output - target)^2; the target of number i is sin(i).
fn loss(output: Tensor<2>) -> Tensor<1> {
    let dims = output.dims();
    let count = dims[0] * dims[1];
    let target: Vec<f32> = (0..count).map(|i| (i as f64).sin() as f32).collect();
    let target = Tensor::from_data(TensorData::new(target, dims), &output.device());
    (output - target).powi_scalar(2).mean()
}

/// The groups of layers.
fn groups() -> Vec<String> {
    let files = std::fs::read_dir(crate::folder().join("cases")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let groups = names.filter_map(|name| Some(name.strip_suffix(".json.gz")?.to_string()));
    groups.collect()
}

#[rstest]
fn layers_compute_and_train_as_in_keras(#[values("keras3", "keras2")] version: &str) {
    let mut failures = Vec::new();
    let mut count = 0;
    for group in groups() {
        let file = read(&group);
        let rate = file["rate"].as_f64().unwrap();
        let cases = list(&file["cases"]).iter();
        for case in cases.filter(|case| case[version].is_string()) {
            count += 1;
            let mut check = Check {
                what: format!("{group} {}", case["name"].as_str().unwrap()),
                tolerance: case["tolerance"].as_f64().unwrap(),
                failures: &mut failures,
            };
            check.case(case, rate, version);
        }
    }
    assert!(count > 0);
    let listed = failures.join("\n");
    assert!(
        failures.is_empty(),
        "{} failures in {count} cases:\n{listed}",
        failures.len()
    );
}
