//! What cannot be is an error that says what to do.

use burn::tensor::Int;
use distribute_core::{Device, Result, Tensor};
use distribute_data::Dataset;
use distribute_models::{GptConfig, Interactions, ResNetConfig, Text, TwoTowersConfig};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

#[track_caller]
fn assert_error<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("no error");
    };
    let error = error.to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

fn device() -> Device {
    Device::flex()
}

#[test]
fn networks_of_nothing() {
    let narrow = ResNetConfig::narrow(1, 10);
    let error = |config: ResNetConfig, name: &str| {
        assert_error(config.init(&device()), &[name, "must be 1 or more"]);
    };
    error(ResNetConfig::narrow(0, 10), "channels");
    error(ResNetConfig::narrow(1, 0), "classes");
    error(narrow.clone().with_widths(vec![]), "widths");
    error(narrow.clone().with_widths(vec![4, 0]), "widths");
    error(
        ResNetConfig {
            blocks: 0,
            ..narrow.clone()
        },
        "blocks",
    );
    let momentum = narrow.with_momentum(1.5).init(&device());
    assert_error(momentum, &["momentum is 1.5"]);
    assert_error(GptConfig::new(0).init(&device()), &["must be 1 or more"]);
    let heads = GptConfig::new(5).with_width(10).with_heads(3);
    assert_error(heads.init(&device()), &["width 10", "3 heads"]);
}

#[test]
fn inputs_of_other_shapes() {
    let model = ResNetConfig::narrow(3, 10)
        .with_widths(vec![2])
        .init(&device())
        .unwrap();
    let grey = model.forward_inference(Tensor::ones([2, 1, 8, 8], &device()));
    assert_error(grey, &["[batch, 3, height, width]", "[2, 1, 8, 8]"]);
    let empty = model.forward_inference(Tensor::ones([2, 3, 8, 0], &device()));
    assert_error(empty, &["[2, 3, 8, 0]"]);

    let towers = TwoTowersConfig::new(1, 2).with_width(3).init(&device());
    let rows = |count, width| Tensor::<2>::ones([count, width], &device());
    let towers = |user, item| towers.forward(user, item);
    assert!(towers((rows(2, 3), rows(2, 1)), (rows(2, 3), rows(2, 2))).is_ok());
    let swapped = towers((rows(2, 3), rows(2, 2)), (rows(2, 3), rows(2, 1)));
    assert_error(swapped, &["[2, 3]", "[2, 2]", "4 columns"]);
    let pairs = towers((rows(2, 3), rows(2, 1)), (rows(1, 3), rows(1, 2)));
    assert_error(pairs, &["2 users and 1 items"]);
    let features = towers((rows(2, 3), rows(1, 1)), (rows(2, 3), rows(2, 2)));
    assert_error(features, &["one line per example"]);
}

#[test]
fn sequences_that_a_gpt_cannot_take() {
    let config = GptConfig::new(5)
        .with_length(4)
        .with_width(8)
        .with_layers(1);
    let model = config.init(&device()).unwrap();
    let long = model.forward(Tensor::<2, Int>::zeros([1, 5], &device()));
    assert_error(long, &["5 tokens", "made for 4", "GptConfig::length"]);
    let mut random = ChaCha8Rng::seed_from_u64(0);
    assert_error(model.generate(&[], 1, &mut random), &["one or more tokens"]);
    for token in [-1, 5] {
        let written = model.generate(&[0, token], 1, &mut random);
        assert_error(written, &["from 0 to 4", &token.to_string()]);
    }
}

#[test]
fn impossible_texts_and_interactions() {
    assert_error(Text::new(""), &["empty"]);
    let text = Text::new("abcabcabcabc").unwrap();
    assert_error(text.encode("abd"), &["'d'", "\"abc\""]);
    for length in [0, 2] {
        // A tenth of the text are two tokens.
        let rest = text.train_test(length);
        assert_error(rest, &["must fit into the", "1 or more"]);
    }
    let (windows, _) = text.train_test(1).unwrap();
    let beyond = windows.batch(&[0, windows.len()], &device());
    assert_error(beyond, &["no", &windows.len().to_string()]);
    assert_error(Interactions::new(0, 1, 1), &["0 users"]);
    assert_error(Interactions::new(1, 0, 1), &["0 items"]);
}
