//! Layers that change values at random: nothing in inference, the numbers of a seed and a step in
//! training. Bounds that are equal leave nothing to chance, and give what Keras 3 gives.

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{DefaultStrategy, StrategyExt};
use distribute_keras::{Mode, Model, parse_keras_json};
use rstest::rstest;
use serde_json::{Value, json};

/// The numbers from 0 on as an image of 3 rows and 4 columns.
const VALUES: usize = 12;

/// What a layer makes of the image in this step of training, or in inference.
fn changed(class: &str, config: &Value, batch: usize, step: Option<u64>) -> Vec<f32> {
    let layers = json!([
        { "class_name": "InputLayer", "config": { "batch_shape": [null, 3, 4, 1] } },
        { "class_name": class, "config": config },
    ]);
    let text = json!({ "class_name": "Sequential", "config": { "layers": layers } }).to_string();
    let plan = parse_keras_json(&text, "m.json").unwrap().plan(&[3, 4, 1]);
    let model = Model::initialized(&plan.unwrap(), 1, &Device::flex()).unwrap();
    let values: Vec<f32> = (0..batch * VALUES).map(|i| (i % VALUES) as f32).collect();
    let data = TensorData::new(values, [batch, VALUES]);
    let found = DefaultStrategy::new().run((), |ctx, ()| {
        let x = Tensor::<2>::from_data(data.clone(), ctx.device());
        let Some(step) = step else {
            return model.logits(x, &mut Mode::Inference);
        };
        let mut rng = ctx.rng(7, step);
        model.logits(x, &mut Mode::training(ctx, &mut rng))
    });
    let found = found.unwrap().into_values().remove(0);
    found.into_data().try_into_vec().unwrap()
}

#[rstest]
#[case(
    "RandomRotation",
    json!({ "factor": [0.25, 0.25], "fill_mode": "constant", "fill_value": -1.0 }),
    [0.75, 4.5, 8.5, 4.75, 0.25, 3.5, 7.5, 4.25, -0.25, 2.5, 6.5, 3.75]
)]
#[case(
    "RandomRotation",
    json!({ "factor": [0.1, 0.1] }),
    [0.8743, 1.6833, 4.4318, 7.2906, 0.7598, 3.9199, 7.0801, 10.2402, 3.7094, 6.5682, 9.3167,
        10.1257]
)]
#[case(
    "RandomRotation",
    json!({ "factor": [0.1, 0.1], "interpolation": "nearest", "fill_mode": "nearest" }),
    [1.0, 2.0, 2.0, 7.0, 0.0, 5.0, 6.0, 11.0, 4.0, 9.0, 9.0, 10.0]
)]
#[case(
    "RandomTranslation",
    json!({ "height_factor": [0.5, 0.5], "width_factor": [0.25, 0.25] }),
    [2.0, 2.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 3.0, 4.0]
)]
#[case(
    "RandomTranslation",
    json!({ "height_factor": [0.5, 0.5], "width_factor": [-0.25, -0.25], "fill_mode": "wrap" }),
    [7.0, 8.0, 9.0, 6.0, 9.0, 10.0, 11.0, 8.0, 3.0, 4.0, 5.0, 2.0]
)]
#[case(
    "RandomZoom",
    json!({ "height_factor": [0.5, 0.5], "fill_mode": "nearest" }),
    [0.0, 0.75, 2.25, 3.0, 4.0, 4.75, 6.25, 7.0, 8.0, 8.75, 10.25, 11.0]
)]
#[case(
    "RandomZoom",
    json!({ "height_factor": [-0.5, -0.5], "width_factor": [-0.25, -0.25] }),
    [2.375, 3.125, 3.875, 4.625, 4.375, 5.125, 5.875, 6.625, 6.375, 7.125, 7.875, 8.625]
)]
#[case(
    "RandomBrightness",
    json!({ "factor": [0.1, 0.1] }),
    [25.5, 26.5, 27.5, 28.5, 29.5, 30.5, 31.5, 32.5, 33.5, 34.5, 35.5, 36.5]
)]
#[case(
    "RandomContrast",
    json!({ "factor": [0.0, 0.0] }),
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
)]
fn images_without_chance_are_those_of_keras(
    #[case] class: &str,
    #[case] config: Value,
    #[case] expected: [f32; VALUES],
) {
    let found = changed(class, &config, 1, Some(0));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
}

#[rstest]
#[case("RandomFlip", json!({ "mode": "horizontal" }))]
#[case("RandomRotation", json!({ "factor": 0.2 }))]
#[case("RandomZoom", json!({ "height_factor": 0.3 }))]
#[case("RandomTranslation", json!({ "height_factor": 0.4, "width_factor": 0.4 }))]
#[case("RandomContrast", json!({ "factor": [0.5, 0.5] }))]
#[case("RandomBrightness", json!({ "factor": 0.2 }))]
#[case("GaussianNoise", json!({ "stddev": 1.0 }))]
#[case("GaussianDropout", json!({ "rate": 0.5 }))]
#[case("AlphaDropout", json!({ "rate": 0.5 }))]
#[case("StochasticDepth", json!({ "drop_path_rate": 0.5 }))]
fn a_step_has_its_own_numbers_and_inference_has_none(#[case] class: &str, #[case] config: Value) {
    let image: Vec<f32> = (0..8 * VALUES).map(|i| (i % VALUES) as f32).collect();
    assert_eq!(changed(class, &config, 8, None), image);
    let first = changed(class, &config, 8, Some(0));
    assert_eq!(first, changed(class, &config, 8, Some(0)));
    assert_ne!(first, changed(class, &config, 8, Some(1)));
    assert_ne!(first, image);
    // Every example has its own.
    let examples: Vec<&[f32]> = first.chunks(VALUES).collect();
    assert!(examples.iter().any(|example| *example != examples[0]));
}

#[test]
fn a_flip_shows_the_image_or_its_mirror_image() {
    let found = changed("RandomFlip", &json!({ "mode": "vertical" }), 32, Some(3));
    let image: Vec<f32> = (0..VALUES).map(|i| i as f32).collect();
    let mirrored: Vec<f32> = [8, 4, 0]
        .iter()
        .flat_map(|row| (*row..row + 4).map(|i| i as f32))
        .collect();
    let kept = found
        .chunks(VALUES)
        .filter(|example| *example == image)
        .count();
    let turned = found
        .chunks(VALUES)
        .filter(|example| *example == mirrored)
        .count();
    assert_eq!(kept + turned, 32);
    assert!(kept > 5 && turned > 5, "{kept} {turned}");
}

#[test]
fn noise_has_its_deviation() {
    let found = changed("GaussianNoise", &json!({ "stddev": 2.0 }), 400, Some(1));
    let noise = found
        .iter()
        .enumerate()
        .map(|(i, x)| f64::from(x - (i % VALUES) as f32));
    let squares: f64 = noise.clone().map(|x| x * x).sum();
    let count = found.len() as f64;
    assert!((squares / count - 4.0).abs() < 0.4, "{}", squares / count);
    assert!((noise.sum::<f64>() / count).abs() < 0.15);
}

#[test]
fn a_crop_is_a_part_of_the_image_and_in_inference_the_whole_in_its_size() {
    let size = json!({ "height": 2, "width": 3 });
    let found = changed("RandomCrop", &size, 32, Some(0));
    let mut places = std::collections::BTreeSet::new();
    for part in found.chunks(6) {
        let first = part[0];
        let wanted = [0.0, 1.0, 2.0, 4.0, 5.0, 6.0].map(|more| first + more);
        assert_eq!(part, wanted);
        places.insert(first as usize);
    }
    assert_eq!(places.into_iter().collect::<Vec<_>>(), [0, 1, 4, 5]);
    let resized = json!({ "height": 2, "width": 3, "crop_to_aspect_ratio": true });
    let whole = changed("Resizing", &resized, 1, None);
    assert_eq!(changed("RandomCrop", &size, 1, None), whole);
    // An image that is not larger along both axes is resized in training too.
    let wide = json!({ "height": 2, "width": 4 });
    let in_training = changed("RandomCrop", &wide, 1, Some(0));
    assert_eq!(in_training, changed("RandomCrop", &wide, 1, None));
}
