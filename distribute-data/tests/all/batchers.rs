//! Batchers as burn's examples have them, which cannot make a batch of nothing, in an epoch whose
//! last batch leaves replicas without examples.

use burn::tensor::{Bool, Int, Shape};
use distribute_core::TensorData;
use distribute_core::prelude::*;
use distribute_data::prelude::*;
use distribute_data::{DataError, Position};
use rstest::rstest;

use crate::mirrored;

/// burn's `Batcher`, whose module burn has with its feature `dataset` only.
trait Batcher<I, O>: Send + Sync {
    fn batch(&self, items: Vec<I>, device: &Device) -> O;
}

/// A dataset of `len` items of a batcher.
fn batched<I: 'static, O: Nest + Send + 'static>(
    len: usize,
    item: fn(usize) -> I,
    batcher: impl Batcher<I, O> + 'static,
) -> impl Dataset<Batch = O> {
    FnDataset::new(len, move |indices: &[usize], device: &Device| {
        let items = indices.iter().map(|index| item(*index)).collect();
        Ok(batcher.batch(items, device))
    })
}

/// Images and labels, as in burn's examples `mnist` and `wgan`.
#[derive(Nest, Clone, Debug)]
struct ImageBatch {
    images: Tensor<4>,
    targets: Tensor<1, Int>,
}

struct ImageBatcher;

impl Batcher<usize, ImageBatch> for ImageBatcher {
    fn batch(&self, items: Vec<usize>, device: &Device) -> ImageBatch {
        let image = |item: &usize| Tensor::<3>::full([1, 4, 4], *item as f32, device);
        let label = |item: &usize| Tensor::<1, Int>::from_data([*item as i64 % 10], device);
        ImageBatch {
            images: Tensor::stack(items.iter().map(image).collect(), 0),
            targets: Tensor::cat(items.iter().map(label).collect(), 0),
        }
    }
}

/// Tokens, a padding mask, and values of the host, as in burn's text classification.
#[derive(Nest, Clone, Debug)]
struct TextBatch {
    tokens: Tensor<2, Int>,
    mask_pad: Tensor<2, Bool>,
    labels: Option<Tensor<1, Int>>,
    texts: Vec<String>,
    lengths: Vec<usize>,
    examples: usize,
    vocabulary: String,
}

struct TextBatcher;

impl Batcher<String, TextBatch> for TextBatcher {
    fn batch(&self, items: Vec<String>, device: &Device) -> TextBatch {
        let longest = items.iter().map(String::len).max().expect("no texts");
        let (mut tokens, mut mask) = (Vec::new(), Vec::new());
        for text in &items {
            let padded = text.bytes().map(i64::from).chain(std::iter::repeat(0));
            tokens.extend(padded.take(longest));
            mask.extend((0..longest).map(|place| place >= text.len()));
        }
        let shape = Shape::new([items.len(), longest]);
        TextBatch {
            tokens: Tensor::from_data(TensorData::new(tokens, shape.clone()), device),
            mask_pad: Tensor::from_data(TensorData::new(mask, shape), device),
            labels: Some(Tensor::zeros([items.len()], device)),
            lengths: items.iter().map(String::len).collect(),
            examples: items.len(),
            texts: items,
            vocabulary: "bytes".into(),
        }
    }
}

/// Rows and targets, as in burn's regression example.
struct RowBatcher;

impl Batcher<[f32; 3], (Tensor<2>, Tensor<1>)> for RowBatcher {
    fn batch(&self, items: Vec<[f32; 3]>, device: &Device) -> (Tensor<2>, Tensor<1>) {
        let rows = items
            .iter()
            .map(|row| Tensor::<1>::from_floats(*row, device));
        let targets = items
            .iter()
            .map(|row| Tensor::<1>::from_floats([row[0]], device));
        let targets = Tensor::cat(targets.collect(), 0);
        (Tensor::stack(rows.collect(), 0), targets)
    }
}

#[rstest]
#[case(129, 64, 2, 0)]
#[case(129, 64, 2, 2)]
#[case(10, 4, 3, 2)]
#[case(1, 8, 4, 2)]
fn images_come_to_replicas_without_examples(
    #[case] len: usize,
    #[case] global: usize,
    #[case] replicas: usize,
    #[case] prefetch: usize,
) {
    let strategy = mirrored(replicas);
    let data = batched(len, |index| index, ImageBatcher);
    let batching = Batching::global(global).prefetch(prefetch);
    let data = strategy.distribute_dataset(data, batching).unwrap();
    let (mut seen, mut empty) = (Vec::new(), 0);
    for batch in &data {
        for part in batch.unwrap().into_values() {
            let [examples, ..] = part.images.dims();
            assert_eq!(part.images.dims(), [examples, 1, 4, 4]);
            assert_eq!(part.targets.dims(), [examples]);
            empty += usize::from(examples == 0);
            let firsts = part
                .images
                .reshape([examples as i32, 16])
                .slice([0..examples, 0..1]);
            seen.extend(firsts.into_data().iter::<f32>());
        }
    }
    assert!(empty > 0);
    assert_eq!(seen, (0..len).map(|index| index as f32).collect::<Vec<_>>());
}

#[test]
fn values_of_the_host_in_an_empty_batch_are_of_no_examples() {
    let strategy = mirrored(2);
    let data = batched(3, |index| "abc"[index..].to_string(), TextBatcher);
    let data = strategy
        .distribute_dataset(data, Batching::global(2))
        .unwrap();
    let batches: Vec<_> = (&data).into_iter().collect::<Result<_>>().unwrap();
    let mut last = batches.into_iter().next_back().unwrap().into_values();
    let (empty, full) = (last.pop().unwrap(), last.pop().unwrap());
    assert_eq!(
        (full.tokens.dims(), &full.texts[..]),
        ([1, 1], &["c".to_string()][..])
    );
    // The other axes are as long as an example's.
    assert_eq!(empty.tokens.dims(), [0, 3]);
    assert_eq!(empty.mask_pad.dims(), [0, 3]);
    assert_eq!(empty.labels.unwrap().dims(), [0]);
    assert_eq!(
        (empty.texts, empty.lengths, empty.examples),
        (vec![], vec![], 0)
    );
    assert_eq!(empty.vocabulary, "bytes");
}

#[test]
fn a_regression_trains_through_a_short_batch_as_one_device_does() {
    let train = |replicas: usize| {
        let strategy = mirrored(replicas);
        let item = |index: usize| [index as f32 / 8.0, 1.0, -1.0];
        let data = strategy.distribute_dataset(batched(9, item, RowBatcher), Batching::global(4));
        let losses = data.unwrap().epoch(0).map(|batch| {
            let losses = strategy.run(batch.unwrap(), |ctx, (x, y)| {
                let error = x.sum_dim(1).squeeze_dim::<1>(1) - y * 3.0;
                average_loss(ctx, error.clone() * error)
            });
            let sum = strategy.reduce(ReduceOp::Sum, losses.unwrap()).unwrap();
            sum.into_scalar::<f32>()
        });
        losses.collect::<Vec<_>>()
    };
    let one = train(1);
    assert_eq!(one.len(), 3);
    for replicas in [2, 4] {
        for (several, one) in train(replicas).into_iter().zip(&one) {
            assert!((several - one).abs() < 1e-6, "{replicas}: {several} {one}");
        }
    }
}

/// A batcher that fails for an example.
struct Broken;

impl Batcher<usize, Tensor<1>> for Broken {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Tensor<1> {
        assert!(!items.contains(&13), "no image 13");
        Tensor::zeros([items.len()], device)
    }
}

#[rstest]
fn a_panic_names_the_part_and_its_examples(#[values(0, 2)] prefetch: usize) {
    let strategy = mirrored(2);
    let data = batched(40, |index| index, Broken);
    let batching = Batching::global(20).prefetch(prefetch);
    let data = strategy.distribute_dataset(data, batching).unwrap();
    let error = data.epoch(0).next().unwrap().unwrap_err();
    let text = error.to_string();
    for part in [
        "no image 13",
        "part 1",
        "10, 11, 12, 13, 14, 15, 16, 17, ... (10 in all)",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let Error::Input(source) = &error else {
        panic!("{error:?}")
    };
    let source = source.downcast_ref::<DataError>();
    assert!(matches!(
        source,
        Some(DataError::BatchPanicked { part: 1, .. })
    ));
    // On the caller's thread too.
    let again = data.batch_at(Position::default()).unwrap_err();
    assert_eq!(again.to_string(), text);
}

/// A batch without examples is on the device of its replica, with autodiff where the others have
/// it: a layer that exchanges statistics exchanges in its backward pass too.
#[test]
fn an_empty_part_is_on_the_device_of_its_replica() {
    let strategy = mirrored(4);
    let data = batched(9, |item| item, ImageBatcher);
    let data = strategy
        .distribute_dataset(data, Batching::global(12))
        .unwrap();
    let batch = data.epoch(0).next().unwrap().unwrap().into_values();
    let examples = batch.iter().map(|part| part.images.dims()[0]);
    assert_eq!(examples.collect::<Vec<_>>(), [3, 3, 3, 0]);
    for (part, replica) in batch.iter().zip(strategy.replicas()) {
        assert_eq!(part.images.device(), replica.device);
        assert_eq!(part.targets.device(), replica.device);
    }
}

/// Stands for a crate of batchers and their batches.
mod other_crate {
    use burn::tensor::{Int, Tensor};
    use distribute_core::{Device, TensorData};

    #[derive(Clone, Debug)]
    pub struct Batch {
        pub inputs: Tensor<2>,
        pub targets: Tensor<1, Int>,
        pub names: Vec<String>,
    }

    pub struct Batcher;

    impl super::Batcher<usize, Batch> for Batcher {
        fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
            assert!(!items.is_empty(), "a batch of nothing");
            let (count, numbers) = (items.len(), items.iter().map(|item| *item as i64));
            let numbers: Vec<i64> = numbers.collect();
            let inputs: Vec<f32> = numbers.iter().flat_map(|n| [*n as f32, 1.0]).collect();
            Batch {
                inputs: Tensor::from_data(TensorData::new(inputs, [count, 2]), device),
                targets: Tensor::from_data(TensorData::new(numbers, [count]), device),
                names: items.iter().map(usize::to_string).collect(),
            }
        }
    }
}

/// A batch of another crate, for which nothing can be derived, in uneven and empty parts.
#[rstest]
#[case(8, 4, 1)]
#[case(9, 4, 2)]
#[case(10, 4, 3)]
#[case(1, 8, 4)]
fn batches_of_another_crate_are_wrapped(
    #[case] len: usize,
    #[case] global: usize,
    #[case] replicas: usize,
    #[values(1, 3)] threads: usize,
) {
    let strategy = mirrored(replicas);
    let data = FnDataset::new(len, |indices: &[usize], device: &Device| {
        let batch = other_crate::Batcher.batch(indices.to_vec(), device);
        Ok(NestWith::new(batch, |batch, field| {
            field("inputs", &mut batch.inputs)?;
            field("targets", &mut batch.targets)?;
            field("names", &mut batch.names)
        }))
    });
    let batching = Batching::global(global).num_parallel_calls(threads);
    let data = strategy.distribute_dataset(data, batching).unwrap();
    let (mut seen, mut means) = (Vec::new(), Vec::new());
    for batch in &data {
        let results = strategy.run(batch.unwrap(), |ctx, batch| {
            let other_crate::Batch {
                inputs,
                targets,
                names,
            } = batch.into_inner();
            assert_eq!(inputs.dims(), [names.len(), 2]);
            assert_eq!(targets.dims(), [names.len()]);
            let mean = ctx.mean_loss(inputs.slice([0..names.len(), 0..1]).mean())?;
            Ok((names, mean))
        });
        let (names, losses): (Vec<_>, Vec<_>) = results.unwrap().into_values().into_iter().unzip();
        seen.extend(names.concat());
        let loss = strategy
            .reduce(ReduceOp::Sum, PerReplica::new(losses))
            .unwrap();
        means.push(loss.into_scalar::<f32>());
    }
    let numbers: Vec<usize> = (0..len).collect();
    assert_eq!(
        seen,
        numbers.iter().map(usize::to_string).collect::<Vec<_>>()
    );
    for (found, step) in means.iter().zip(numbers.chunks(global)) {
        let expected = step.iter().sum::<usize>() as f32 / step.len() as f32;
        assert!((found - expected).abs() < 1e-5, "{means:?}");
    }
    assert_eq!(means.len(), len.div_ceil(global));
}
