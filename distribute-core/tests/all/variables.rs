//! Variables that are used wrongly, or that a failed run left behind. What they have in common with
//! TensorFlow's is checked by the crate `conformance`.

use burn::tensor::{Shape, TensorData};
use distribute_core::{Error, MirroredStrategy, StrategyExt, VariableAggregation, VariableOptions};

use crate::mirrored;

#[test]
fn wrong_shapes_and_types_are_refused_before_anything_is_sent() {
    let strategy = mirrored(2);
    let options = VariableOptions::default().aggregation(VariableAggregation::Sum);
    let one = TensorData::new(vec![1.0_f32], Shape::new([]));
    let variable = strategy.variable(one, options).unwrap();
    let wrong = TensorData::new(vec![1.0_f32, 2.0], [2]);
    let error = strategy
        .run((), |ctx, ()| variable.assign(ctx, wrong.clone()))
        .unwrap_err();
    assert!(
        matches!(error.root_cause(), Error::Shape { .. }),
        "{error:?}"
    );
    let error = variable.assign(&strategy, 1_i32).unwrap_err();
    insta::assert_snapshot!(
        error,
        @"assign: the variable holds f32 elements and the value i32; cast the value first"
    );
    let inside = strategy.run((), |_, ()| variable.read(&strategy));
    let error = inside.unwrap_err();
    assert!(
        matches!(error.root_cause(), Error::InsideStep { what: "read", .. }),
        "{error:?}"
    );
}

/// A run that fails between the updates of two replicas must not go unnoticed.
#[test]
fn copies_that_a_failed_run_left_behind_are_found() {
    // The replicas meet by a barrier: they must not take turns.
    let builder = MirroredStrategy::builder().replicas(2).cores(2);
    let strategy = builder.build().unwrap();
    let options = VariableOptions::default().aggregation(VariableAggregation::Sum);
    let variable = strategy.variable(1_i64, options).unwrap();
    // Replica 1 fails after the all-reduce that its update consists of, before its own copy, and
    // only when replica 0 has updated its copy.
    let updated = std::sync::Barrier::new(2);
    let failed = strategy.run((), |ctx, ()| {
        if ctx.replica_id() == 1 {
            ctx.all_reduce(distribute_core::ReduceOp::Sum, 5_i64)?;
            updated.wait();
            return Err(Error::step("gone"));
        }
        let result = variable.assign_add(ctx, 5_i64);
        updated.wait();
        result
    });
    assert!(failed.is_err());
    let error = variable.read(&strategy).unwrap_err();
    assert!(matches!(error, Error::Diverged { op: "read" }), "{error:?}");
    variable.assign(&strategy, 3_i64).unwrap();
    assert_eq!(variable.read(&strategy).unwrap(), 3);
}

/// What a checkpoint does: read under one strategy, assign under another.
#[test]
fn a_summed_variable_moves_between_replica_counts() {
    let (two, three) = (mirrored(2), mirrored(3));
    let from = two
        .variable(0.0_f64, VariableOptions::on_read_sum())
        .unwrap();
    two.run((), |ctx, ()| from.assign_add(ctx, 1.5_f64))
        .unwrap();
    let to = three
        .variable(0.0_f64, VariableOptions::on_read_sum())
        .unwrap();
    to.assign(&three, from.read(&two).unwrap()).unwrap();
    assert_eq!(to.local_values().unwrap(), [1.0; 3]);
    assert_eq!(to.read(&three).unwrap(), 3.0);
}
