//! The data that comes with the networks, and what they make of it.

use burn::tensor::{Int, TensorData};
use distribute_core::{Device, Tensor};
use distribute_data::Dataset;
use distribute_models::{GptConfig, Interactions, Text};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

#[test]
fn the_text_is_alice_in_wonderland() {
    let alice = Text::alice().unwrap();
    assert_eq!([alice.tokens().len(), alice.vocabulary()], [148_265, 70]);
    let words = alice.decode(&alice.tokens()[..200]);
    assert!(words.starts_with("CHAPTER I\n"), "{words}");
    assert!(
        words.contains("Alice was beginning to get very tired"),
        "{words}"
    );
    let end = alice.decode(&alice.tokens()[alice.tokens().len() - 30..]);
    assert_eq!(end, "e, and the happy summer days.\n");
}

#[test]
fn a_window_is_followed_by_the_next_one() {
    let text = Text::new("abcdefghijabcdefghij").unwrap();
    let (train, test) = text.train_test(1).unwrap();
    assert_eq!([train.len(), test.len()], [17, 1]);
    let (train, _) = Text::new(&"abcdefghij".repeat(10))
        .unwrap()
        .train_test(4)
        .unwrap();
    assert_eq!(train.len(), 22, "of 89 tokens that have a next one");
    let (tokens, next) = train.batch(&[2, 21], &Device::flex()).unwrap();
    let expected = |rows: [[i64; 4]; 2]| TensorData::from(rows);
    tokens
        .into_data()
        .assert_eq(&expected([[8, 9, 0, 1], [4, 5, 6, 7]]), false);
    next.into_data()
        .assert_eq(&expected([[9, 0, 1, 2], [5, 6, 7, 8]]), false);
    let (tokens, next) = train.batch(&[], &Device::flex()).unwrap();
    assert_eq!([tokens.dims(), next.dims()], [[0, 4]; 2]);
}

#[test]
fn a_position_sees_nothing_behind_it() {
    let device = Device::flex();
    device.seed(1);
    let config = GptConfig::new(5)
        .with_length(6)
        .with_width(8)
        .with_layers(2);
    let model = config.init(&device).unwrap();
    let logits = |tokens: [i64; 6]| {
        let tokens = Tensor::<1, Int>::from_ints(tokens, &device).reshape([1, 6]);
        let logits = model.forward(tokens).unwrap().into_data();
        logits.try_to_vec::<f32>().unwrap()
    };
    let (one, other) = (logits([0, 1, 2, 3, 4, 0]), logits([0, 1, 2, 3, 0, 1]));
    assert_eq!(one[..20], other[..20]);
    assert_ne!(one[20..25], other[20..25]);
}

#[test]
fn what_is_written_follows_from_the_generator() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let config = GptConfig::new(5)
        .with_length(4)
        .with_width(8)
        .with_layers(1);
    let model = config.init(&device).unwrap();
    let written = |seed| {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        model.generate(&[1, 2], 200, &mut random).unwrap()
    };
    let text = written(1);
    assert_eq!(text, written(1));
    assert_ne!(text, written(2));
    assert_eq!(text.len(), 200);
    assert!((0..5).all(|token| text.contains(&token)), "{text:?}");
}

#[test]
fn interactions_follow_from_their_numbers() {
    let interactions = Interactions::new(2000, 1000, 300).unwrap();
    let later = interactions.after(10);
    assert_eq!([interactions.len(), later.len()], [300, 10]);
    assert_eq!(later.interaction(0), interactions.interaction(300));
    let all: Vec<_> = (0..2000)
        .map(|number| interactions.interaction(number))
        .collect();
    assert!(
        all.iter()
            .all(|interaction| (0..2000).contains(&interaction.user))
    );
    assert!(
        all.iter()
            .all(|interaction| (0..1000).contains(&interaction.item))
    );
    assert!(
        all.iter()
            .any(|interaction| interaction.user > 1900 && interaction.item > 900)
    );
    let liked = all.iter().filter(|interaction| interaction.liked).count();
    assert!((900..1100).contains(&liked), "{liked}");
    let batch = interactions.batch(&[0, 7], &Device::flex()).unwrap();
    let users = TensorData::from([all[0].user, all[7].user]);
    batch.users.0.into_data().assert_eq(&users, false);
    let prices = TensorData::from([[all[0].price], [all[7].price]]);
    batch.items.1.into_data().assert_eq(&prices, true);
}
