//! Steps that capture values which change, and what metrics and variables become of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use burn::prelude::*;
use distribute_core::metric::{Mean, SparseCategoricalAccuracy, Sum};
use distribute_core::{
    DistributedVariable, Error, PerReplica, ReplicaContext, Replicated, Result, StrategyExt,
    VariableAggregation, VariableOptions,
};

use crate::trace::support::{Recording, batch, operations};

type Batch = (Tensor<2>, Tensor<1, Int>);

fn ones(replicas: usize) -> PerReplica<Tensor<1>> {
    PerReplica::new(vec![Tensor::ones([3], &Device::flex()); replicas])
}

#[test]
fn a_captured_number_that_changes_is_found_in_the_second_call() {
    let strategy = Recording::new(2);
    for number in 0..4 {
        let factor = f64::from(number);
        let step = move |_: &ReplicaContext, (x,): (Tensor<1>,)| Ok(x.mul_scalar(factor));
        strategy.run((ones(2),), step).unwrap();
        // Every value has a program of its own, and none is run with another's.
        assert_eq!(strategy.compiled(), number as usize + 1);
    }
    let again = move |factor: f64| move |_: &ReplicaContext, (x,): (Tensor<1>,)| Ok(x * factor);
    for factor in [1.0, 2.0, 1.0, 2.0, 1.0] {
        strategy.run((ones(2),), again(factor)).unwrap();
    }
    assert_eq!(strategy.compiled(), 6);
}

#[test]
fn functions_of_one_type_are_told_apart() {
    type Step = fn(&ReplicaContext, (Tensor<1>,)) -> Result<Tensor<1>>;
    let steps: [Step; 2] = [|_, (x,)| Ok(x.exp()), |_, (x,)| Ok(x.sum())];
    let strategy = Recording::new(1);
    for number in 0..6 {
        let found = strategy.run((ones(1),), steps[number % 2]).unwrap();
        let shape = found.values()[0].dims();
        assert_eq!(shape, [if number % 2 == 0 { 3 } else { 1 }]);
    }
    assert_eq!(strategy.compiled(), 2);
}

/// A loss is divided by the size of the global batch, which the program then has in it.
#[test]
fn batches_of_another_global_size_have_a_program_of_their_own() {
    let strategy = Recording::new(2);
    let step = |ctx: &ReplicaContext, x: Tensor<1>| {
        let size = ctx.global_batch_size()?.unwrap_or(1);
        Ok(x.div_scalar(size as f64))
    };
    for size in [Some(6), Some(8), Some(6), None, None] {
        strategy.run(ones(2).of_global_batch(size), step).unwrap();
        let lent = ones(2).of_global_batch(size);
        let of_lent = |ctx: &ReplicaContext, x: &Tensor<1>| step(ctx, x.clone());
        strategy.run(&lent, of_lent).unwrap();
    }
    assert_eq!(strategy.compiled(), 6);
}

#[test]
fn a_late_change_is_an_error() {
    // Changed behind the back of a step that was found to be the same before.
    let strategy = Recording::new(1);
    let factor = AtomicU64::new(1);
    let step = |_: &ReplicaContext, (x,): (Tensor<1>,)| {
        Ok(x.mul_scalar(factor.load(Ordering::Relaxed) as f64))
    };
    for _ in 0..3 {
        strategy.run((ones(1),), step).unwrap();
    }
    factor.store(2, Ordering::Relaxed);
    // A capture takes far less than a millisecond here, so one of these calls is compared.
    let outcomes = (0..1_000_000).map(|_| strategy.run((ones(1),), step).map(drop));
    let mut decided = outcomes.filter(|outcome| outcome.is_err() || strategy.compiled() == 2);
    match decided.next() {
        Some(Err(error)) => {
            let changed = matches!(error, Error::StepChanged { .. });
            assert!(changed, "{error}");
            assert!(error.to_string().contains("pass the value"), "{error}");
        }
        // The very first of them was compared, so none has used the old number.
        Some(Ok(())) => {}
        None => panic!("the change was not found"),
    }
}

#[test]
fn a_step_that_stays_the_same_is_compiled_once() {
    let strategy = Recording::new(2);
    for _ in 0..500 {
        let factor = 3.0;
        let step = move |ctx: &ReplicaContext, ((x, y),): (Batch,)| {
            let x = distribute_core::dropout(x * factor, 0.5, &mut ctx.rng(1, 2));
            let sum = x.sum() + y.float().sum();
            ctx.all_reduce(distribute_core::ReduceOp::Sum, sum)
        };
        strategy.run((batch(2, 4),), step).unwrap();
    }
    assert_eq!(strategy.compiled(), 1);
}

#[test]
fn metrics_are_updated_after_every_call() {
    // The programs of this strategy give ones for everything.
    let strategy = Recording::new(2);
    let (mean, sum) = (Mean::new(&strategy), Sum::new(&strategy));
    let accuracy = strategy.metric(SparseCategoricalAccuracy);
    let step = |ctx: &ReplicaContext, ((x, y),): (Batch,)| {
        mean.update_state(ctx, x.clone() * 7.0)?;
        sum.update_state_weighted(ctx, 3.0_f32, 2.0_f32)?;
        accuracy.update_state(ctx, &(y * 2), &(x + 1.0))
    };
    for _ in 0..5 {
        strategy.run((batch(2, 4),), step).unwrap();
    }
    assert_eq!(mean.result().unwrap(), 1.0);
    assert_eq!(sum.result().unwrap(), 2.0 * 5.0 * 6.0);
    // The program says which are right.
    assert_eq!(accuracy.result().unwrap(), 1.0);
    sum.reset_state().unwrap();
    strategy.run((batch(2, 4),), step).unwrap();
    assert_eq!(sum.result().unwrap(), 12.0);
    assert_eq!(strategy.compiled(), 1);
}

/// Every call adds one.
fn count(strategy: &Recording, metric: &Sum, calls: usize) {
    for _ in 0..calls {
        let step = |ctx: &ReplicaContext, (x,): (Tensor<1>,)| metric.update_state(ctx, x.sum());
        strategy.run((ones(1),), step).unwrap();
    }
}

#[test]
fn another_metric_is_another_metric() {
    let strategy = Recording::new(1);
    let count = |metric: &Sum, calls: usize| count(&strategy, metric, calls);
    let (first, second) = (Sum::new(&strategy), Sum::new(&strategy));
    count(&first, 5);
    assert_eq!(first.result().unwrap(), 5.0);
    count(&second, 7);
    assert_eq!(second.result().unwrap(), 7.0);
    assert_eq!(first.result().unwrap(), 5.0);
    // One for each epoch.
    for epoch in 1..4_u8 {
        let metric = Sum::new(&strategy);
        count(&metric, usize::from(epoch));
        assert_eq!(metric.result().unwrap(), f64::from(epoch));
    }
    // In turns.
    let strategy = Recording::new(1);
    let metrics = [Sum::new(&strategy), Sum::new(&strategy)];
    for turn in 0..6 {
        let metric = &metrics[turn % 2];
        let step = |ctx: &ReplicaContext, (x,): (Tensor<1>,)| metric.update_state(ctx, x.sum());
        strategy.run((ones(1),), step).unwrap();
    }
    assert_eq!(metrics[0].result().unwrap(), 3.0);
    assert_eq!(metrics[1].result().unwrap(), 3.0);
    assert_eq!(strategy.compiled(), 1);
}

/// Nothing outside tells that a closure of the same type has another metric here.
#[test]
fn a_thread_of_its_own_has_a_metric_of_its_own() {
    let strategy = Recording::new(1);
    let (first, second) = (Sum::new(&strategy), Sum::new(&strategy));
    for turn in 1..4_u8 {
        count(&strategy, &first, 3);
        thread::scope(|scope| scope.spawn(|| count(&strategy, &second, 2)).join()).unwrap();
        if turn == 2 {
            assert_eq!(first.result().unwrap(), 6.0);
        }
    }
    assert_eq!(first.result().unwrap(), 9.0);
    assert_eq!(second.result().unwrap(), 6.0);
    assert_eq!(strategy.compiled(), 1);
}

#[test]
fn a_call_keeps_its_metric_while_another_thread_calls() {
    let strategy = Recording::new(1);
    let (first, second) = (Arc::new(Sum::new(&strategy)), Arc::new(Sum::new(&strategy)));
    for calls in 1..4 {
        let (there, metric) = (strategy.clone(), Arc::clone(&second));
        let other = move || {
            thread::spawn(move || count(&there, &metric, calls))
                .join()
                .unwrap()
        };
        let meanwhile = &strategy.recorder.meanwhile;
        *meanwhile.0.lock().unwrap() = Some(Box::new(other));
        count(&strategy, &first, 1);
    }
    assert_eq!(first.result().unwrap(), 3.0);
    assert_eq!(second.result().unwrap(), 6.0);
}

#[test]
fn shapes_that_do_not_fit_a_metric_are_an_error_of_the_step() {
    let strategy = Recording::new(1);
    let mean = Mean::new(&strategy);
    let step = |ctx: &ReplicaContext, ((x, y),): (Batch,)| {
        let weights = y.float().slice(0..2);
        mean.update_state_weighted(ctx, x, weights)
    };
    let error = strategy.run((batch(1, 4),), step).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let other = Mean::new(&Recording::new(1));
    assert_eq!(other.result().unwrap(), 0.0);
}

#[test]
fn the_same_value_and_lent_values_are_inputs() {
    let strategy = Recording::new(2);
    let lent = ones(2);
    for number in 0..3 {
        let same = Replicated((Tensor::<1>::full([3], number, &Device::flex()), 2.0_f32));
        let found = strategy.run((same, &lent), |_, ((x, factor), y)| {
            Ok((x * factor + y.clone(), factor))
        });
        for (_, factor) in found.unwrap().into_values() {
            assert_eq!(factor, 2.0);
        }
    }
    assert_eq!(strategy.compiled(), 1);
    assert_eq!(strategy.last().inputs.len(), 2);
    assert_eq!(lent.values()[1].dims(), [3], "the caller keeps it");
    strategy.run(Replicated(1.0_f32), |_, x| Ok(x)).unwrap();
    strategy.run(Replicated(2.0_f32), |_, x| Ok(x)).unwrap();
    assert_eq!(strategy.compiled(), 3);
}

#[test]
fn gathering_and_broadcasting_are_operations() {
    let strategy = Recording::new(2);
    let found = strategy.run(batch(2, 4), |ctx, (x, y)| {
        let rows = ctx.all_gather(x.clone(), 0)?;
        let columns = ctx.all_gather(x, 1)?;
        Ok((
            rows,
            columns,
            ctx.broadcast(1, y)?,
            ctx.all_gather(vec![1.0_f32; 1], 0).is_err(),
        ))
    });
    let (rows, columns, labels, _) = found.unwrap().into_values().remove(0);
    assert_eq!((rows.dims(), columns.dims()), ([8, 4], [4, 8]));
    assert_eq!(labels.dims(), [4]);
    let operations = operations(&strategy.last());
    let gathers = operations
        .iter()
        .filter(|op| op.starts_with("distribute.all_gather"));
    assert_eq!(gathers.count(), 3);
    for (axis, root) in [(2, 0), (-1, 0), (0, 2)] {
        let error = strategy.run(batch(2, 4), move |ctx, (x, _)| {
            ctx.broadcast(root, ctx.all_gather(x, axis)?)
        });
        let error = error.unwrap_err();
        let expected = matches!(error, Error::Axis { .. } | Error::InvalidArgument { .. });
        assert!(expected, "{error:?}");
    }
}

#[test]
fn variables_go_in_and_come_out() {
    let strategy = Recording::new(2);
    let mean = VariableOptions::default().aggregation(VariableAggregation::Mean);
    let five = TensorData::new(vec![5.0_f32], Shape::new([]));
    let threshold = strategy.variable(five, mean).unwrap();
    let seen = strategy
        .variable(0_i64, VariableOptions::on_read_sum())
        .unwrap();
    let none = strategy
        .variable(0.0_f32, VariableOptions::default())
        .unwrap();
    for _ in 0..3 {
        let step = |ctx: &ReplicaContext, (x,): (Tensor<1>,)| {
            seen.assign_add(ctx, 8_i64)?;
            Ok(x)
        };
        strategy.run((ones(2),), step).unwrap();
    }
    let captured = strategy.last();
    assert_eq!(captured.inputs.len(), 1, "only the variable");
    // What the program gave, in both copies.
    assert_eq!(seen.read(&strategy).unwrap(), 2);
    type Call = fn(&ReplicaContext, &DistributedVariable<f32>) -> Result<()>;
    let refused: [Call; 2] = [
        |ctx, variable| variable.read(ctx).map(drop),
        |ctx, variable| variable.assign(ctx, 1.0_f32),
    ];
    for refuse in refused {
        let error = strategy.run((), |ctx, ()| refuse(ctx, &none)).unwrap_err();
        let expected = matches!(
            error,
            Error::NotCompilable { .. } | Error::AggregationRequired { .. }
        );
        assert!(expected, "{error:?}");
    }
    let wrong = strategy.run((), |ctx, ()| threshold.assign(ctx, 1_i64));
    assert!(wrong.unwrap_err().to_string().contains("cast the value"));
}
