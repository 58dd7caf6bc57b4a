//! What of recurrent layers no recorded numbers can show: dropout, and how weights start.

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{DefaultStrategy, StrategyExt};
use distribute_keras::{Mode, Model, Plan, parse_keras_json};
use rstest::rstest;
use serde_json::{Value, json};

use crate::graphs::{numbers, weights};

fn plan(class: &str, config: Value) -> Plan {
    let layers = json!([{ "class_name": class, "config": config }]);
    let text = json!({ "class_name": "Sequential", "config": { "layers": layers } }).to_string();
    let spec = parse_keras_json(&text, "m.json").unwrap();
    spec.plan(&[3, 2]).unwrap()
}

/// Equal examples.
fn examples(count: usize, device: &Device) -> Tensor<2> {
    let one: Vec<f32> = numbers(5, 6).map(|u| u as f32).collect();
    Tensor::from_data(TensorData::new(one.repeat(count), [count, 6]), device)
}

/// The outputs of a pass of training in this step.
fn trained(plan: &Plan, count: usize, step: u64) -> Vec<f32> {
    let strategy = DefaultStrategy::new();
    let mut model = strategy
        .try_scope(|device| Ok(Model::new(plan, weights(plan), device)?))
        .unwrap();
    let outputs = strategy.run(&mut model, |ctx, model| {
        let mut rng = ctx.rng(1, step);
        let x = examples(count, ctx.device());
        model.logits(x, &mut Mode::training(ctx, &mut rng))
    });
    let outputs = outputs.unwrap().into_values().remove(0);
    outputs.into_data().try_into_vec().unwrap()
}

fn inferred(plan: &Plan) -> Vec<f32> {
    let model = Model::new(plan, weights(plan), &Device::flex()).unwrap();
    let outputs = model.logits(examples(1, &Device::flex()), &mut Mode::Inference);
    outputs.unwrap().into_data().try_into_vec().unwrap()
}

#[rstest]
fn a_dropout_changes_training_alone(
    #[values("SimpleRNN", "LSTM", "GRU")] class: &str,
    #[values("dropout", "recurrent_dropout")] rate: &str,
    #[values(true, false)] reset_after: bool,
) {
    let mut config = json!({ "units": 4 });
    if class == "GRU" {
        config["reset_after"] = json!(reset_after);
    }
    let without = plan(class, config.clone());
    config[rate] = json!(0.5);
    let with = plan(class, config);
    assert_eq!(inferred(&with), inferred(&without));
    let first = trained(&with, 8, 0);
    assert_eq!(first, trained(&with, 8, 0), "the same step draws the same");
    assert_ne!(
        first,
        trained(&with, 8, 1),
        "another step draws other masks"
    );
    assert!(
        first.chunks(4).any(|row| row != &first[..4]),
        "so does each example"
    );
    assert_ne!(first, trained(&without, 8, 0));
}

/// Behind linear steps the mean over the masks is what comes without them: a mask of the inputs
/// counts once in every product.
#[test]
fn a_dropout_keeps_the_mean() {
    let mut config = json!({ "units": 2, "activation": "linear", "use_bias": false });
    let exact = inferred(&plan("SimpleRNN", config.clone()));
    config["dropout"] = json!(0.25);
    let count = 20_000;
    let outputs = trained(&plan("SimpleRNN", config), count, 0);
    for (unit, exact) in exact.iter().enumerate() {
        let unit = outputs.iter().skip(unit).step_by(2);
        let mean = unit.map(|x| f64::from(*x)).sum::<f64>() / count as f64;
        assert!((mean - f64::from(*exact)).abs() < 0.05, "{mean} {exact}");
    }
}

#[test]
fn the_bias_of_a_forget_gate_starts_as_one() {
    for (config, expected) in [
        (json!({ "units": 2 }), [0.0, 1.0, 0.0, 0.0]),
        (json!({ "units": 2, "unit_forget_bias": false }), [0.0; 4]),
        (
            json!({ "units": 2, "bias_initializer":
                { "class_name": "Constant", "config": { "value": 0.5 } } }),
            [0.5, 1.0, 0.5, 0.5],
        ),
    ] {
        let plan = plan("LSTM", config);
        let (_, bias) = plan.weights().last().unwrap();
        let bias = bias.start(1, 0).values;
        let expected: Vec<f32> = expected.iter().flat_map(|x| [*x, *x]).collect();
        assert_eq!(bias, expected);
    }
}

/// As `get_keras_mask` says it in Keras: a layer that treats every step alike keeps the padding, a
/// layer without steps does not.
#[test]
fn a_plan_says_which_outputs_have_padding() {
    for (masks, sequences) in [(true, true), (true, false), (false, true)] {
        let table = json!({ "input_dim": 9, "output_dim": 3, "mask_zero": masks });
        let layers = json!([
            { "class_name": "Embedding", "config": table },
            { "class_name": "LSTM", "config": { "units": 2, "return_sequences": sequences } },
            { "class_name": "Dense", "config": { "units": 2 } },
        ]);
        let model = json!({ "class_name": "Sequential", "config": { "layers": layers } });
        let spec = parse_keras_json(&model.to_string(), "m.json").unwrap();
        let plan = spec.plan(&[5]).unwrap();
        assert!(!plan.is_masked(0), "the input");
        assert_eq!(plan.is_masked(plan.outputs[0].value), masks && sequences);
    }
}
