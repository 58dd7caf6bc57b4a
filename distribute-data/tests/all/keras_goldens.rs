//! Losses and metrics against the numbers of real Keras: `tests/keras/generate.py`.

use distribute_core::{Device, Tensor, TensorData};
use distribute_data::{KerasMetric, LossFunction};
use serde_json::Value;

const LOSSES: &str = include_str!("../keras/losses.json");
const METRICS: &str = include_str!("../keras/metrics.json");

fn numbers(value: &Value) -> Vec<f32> {
    let all = value.as_array().unwrap().iter();
    all.map(|number| number.as_f64().unwrap() as f32).collect()
}

fn tensor(case: &Value, key: &str, device: &Device) -> Tensor<2> {
    let shape: Vec<usize> = numbers(&case["shape"])
        .iter()
        .map(|x| *x as usize)
        .collect();
    Tensor::from_data(TensorData::new(numbers(&case[key]), shape), device)
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Within 1e-6 of the value, or of 1 for small ones.
fn close(name: &str, found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len(), "{name}");
    for (found, wanted) in found.iter().zip(wanted) {
        let allowed = tolerance * wanted.abs().max(1.0);
        assert!(
            (found - wanted).abs() <= allowed,
            "{name}: {found} instead of {wanted}"
        );
    }
}

#[test]
fn losses_and_their_gradients_are_those_of_keras() {
    let golden: Value = serde_json::from_str(LOSSES).unwrap();
    let device = Device::flex().autodiff();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let name = case["loss"].as_str().unwrap();
        let loss: LossFunction = name.parse().unwrap();
        let label = format!("{name} of {}", case["inputs"]);
        let predicted = tensor(case, "predictions", &device).require_grad();
        let values = loss.of(predicted.clone(), tensor(case, "targets", &device));
        close(
            &label,
            &read(values.clone()),
            &numbers(&case["values"]),
            1e-6,
        );
        let weights: Vec<f32> = (1..=values.dims()[0]).map(|x| x as f32).collect();
        let weights = Tensor::<1>::from_floats(weights.as_slice(), &device);
        let gradients = (values * weights).sum().backward();
        let gradient = predicted.grad(&gradients).unwrap();
        let label = format!("gradient of {label}");
        close(&label, &read(gradient), &numbers(&case["gradient"]), 2e-6);
    }
    assert!(cases.len() > 35, "{}", cases.len());
}

/// The sums of batches, which are of any sizes, are those of all examples together.
#[test]
fn metrics_are_those_of_keras_over_uneven_batches() {
    let golden: Value = serde_json::from_str(METRICS).unwrap();
    let device = Device::flex();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let name = case["metric"].as_str().unwrap();
        let metric: KerasMetric = name.parse().unwrap();
        for (key, is_weighted) in [("result", false), ("weighted", true)] {
            let mut totals = Vec::new();
            let mut outputs = 0;
            for batch in case["batches"].as_array().unwrap() {
                let predicted = tensor(batch, "predictions", &device);
                outputs = predicted.dims()[1];
                let weights = numbers(&batch["weights"]);
                let weights = Tensor::<1>::from_floats(weights.as_slice(), &device);
                let weights = is_weighted.then_some(&weights);
                let sums = metric.sums(predicted, tensor(batch, "labels", &device), weights);
                totals.resize(sums.dims()[0], 0.0);
                for (total, sum) in totals.iter_mut().zip(read(sums)) {
                    *total += f64::from(sum);
                }
            }
            assert_eq!(totals.len(), metric.count(outputs), "{name}");
            let wanted = case[key].as_f64().unwrap();
            let found = metric.result(&totals);
            let label = format!("{name} of {} ({key})", case["inputs"]);
            close(&label, &[found as f32], &[wanted as f32], 2e-6);
        }
    }
    assert!(cases.len() > 40, "{}", cases.len());
}

#[test]
fn a_loss_is_read_back_from_its_text() {
    for text in [
        "mean_squared_error",
        "huber:delta=2.5",
        "binary_crossentropy:from_logits=true,label_smoothing=0.1",
        "categorical_focal_crossentropy:alpha=0.5,gamma=3",
    ] {
        assert_eq!(text.parse::<LossFunction>().unwrap().to_string(), text);
    }
    for name in LossFunction::names() {
        assert_eq!(name.parse::<LossFunction>().unwrap().name(), name);
    }
    let short: LossFunction = "MAPE".parse().unwrap();
    assert_eq!(short, LossFunction::MeanAbsolutePercentageError);
}

#[test]
fn what_is_wrong_of_a_loss_is_said() {
    for (text, wanted) in [
        ("hubert", "did you mean `huber`"),
        ("huber:delt=1", "it has delta"),
        ("huber:delta=0", "above 0"),
        ("huber:delta", "OPTION=VALUE"),
        ("hinge:delta=1", "no options"),
        ("bce:label_smoothing=2", "from 0 to 1"),
        ("bce:from_logits=1", "true or false"),
    ] {
        let error = text.parse::<LossFunction>().unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn a_metric_is_read_back_from_its_text() {
    for text in [
        "accuracy",
        "mse",
        "auc:curve=PR,num_thresholds=100",
        "f1_score:average=micro,threshold=0.5",
        "huber:delta=2",
        "precision:thresholds=0.25,class_id=1",
    ] {
        assert_eq!(text.parse::<KerasMetric>().unwrap().to_string(), text);
    }
    for name in KerasMetric::names() {
        assert_eq!(name.parse::<KerasMetric>().unwrap().name(), name);
    }
    assert_eq!("AUC".parse::<KerasMetric>().unwrap().name(), "auc");
}

#[test]
fn what_is_wrong_of_a_metric_is_said() {
    for (text, wanted) in [
        ("acuracy", "did you mean `accuracy`"),
        ("auc:curve=rock", "ROC or PR"),
        ("auc:k=2", "it has curve"),
        ("f1_score:average=none", "micro, macro or weighted"),
        ("top_k_categorical_accuracy:k=0", "from 1 on"),
    ] {
        let error = text.parse::<KerasMetric>().unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}
