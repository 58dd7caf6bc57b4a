//! Values of another crate's type, which cannot derive `Nest`, in steps, reductions and gathers.

use burn::tensor::{Int, Tensor, TensorData};
use distribute_core::{
    Device, Error, FieldVisitor, MirroredStrategy, Nest, NestWith, PerReplica, ReduceOp, Result,
    Strategy, StrategyExt,
};
use rstest::rstest;

use crate::multi_worker::group::{THREADS, workers};
use crate::trace::support::Recording;

/// Stands for a crate whose types are not ours.
mod other_crate {
    use burn::tensor::{Int, Tensor};

    #[derive(Clone, Debug)]
    pub struct Batch {
        pub rows: Tensor<2>,
        pub labels: Option<Tensor<1, Int>>,
        pub names: Vec<String>,
        pub examples: usize,
    }
}

use other_crate::Batch;

fn fields(batch: &mut Batch, field: FieldVisitor<'_>) -> Result<()> {
    field("rows", &mut batch.rows)?;
    field("labels", &mut batch.labels)?;
    field("names", &mut batch.names)?;
    field("examples", &mut batch.examples)
}

/// The examples from `from` on, `count` of them.
fn batch(from: usize, count: usize, device: &Device) -> NestWith<Batch> {
    let rows: Vec<f32> = (from..from + count).flat_map(|i| [i as f32, 1.0]).collect();
    let labels: Vec<i64> = (from..from + count).map(|i| i as i64).collect();
    let batch = Batch {
        rows: Tensor::from_data(TensorData::new(rows, [count, 2]), device),
        labels: Some(Tensor::from_data(TensorData::new(labels, [count]), device)),
        names: (from..from + count).map(|i| format!("{i}.png")).collect(),
        examples: count,
    };
    NestWith::new(batch, fields)
}

/// Parts of these sizes, one after the other.
fn parts(sizes: &[usize]) -> PerReplica<NestWith<Batch>> {
    let mut from = 0;
    let part = |size: &usize| {
        from += size;
        batch(from - size, *size, &Device::flex())
    };
    PerReplica::new(sizes.iter().map(part).collect())
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    let builder = MirroredStrategy::builder().replicas(replicas);
    builder.build().unwrap()
}

#[rstest]
fn a_step_sees_the_fields_and_the_examples_of_all(
    #[values(vec![4], vec![3, 1], vec![4, 0], vec![2, 1, 1])] sizes: Vec<usize>,
) {
    let strategy = mirrored(sizes.len());
    let losses = strategy.run(parts(&sizes), |ctx, batch| {
        assert_eq!(batch.names.len(), batch.rows.dims()[0]);
        let Batch { rows, labels, .. } = batch.into_inner();
        let labels = labels.unwrap().float().unsqueeze_dim(1);
        // The mean of 0, 1, 2 and 3 squared, as burn has it on one device.
        let products = rows.slice([0..labels.dims()[0], 0..1]) * labels;
        ctx.mean_loss(products.mean())
    });
    let loss = strategy.reduce(ReduceOp::Sum, losses.unwrap()).unwrap();
    assert!((loss.into_scalar::<f32>() - 3.5).abs() < 1e-6);
}

#[test]
fn leaves_are_reduced_gathered_and_named() {
    let strategy = mirrored(2);
    let summed = strategy.reduce(ReduceOp::Sum, parts(&[2, 2])).unwrap();
    let rows = summed.rows.clone().into_data().try_to_vec::<f32>().unwrap();
    assert_eq!((rows, summed.examples), (vec![2.0, 2.0, 4.0, 2.0], 4));
    assert_eq!(summed.names, ["0.png", "1.png"], "not made of numbers");

    let error = strategy.reduce(ReduceOp::Sum, parts(&[2, 1])).unwrap_err();
    assert!(error.to_string().starts_with("`rows`: "), "{error}");
    assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
    let beside = PerReplica::new(vec![(1.0_f32, batch(0, 1, &Device::flex())); 2]);
    let names = strategy.run(beside, |_, (_, batch)| Ok(batch.into_inner().names));
    assert_eq!(names.unwrap().into_values(), [["0.png"], ["0.png"]]);
}

#[test]
fn an_example_is_removed_from_every_field() {
    let device = Device::flex().autodiff();
    let mut one = batch(7, 1, &device);
    one.remove_example().unwrap();
    assert_eq!(one.rows.dims(), [0, 2]);
    assert!(one.rows.device().is_autodiff());
    assert_eq!(one.labels.as_ref().unwrap().dims(), [0]);
    assert_eq!((one.names.len(), one.examples), (0, 0));
}

#[test]
fn an_error_of_the_function_comes_out() {
    let refused: fn(&mut i32, FieldVisitor<'_>) -> Result<()> =
        |_, _| Err(Error::invalid("a field that is no tensor"));
    let mut value = NestWith::new(1, refused);
    for error in [
        value.take_leaves().unwrap_err(),
        value.remove_example().unwrap_err(),
    ] {
        assert!(error.to_string().contains("no tensor"), "{error}");
    }
    assert!(value.skeleton().is_none());
}

#[test]
fn workers_are_handed_it_too() {
    let sums = workers(THREADS, &[2, 1], |strategy| {
        let replicas = strategy.replicas().iter();
        let parts = replicas.map(|replica| batch(replica.id, 1, &replica.device));
        let sums = strategy.run(PerReplica::new(parts.collect()), |ctx, batch| {
            ctx.all_reduce(ReduceOp::Sum, batch)
        });
        let sum = sums?.into_values().remove(0);
        Ok((sum.rows.clone().into_data(), sum.examples))
    });
    for (rows, examples) in sums {
        assert_eq!((rows, examples), (TensorData::from([[3.0_f32, 3.0]]), 3));
    }
}

/// A captured step has the batch as inputs, and may return it.
#[test]
fn a_captured_step_takes_and_returns_it() {
    let strategy = Recording::new(2);
    for sizes in [[2, 2], [2, 2], [3, 3]] {
        // What is no tensor is the same on all replicas, as in every compiled step.
        let part = |size: usize| batch(0, size, &Device::flex());
        let parts = PerReplica::new(sizes.map(part).into());
        let results = strategy.run(parts, |_, batch| {
            let doubled = NestWith::new(
                Batch {
                    rows: batch.rows.clone() * 2.0,
                    labels: None,
                    names: vec!["all".into()],
                    examples: 1,
                },
                fields,
            );
            Ok((doubled, batch))
        });
        for (doubled, batch) in results.unwrap().into_values() {
            assert_eq!(doubled.rows.dims(), [sizes[0], 2]);
            assert_eq!(
                (&doubled.names[..], doubled.examples),
                (&["all".into()][..], 1)
            );
            assert_eq!(batch.labels.as_ref().unwrap().dims(), [sizes[0]]);
            let rows = doubled.rows.clone().into_data();
            let ones = TensorData::ones::<f32, _>([sizes[0], 2]);
            assert_eq!(rows, ones, "as the recorder has all results");
            let given = self::batch(0, sizes[0], &Device::flex());
            let rows = batch.rows.clone().into_data();
            assert_eq!(
                rows,
                given.rows.clone().into_data(),
                "an input that is returned"
            );
        }
    }
    assert_eq!(strategy.compiled(), 2, "one program for each size");
}

#[test]
fn what_is_no_tensor_is_part_of_the_program() {
    let strategy = Recording::new(1);
    for name in ["a", "a", "b"] {
        let mut batch = batch(0, 1, &Device::flex());
        batch.names = vec![name.into()];
        let labels =
            |batch: NestWith<Batch>| -> Tensor<1, Int> { batch.into_inner().labels.unwrap() };
        let batches = PerReplica::new(vec![batch]);
        strategy.run(batches, |_, batch| Ok(labels(batch))).unwrap();
    }
    assert_eq!(strategy.compiled(), 2);
}
